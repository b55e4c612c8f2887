"""The control values of a round: three numbers that all workers sum beside their vectors."""

from __future__ import annotations

from psrt.core.partition import Span
from psrt.transport.port import CONTROL, Port, Reduction, control_of, controls_of

#: Where each control value lies in its set.
WEIGHT, PRESENT, PROGRESS = range(CONTROL)


class ControlSum:
    """One set of control values, summed round after round.

    The weight gives the divisor, the number of workers still training says when all stop, and the
    sum of their progress gives the learning rate.
    """

    def __init__(self, port: Port, algorithm: str, number: int = 0) -> None:
        """Make the plan; collective.

        Args:
            port: of a job without servers.
            algorithm: of the sum, as ``choice`` returned it.
            number: of the set.
        """
        span: Span = controls_of(port)[number]
        self._values = control_of(port, number)
        #: None where there is one worker, which knows everything by itself.
        self._sum: Reduction | None = None
        if len(port.role_map.workers) > 1:
            self._sum = port.reduction(span, algorithm, None)
        #: The sums of the round; the total weight is None until they are known.
        self.total: float | None = None
        self.present = self.progress = 0.0

    def begin(self, weight: float, *, present: bool, progress: float) -> None:
        """Begin a round; never waits.

        Args:
            weight: of this worker's numbers, in [0, 1]; 0 without samples.
            present: whether it is still training.
            progress: of this worker, in epochs.
        """
        if self._sum is None:
            self.total, self.present, self.progress = weight, float(present), progress
            return
        self.total = None
        values = self._values
        values[WEIGHT], values[PRESENT], values[PROGRESS] = weight, present, progress
        self._sum.begin()

    def poll(self) -> bool:
        """Progress without waiting; return whether the sums are known."""
        if self.total is None and self._sum is not None and self._sum.poll():
            self._learn()
        return self.total is not None

    async def finish(self) -> float:
        """Wait until the sums are known; return the total weight."""
        if self.total is None and self._sum is not None:
            await self._sum.finish()
            self._learn()
        assert self.total is not None, "a round has begun"
        return self.total

    def _learn(self) -> None:
        self.total, self.present, self.progress = self._values.tolist()
