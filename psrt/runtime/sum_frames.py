"""Records every frame of a worker's sums in the history."""

from __future__ import annotations

from collections.abc import Callable

from psrt.arrays import Bytes, Vector
from psrt.codec import Encoder
from psrt.partition import Span
from psrt.runtime.event_recorder import WorkerEventRecorder
from psrt.runtime.push_codec import Digests, digest, digest_of, digests_of


class RecordedFrames:
    """One worker's frames; see ``coded_sum.FrameWatch``."""

    def __init__(self, events: WorkerEventRecorder, now: Callable[[], float]) -> None:
        """Set up.

        Args:
            events: of the worker.
            now: returns the time, in seconds.
        """
        self._events, self._now = events, now
        self._before = 0

    def encodes(self, sender: Encoder) -> None:
        """Note what it has kept back."""
        self._before = digest_of(sender.residual)

    def encoded(
        self, clock: int, owner: int, span: Span, way: int, sender: Encoder,
        numbers: Vector | None, frame: Bytes | None,
    ) -> None:  # fmt: skip
        """Record a frame, and what is kept back of it; without numerics, its length."""
        digests, nbytes = Digests(0, 0), sender.longest
        if numbers is not None and frame is not None:
            digests = digests_of(numbers, frame, sender, self._before)
            nbytes = frame.size
        events = self._events
        events.note((events.encoded_of_sum, self._now(), clock, owner, span, way, nbytes, digests))

    def decoded(
        self, clock: int, source: int, span: Span, way: int, frame: Bytes, numbers: Vector
    ) -> None:
        """Record what was made of a frame."""
        events, digests = self._events, Digests(digest(frame), digest(numbers))
        events.note(
            (events.decoded_of_sum, self._now(), clock, source, span, way, frame.size, digests)
        )
