"""Records every frame of a worker's sums in the history."""

from __future__ import annotations

from collections.abc import Callable

from psrt.codec import Encoder, ErrorFeedback
from psrt.core.arrays import AnyVector, Bytes, Vector
from psrt.core.partition import Span
from psrt.history.events import OF_ALL
from psrt.runtime.checksum import digest
from psrt.runtime.conserved import conserved
from psrt.runtime.event_recorder import WorkerEventRecorder
from psrt.runtime.push_codec import Digests, digest_of, digests_of


class RecordedFrames:
    """One worker's frames; see ``coded_sum.FrameWatch``."""

    def __init__(self, events: WorkerEventRecorder, now: Callable[[], float]) -> None:
        """Set up.

        Args:
            events: of the worker.
            now: returns the time, in seconds.
        """
        self._events, self._now = events, now
        #: By sender, what it had kept back when the round began.
        self._before: dict[int, int] = {}

    def encodes(self, sender: Encoder) -> None:
        """Note what it has kept back, if this is the first word of it in the round."""
        if id(sender) not in self._before:
            self._before[id(sender)] = digest_of(sender.residual)

    def encoded(
        self, clock: int, owner: int, span: Span, way: int, sender: Encoder,
        numbers: Vector | None, frame: Bytes | None,
    ) -> None:  # fmt: skip
        """Record a frame, and what is kept back of it; without numerics, its length."""
        digests, nbytes = Digests(0, 0), sender.longest
        if numbers is not None and frame is not None:
            digests = digests_of(numbers, frame, sender, self._before.pop(id(sender)))
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

    def projected(
        self, clock: int, span: Span, part: int, numbers: AnyVector | None, nbytes: int
    ) -> None:
        """Record a part; without numerics, its length."""
        events, digests = self._events, Digests(digest_of(numbers), 0)
        events.note(
            (events.encoded_of_sum, self._now(), clock, OF_ALL, span, part, nbytes, digests)
        )

    def agreed(
        self, clock: int, span: Span, part: int, mean: Vector | None, result: Vector | None,
        nbytes: int,
    ) -> None:  # fmt: skip
        """Record the mean of a part, and with the last one that of the numbers."""
        events, digests = self._events, Digests(digest_of(mean), digest_of(result))
        events.note(
            (events.decoded_of_sum, self._now(), clock, OF_ALL, span, part, nbytes, digests)
        )

    def kept(self, clock: int, span: Span, sender: ErrorFeedback, numbers: Vector) -> None:
        """Record what is kept back."""
        digests = Digests(
            0, 0, self._before.pop(id(sender)), digest(sender.residual),
            conserved(numbers, sender.decoded, sender.residual),
        )  # fmt: skip
        events = self._events
        events.note((events.kept_of_sum, self._now(), clock, OF_ALL, span, 0, digests))
