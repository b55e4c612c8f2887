"""Faults in a simulator: when each strikes, and what it does to ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from psrt.config.faults import EVENT, Fault
from psrt.simulation.simulator import Simulator


def inject(
    world: Simulator, fault: Fault, ranks: Sequence[int], struck: Callable[[], None]
) -> None:
    """Have a fault strike; to be called before ``run``.

    Args:
        world: in which.
        fault: counted from the start of this attempt.
        ranks: that it strikes.
        struck: called when it does.
    """

    def strike() -> None:
        struck()
        _STRIKES[fault.kind](world, fault, ranks)

    if fault.unit == EVENT:
        world.before(int(fault.at), strike)
    else:
        world.after(fault.at, lambda _: strike())


def _crash(world: Simulator, fault: Fault, ranks: Sequence[int]) -> None:
    for rank in ranks:
        world.crash(rank, fault.lasts or 0.0)


#: What a kind does when it strikes.
_STRIKES: dict[str, Callable[[Simulator, Fault, Sequence[int]], None]] = {"crash": _crash}
