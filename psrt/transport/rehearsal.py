"""A reduction among virtual ports: a schedule carried out, step by step, over virtual messages.

Spans that arrive are looked at only when the role polls or waits, so what a role meets in the
middle of its work is what a real one would: sums that are there because others were faster.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from psrt.collective import ALGORITHMS, Step
from psrt.optim import BLOCK
from psrt.partition import Span, block_spans
from psrt.transport.port import Take, Vector


class Spans(Protocol):
    """What a rehearsal asks of the port of its rank."""

    def post(self, to: int, key: int, numbers: Vector) -> None:
        """Send numbers to rank ``to``, for its reduction ``key``; they are copied."""

    def parcel(self, source: int, key: int) -> Vector | None:
        """Return what rank ``source`` posted next for this rank's ``key``, None if not here."""

    async def arrival(self) -> None:
        """Suspend until something has arrived, for whomever."""


class Rehearsal:
    """One rank's part in the sums of one span of ``gradient``; see ``port.Reduction``."""

    def __init__(
        self,
        port: Spans,
        gradient: Vector,
        span: Span,
        algorithm: str,
        take: Take | None,
        *,
        rank: int,
        size: int,
        key: int,
    ) -> None:
        """Compile this rank's steps.

        Args:
            port: carries the spans.
            gradient: the rank's own.
            span: of it.
            algorithm: a key of ``ALGORITHMS``.
            take: see ``port.Take``; every rank owns every element.
            rank: of the ``size`` ranks that take part.
            size: how many there are, p.
            key: marks this reduction's messages; the same on all ranks and no other's.
        """
        self._port, self._rank, self._key, self._take = port, rank, key, take
        self._span = span
        self._mine = span.of(gradient)
        row = ALGORITHMS[algorithm]
        self._steps = list(row(rank, size, span.size))
        # Apart from the gradient, which has no room behind a span for a workspace.
        self._values: Vector = np.empty(span.size + row.workspace(size, span.size), np.float32)
        #: Steps done, and whether the next one has sent its half.
        self._at, self._sent = 0, False
        self._over = True

    def begin(self) -> None:
        """Take the numbers of the span; nothing is sent before somebody looks."""
        assert self._over, "a round begins when the last one is over"
        np.copyto(self._values[: self._span.size], self._mine)
        self._at, self._sent, self._over = 0, False, False

    def poll(self) -> bool:
        """Do every step whose span has arrived."""
        while self._at < len(self._steps):
            if not self._do(self._steps[self._at]):
                return False
            self._at, self._sent = self._at + 1, False
        if not self._over:
            self._over = True
            self._hand_over()
        return True

    async def finish(self) -> None:
        """Look again whenever something arrives."""
        while not self.poll():
            await self._port.arrival()

    def _do(self, step: Step) -> bool:
        """Do one step as far as it goes; return whether it is done."""
        values = self._values
        if step.is_local(self._rank):
            _fold(step.receive.of(values), step.send.of(values), step.combine, given_first=False)
            return True
        if step.send_to is not None and step.send.size and not self._sent:
            self._port.post(step.send_to, self._key, step.send.of(values))
        self._sent = True
        if step.receive_from is not None and step.receive.size:
            given = self._port.parcel(step.receive_from, self._key)
            if given is None:
                return False
            given_first = step.receive_from < self._rank
            _fold(step.receive.of(values), given, step.combine, given_first=given_first)
        return True

    def _hand_over(self) -> None:
        """Give the sums to whoever takes them."""
        if self._take is None:
            np.copyto(self._mine, self._values[: self._span.size])
            return
        for block in block_spans(self._span.size, BLOCK):
            place = Span(self._span.start + block.start, self._span.start + block.stop)
            self._take(place, block.of(self._values))


def _fold(mine: Vector, given: Vector, combine: bool, *, given_first: bool) -> None:
    """Add or copy; the lower rank's operand comes first, as everywhere."""
    if not combine:
        np.copyto(mine, given)
    elif given_first:
        np.add(given, mine, out=mine)
    else:
        np.add(mine, given, out=mine)
