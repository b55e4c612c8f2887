"""The codec of a job: of pushes, for each shard on its server and its workers, or of sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from psrt.codec import (
    Codec,
    CodecRow,
    Encoder,
    ErrorFeedback,
    Matrix,
    matrices_of_part,
    matrices_side_by_side,
    matrices_within,
)
from psrt.codec.frame import HEADER_BYTES
from psrt.codec.randomness import BACK, FORTH, seed_of_part
from psrt.codec.times import CodecTimes, FrameTimes
from psrt.collective.analysis.pick import Coding
from psrt.config import TrainConfig
from psrt.core.arrays import ITEMSIZE, Bytes, Vector
from psrt.core.partition import Part, Span
from psrt.core.units import size_text
from psrt.core.ways import Way
from psrt.runtime.push_codec import PushDecoder, PushEncoder, TimingOnlyEncoder
from psrt.runtime.reply_codec import ReplyDecoder, ReplyEncoder
from psrt.runtime.strategies.base import FramePlan, ReducePlan
from psrt.transport.coded_sum import FrameWatch, SumCodec, coding_of
from psrt.transport.port import Port


@dataclass(frozen=True, slots=True)
class JobCodec:
    """The codec of a job's pushes or sums; the same in all processes."""

    #: The requested codec, with all knobs.
    row: CodecRow
    #: Whether to use error feedback; None follows the codec's row.
    error_feedback: bool | None = None
    #: The seed of the run, or of a part of the parameters.
    seed: int = 0
    #: The matrices of the whole parameter vector.
    matrices: Sequence[Matrix] = ()
    #: The codec of replies; None if parameters are sent uncompressed.
    reply: JobCodec | None = None
    #: Whether differences to what receivers know are sent, which both ends add up; otherwise
    #: replies are means.
    differs: bool = False
    #: Whether it is one half of the optimizer; see ``SumCodec``.
    of_optimizer: bool = False
    #: By span and way, the codec that only computes lengths.
    _lengths: dict[tuple[Span, int], Encoder] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def name(self) -> str:
        """Name of its row."""
        return self.row.name

    @property
    def feeds_back(self) -> bool:
        """Whether the loss of a frame is added to the next vector."""
        return isinstance(self.lengths(Span(0, 1)), ErrorFeedback)

    def codec(self, span: Span) -> Codec:
        """Return a new codec for the span of a shard: a receiver's side."""
        matrices = matrices_within(self.matrices, span)
        return self.row.codec(span.size, matrices=matrices)

    def sender(self, span: Span, way: int = FORTH) -> Encoder:
        """Return a new sender's side for a span, without a residual.

        Args:
            span: of the parameters.
            way: ``FORTH``, or ``BACK`` for averages.
        """
        if way == BACK and self.reply is not None:
            return self.reply.sender(span)
        row = self.row.of_means() if way == BACK else self.row
        return row.encoder(
            span.size,
            error_feedback=self.error_feedback,
            matrices=matrices_within(self.matrices, span),
        )

    def lengths(self, span: Span, way: int = FORTH) -> Encoder:
        """Return the codec for lengths of frames; without numerics, all ranks share it."""
        key = span, way
        if key not in self._lengths:
            self._lengths[key] = self.sender(span, way)
        return self._lengths[key]

    def side_by_side(self, spans: Sequence[Span]) -> JobCodec:
        """Return the same for a vector that has these spans of the parameters side by side."""
        reply = None if self.reply is None else self.reply.side_by_side(spans)
        if not self.row.takes_matrices and reply is self.reply:
            return self
        matrices = matrices_side_by_side(self.matrices, spans)
        return replace(self, matrices=matrices, reply=reply)

    def of_part(self, part: Part, number: int) -> JobCodec:
        """Return the same for a part of the parameters, with its own random draws.

        Args:
            part: of the parameters.
            number: among the parts.
        """
        return replace(
            self,
            seed=seed_of_part(self.seed, number),
            matrices=matrices_of_part(self.matrices, part),
            reply=None if self.reply is None else self.reply.of_part(part, number),
        )

    def of_sums(
        self, worker: int, watch: FrameWatch | None = None, *, numerics: bool = True
    ) -> SumCodec:
        """Return the codec of a worker's sums; ``watch`` observes each frame."""
        return SumCodec(
            self.sender if numerics else self.lengths, seed=self.seed, worker=worker,
            makes=self.coding, of_optimizer=self.of_optimizer, watch=watch,
            means=None if self.reply is None else self.reply.codec,
        )  # fmt: skip

    def coding(self, span: Span) -> Coding:
        """Return what the codec makes of a span, and how its sum may travel."""
        coding = coding_of(self.lengths(span))
        if self.reply is not None:
            # If all ranks sum, no means are sent.
            none = (Way.GATHERED, Way.STRAIGHT)
            return coding._replace(
                codec=f"{self.name} --codec-reply {self.reply.name}",
                ways=(Way.TWO_PHASES,),
                ways_if_asked=tuple(way for way in coding.ways_if_asked if way not in none),
            )
        return coding

    def share(self, n: int) -> float:
        """Return the bytes of a frame over those of its n numbers, after any warm-up."""
        it = self.sender(Span(0, n))
        it.begin_epoch(1 << 20)
        return it.longest / (ITEMSIZE * n)

    def times(self, measured: Mapping[str, CodecTimes], speed: float) -> FrameTimes:
        """Return the times of encoding and decoding.

        Args:
            measured: by codec, times that replace those of its row.
            speed: the factor by which they are faster; may be infinite.
        """
        own, *reply = (
            measured.get(it.name) or CodecTimes.of(it.name)
            for it in (self, self.reply)
            if it is not None
        )
        if self.differs:
            both = FrameTimes.of(own, feeds_back=False, reply=own, speed=speed)
            return replace(both, encode=both.encode_reply, decode=both.decode_reply)
        if self.reply is not None and not self.reply.differs:
            there = FrameTimes.of(own, feeds_back=self.feeds_back, speed=speed)
            back = FrameTimes.of(reply[0], feeds_back=self.reply.feeds_back, speed=speed)
            return replace(there, encode_reply=back.encode, decode_reply=back.decode)
        return FrameTimes.of(
            own,
            feeds_back=self.feeds_back,
            reply=reply[0] if reply else None,
            speed=speed,
        )

    def frame_bytes(self, spans: Sequence[Span]) -> tuple[int, ...]:
        """Return by shard the bytes of the longest frame."""
        return tuple(HEADER_BYTES + self.codec(span).most for span in spans)

    def encoder(self, port: Port, worker: int) -> PushEncoder:
        """Return the encoder of pushes of the worker at a port."""
        spans = port.role_map.spans
        if not port.theta.size:
            return TimingOnlyEncoder([self.lengths(span) for span in spans])
        senders = [self.sender(span) for span in spans]
        return PushEncoder(senders, seed=self.seed, worker=worker)

    def decoder(self, port: Port, shard: int) -> PushDecoder:
        """Return the decoder of pushes to a shard of the server at a port."""
        return PushDecoder(self.codec(port.role_map.spans[shard]), partial(port.frame, shard))

    def described_sums(self, plan: FramePlan, part: str = "") -> str:
        """Return a line for the user about what a worker sends in an update or a period.

        Args:
            plan: of its sums.
            part: the part of a split model that this is about, " of the first part".
        """
        framed, dense = plan.frame_bytes, plan.framed_bytes
        if not dense:
            return f"codec: {self.name}, which one worker only uses in its steps"
        means = "" if self.reply is None else f", means by {self.reply.name}"
        how = f"{', with error feedback' if self.feeds_back else ''}{means}"
        text = f"codec: {self.name}{how}: a worker{part} sends "
        most, less = "", f"{dense / max(1, framed):.3g} times fewer"
        if not plan.is_fixed:
            most, less = "at most ", "which depends on the numbers"
        text += f"{most}{size_text(framed)} {plan.when} instead of {size_text(dense)}, {less}"
        if plan.peak_bytes < framed:
            text += f"; {most}{size_text(plan.peak_bytes)} at once"
        return text

    def reply_encoder(self, port: Port, shard: int, initial: Vector) -> ReplyEncoder | None:
        """Return the encoder of replies of a shard with these initial parameters."""
        if self.reply is None:
            return None
        span = port.role_map.spans[shard]
        make = self.reply.sender if initial.size else self.reply.lengths
        senders = [make(span) for _ in port.role_map.workers]
        return ReplyEncoder(senders, initial, seed=self.seed, shard=shard)

    def reply_decoder(self, port: Port, worker: int) -> ReplyDecoder | None:
        """Return the decoder of replies to the worker at a port."""
        if self.reply is None or not port.theta.size:
            return None
        spans = port.role_map.spans
        return ReplyDecoder(
            [self.reply.codec(span) for span in spans],
            [span.of(port.theta) for span in spans],
            partial(_frame_of, port, worker),
        )

    def described(self, spans: Sequence[Span], what: str) -> str:
        """Return a line for the user about what is sent."""
        encoders = [self.sender(span) for span in spans]
        dense = ITEMSIZE * sum(span.size for span in spans)
        sizes = [it.nbytes for it in encoders]
        text = f"codec: {self.name}{', with error feedback' if self.feeds_back else ''}: {what} is "
        fixed = [it for it in sizes if it is not None]
        if len(fixed) == len(sizes):
            nbytes = sum(fixed)
            less = f"{dense / nbytes:.3g} times fewer"
            return f"{text}{size_text(nbytes)} instead of {size_text(dense)}, {less}"
        most = sum(it.longest for it in encoders)
        return (
            f"{text}at most {size_text(most)} instead of {size_text(dense)}, which depends on the "
            "numbers"
        )


