"""Faults in a simulator: when each strikes, and what it does to ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass

from psrt.config.faults import EVENT, Fault
from psrt.simulation.disturbed import DisturbedNetwork
from psrt.simulation.simulator import Simulator


@dataclass(eq=False)
class Injector:
    """Has faults strike the ranks of a simulator."""

    #: Which has not begun to run.
    world: Simulator
    _: KW_ONLY
    #: Virtual seconds without a sign of life, after which a rank is taken to be dead.
    timeout_s: float

    def __post_init__(self) -> None:
        self._network = DisturbedNetwork(self.world.network)

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
            self.world.before(int(fault.at), strike)
        else:
            self.world.after(fault.at, lambda _: strike())

    def _disturb(self) -> None:
        """Have all messages go by the network that can be disturbed."""
        world = self.world
        world.network = self._network
        for port in world.ports:
            port.world.network = self._network

    def _crash(self, fault: Fault, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self.world.crash(rank, fault.lasts or 0.0)

    def _pause(self, fault: Fault, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self.world.hold(rank)
            if fault.lasts is not None:
                self.world.after(fault.lasts, self.world.let_go, rank)
        self._watch(ranks, fault.lasts)

    def _cut(self, fault: Fault, ranks: Sequence[int]) -> None:
        self._network.cut(ranks)
        if fault.lasts is not None:
            self.world.after(fault.lasts, self._network.heal, ranks)
        # Who is on the side of the first rank goes on, if anybody does.
        others = [rank for rank in range(self.world.role_map.size) if rank not in ranks]
        self._watch(others if 0 in ranks else ranks, fault.lasts)

    def _slow(self, fault: Fault, ranks: Sequence[int]) -> None:
        self._network.slow(ranks, fault.factor)
        if fault.lasts is not None:
            self.world.after(fault.lasts, lambda _: self._network.fast(ranks, fault.factor))

    def _suspect(self, _: Fault, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self._doubt(rank)

    def _watch(self, ranks: Sequence[int], lasts: float | None) -> None:
        """Take ranks of which nobody hears to be dead, once that has lasted too long."""
        if lasts is None or lasts > self.timeout_s:
            for rank in ranks:
                self.world.after(self.timeout_s, self._lose if lasts is None else self._doubt, rank)

    def _lose(self, rank: int) -> None:
        self._forget(rank)
        self.world.suspect(rank, for_ever=True)

    def _doubt(self, rank: int) -> None:
        if not self.world.role_map.servers:  # which alone know what comes too late
            self._forget(rank)
        self.world.suspect(rank)

    def _forget(self, rank: int) -> None:
        """Let what a rank has sent into a cut be lost, unless the rank was done with that.

        Neighbours still take it, as what any of them has sent that crashes.
        """
        held = self._network.drop(rank)
        if self.world.role_map.peers or not self.world.is_running(rank):
            for send in held:
                send()
