"""The codec of replies: a server sends each worker what changed, a worker adds it up.

The server keeps what each worker holds. It encodes how the newest version differs from that, and
adds what the frame decodes to, as the worker does: in the same order of the same operations, so
that both have the same bits. What a frame loses is in the next difference by itself, which is error
feedback without a vector of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from psrt.codec import Codec, Encoder, draws
from psrt.codec.randomness import BACK
from psrt.core.arrays import Bytes, Vector
from psrt.core.errors import CodecError
from psrt.core.messages import Params
from psrt.runtime.checksum import digest
from psrt.runtime.push_codec import Digests


class ReplyEncoder:
    """Makes the frames of one shard's replies."""

    saved = ("_senders", "held")
    by_element = ("held",)
    per_worker = ("_senders", "held")

    def __init__(
        self, senders: Sequence[Encoder], initial: Vector, *, seed: int, shard: int
    ) -> None:
        """Begin with workers that hold the initial parameters.

        Args:
            senders: by worker, without error feedback.
            initial: (span,) float32; empty without numerics.
            seed: of the run.
            shard: its number.
        """
        self._senders, self._seed, self._shard = tuple(senders), seed, shard
        self._nothing = np.zeros(1, np.uint8)
        self._difference, self._decoded = np.empty_like(initial), np.empty_like(initial)
        #: By worker, (span,) the parameters that it holds.
        self.held = tuple(initial.copy() for _ in senders)

    def encode(self, worker: int, clock: int, theta: Vector) -> Bytes:
        """Return the frame that brings a worker to a version, valid until its next one.

        Args:
            worker: its number.
            clock: of its next step.
            theta: (span,) the version.
        """
        sender, held = self._senders[worker], self.held[worker]
        if not held.size:
            return np.broadcast_to(self._nothing, (sender.longest,))
        np.subtract(theta, held, out=self._difference)
        rng = draws(self._seed, worker, clock, self._shard, way=BACK)
        frame = sender.encode(self._difference, rng)
        sender.decode(frame, self._decoded)
        np.add(held, self._decoded, out=held)
        return frame

    def digests(self, worker: int, frame: Bytes) -> Digests:
        """Return the digests of a frame, and of what its worker then holds."""
        held = self.held[worker]
        return Digests(digest(frame), digest(held)) if held.size else Digests(0, 0)


class ReplyDecoder:
    """Adds the frames of replies to a worker's parameters, which only it and the servers know."""

    saved = by_element = per_worker = per_shard = ("_spans",)

    def __init__(
        self, codecs: Sequence[Codec], spans: Sequence[Vector], frame: Callable[[int], Bytes]
    ) -> None:
        """Set up.

        Args:
            codecs: one for each shard.
            spans: of the worker's parameters, one for each shard.
            frame: shard → the frame of its last reply.
        """
        self._codecs, self._spans, self._frame = codecs, spans, frame
        self._decoded = [np.empty_like(span) for span in spans]

    def read(self, reply: Params) -> None:
        """Add what a reply brings.

        Raises:
            CodecError: naming the shard, if it is no frame of it.
        """
        shard = reply.shard
        try:
            self._codecs[shard].decode(self._frame(shard), self._decoded[shard])
        except CodecError as error:
            raise CodecError(
                f"shard {shard} answered with version {reply.version}: {error}"
            ) from error
        np.add(self._spans[shard], self._decoded[shard], out=self._spans[shard])

    def digests(self, shard: int) -> tuple[int, Digests]:
        """Return the length of a shard's last frame, and the digests of it and of its span."""
        frame = self._frame(shard)
        return frame.size, Digests(digest(frame), digest(self._spans[shard]))
