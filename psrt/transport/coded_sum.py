"""Sums whose messages are all frames of a codec: what all ways have in common.

Pure: no MPI, no time. The ways are ``two_phase_sum`` and ``gathered_sum``; a schedule's row says
which of them it uses.

**Error feedback.** Each rank keeps what its frames have lost (``codec.ErrorFeedback``) and adds it
to the next round. The residual of a contribution is in units of a sum. Where the total of the
weights changes, as with the last, smaller batches of an epoch, it is scaled by the same factor and
so stays the same part of the mean. Otherwise the residual of many full batches would count many
times in a mean over few samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from psrt.codec import Codec, Encoder, ErrorFeedback, draws
from psrt.codec.feedback import codec_of
from psrt.codec.linear import Linear
from psrt.codec.randomness import FORTH
from psrt.collective.analysis.pick import Coding, way_of
from psrt.core.arrays import AnyVector, Bytes, Vector
from psrt.core.errors import CodecError
from psrt.core.partition import Span
from psrt.core.ways import Way
from psrt.history.folds.worker import WorkerFold


class FrameLink(Protocol):
    """What carries the frames of a sum."""

    def post(self, to: int, key: int, frame: Bytes | None, nbytes: int) -> None:
        """Send a frame to rank ``to`` of the sum; it must not change until the round is over."""

    def take_span(self, source: int, key: int) -> Sequence[Bytes | None]:
        """Return the next frame that rank ``source`` posted for ``key``, if it has arrived."""

    def encodes(self, n: int, way: int) -> None:
        """Charge the encoding of n elements, in virtual time."""

    def decodes(self, n: int, way: int) -> None:
        """Charge the decoding of n elements, in virtual time."""


class FrameWatch(Protocol):
    """Observes every frame of a worker's sums, for a history."""

    def encodes(self, sender: Encoder) -> None:
        """A sender is about to encode, or to scale its residual before that."""

    def encoded(
        self, clock: int, owner: int, span: Span, way: int, sender: Encoder,
        numbers: Vector | None, frame: Bytes | None,
    ) -> None:  # fmt: skip
        """It has encoded numbers that worker ``owner`` sums (−1: all do), or their mean."""

    def decoded(
        self, clock: int, source: int, span: Span, way: int, frame: Bytes, numbers: Vector
    ) -> None:
        """The frame that a worker sent has been decoded."""

    def projected(
        self, clock: int, span: Span, part: int, numbers: AnyVector | None, nbytes: int
    ) -> None:
        """A schedule is about to add a part of a worker's numbers (``straight_sum``)."""

    def agreed(
        self, clock: int, span: Span, part: int, mean: Vector | None, result: Vector | None,
        nbytes: int,
    ) -> None:  # fmt: skip
        """It has added the part; this rank sent that many bytes. The last comes with the means."""

    def kept(self, clock: int, span: Span, sender: ErrorFeedback, numbers: Vector) -> None:
        """A sender has stored what the parts of these numbers have lost."""


@dataclass(eq=False)
class SumCodec:
    """How a worker encodes its sums, and what all of its sums must know of the round."""

    #: What a checkpoint keeps, see ``psrt.checkpoint.state``.
    saved: ClassVar[tuple[str, ...]] = ("sums",)

    #: (span, way) → a new sender's side for a span of the whole vector, of contributions
    #: (``FORTH``) or of means (``BACK``).
    encoder: Callable[[Span, int], Encoder]
    _: KW_ONLY
    #: The seed of the run.
    seed: int
    #: The number of this worker.
    worker: int
    #: What the codec makes of a span, and how the sum may travel; None takes its row's.
    makes: Callable[[Span], Coding] | None = None
    #: Whether the codec is one half of the optimizer. It then applies to a single worker, too,
    #: and encodes numbers times the learning rate.
    of_optimizer: bool = False
    #: Span → the decoder of means, where they have another codec.
    means: Callable[[Span], Codec] | None = None
    #: Observes every frame.
    watch: FrameWatch | None = None
    #: Updates before this one.
    clock: int = field(default=0, init=False)
    #: The current epoch.
    epoch: int = field(default=0, init=False)
    #: The total of all weights, by which sums are divided.
    total: float = field(default=1.0, init=False)
    #: The learning rate of this update.
    rate: float = field(default=1.0, init=False)
    #: Where the worker counts the bytes of frames, and of the numbers that they represent.
    counts: WorkerFold = field(default_factory=WorkerFold, init=False)
    #: The sums whose frames this codec makes.
    sums: list[SumPart] = field(default_factory=list, init=False)

    def coding(self, span: Span) -> Coding:
        """Return what the codec makes of a span, and how the sum may travel."""
        return coding_of(self.encoder(span, FORTH)) if self.makes is None else self.makes(span)

    def way(self, algorithm: str, span: Span) -> Way | None:
        """Return the way in which the sum of a span goes by an all-reduce."""
        coding = self.coding(span)
        return way_of(algorithm, {*coding.ways, *coding.ways_if_asked})

    def begin_round(self, clock: int, epoch: int, total: float, rate: float = 1.0) -> None:
        """Set what all workers know of the next round."""
        self.clock, self.epoch, self.total, self.rate = clock, epoch, total, rate


