"""Faults in a simulator: when each strikes, and what it does to ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from psrt.config.faults import EVENT, Fault
from psrt.simulation.disturbed import DisturbedNetwork
from psrt.simulation.simulator import Simulator


class Injector:
    """Has faults strike the ranks of a simulator."""

    def __init__(self, world: Simulator, *, timeout_s: float) -> None:
        """Set up.

        Args:
            world: which has not begun to run.
            timeout_s: virtual seconds without a sign of life, after which a rank is taken to be
                dead.
        """
        self._world, self._timeout_s = world, timeout_s
        self._network = DisturbedNetwork(world.network)

    def add(self, fault: Fault, ranks: Sequence[int], struck: Callable[[], None]) -> None:
        """Have a fault strike once.

        Args:
            fault: counted from the start of this attempt.
            ranks: that it strikes.
            struck: called when it does.
        """
        act = {
            "crash": self._crash, "pause": self._pause, "cut": self._cut, "slow": self._slow,
            "suspect": self._suspect,
        }[fault.kind]  # fmt: skip

        def strike() -> None:
            struck()
            act(fault, ranks)

        if fault.kind in ("cut", "slow"):
            self._disturb()
        if fault.unit == EVENT:
            self._world.before(int(fault.at), strike)
        else:
            self._world.after(fault.at, lambda _: strike())

    def _disturb(self) -> None:
        """Have all messages go by the network that can be disturbed."""
        world = self._world
        world.network = self._network
        for port in world.ports:
            port.world.network = self._network

    def _crash(self, fault: Fault, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self._world.crash(rank, fault.lasts or 0.0)

    def _pause(self, fault: Fault, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self._world.hold(rank)
            if fault.lasts is not None:
                self._world.after(fault.lasts, self._world.let_go, rank)
        self._watch(ranks, fault.lasts)

    def _cut(self, fault: Fault, ranks: Sequence[int]) -> None:
        self._network.cut(ranks)
        if fault.lasts is not None:
            self._world.after(fault.lasts, self._network.heal, ranks)
        # Who is on the side of the first rank goes on, if anybody does.
        others = [rank for rank in range(self._world.role_map.size) if rank not in ranks]
        self._watch(others if 0 in ranks else ranks, fault.lasts)

    def _slow(self, fault: Fault, ranks: Sequence[int]) -> None:
        self._network.slow(ranks, fault.factor)
        if fault.lasts is not None:
            self._world.after(fault.lasts, lambda _: self._network.fast(ranks, fault.factor))

    def _suspect(self, _: Fault, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self._doubt(rank)

    def _watch(self, ranks: Sequence[int], lasts: float | None) -> None:
        """Take ranks of which nobody hears to be dead, once that has lasted too long."""
        if lasts is None or lasts > self._timeout_s:
            for rank in ranks:
                self._world.after(
                    self._timeout_s, self._lose if lasts is None else self._doubt, rank
                )

    def _lose(self, rank: int) -> None:
        self._forget(rank)
        self._world.suspect(rank, for_ever=True)

    def _doubt(self, rank: int) -> None:
        if not self._world.role_map.servers:  # which alone know what comes too late
            self._forget(rank)
        self._world.suspect(rank)

    def _forget(self, rank: int) -> None:
        """Let what a rank has sent into a cut be lost, unless the rank was done with that.

        Neighbours still take it, as what any of them has sent that crashes.
        """
        held = self._network.drop(rank)
        if self._world.role_map.peers or not self._world.is_running(rank):
            for send in held:
                send()
