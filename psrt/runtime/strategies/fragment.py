"""One worker's part in the sums of one fragment of the parameters, round after round."""

from __future__ import annotations

from collections.abc import Sequence

from psrt.core.partition import Span, block_spans
from psrt.optim import BLOCK
from psrt.runtime.strategies.controls import ControlSum
from psrt.transport.coded_sum import SumCodec
from psrt.transport.port import Port

#: A block of a fragment, at most ``BLOCK`` elements: where it lies in θ, and where in what is sent.
Block = tuple[Span, Span]


class Fragment:
    """One worker's part in the sums of one fragment.

    A round is ``send``, then ``poll`` until all sums have started: that of the control values and,
    once the numbers are ``brought``, that of the numbers. With a codec the latter waits for the
    former, since what is encoded depends on the divisor.
    """

    saved = ("steps", "samples")  # between rounds

    def __init__(
        self,
        port: Port,
        number: int,
        spans: Sequence[Span],
        place: Span,
        algorithms: tuple[str, str],
        codec: SumCodec | None = None,
    ) -> None:
        """Make the plans; collective.

        Args:
            port: of a job without servers.
            number: f.
            spans: of θ.
            place: in the vector that is sent, where its spans lie side by side.
            algorithms: all-reduces of the control values and of the fragment.
            codec: makes the messages of the fragment; None sends numbers as they are.
        """
        self.number = number
        self.control = ControlSum(port, algorithms[0], number)
        self.codec = codec
        self.sum = port.reduction(place, algorithms[1], None, codec)
        self.blocks: list[Block] = []
        start = place.start
        for span in spans:
            for a, b in block_spans(span.size, BLOCK):
                there = start + a
                at = span.start + a, span.start + b
                self.blocks.append((Span(*at), Span(there, there + b - a)))
            start += span.size
        #: This worker's steps and samples since it was last sent.
        self.steps = self.samples = 0
        #: Whether it is in progress, and whether the sums of its control values and of its numbers
        #: have begun.
        self.under_way = self.asking = self.summing = False
        #: The clock with which it was sent, and seconds of waiting for its round.
        self.clock = 0
        self.waited = 0.0
        #: Number of the sum among those of all fragments.
        self._round = 0
        #: Of this worker in this round: its weight, whether it is still training, its progress.
        self._mine = 0.0, False, 0.0
        #: Whether its numbers are where they are summed.
        self.brought = False

    def send(
        self, number: int, clock: int, weight: float, *, present: bool, progress: float
    ) -> None:
        """Begin a round; no sum begins before ``poll``.

        Args:
            number: of the sum among those of all fragments, the same on all workers.
            clock: that the round is noted with.
            weight: of this worker's numbers, in [0, 1]; 0 without samples.
            present: whether it is still training.
            progress: of this worker, in epochs.
        """
        self._round, self.clock = number, clock
        self._mine = weight, present, progress
        self.under_way, self.brought = True, False
        self.steps = self.samples = 0
        self.waited = 0.0

    def poll(self) -> bool:
        """Progress without waiting; return whether all that can be known of the round has begun."""
        control = self.control
        if self.summing:
            control.poll()
            self.sum.poll()
            return True
        if not self.asking:
            weight, present, progress = self._mine
            control.begin(weight, present=present, progress=progress)
            self.asking = True
        known = control.poll() or self.codec is None
        if self.brought and known:
            self._begin_sum()
        return known

    async def known(self) -> float:
        """Wait for the control values; return the total weight."""
        if not self.asking:
            self.poll()
        total = await self.control.finish()
        if not self.summing:
            self.poll()
        return total

    async def finish(self) -> None:
        """Wait until the numbers are summed, if there are any, and end the round."""
        if self.summing:
            await self.sum.finish()
        self.under_way = self.asking = self.summing = False

    def _begin_sum(self) -> None:
        control, codec = self.control, self.codec
        if codec is not None:
            assert control.total is not None, "what is encoded depends on it"
            codec.begin_round(self._round, int(control.progress / control.present), control.total)
        self.sum.begin()
        self.summing = True
