"""A rendezvous of all workers: the last arrival triggers the result, available after a delay.

It models sums through shared memory, as on one host, and the comparison of numbers. The delay after
the last arrival:

=====================  ============================================================================
with ``costs.reduce``  one draw per round, the same for all buckets of a gradient; each fragment of
                       the parameters has its own rounds, in turn. A draw includes the sum of the
                       control values and the comparison of numbers. If control values say that
                       no worker trains any more, and nothing else is summed, it is
                       ``costs.last_sum``
without                two barriers of one latency each, plus the bytes that a rank moves at the
                       bandwidth of its link, one sum after another. If ``costs.hosts`` puts all
                       ranks on one host, the time that its shared memory takes
                       (``MachineCosts.node``)
=====================  ============================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from psrt.simulation.cell import World

#: Makes the result from the workers' values, in worker order.
Fold = Callable[[Sequence[Any]], Any]
#: Called with the result when it is available.
OnResult = Callable[[Any], None]


@dataclass(eq=False)
class Rendezvous:
    """A barrier with a result, round after round; every worker attends every round, in order."""

    #: The simulator of the workers.
    world: World
    #: Makes the result; called once per round, when the last worker has arrived.
    fold: Fold
    #: (i, result) → the delay from then until the i-th round's result is available.
    seconds: Callable[[int, Any], float]
    _: KW_ONLY
    #: The number of workers that meet; 0: all workers of ``world``.
    workers: int = 0
    #: Rounds that are complete.
    _complete: int = field(default=0, init=False)
    #: By worker, its value for the next round and its callback.
    _arrived: dict[int, tuple[Any, OnResult]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.workers = self.workers or len(self.world.role_map.workers)

    def arrive(self, worker: int, brings: Any, on_result: OnResult) -> None:
        """Arrive at the next round.

        Args:
            worker: its number.
            brings: its value for the fold; must not change until the result is available.
            on_result: called with the result, by a separate event for each worker.
        """
        assert worker not in self._arrived, "nobody arrives twice before all have arrived"
        self._arrived[worker] = brings, on_result
        if len(self._arrived) < self.workers:
            return
        # In worker order, not in arrival order, so that sums are bit-identical for any arrival
        # order.
        arrived, self._arrived = [self._arrived[i] for i in range(self.workers)], {}
        result = self.fold([brought for brought, _ in arrived])
        seconds = self.seconds(self._complete, result)
        self._complete += 1
        for _, on_result in arrived:
            self.world.after(seconds, on_result, result)


@dataclass(eq=False, slots=True)
class RendezvousTable:
    """Every rendezvous of one world, by key."""

    world: World
    _known: dict[object, Rendezvous] = field(default_factory=dict, init=False)
    #: The draws of ``costs.reduce``, by round.
    _drawn: list[float] = field(default_factory=list, init=False)
    #: When the bytes of all sums so far have been moved.
    _free: float = field(default=0.0, init=False)
    #: The number of rendezvous that take such a draw; fragments take turns.
    _timed: int = field(default=0, init=False)

    def at(self, key: object, fold: Fold, nbytes: float, *, along: bool) -> Rendezvous:
        """Return the rendezvous of this key; the first worker that asks makes it.

        Args:
            key: the same on all workers.
            fold: makes the result.
            nbytes: the bytes that a rank moves.
            along: whether ``costs.reduce`` already includes its time, see the module.
        """
        if key not in self._known:
            fragments = self.world.role_map.controls
            number = self._timed % fragments
            self._timed += not along
            self._known[key] = Rendezvous(
                self.world,
                fold,
                lambda round_, result: self._seconds(
                    round_ * fragments + number, nbytes, result, along=along
                ),
            )
        return self._known[key]

    def free(self, key: object, fold: Fold) -> Rendezvous:
        """Return the rendezvous of this key, whose result is available at once.

        Args:
            key: the same on all workers.
            fold: makes the result.
        """
        if key not in self._known:
            self._known[key] = Rendezvous(self.world, fold, lambda round_, result: 0.0)
        return self._known[key]

    def _seconds(self, round_: int, nbytes: float, result: Any, *, along: bool) -> float:
        world = self.world
        costs, rng = world.costs, world.rng
        if costs.reduce is None:
            ranks = [world.role_map.rank_name(rank) for rank in world.role_map.workers]
            if len(ranks) == 1:
                return 0.0
            # Sums share the connection between the ranks: their bytes move one after the other.
            waits = max(0.0, self._free - world.time)
            self._free = world.time + waits + moving_s(world, ranks, nbytes)
            return waits + two_barriers(world, ranks, nbytes)
        if along:
            is_over = isinstance(result, np.ndarray) and not result.any()
            return costs.last_sum if is_over else 0.0
        while len(self._drawn) <= round_:
            self._drawn.append(costs.reduce(rng))
        return self._drawn[round_]


def hosts_among(world: World, ranks: Sequence[int]) -> int:
    """Return the number of hosts of these ranks; each is its own host if ``hosts`` is None."""
    hosts = world.costs.hosts
    return len(ranks if hosts is None else {hosts[rank] for rank in ranks})


def two_barriers(world: World, ranks: Sequence[int], nbytes: float) -> float:
    """Draw the time of two barriers, between which each rank moves ``nbytes``.

    Args:
        world: of these ranks.
        ranks: ranks of the job, two or more.
        nbytes: moved over a link, or in the shared memory of the host if all are on one.
    """
    costs, rng = world.costs, world.rng
    if hosts_among(world, ranks) == 1:
        return world.machine.node.seconds(len(ranks), nbytes, len(ranks))
    moved = nbytes * (costs.per_byte + 1.0 / costs.bandwidth)
    return costs.latency(rng) + costs.latency(rng) + moved


def moving_s(world: World, ranks: Sequence[int], nbytes: float) -> float:
    """Return how long the connection between these ranks is busy with ``nbytes`` of each, in s."""
    if hosts_among(world, ranks) == 1:
        node, p = world.machine.node, len(ranks)
        return node.seconds(p, nbytes, p) - node.seconds(p, 0, p)
    return nbytes / world.costs.bandwidth
