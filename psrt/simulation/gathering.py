"""What all workers of a virtual world come to, and what each finds there at the end.

Sums without messages are of this kind, as on one host: everybody leaves his numbers where the
others see them, the last one to come sets off the fold, and some time later all have its result.
What that takes after the last worker has come:

=====================  ============================================================================
with ``Costs.reduce``  what that draws, the same for all parts of a gradient that are summed apart;
                       what is summed along with a gradient (the extras), and comparing, is in it
without                two meetings of a latency each, and the bytes that a rank moves at the speed
                       of its link
=====================  ============================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psrt.simulation.scheduler import VirtualWorld

#: Makes the result out of what the workers brought, in their order.
Fold = Callable[[Sequence[Any]], Any]
#: Called with the result when it is there.
Told = Callable[[Any], None]


class Gathering:
    """Meeting after meeting of all workers; each comes to all of them, in order."""

    def __init__(self, world: VirtualWorld, fold: Fold, seconds: Callable[[int], float]) -> None:
        """Set up.

        Args:
            world: whose workers they are.
            fold: makes the result; called once a meeting, when the last has come.
            seconds: how long after that the result of the i-th meeting is there.
        """
        self._world = world
        self._workers = len(world.wiring.workers)
        self._fold = fold
        self._seconds = seconds
        #: Meetings that are complete.
        self._held = 0
        #: By worker, what it brought to the next one and what is told of the result.
        self._here: dict[int, tuple[Any, Told]] = {}

    def come(self, worker: int, brings: Any, told: Told) -> None:
        """Come to the next meeting.

        Args:
            worker: who comes, its number.
            brings: for the fold; left alone until the result is there.
            told: called when it is, by an event of this worker's own.
        """
        assert worker not in self._here, "nobody comes twice before all have come"
        self._here[worker] = brings, told
        if len(self._here) < self._workers:
            return
        here, self._here = [self._here[i] for i in range(self._workers)], {}
        result = self._fold([brought for brought, _ in here])
        seconds = self._seconds(self._held)
        self._held += 1
        for _, tell in here:
            self._world.after(seconds, tell, result)


class Gatherings:
    """All that the workers of one world come to."""

    def __init__(self, world: VirtualWorld) -> None:
        self._world = world
        self._known: dict[object, Gathering] = {}
        #: What ``Costs.reduce`` drew for round after round.
        self._drawn: list[float] = []

    def of(self, key: object, fold: Fold, nbytes: float, *, along: bool) -> Gathering:
        """Return what the workers know by ``key``; the first that asks makes it.

        Args:
            key: the same on all workers.
            fold: makes the result.
            nbytes: that a rank moves.
            along: whether it comes along with something else, see the module.
        """
        if key not in self._known:
            self._known[key] = Gathering(
                self._world, fold, lambda held: self._seconds(held, nbytes, along)
            )
        return self._known[key]

    def _seconds(self, held: int, nbytes: float, along: bool) -> float:
        world = self._world
        costs, rng = world.costs, world.rng
        if costs.reduce is None:
            if len(world.wiring.workers) == 1:
                return 0.0
            moved = nbytes * (costs.per_byte + 1.0 / costs.bandwidth)
            return costs.latency(rng) + costs.latency(rng) + moved
        if along:
            return 0.0
        while len(self._drawn) <= held:
            self._drawn.append(costs.reduce(rng))
        return self._drawn[held]
