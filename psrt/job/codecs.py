"""The codec of a job's pushes: made for each shard, at its server and at its workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from psrt.arrays import ITEMSIZE
from psrt.codec import (
    Codec,
    Encoder,
    ErrorFeedback,
    Matrix,
    make_codec,
    make_encoder,
    matrices_within,
)
from psrt.codec.frame import HEADER_BYTES
from psrt.config import TrainConfig
from psrt.partition import Span
from psrt.runtime.push_codec import PushDecoder, PushEncoder, TimingOnlyEncoder
from psrt.transport.port import Port
from psrt.units import size_text


@dataclass(frozen=True, slots=True)
class PushCodec:
    """What a job encodes its pushes by; the same in all processes."""

    #: In ``CODECS``.
    name: str
    #: Of the codec, as ``make_codec`` takes them.
    knobs: Mapping[str, Any] = field(default_factory=dict)
    #: Whether what a frame loses is added to the next gradient; None as the codec's row says.
    error_feedback: bool | None = None
    #: Of the run.
    seed: int = 0
    #: The matrices of the whole parameter vector.
    matrices: Sequence[Matrix] = ()

    def codec(self, span: Span) -> Codec:
        """Return a new codec for the span of a shard: a receiver's side."""
        matrices = matrices_within(self.matrices, span)
        return make_codec(self.name, span.size, matrices=matrices, **self.knobs)

    def sender(self, span: Span) -> Encoder:
        """Return a new sender's side for the span of a shard, with nothing kept back."""
        return make_encoder(
            self.name,
            span.size,
            error_feedback=self.error_feedback,
            matrices=matrices_within(self.matrices, span),
            **self.knobs,
        )

    def frame_bytes(self, spans: Sequence[Span]) -> tuple[int, ...]:
        """Return by shard the bytes of the longest frame."""
        return tuple(HEADER_BYTES + self.codec(span).most for span in spans)

    def encoder(self, port: Port, worker: int) -> PushEncoder:
        """Return what encodes the pushes of the worker at a port."""
        make = PushEncoder if port.theta.size else TimingOnlyEncoder
        senders = [self.sender(span) for span in port.role_map.spans]
        return make(senders, seed=self.seed, worker=worker)

    def decoder(self, port: Port, shard: int) -> PushDecoder:
        """Return what decodes the pushes to a shard of the server at a port."""
        return PushDecoder(self.codec(port.role_map.spans[shard]), partial(port.frame, shard))

    def described(self, spans: Sequence[Span]) -> str:
        """Return what is pushed, in a line for people."""
        encoders = [self.sender(span) for span in spans]
        dense = ITEMSIZE * sum(span.size for span in spans)
        sizes = [it.nbytes for it in encoders]
        feeds_back = isinstance(encoders[0], ErrorFeedback)
        text = f"codec: {self.name}{', with error feedback' if feeds_back else ''}: a gradient is "
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


def push_codec(config: TrainConfig, matrices: Sequence[Matrix]) -> PushCodec | None:
    """Return the codec of a job's pushes; None where gradients are pushed as they are.

    Args:
        config: resolved; ``codec_everywhere`` says whether its codec is in effect.
        matrices: of the whole parameter vector.
    """
    if config.codec is None or not config.codec_everywhere or not config.servers:
        return None
    return PushCodec(config.codec, config.codec_knobs, config.error_feedback, config.seed, matrices)


def say_codec(
    config: TrainConfig, codec: PushCodec | None, spans: Sequence[Span], say: Callable[[str], None]
) -> None:
    """Print what is pushed, where a codec was asked for."""
    if codec is not None:
        say(codec.described(spans))
    elif config.codec is not None and not config.codec_everywhere:
        say(
            f"--codec {config.codec} has no effect on one host, where nothing is sent; "
            "--codec-everywhere uses it all the same"
        )
