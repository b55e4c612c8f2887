"""The mean as a sum that cannot leave the range of its numbers.

- Numbers of 32 and 64 bits are first scaled by a power of two, 1/p or less, which is exact but for
  what falls below the smallest normal number; ``Operation.finish`` divides by the rest. Where few
  are summed (``OneShot``), both are done there.
- float16 is summed as float32.
- An integer is a quotient by p and a remainder, which are summed apart: x = p·q + r, and so the
  sum of x, divided by p and rounded down, is the sum of q and that of r, divided likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from psrt.collective.ops import OPS
from psrt.core.arrays import AnyVector
from psrt.core.partition import even_spans
from psrt.mpi.collectives.plans.one_shot import OneShot
from psrt.mpi.collectives.plans.plan import Around, Plan, Run

#: Makes the plan that reduces a vector by an operation.
Make = Callable[[AnyVector, str], Plan]


class Mean(Around):
    """The plan of one rank, around one that sums."""

    def __init__(self, vector: AnyVector, size: int, make: Make) -> None:
        """Compile.

        Args:
            vector: (n,), this rank's.
            size: ranks, more than one.
            make: makes a plan.
        """
        self._vector, self._size = vector, size
        self._chunks = [span.of(vector) for span in even_spans(vector.size, size)]
        self._summed, op = vector, "mean"
        if vector.dtype == np.float16:
            self._summed = np.empty(vector.size, np.float32)
        elif vector.dtype.kind == "i":
            # A chunk's quotients, then its remainders, so that its rank owns both of them.
            self._summed, op = np.zeros(2 * size * self._chunks[0].size, vector.dtype), "sum"
        super().__init__(make(self._summed, op))
        #: The plan that does by itself what this one is for, which few numbers have; None if none.
        self.alone: Plan | None = None
        self._scale = OPS["mean"].scale(vector.dtype, size)
        if isinstance(self.plan, OneShot) and op == "mean":
            self._scale = 1.0
            self.alone = self.plan if self._summed is vector else None

    def run(self) -> Run:
        """Run it."""
        vector, summed = self._vector, self._summed
        is_whole = vector.dtype.kind == "i"
        if is_whole:
            for chunk, quotients, rests in self._parts():
                np.divmod(chunk, self._size, out=(quotients, rests))
        else:
            np.multiply(vector, self._scale, out=summed)
        yield from self.plan.run()
        if is_whole:
            for chunk, quotients, rests in self._parts():
                np.add(quotients, rests // self._size, out=chunk)
        elif summed is not vector:
            np.copyto(vector, summed, casting="same_kind")

    def _parts(self) -> Iterator[tuple[AnyVector, AnyVector, AnyVector]]:
        """Yield each chunk of the vector, and where its quotients and remainders are summed."""
        rows = self._summed.reshape(self._size, 2, -1)
        for chunk, (quotients, rests) in zip(self._chunks, rows, strict=True):
            yield chunk, quotients[: chunk.size], rests[: chunk.size]
