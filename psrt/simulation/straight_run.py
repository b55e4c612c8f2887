"""A sum by a linear codec along the steps of a schedule, as spans arrive. Pure."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from psrt.codec.randomness import BACK, FORTH
from psrt.core.arrays import Vector
from psrt.core.partition import Span
from psrt.simulation.schedule_run import ScheduleRun, SpanLink
from psrt.transport.coded_sum import SumCodec
from psrt.transport.straight_sum import StraightSum


class StraightLink(SpanLink, Protocol):
    """Carries the spans of a sum, and lets the time of its codec pass."""

    def encodes(self, n: int, way: int) -> None:
        """Note that n elements are encoded now, which takes virtual time."""

    def decodes(self, n: int, way: int) -> None:
        """Note that n elements are decoded now."""


class StraightRun:
    """One rank's part, round after round; used like a ``ScheduleRun``."""

    def __init__(
        self,
        link: StraightLink,
        codec: SumCodec,
        span: Span,
        algorithm: str,
        *,
        rank: int,
        size: int,
        key: int,
        numerics: bool = True,
    ) -> None:
        """Compile the schedule for each part; see ``ScheduleRun`` and ``StraightSum``."""
        self._link = link
        self._sum = StraightSum(codec, span, algorithm, rank=rank, size=size, numerics=numerics)
        self._runs = [
            ScheduleRun(
                link, algorithm, n, rank=rank, size=size, key=key, numerics=numerics,
                dtype=self._sum.dtype,
            )
            for n in self._sum.parts
        ]  # fmt: skip
        #: The number of the part being summed.
        self._at = 0

    @property
    def sums(self) -> Vector:
        """The means, once the round is over; only with numbers."""
        return self._sum.sums

    def begin(self, mine: Vector | None) -> bool:
        """Begin a round with this rank's numbers; return whether it is over."""
        self._link.encodes(self._sum.span.size, FORTH)
        self._sum.begin(mine)
        self._at = 0
        return self._go_on(begun=False)

    def advance(self) -> bool:
        """Advance as far as spans have arrived; return whether the round is over."""
        return self._go_on(begun=True)

    def _go_on(self, *, begun: bool) -> bool:
        while self._at < len(self._runs):
            run = self._runs[self._at]
            # Half precision may overflow; the result is well-defined (``codec.casts``).
            with np.errstate(all="ignore"):
                done = run.advance() if begun else run.begin(self._sum.project(self._at))
            if not done:
                return False
            if self._sum.buffers[self._at].size:
                np.copyto(self._sum.buffers[self._at], run.sums)
            self._sum.agree(self._at)
            self._at, begun = self._at + 1, False
        self._link.decodes(self._sum.span.size, BACK)
        self._sum.finish()
        return True
