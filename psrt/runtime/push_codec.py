"""The codec of pushes: what a worker encodes, shard by shard, and a server decodes.

**Error feedback.** What a frame loses of a gradient is kept back and added to the next one of that
shard. A gradient that a server drops is lost as a whole: also what earlier frames had lost, which
was sent along with it. What is kept back when a worker leaves is lost, too. A step without samples
sends no frame, and what was kept back waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from psrt.codec import Codec, Encoder, ErrorFeedback, draws
from psrt.core.arrays import AnyVector, Bytes, Vector
from psrt.core.errors import CodecError
from psrt.core.messages import Push
from psrt.runtime.checksum import digest
from psrt.runtime.conserved import Conserved, conserved


class Digests(NamedTuple):
    """What became of a gradient, 31 bits of a CRC-32 each; 0 of a part that is missing."""

    frame: int
    #: What the frame decodes to; at a worker with error feedback only, which has to know it.
    decoded: int
    #: What was kept back before and after.
    before: int = 0
    after: int = 0
    #: With error feedback, what shows that nothing was lost.
    sums: Conserved = Conserved()


#: Of what is recorded without digests.
NO_DIGESTS = Digests(0, 0)


class PushEncoder:
    """Makes the frames of one worker's pushes."""

    saved = of_worker = per_shard = ("_senders", "_kept")

    def __init__(self, senders: Sequence[Encoder], *, seed: int, worker: int) -> None:
        """Begin with nothing kept back.

        Args:
            senders: one for each shard.
            seed: of the run.
            worker: its number.
        """
        self._senders = senders
        self._seed, self._worker = seed, worker
        #: By shard, the digest of what is kept back.
        self._kept = [digest_of(it.residual) for it in senders]
        #: By shard, where what its frames decode to is written; None where nobody asks.
        self._sent: Sequence[Vector] | None = None

    def decode_into(self, spans: Sequence[Vector]) -> None:
        """From now on write what each frame decodes to into the span of its shard."""
        self._sent = spans

    def encode(self, push: Push, gradient: Vector) -> Bytes:
        """Return the frame of a push, valid until the next one to the same shard.

        Args:
            push: that it goes with.
            gradient: (span,) of its shard; only read.
        """
        sender = self._senders[push.shard]
        sender.begin_epoch(int(push.progress))
        rng = draws(self._seed, self._worker, push.clock, push.shard)
        frame = sender.encode(gradient, rng)
        if self._sent is not None:
            sender.decode(frame, self._sent[push.shard])
        return frame

    def digests(self, shard: int, gradient: Vector, frame: Bytes) -> Digests:
        """Return the digests of the frame that was made last for a shard, of this gradient."""
        found = digests_of(gradient, frame, self._senders[shard], self._kept[shard])
        self._kept[shard] = found.after
        return found


class TimingOnlyEncoder(PushEncoder):
    """Makes frames without contents, of the length that they would have."""

    def __init__(self, senders: Sequence[Encoder]) -> None:
        """Set up; ``senders`` may be other workers', too."""
        self._senders, self._kept = senders, []
        self._nothing = np.zeros(1, np.uint8)

    def encode(self, push: Push, gradient: Vector) -> Bytes:
        """Return as many bytes as the frame would have, the most where that depends on numbers."""
        sender = self._senders[push.shard]
        sender.begin_epoch(int(push.progress))
        return np.broadcast_to(self._nothing, (sender.longest,))

    def digests(self, shard: int, gradient: Vector, frame: Bytes) -> Digests:
        """Return the digests of nothing."""
        return Digests(0, 0)


class PushDecoder:
    """Turns the frames of one shard's pushes into gradients."""

    def __init__(self, codec: Codec, frame: Callable[[int], Bytes]) -> None:
        """Set up.

        Args:
            codec: of the shard.
            frame: worker → the frame of its last push, valid until it is answered.
        """
        self._codec, self._frame = codec, frame
        #: By worker, (span,) what it pushed last.
        self._gradients: dict[int, Vector] = {}

    def gradient(self, worker: int) -> Vector:
        """Return what a worker pushed last, until its next push."""
        return self._gradients[worker]

    def decode(self, push: Push) -> None:
        """Decode the frame of a push that has been received.

        Raises:
            CodecError: naming the worker, if it is no frame of this shard.
        """
        worker = push.worker
        out = self._gradients.get(worker)
        if out is None:
            out = self._gradients[worker] = np.empty(self._codec.n, np.float32)
        try:
            self._codec.decode(self._frame(worker), out)
        except CodecError as error:
            raise CodecError(
                f"worker {worker} pushed at clock {push.clock} to shard {push.shard}: {error}"
            ) from error

    def digests(self, worker: int) -> tuple[int, Digests]:
        """Return the length and the digests of the frame that a worker pushed last."""
        frame = self._frame(worker)
        return frame.size, Digests(digest(frame), digest(self._gradients[worker]))


def digests_of(vector: Vector, frame: Bytes, sender: Encoder, before: int) -> Digests:
    """Return what became of a vector.

    Args:
        vector: that was encoded last.
        frame: of it.
        sender: that made it.
        before: the digest of what was kept back then.
    """
    after = digest_of(sender.residual)
    if not isinstance(sender, ErrorFeedback):
        return Digests(digest(frame), 0, before, after)
    sums = conserved(vector, sender.decoded, sender.residual)
    return Digests(digest(frame), digest(sender.decoded), before, after, sums)


def digest_of(vector: AnyVector | None) -> int:
    """Return the digest of what there may be; 0 of nothing."""
    return 0 if vector is None else digest(vector)
