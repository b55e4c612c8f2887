"""A sum by a linear codec directly through a schedule: one rank's part in it. Pure.

The schedule adds the codec's *parts* of a vector (``codec.linear``) element by element, as it would
add the whole vector. So any schedule works, and nothing is encoded twice:

.. code-block:: text

    begin    add the residual; make the random draws that are equal on all ranks
    project  the next part of this rank's numbers
    (sum)    by the schedule, as any vector of that length and type
    agree    divide by the total of the weights: all ranks have the same mean
             … and again from ``project`` on, for a codec of several parts
    finish   expand the means; keep as residual what this rank's own parts have lost

All ranks expand the same means, so all end with the same bits.

**Error feedback.** A rank keeps the residual p − C(p) of its own p = v + e, where C(p) is what its
own parts would expand to. As C is linear, the residuals of all ranks add up to what the mean has
lost. In low rank C(p) = P·(Mᵀ·P)ᵀ, with the P of all ranks and the rank's own Q. The published
algorithm subtracts P·Qᵀ with the mean Q at each rank instead: the same in sum, so the means are the
same. But if ranks differ lastingly, in weights or in numbers, its residuals drift apart for ever.

Residuals are scaled with the total of the weights, as in ``coded_sum``.

Source: Vogels, Karimireddy & Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
Distributed Optimization", NeurIPS 2019, arXiv:1905.13727, algorithms 1 and 2, which sum P and Q in
this way. Random K, one of the codecs that it compares, also draws with a seed shared by all
workers.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import ClassVar

import numpy as np

from psrt.codec import ErrorFeedback, draws
from psrt.codec.feedback import codec_of
from psrt.codec.linear import Linear
from psrt.codec.randomness import FORTH, TOGETHER
from psrt.collective import ALGORITHMS
from psrt.core.arrays import AnyVector, Vector
from psrt.core.partition import Span
from psrt.core.ways import Way
from psrt.transport.coded_sum import SumCodec


@dataclass(eq=False)
class StraightSum:
    """One rank's part in the sums of one span, round after round.

    The code that executes the schedule calls ``begin``, then for each part ``project`` before its
    sum and ``agree`` after it, then ``finish``.
    """

    saved: ClassVar[tuple[str, ...]] = ("_sender", "_total")
    way: ClassVar[Way] = Way.STRAIGHT

    #: Makes the parts; linear.
    codec: SumCodec
    #: The summed span of the whole vector.
    span: Span
    #: A key of ``ALGORITHMS``.
    algorithm: InitVar[str]
    _: KW_ONLY
    #: This rank's number in the schedule, in [0, ``size``).
    rank: InitVar[int]
    #: The number of ranks, p.
    size: InitVar[int]
    #: Whether to compute; if not, only bytes are counted.
    numerics: InitVar[bool] = True
    _vector: Vector | None = field(default=None, init=False)
    #: The numbers that parts are made from; None without numerics.
    _given: Vector | None = field(default=None, init=False)
    #: The total of weights in whose units the residual is; 0 before the first round.
    _total: float = field(default=0.0, init=False)

    def __post_init__(self, algorithm: str, rank: int, size: int, numerics: bool) -> None:
        self._sender = sender = self.codec.encoder(self.span, FORTH)
        linear = codec_of(sender)
        assert isinstance(linear, Linear), "the choice of the way ensures a linear codec"
        self._linear: Linear = linear
        self._feedback = sender if isinstance(sender, ErrorFeedback) else None
        self.dtype = np.dtype(linear.dtype)
        # A part without elements is not summed.
        self._numbers = [i for i, n in enumerate(linear.parts) if n]
        #: The elements of each summed part.
        self.parts: tuple[int, ...] = tuple(linear.parts[i] for i in self._numbers)
        #: Bytes that this rank sends of each part in a round, and would send of the raw numbers.
        self._sent = [self.dtype.itemsize * sent(algorithm, rank, size, n) for n in self.parts]
        self.framed_bytes = 4 * sent(algorithm, rank, size, self.span.size)
        #: The buffers that the schedule adds: this rank's part before its sum, the sum after.
        self.buffers = [np.empty(n if numerics else 0, self.dtype) for n in self.parts]
        self._means = [np.zeros(n if numerics else 0, np.float32) for n in linear.parts]
        #: This rank's own parts, if their loss is kept as a residual.
        self._own = [] if self._feedback is None else [np.zeros_like(it) for it in self._means]
        self.codec.sums.append(self)

    @property
    def frame_bytes(self) -> int:
        """Bytes that this rank sends in a round."""
        return sum(self._sent)

    @property
    def most_bytes(self) -> int:
        """The same number: it does not depend on the values."""
        return self.frame_bytes

    @property
    def sums(self) -> Vector:
        """The means, once the round is over; only with numerics."""
        assert self._vector is not None, "this sum has no numbers"
        return self._vector

    def rescale(self, factor: float) -> None:
        """Multiply the residual, since numbers from now on are scaled by ``factor``."""
        self._sender.rescale(factor)

    def begin(self, mine: Vector | None) -> None:
        """Begin a round.

        Args:
            mine: (span,) this rank's numbers, which the means will replace; None without numerics.
        """
        codec, feedback = self.codec, self._feedback
        self._vector = self._given = mine
        if mine is None:
            return
        if feedback is not None:
            if codec.watch is not None:
                codec.watch.encodes(feedback)
            self._given = feedback.residual
            with np.errstate(all="ignore"):
                if self._total not in (0.0, codec.total):
                    feedback.rescale(codec.total / self._total)
                np.add(mine, feedback.residual, out=feedback.residual)
        self._total = codec.total
        # All ranks draw as worker 0: parts can be added only if they are of the same projection.
        self._linear.begin(draws(codec.seed, 0, codec.clock, self.span.start, way=TOGETHER))

    def project(self, at: int) -> AnyVector | None:
        """Return the part to sum next, in its buffer; None without numerics.

        Args:
            at: its index in ``parts``.
        """
        codec, number = self.codec, self._numbers[at]
        buffer: AnyVector | None = None
        if self._given is not None:
            buffer = self.buffers[at]
            self._linear.project(number, self._given, buffer)
            if self._own:
                np.copyto(self._own[number], buffer)
        if codec.watch is not None:
            nbytes = self.dtype.itemsize * self.parts[at]
            codec.watch.projected(codec.clock, self.span, number, buffer, nbytes)
        return buffer

    def agree(self, at: int) -> None:
        """Take the sum of a part from its buffer."""
        codec, number = self.codec, self._numbers[at]
        codec.counts.framed(self._sent[at], 0)
        if self._given is not None:
            mean, scale = self._means[number], np.float32(1.0 / codec.total)
            with np.errstate(all="ignore"):
                np.multiply(self.buffers[at], scale, out=mean, dtype=np.float32)
            self._linear.agree(number, mean)
        if at + 1 < len(self.parts):
            self._tell(at)

    def finish(self) -> None:
        """Replace this rank's numbers by the means."""
        codec, feedback, vector = self.codec, self._feedback, self._vector
        codec.counts.framed(0, self.framed_bytes)
        # Before the means replace this rank's numbers, since the watch is shown those.
        if vector is not None and feedback is not None:
            self._linear.expand(self._own, feedback.decoded)
            with np.errstate(all="ignore"):
                np.subtract(feedback.residual, feedback.decoded, out=feedback.residual)
            if codec.watch is not None:
                codec.watch.kept(codec.clock, self.span, feedback, vector)
        if vector is not None:
            self._linear.expand(self._means, vector)
        if self.parts:
            self._tell(len(self.parts) - 1)

    def _tell(self, at: int) -> None:
        """Notify the watch of the sum of a part; for the last one, with the means of the span."""
        codec, number = self.codec, self._numbers[at]
        if codec.watch is not None:
            mean = None if self._vector is None else self._means[number]
            result = self._vector if at + 1 == len(self.parts) else None
            codec.watch.agreed(codec.clock, self.span, number, mean, result, self._sent[at])


def sent(algorithm: str, rank: int, size: int, n: int) -> int:
    """Return the elements that a rank sends to others in a schedule.

    >>> sent("ring", 0, 4, 100)
    150
    """
    steps = ALGORITHMS[algorithm](rank, size, n)
    return sum(step.send.size for step in steps if step.send_to not in (None, rank))