def coding_of(sender: Encoder) -> Coding:
    """Return what a codec makes of vectors, and how their sum may travel."""
    codec = codec_of(sender)
    row = codec.row
    coding = Coding(row.name, row.ways, row.ways_if_asked, sender.longest)
    if isinstance(codec, Linear) and Way.STRAIGHT in row.ways:
        itemsize = np.dtype(codec.dtype).itemsize
        return coding._replace(nbytes=itemsize * sum(codec.parts), itemsize=itemsize)
    return coding


class SumPart(Protocol):
    """A rank's part in the sums of one span."""

    #: The way in which it travels.
    way: ClassVar[Way]
    #: The summed span of the whole vector.
    span: Span

    @property
    def frame_bytes(self) -> int | None:
        """Bytes that this rank sends in a round; None if they depend on the numbers."""

    @property
    def most_bytes(self) -> int:
        """The most bytes that this rank sends in a round of this epoch."""

    @property
    def framed_bytes(self) -> int:
        """Bytes of the numbers that they represent."""

    def rescale(self, factor: float) -> None:
        """Multiply all that is kept back, since numbers from now on are scaled by ``factor``."""


@dataclass(eq=False)
class CodedSum:
    """One rank's part in the sums of one span, round after round.

    A round is ``begin``, then ``advance`` until it returns True. Frames are consumed only there.
    """

    #: What a checkpoint keeps, see ``psrt.checkpoint.state``.
    saved: ClassVar[tuple[str, ...]] = ("_senders", "_total")
    #: The way in which its frames travel.
    way: ClassVar[Way]

    #: Carries the frames.
    link: FrameLink
    #: Makes them.
    codec: SumCodec
    #: The summed span of the whole vector.
    span: Span
    _: KW_ONLY
    #: This rank's number in the sum, in [0, ``size``).
    rank: int
    #: The number of ranks, p.
    size: int
    #: Identifies this sum's frames; the same on all ranks, and unique.
    key: int = 0
    #: By rank of the sum, the number of the worker; empty if they are equal.
    workers: InitVar[Sequence[int]] = ()
    #: Whether to compute; if not, only the lengths of frames are sent, with the upper bound where
    #: they depend on the numbers.
    numerics: bool = True
    #: The encoders of this rank's contributions.
    _senders: list[Encoder] = field(default_factory=list, init=False)
    #: The total of weights in whose units the residuals are; 0 before the first round.
    _total: float = field(default=0.0, init=False)
    _vector: Vector | None = field(default=None, init=False)
    #: This rank's frame of the chunk that it sums itself, and the contributions to sum.
    _mine: Bytes | None = field(default=None, init=False)

    def __post_init__(self, workers: Sequence[int]) -> None:
        """Set up; a subclass makes the senders."""
        self._workers = workers or range(self.size)
        #: The ranks in the order of the schedule: r + 1, r + 2, and so on.
        self._others = [(self.rank + k) % self.size for k in range(1, self.size)]
        self.codec.sums.append(self)
        self._added = self.size

    @property
    def frame_bytes(self) -> int | None:
        """Bytes of the frames that this rank sends in a round; None if they depend on numbers."""
        raise NotImplementedError

    @property
    def most_bytes(self) -> int:
        """The most bytes of frames that this rank sends in a round of this epoch."""
        raise NotImplementedError

    @property
    def framed_bytes(self) -> int:
        """Bytes of the numbers that the frames of a round represent."""
        raise NotImplementedError

    def lengths(self, source: int) -> list[int]:
        """Return the most bytes of each frame that a rank sends this one in a round."""
        raise NotImplementedError

    @property
    def awaited(self) -> list[int]:
        """The ranks whose frames are waited for."""
        return [rank for rank in range(self._added, self.size) if rank != self.rank]

    @property
    def sums(self) -> Vector:
        """The means, once the round is over; only with numerics."""
        assert self._vector is not None, "this sum has no numbers"
        return self._vector

    def begin(self, mine: Vector | None) -> bool:
        """Send this rank's contributions and progress without waiting; return whether it is over.

        Args:
            mine: (span,) this rank's numbers, which the means will replace; None without numerics.
        """
        self._vector = mine
        if mine is not None and self.codec.of_optimizer:
            with np.errstate(all="ignore"):
                np.multiply(mine, np.float32(self.codec.rate), out=mine)
        self._rescale()
        self._send()
        self.codec.counts.framed(0, self.framed_bytes)
        return self.advance()

    def advance(self) -> bool:
        """Take the frames that have arrived; return whether the round is over."""
        raise NotImplementedError

    def _send(self) -> None:
        """Encode this rank's contributions and send them."""
        raise NotImplementedError

    def rescale(self, factor: float) -> None:
        """Multiply all that is kept back, since numbers from now on are scaled by ``factor``."""
        for sender in self._senders:
            sender.rescale(factor)

    def _rescale(self) -> None:
        """Scale the residuals so that they stay the same part of the mean as in the last round."""
        # A residual r of the last round, with total weight T, stands for r/T of a mean. The next
        # sum is divided by T', so r becomes r·T'/T: it then adds the same r/T to the next mean.
        total = self.codec.total
        if self.numerics and self._total not in (0.0, total):
            watch = self.codec.watch
            for sender in self._senders:
                if watch is not None:
                    watch.encodes(sender)
                sender.rescale(total / self._total)
        self._total = total

    def _encode(
        self, sender: Encoder, place: Span, owner: int, numbers: Vector | None, way: int = FORTH
    ) -> Bytes | None:
        """Return the frame of numbers; None if there are none.

        Args:
            sender: the encoder.
            place: where they are in the whole vector.
            owner: the worker that sums them; −1 if all do.
            numbers: the numbers at that place.
            way: ``FORTH``, or ``BACK`` for a mean.
        """
        codec, frame = self.codec, None
        watch = codec.watch
        sender.begin_epoch(codec.epoch)
        self.link.encodes(sender.n, way)
        if numbers is not None:
            if watch is not None:
                watch.encodes(sender)
            # The first element is part of the key, so no two chunks of a round draw the same
            # numbers.
            drawn = draws(codec.seed, codec.worker, codec.clock, place.start, way=way)
            frame = sender.encode(numbers, drawn)
        if watch is not None:
            watch.encoded(codec.clock, owner, place, way, sender, numbers, frame)
        return frame

    def _post(self, to: int, sender: Encoder, frame: Bytes | None) -> None:
        nbytes = sender.longest if frame is None else frame.size
        self.codec.counts.framed(nbytes, 0)
        self.link.post(to, self.key, frame, nbytes)

    def _add(self, decoder: Encoder, place: Span, into: Vector, scratch: Vector) -> bool:
        """Sum contributions in the order of the ranks; return whether all have come.

        Args:
            decoder: of the contributions.
            place: of the elements.
            into: (place,) the sum.
            scratch: likewise, overwritten.
        """
        # In the order of the ranks, whatever the order of arrival, and this rank's own contribution
        # as all others decode it: so the sums have the same bits on every rank and in every run.
        while self._added < self.size:
            source, frame = self._added, self._mine
            if source != self.rank:
                arrived = self.link.take_span(source, self.key)
                if not arrived:
                    return False
                [frame] = arrived
            self.link.decodes(place.size, FORTH)
            if frame is not None:
                out = scratch if source else into
                self._decode(decoder, place, source, FORTH, frame, out)
                if source:
                    np.add(into, out, out=into)
            self._added += 1
        if self.numerics:
            scale = np.float32(1.0 / self.codec.total)
            if scale != 1.0:
                np.multiply(into, scale, out=into)
        return True

    def _decode(
        self, decoder: Encoder, place: Span, source: int, way: int, frame: Bytes, out: Vector
    ) -> None:
        """Decode a frame.

        Raises:
            CodecError: naming the rank that sent it, if it is not a frame of these elements.
        """
        worker, codec = self._workers[source], self.codec
        try:
            decoder.decode(frame, out)
        except CodecError as error:
            raise CodecError(
                f"worker {worker} sent the elements [{place.start}, {place.stop}) of a sum: {error}"
            ) from error
        if codec.watch is not None:
            codec.watch.decoded(codec.clock, worker, place, way, frame, out)
