"""A rendezvous of all workers: the last arrival makes the result, which is there a while later.

Sums without messages are of this kind, as on one host, where everybody leaves numbers that the
others can see; so is comparing numbers. How long it takes from the last arrival on:

=====================  ============================================================================
with ``costs.reduce``  what that draws, once a round, for all parts of a gradient that are summed
                       apart; what is summed along with a gradient (the extras), and comparing
                       numbers, is included in it
without                two barriers of a latency each, and the bytes that a rank moves at the speed
                       of its link
=====================  ============================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psrt.simulation.simulator import Simulator

#: Makes the result of what the workers brought, in their order.
Fold = Callable[[Sequence[Any]], Any]
#: Called with the result when it is there.
OnResult = Callable[[Any], None]


class Rendezvous:
    """Where all workers meet, round after round; each attends every round, in order."""

    def __init__(self, world: Simulator, fold: Fold, seconds: Callable[[int], float]) -> None:
        """Set up.

        Args:
            world: whose workers they are.
            fold: makes the result; called once a round, when the last worker has arrived.
            seconds: from then until the result of the i-th round is there.
        """
        self._world = world
        self._workers = len(world.role_map.workers)
        self._fold = fold
        self._seconds = seconds
        #: Rounds that are complete.
        self._complete = 0
        #: By worker, what it brought to the next one and what is called with the result.
        self._arrived: dict[int, tuple[Any, OnResult]] = {}

    def arrive(self, worker: int, brings: Any, on_result: OnResult) -> None:
        """Arrive at the next round.

        Args:
            worker: who arrives, its number.
            brings: for the fold; left alone until the result is there.
            on_result: called with the result, by an event of this worker's own.
        """
        assert worker not in self._arrived, "nobody arrives twice before all have arrived"
        self._arrived[worker] = brings, on_result
        if len(self._arrived) < self._workers:
            return
        # In worker order, not in that of arrival: sums are the same to the bit whoever is late.
        arrived, self._arrived = [self._arrived[i] for i in range(self._workers)], {}
        result = self._fold([brought for brought, _ in arrived])
        seconds = self._seconds(self._complete)
        self._complete += 1
        for _, on_result in arrived:
            self._world.after(seconds, on_result, result)


class RendezvousTable:
    """Every rendezvous of one world, by key."""

    def __init__(self, world: Simulator) -> None:
        self._world = world
        self._known: dict[object, Rendezvous] = {}
        #: What ``costs.reduce`` drew, by round.
        self._drawn: list[float] = []

    def at(self, key: object, fold: Fold, nbytes: float, *, along: bool) -> Rendezvous:
        """Return what the workers know by ``key``; the first that asks makes it.

        Args:
            key: the same on all workers.
            fold: makes the result.
            nbytes: that a rank moves.
            along: whether it comes along with something else, see the module.
        """
        if key not in self._known:
            self._known[key] = Rendezvous(
                self._world, fold, lambda round_: self._seconds(round_, nbytes, along)
            )
        return self._known[key]

    def _seconds(self, round_: int, nbytes: float, along: bool) -> float:
        world = self._world
        costs, rng = world.costs, world.rng
        if costs.reduce is None:
            if len(world.role_map.workers) == 1:
                return 0.0
            moved = nbytes * (costs.per_byte + 1.0 / costs.bandwidth)
            return costs.latency(rng) + costs.latency(rng) + moved
        if along:
            return 0.0
        while len(self._drawn) <= round_:
            self._drawn.append(costs.reduce(rng))
        return self._drawn[round_]
