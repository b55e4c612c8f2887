"""The mean, as a sum that cannot overflow if the numbers themselves do not.

- Floats of 32 and 64 bits are first scaled by a power of two, at most 1/p, which is exact except
  below the smallest normal number; ``Operation.finish`` divides by the rest. ``OneShot`` does both
  itself.
- float16 is summed as float32.
- An integer is split into a quotient by p and a remainder, which are summed separately:
  x = p·q + r, so ⌊Σx / p⌋ = Σq + ⌊Σr / p⌋, where 0 ≤ Σr < p². Rounding down can take Σq just
    below the smallest integer. It then wraps around, and adding ⌊Σr / p⌋ wraps it back, since the
    mean itself fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from psrt.collective.ops import OPS
from psrt.core.arrays import AnyVector
from psrt.core.partition import even_spans
from psrt.mpi.collectives.plans.one_shot import OneShot
from psrt.mpi.collectives.plans.plan import Around, Plan, Run

#: Makes a plan that reduces a vector by an operation.
Make = Callable[[AnyVector, str], Plan]


class Mean(Around):
    """The plan of one rank, around a plan that sums."""

    def __init__(self, vector: AnyVector, size: int, make: Make) -> None:
        """Compile.

        Args:
            vector: (n,), this rank's.
            size: the number of ranks, more than one.
            make: makes a plan.
        """
        self._vector, self._size = vector, size
        self._chunks = [span.of(vector) for span in even_spans(vector.size, size)]
        self._summed, op = vector, "mean"
        if vector.dtype == np.float16:
            self._summed = np.empty(vector.size, np.float32)
        elif vector.dtype.kind == "i":
            # Each chunk's quotients and then its remainders, so that one rank owns both.
            self._summed, op = np.zeros(2 * size * self._chunks[0].size, vector.dtype), "sum"
        super().__init__(make(self._summed, op))
        #: A plan that makes the whole mean itself, for few numbers; None if there is none.
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
        """Yield each chunk of the vector, and the places of its quotients and remainders."""
        rows = self._summed.reshape(self._size, 2, -1)
        for chunk, (quotients, rests) in zip(self._chunks, rows, strict=True):
            yield chunk, quotients[: chunk.size], rests[: chunk.size]
