"""Estimates of how long encoding and decoding take on one core. Pure: numbers.

A time is linear: a cost per call plus a cost per element. The times in the rows of ``table`` were
measured on one core of an Intel Xeon at 2.3 GHz with numpy 2.4, for normally distributed numbers
and default knobs; ``psrt bench codec`` measures them on another machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from psrt.codec.table import CODECS


class Line(NamedTuple):
    """Seconds as a function of the number of elements."""

    call: float
    element: float

    def at(self, n: int) -> float:
        """Return the seconds of n elements.

        >>> Line(1e-6, 2e-9).at(1000)
        3e-06
        """
        return self.call + self.element * n

    def and_then(self, *others: Line) -> Line:
        """Return the total of this and other times, one after another."""
        calls, elements = zip(self, *others, strict=True)
        return Line(sum(calls), sum(elements))

    def times(self, factor: float) -> Line:
        """Return the time on a machine that takes ``factor`` times as long."""
        return Line(self.call * factor, self.element * factor)


#: No time.
FREE = Line(0.0, 0.0)
#: Adding to a vector of float32, or subtracting from it.
_ADD = Line(1e-6, 0.33e-9)


@dataclass(frozen=True, slots=True)
class CodecTimes:
    """Times of a codec, without error feedback."""

    encode: Line
    decode: Line

    @classmethod
    def of(cls, name: str) -> CodecTimes:
        """Return the times in the row of a codec."""
        (encode_us, encode_ns), (decode_us, decode_ns) = CODECS[name].times
        return cls(
            Line(1e-6 * encode_us, 1e-9 * encode_ns), Line(1e-6 * decode_us, 1e-9 * decode_ns)
        )


@dataclass(frozen=True, slots=True)
class FrameTimes:
    """Times of all frames of a job: pushes or sums, and replies."""

    encode: Line
    decode: Line
    encode_reply: Line = FREE
    decode_reply: Line = FREE

    @classmethod
    def of(
        cls,
        codec: CodecTimes,
        *,
        feeds_back: bool,
        reply: CodecTimes | None = None,
        speed: float = 1.0,
    ) -> FrameTimes:
        """Return the times of senders and receivers.

        Args:
            codec: of pushes or sums.
            feeds_back: whether there is error feedback: a sender then also decodes its own frames.
            reply: codec of replies; None if they are uncompressed. Replies are differences to
                what a worker holds, so both ends decode them and add.
            speed: how many times as fast the machine is; may be infinite.
        """
        encode, encode_reply, decode_reply = codec.encode, FREE, FREE
        if feeds_back:
            encode = encode.and_then(_ADD, codec.decode, _ADD)
        if reply is not None:
            encode_reply = reply.encode.and_then(_ADD, reply.decode, _ADD)
            decode_reply = reply.decode.and_then(_ADD)
        lines = (encode, codec.decode, encode_reply, decode_reply)
        return cls(*(line.times(1 / speed) for line in lines))


#: For uncompressed numbers.
NO_FRAMES = FrameTimes(FREE, FREE)
