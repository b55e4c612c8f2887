"""One worker's part in the sums of one fragment of the parameters, round after round."""

from __future__ import annotations

from collections.abc import Sequence

from psrt.optim import BLOCK
from psrt.partition import Span, block_spans
from psrt.runtime.strategies.controls import ControlSum
from psrt.transport.port import Port

#: A block of a fragment, at most ``BLOCK`` elements: where it lies in θ, and where in what is sent.
Block = tuple[Span, Span]


class Fragment:
    """One worker's part in the sums of one fragment."""

    def __init__(
        self,
        port: Port,
        number: int,
        spans: Sequence[Span],
        start: int,
        algorithms: tuple[str, str],
    ) -> None:
        """Make the plans; collective.

        Args:
            port: of a job without servers.
            number: f.
            spans: of θ.
            start: where in the vector that is sent the fragment begins, its spans side by side.
            algorithms: all-reduces of the control values and of the fragment.
        """
        self.number = number
        self.size = sum(span.size for span in spans)
        self.control = ControlSum(port, algorithms[0], number)
        self.sum = port.reduction(Span(start, start + self.size), algorithms[1], None)
        self.blocks: list[Block] = []
        for span in spans:
            for a, b in block_spans(span.size, BLOCK):
                there = start + a
                at = span.start + a, span.start + b
                self.blocks.append((Span(*at), Span(there, there + b - a)))
            start += span.size
        #: This worker's steps and samples since it was last sent.
        self.steps = self.samples = 0
        #: Whether it is under way, and whether the sum of its numbers has begun.
        self.under_way = self.summing = False
        #: The clock with which it was sent, and seconds of waiting for its round.
        self.clock = 0
        self.waited = 0.0

    def poll(self) -> None:
        """Progress without waiting."""
        self.control.poll()
        if self.summing:
            self.sum.poll()
