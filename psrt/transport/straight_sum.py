"""A sum by a linear codec straight through a schedule: one rank's part in it. Pure.

The schedule adds the codec's *parts* of a vector (``codec.linear``) element by element, as it would
add the whole vector, so any schedule does, and nothing is encoded twice:

.. code-block:: text

    begin    add what was kept back; draw what all ranks draw alike
    project  the next part of this rank's numbers
    (sum)    by the schedule, as any vector of that length and type
    agree    divide by the total of the weights: all ranks have the same mean
             … and again from ``project`` on, for a codec of several parts
    finish   expand the means; keep back what this rank's own parts have lost of its numbers

All ranks expand the same means, so all end with the same bits.

**What is lost.** A rank keeps back p − C(p) of its own p = v + e, where C(p) is what its own parts
would expand to. As C is linear, what all ranks keep back together is what the mean has lost. In low
rank C(p) = P·(Mᵀ·P)ᵀ with the P of all, but its own Q. The published algorithm subtracts P·Qᵀ with
the mean Q at each rank instead: the same in sum, so the means are the same. But where ranks differ
lastingly, in their weights or in their numbers, what they keep back would drift apart for ever.

What is kept back is scaled with the total of the weights, as in ``coded_sum``.

Source: Vogels, Karimireddy & Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
Distributed Optimization", NeurIPS 2019, arXiv:1905.13727, algorithms 1 and 2, which sum P and Q so;
of the codecs that it compares, random K, too, draws with a seed of all workers.
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

    Whoever carries out the schedule calls ``begin``, for each part ``project`` before its sum and
    ``agree`` after it, and ``finish``.
    """

    saved: ClassVar[tuple[str, ...]] = ("_sender", "_total")
    way: ClassVar[Way] = Way.STRAIGHT

    #: Makes the parts; linear.
    codec: SumCodec
    #: Of the whole vector, that is summed.
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
    #: What the parts are made of; None without numerics.
    _given: Vector | None = field(default=None, init=False)
    #: The total that what is kept back belongs to; 0 before the first round.
    _total: float = field(default=0.0, init=False)

    def __post_init__(self, algorithm: str, rank: int, size: int, numerics: bool) -> None:
        self._sender = sender = self.codec.encoder(self.span, FORTH)
        linear = codec_of(sender)
        assert isinstance(linear, Linear), "whoever asks for a codec has chosen so"
        self._linear: Linear = linear
        self._feedback = sender if isinstance(sender, ErrorFeedback) else None
        self.dtype = np.dtype(linear.dtype)
        # A part without elements is not summed.
        self._numbers = [i for i, n in enumerate(linear.parts) if n]
        #: Elements of each part that is summed.
        self.parts: tuple[int, ...] = tuple(linear.parts[i] for i in self._numbers)
        #: Bytes that this rank sends of each part in a round, and would of the numbers themselves.
        self._sent = [self.dtype.itemsize * sent(algorithm, rank, size, n) for n in self.parts]
        self.framed_bytes = 4 * sent(algorithm, rank, size, self.span.size)
        #: What the schedule adds: this rank's part before the sum of it, the sum after.
        self.buffers = [np.empty(n if numerics else 0, self.dtype) for n in self.parts]
        self._means = [np.zeros(n if numerics else 0, np.float32) for n in linear.parts]
        #: This rank's own parts, where what they have lost is kept back.
        self._own = [] if self._feedback is None else [np.zeros_like(it) for it in self._means]
        self.codec.sums.append(self)

    @property
    def frame_bytes(self) -> int:
        """Bytes that this rank sends in a round."""
        return sum(self._sent)

    @property
    def most_bytes(self) -> int:
        """The same: they do not depend on the numbers."""
        return self.frame_bytes

    @property
    def sums(self) -> Vector:
        """The means, once the round is over; only with numbers."""
        assert self._vector is not None, "there are no numbers"
        return self._vector

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
        # Worker 0's draws at all ranks: parts can be added only if they are of one projection.
        self._linear.begin(draws(codec.seed, 0, codec.clock, self.span.start, way=TOGETHER))

    def project(self, at: int) -> AnyVector | None:
        """Return the part that is to be summed next, in its buffer; None without numerics.

        Args:
            at: its place in ``parts``.
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
        """Take up the sum of a part, which stands in its buffer."""
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
        """Put the means in the place of this rank's numbers."""
        codec, feedback, vector = self.codec, self._feedback, self._vector
        codec.counts.framed(0, self.framed_bytes)
        # Before the means take the place of this rank's numbers, which the watch is shown.
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
        """Tell of the sum of a part; of the last one, with the means of the span."""
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
