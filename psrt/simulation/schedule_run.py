"""A reduction among virtual ports: a schedule carried out, step by step, over virtual messages.

Spans that arrive are looked at only when the role polls or waits, so what a role meets in the
middle of its work is what a real one would: sums that are there because others were faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from psrt.collective import ALGORITHMS, Step
from psrt.optim import BLOCK
from psrt.partition import Span, block_spans
from psrt.transport.port import Take, Vector


class Spans(Protocol):
    """What a rehearsal asks of the port of its rank."""

    #: Whether computing time passes, so that nothing can be sent before it is over.
    computing: bool

    def post(self, to: int, key: int, numbers: Vector | None, nbytes: int) -> None:
        """Send numbers to rank ``to``, for its reduction ``key``; they are copied."""

    def parcel(self, source: int, key: int) -> Sequence[Vector | None]:
        """Return what rank ``source`` posted next for this rank's ``key``, nothing if not here."""

    async def arrival(self) -> None:
        """Suspend until something has arrived, for whomever."""

    def soon(self, action: Callable[[], object]) -> None:
        """Do something now, or at the end of the computing time in which it is asked for."""


class Rehearsal:
    """One rank's part in the sums of one span of ``gradient``; see ``port.Reduction``."""

    def __init__(
        self,
        port: Spans,
        mine: Vector | None,
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
            mine: this rank's numbers; None moves their bytes only.
            span: of the gradient, where they are.
            algorithm: a key of ``ALGORITHMS``.
            take: see ``port.Take``; every rank owns every element.
            rank: of the ``size`` ranks that take part.
            size: how many there are, p.
            key: marks this reduction's messages; the same on all ranks and no other's.
        """
        self._port, self._rank, self._key, self._take = port, rank, key, take
        self._span, self._mine = span, mine
        row = ALGORITHMS[algorithm]
        # Thousands of ranks that sum three numbers have nothing to do in most steps.
        self._steps = [s for s in row(rank, size, span.size) if s.send.size or s.receive.size]
        # Apart from the gradient, which has no room behind a span for a workspace.
        room = 0 if mine is None else span.size + row.workspace(size, span.size)
        self._values: Vector = np.empty(room, np.float32)
        #: Steps done, and whether the next one has sent its half.
        self._at, self._sent = 0, False
        self._over = True

    @property
    def sums(self) -> Vector:
        """The sums, once all steps are done."""
        return self._values[: self._span.size]

    def begin(self) -> None:
        """Take the numbers of the span and send what can be sent."""
        assert self._over, "a round begins when the last one is over"
        if self._mine is not None:
            np.copyto(self.sums, self._mine)
        self._at, self._sent, self._over = 0, False, False
        self._port.soon(self.advance)

    def advance(self) -> bool:
        """Do every step whose span has arrived; return whether that was the last one."""
        while self._at < len(self._steps):
            if not self._do(self._steps[self._at]):
                return False
            self._at, self._sent = self._at + 1, False
        return True

    def poll(self) -> bool:
        """Move on, though not while computing time passes, which is yet to come for the role."""
        if not self._over and not self._port.computing and self.advance():
            self._over = True
            if self._mine is not None:
                hand_over(self._span, self._mine, self.sums, self._take)
        return self._over

    async def finish(self) -> None:
        """Look again whenever something arrives."""
        while not self.poll():
            await self._port.arrival()

    def _do(self, step: Step) -> bool:
        """Do one step as far as it goes; return whether it is done."""
        send_to, send, source, receive, combine = step
        values = None if self._mine is None else self._values
        if step.is_local(self._rank):
            if values is not None:
                _fold(receive.of(values), send.of(values), combine, given_first=False)
            return True
        if send_to is not None and send.size and not self._sent:
            numbers = None if values is None else send.of(values)
            self._port.post(send_to, self._key, numbers, 4 * send.size)
        self._sent = True
        if source is not None and receive.size:
            parcel = self._port.parcel(source, self._key)
            if not parcel:
                return False
            [given] = parcel
            if values is not None and given is not None:
                _fold(receive.of(values), given, combine, given_first=source < self._rank)
        return True


def hand_over(span: Span, mine: Vector, sums: Vector, take: Take | None) -> None:
    """Give sums to whoever takes them, or leave them where the numbers were.

    Args:
        span: of the gradient.
        mine: this rank's numbers there.
        sums: of all ranks; may be overwritten.
        take: see ``port.Take``.
    """
    if take is None:
        np.copyto(mine, sums)
        return
    for block in block_spans(span.size, BLOCK):
        take(Span(span.start + block.start, span.start + block.stop), block.of(sums))


def _fold(mine: Vector, given: Vector, combine: bool, *, given_first: bool) -> None:
    """Add or copy; the lower rank's operand comes first, as everywhere."""
    if not combine:
        np.copyto(mine, given)
    elif given_first:
        np.add(given, mine, out=mine)
    else:
        np.add(mine, given, out=mine)
