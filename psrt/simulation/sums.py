"""What the workers of a virtual world do together without messages: sums, and comparing numbers.

``node`` and ``mpi`` are such sums, and any all-reduce of which ``Costs.reduce`` says how long it
takes; their bits and bytes are those of the real ones. ``gathering`` says when they are over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from psrt.collective import ALGORITHMS
from psrt.collective.registry import LIBRARY
from psrt.partition import Span, even_spans
from psrt.simulation.folds import BySchedule, by_owners, in_worker_order
from psrt.simulation.gathering import Fold
from psrt.simulation.schedule_run import hand_over
from psrt.transport.majority import outliers
from psrt.transport.port import Take, Vector

if TYPE_CHECKING:
    from psrt.simulation.port import VirtualPort


class GatheredSum:
    """One worker's part in the sums of one span of ``gradient``; see ``port.Reduction``."""

    def __init__(
        self,
        port: VirtualPort,
        mine: Vector | None,
        span: Span,
        algorithm: str,
        take: Take | None,
        *,
        key: int,
    ) -> None:
        """Set up.

        Args:
            port: of this worker.
            mine: its numbers; None moves their bytes only.
            span: of the gradient, where they are.
            algorithm: a key of ``ALGORITHMS``, ``node`` or ``mpi``.
            take: see ``port.Take``; every rank owns every element.
            key: of the reduction, the same on all workers.
        """
        self._port, self._mine, self._span, self._take = port, mine, span, take
        ranks, whole = len(port.wiring.workers), take is None
        self._worker = _worker(port)
        self._moves = _moved_bytes(algorithm, self._worker, ranks, span.size, whole=whole)
        self._gathering = port.world.gatherings.of(
            key,
            _nothing if mine is None else _fold(algorithm, whole=whole),
            4 * span.size * (ranks - 1) / ranks,
            along=whole,
        )
        self._over = True
        #: The sums, from when they are there until they are taken; without numbers nothing.
        self._found: list[Vector | None] = []

    def begin(self) -> None:
        """Come to the others."""
        assert self._over, "a round begins when the last one is over"
        self._over = False
        self._port.soon(self._come)

    def _come(self) -> None:
        self._port.bytes_sent += self._moves
        self._gathering.come(self._worker, self._mine, self._told)

    def _told(self, sums: Vector | None) -> None:
        self._port.bytes_received += self._moves
        self._found.append(sums)
        self._port.world.wake(self._port.rank)

    def poll(self) -> bool:
        """Take the sums if they are there."""
        if self._found:
            self._over = True
            sums = self._found.pop()
            if self._mine is not None and sums is not None:
                # All workers find the same array, and who takes sums may overwrite them.
                owned = sums if self._take is None else sums.copy()
                hand_over(self._span, self._mine, owned, self._take)
        return self._over

    async def finish(self) -> None:
        """Look again whenever something arrives."""
        while not self.poll():
            await self._port.arrival()


async def differing(port: VirtualPort, number: int) -> list[int]:
    """Compare one number of each worker; see ``Port.differing``."""
    others = len(port.wiring.workers) - 1
    found: list[list[int]] = []

    def told(wrong: list[int]) -> None:
        port.bytes_received += 8 * others
        found.append(wrong)
        port.world.wake(port.rank)

    port.bytes_sent += 8 * others
    gathering = port.world.gatherings.of("differing", outliers, 8 * others, along=True)
    gathering.come(_worker(port), number, told)
    while not found:
        await port.arrival()
    return list(found[0])


def _worker(port: VirtualPort) -> int:
    worker = port.wiring.worker_of(port.rank)
    assert worker is not None, "only workers sum and compare"
    return worker


def _fold(algorithm: str, *, whole: bool) -> Fold:
    """Return what folds the workers' numbers; ``whole``: all ranks want all of the few sums."""
    if algorithm in ALGORITHMS:
        return BySchedule(algorithm)
    return in_worker_order if whole or algorithm == LIBRARY else by_owners


def _nothing(brought: Sequence[Any]) -> None:
    """Fold what has no numbers."""


def _moved_bytes(algorithm: str, rank: int, ranks: int, n: int, *, whole: bool) -> int:
    """Return the bytes that a rank sends in a sum of n elements, as a real one counts them."""
    if algorithm in ALGORITHMS:
        steps = ALGORITHMS[algorithm](rank, ranks, n)
        return 4 * sum(s.send.size for s in steps if s.send_to not in (None, rank))
    if algorithm == LIBRARY:
        return 4 * n
    own = n if whole else even_spans(n, ranks)[rank].size
    return 4 * own * (ranks - 1)
