"""Faults in a simulator: when each strikes, and what it does to ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass

from psrt.config.faults import EVENT, Fault
from psrt.simulation.disturbed import DisturbedNetwork
from psrt.simulation.simulator import Simulator


@dataclass(eq=False)
class Injector:
    """Injects faults into the ranks of a simulator."""

    #: Must not have begun to run.
    world: Simulator
    _: KW_ONLY
    #: Virtual seconds without a sign of life, after which a rank is declared dead.
    timeout_s: float

    def __post_init__(self) -> None:
        self._network = DisturbedNetwork(self.world.network)

    def add(self, fault: Fault, ranks: Sequence[int], struck: Callable[[], None]) -> None:
        """Schedule a fault, which strikes once.

        Args:
            fault: its time counts from the start of this attempt.
            ranks: the ranks that it strikes.
            struck: called when it strikes.
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
        """Make all messages use the network that faults can disturb."""
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
        # If any ranks survive, they are those on the side of rank 0.
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
        """Declare silent ranks dead, if the fault lasts longer than the timeout."""
        if lasts is None or lasts > self.timeout_s:
            for rank in ranks:
                self.world.after(self.timeout_s, self._lose if lasts is None else self._doubt, rank)

    def _lose(self, rank: int) -> None:
        self._forget(rank)
        self.world.suspect(rank, for_ever=True)

    def _doubt(self, rank: int) -> None:
        if not self.world.role_map.servers:  # only servers recognize what comes too late
            self._forget(rank)
        self.world.suspect(rank)

    def _forget(self, rank: int) -> None:
        """Lose the messages of a rank that a partition holds, unless the rank has ended.

        Neighbours still receive them, as they receive what a crashed neighbour had sent.
        """
        held = self._network.drop(rank)
        if self.world.role_map.peers or not self.world.is_running(rank):
            for send in held:
                send()