def job_codec(config: TrainConfig, matrices: Sequence[Matrix]) -> JobCodec | None:
    """Return the codec of a job; None if numbers are sent uncompressed.

    Args:
        config: resolved; ``codec_everywhere`` says whether its codec is in effect.
        matrices: of the whole parameter vector.
    """
    if config.codec is None or not config.codec_everywhere:
        return None
    if config.scheme.mixes:
        row = config.codec.of_differences()
        return JobCodec(row, False, config.seed, matrices, differs=True)
    reply: JobCodec | None = None
    if config.codec_reply is not None:
        # What a difference loses is part of the next one; what a mean loses is not.
        differs = bool(config.servers)
        reply = JobCodec(
            config.codec_reply.of_differences(),
            False if differs else None,
            config.seed,
            matrices,
            differs=differs,
        )
    return JobCodec(
        config.codec,
        config.error_feedback,
        config.seed,
        matrices,
        reply,
        of_optimizer=config.optimizer.codec is not None,
    )


def _frame_of(port: Port, worker: int, shard: int) -> Bytes:
    return port.frame(shard, worker)


def say_codec(
    config: TrainConfig,
    codec: JobCodec | None,
    spans: Sequence[Span],
    plan: ReducePlan | None,
    say: Callable[[str], None],
    part: str = "",
) -> None:
    """Print what is sent, if a codec was requested.

    Args:
        config: resolved.
        codec: of the job.
        spans: of the shards; none without servers.
        plan: how workers sum; None if they do not.
        say: prints a line.
        part: the part of a split model that this is about, " of the first part".
    """
    if codec is not None and plan is not None:
        nothing = f"--codec {codec.name} has no effect with one worker, which sends nothing"
        say(nothing if plan.frames is None else codec.described_sums(plan.frames, part))
    elif codec is not None and codec.differs:
        what = "the change of a worker's parameters, once a round to each neighbour,"
        say(f"{codec.described(spans, what)}; consensus rate {config.scheme.consensus_rate:.3g}")
    elif codec is not None:
        what = "a gradient" if config.scheme.encodes_gradients else "a difference"
        what += part
        say(codec.described(spans, what))
        if codec.reply is not None:
            say(codec.reply.described(spans, f"a reply{part}"))
    elif config.codec is not None and not config.codec_everywhere:
        say(
            f"--codec {config.codec.name} has no effect on one host, whose ranks share memory; "
            "--codec-everywhere uses it anyway"
        )
