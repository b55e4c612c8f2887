"""Sums of given arrays by a codec, again and again: the part of ``Communicator`` with a memory.

Unlike other calls these are compiled once and then kept: what a codec has kept back of one sum
belongs to the next one, so none may be dropped for calls that came later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from psrt.collective.analysis.pick import pick_coded
from psrt.core.arrays import Vector
from psrt.core.errors import ConfigError
from psrt.core.partition import Span
from psrt.transport.coded_sum import SumCodec, SumPart

if TYPE_CHECKING:
    from psrt.mpi.call_cache import CallCache
    from psrt.mpi.collectives.executor import CollectiveExecutor, Work
    from psrt.mpi.collectives.plans.plan import Plan


@dataclass(eq=False, slots=True)
class RepeatedSum:
    """This rank's part in the sums of one array."""

    _calls: CallCache
    _signature: str
    _plan: Plan
    _vector: Vector
    #: Among the calls in progress; starts of other calls have numbers from 0 on.
    _number: int
    #: What makes its messages, with what it keeps back; none if this rank sends none.
    parts: Sequence[SumPart]
    _work: Work | None = field(default=None, init=False)

    def start(self) -> Work:
        """Start to replace the array by the mean over all ranks; it must not be used until then.

        Raises:
            ProtocolError, TransportError: as ``Communicator.all_reduce_async``.
        """
        self.wait()
        executor = self._calls.executor
        executor.call(self._signature)
        self._work = work = executor.start(self._plan, self._vector)
        if not work.done:
            self._calls.under_way[self._number] = (self._vector, None, work)
        return work

    def wait(self) -> None:
        """Wait until the newest sum is complete.

        Raises:
            ProtocolError, TransportError: as ``start``.
        """
        if self._work is not None:
            self._work.wait()

    def close(self) -> None:
        """Let its memory go to other calls; it must not be started again."""
        self._calls.executor.contexts.kept.discard(self._signature)


class RepeatedSums:
    """Makes these sums: a part of ``Communicator``."""

    #: The number of ranks on each host.
    hosts: tuple[int, ...]
    _executor: CollectiveExecutor
    _calls: CallCache
    _made = 0

    def coded_sums(
        self, codec: SumCodec, places: Sequence[tuple[Vector, Span]], algorithm: str = "auto"
    ) -> list[RepeatedSum]:
        """Prepare sums whose messages a codec makes; collective.

        Each can be started when its array is ready, in the same order on every rank, and several
        may be in progress. Inside hosts numbers are summed as they are, in shared memory.

        Args:
            codec: of this rank; its ``begin_round`` sets what the ranks' numbers are divided by.
            places: arrays (n,) float32 from ``empty``, and which part of a whole vector each is;
                of the same sizes on every rank.
            algorithm: of the all-reduce that sums them; ``auto`` picks one for the largest.

        Raises:
            ConfigError: if the all-reduce does not sum what the codec makes, or there are too many.
            ProtocolError: if the ranks' calls differ.
        """
        from psrt.mpi.collectives.compiler import Coded  # not above: it imports MPI
        from psrt.mpi.collectives.plans.plan import Quiet

        largest = max((span for _, span in places), key=lambda span: span.size)
        coding = codec.coding(largest)
        chosen = pick_coded(algorithm, self.hosts, coding, self._calls.costs).algorithm
        executor, found = self._executor, list[RepeatedSum]()
        for vector, span in places:
            self._made += 1
            signature = f"coded sum {self._made} of {span} by {chosen} and {coding.codec}"
            self._calls.check_open(signature)
            place, before = executor.segments.locate(vector), len(codec.sums)
            # Before it is compiled: that makes several places, of which none may displace another.
            executor.contexts.kept.add(signature)
            try:
                plan = executor.compiler.all_reduce(
                    signature, vector, "sum", chosen, place, coded=Coded(codec, span)
                )
            except ConfigError:
                executor.contexts.kept.discard(signature)
                for it in found:
                    it.close()
                raise
            parts, number = codec.sums[before:], -self._made
            found.append(RepeatedSum(self._calls, signature, Quiet(plan), vector, number, parts))
        return found
