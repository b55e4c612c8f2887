"""How a worker's gradient is computed: by the problem, by the user's own loop, or in parts.

There is one training loop (``worker``). What depends on the way of computing is here, with its
words for messages. Knows nothing of modes, clocks or checkpoints.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import numpy as np

from psrt.core.arrays import Vector
from psrt.runtime.cut_problem import CutProblem
from psrt.runtime.named_arrays import tensors_of
from psrt.runtime.own_loop import OwnBatch, OwnBatches, OwnLoop
from psrt.runtime.pipedream import PipeDream
from psrt.runtime.problem import Problem
from psrt.runtime.problem_rules import (
    check_written,
    evaluate,
    reading_only,
    sample_counter,
    tensor_with,
)
from psrt.transport.port import Port

#: The argument ``ready``, called with i as soon as the i-th part of a gradient is final: a
#: function, None, or absent for a problem without that argument.
Hook = tuple[Callable[[int], None] | None, ...]


class Compute:
    """The problem itself computes a batch's whole gradient."""

    #: Whether batches are in flight except at the ends of epochs.
    drains = False
    #: Whether batches come with gradients that were computed elsewhere.
    awaits_batches = False
    #: The names, in messages, of what takes theta and of what writes a gradient.
    by = writes = "loss_and_grad()"
    #: A hint against a gradient that is not finite.
    hint = "try a smaller --lr, or scale the inputs"

    def __init__(self, port: Port, problem: Problem) -> None:
        """Set up.

        Args:
            port: of the worker.
            problem: the model and data.
        """
        self._port, self._problem = port, problem
        #: The problem that this computes, or computes a part of.
        self.whole: Any = problem
        #: Returns the number of samples of a batch.
        self.samples_in = sample_counter(self.whole)
        #: An error of the evaluation after the last step, which must neither end the training of
        #: others nor lose the result; raised at the end.
        self.late_error: Exception | None = None
        #: Called with the parameters (n,) that were evaluated; None if nobody wants them.
        self.watched: Callable[[Vector], None] | None = None

    async def batches(
        self, place: int, among: int, epoch: int, own: tuple[Sequence[Any], ...]
    ) -> Iterable[Any] | OwnBatches:
        """Return this worker's batches of an epoch.

        Args:
            place: of the worker among those that share the epoch.
            among: their number.
            epoch: from 0.
            own: the samples of each step, if samples are assigned to workers.
        """
        return await self._port.aside(self._problem.batches, place, among, epoch, *own)

    def computed_s(self, batch: Any) -> float:
        """Return the seconds that the gradient of a batch took elsewhere."""
        return 0.0

    def gradient(
        self, theta: Vector, batch: Any, out: Vector, hook: Hook, clock: int
    ) -> Awaitable[float]:
        """Write a batch's gradient (n,), and return its mean loss.

        Args:
            theta: (n,) only read.
            batch: with samples.
            out: (n,) gets the gradient.
            hook: takes the parts of the gradient.
            clock: of the step.
        """
        return self._port.compute(self._problem.loss_and_grad, theta, batch, out, *hook)

    def first_gradient(
        self, theta: Vector, batch: Any, out: Vector, hook: Hook, clock: int
    ) -> Awaitable[float]:
        """Do so in the first step, and check that theta is not changed.

        Not if the gradient is taken in parts, after which theta may change.
        """
        loss_and_grad = reading_only(self._problem.loss_and_grad)
        return self._port.compute(loss_and_grad, theta, batch, out, *hook)

    async def pass_over(self, theta: Vector, batch: Any, out: Vector) -> None:
        """Handle a batch without samples."""
        return

    def without_loss(self, batch: Any) -> bool:
        """Whether batches have no loss, which is nan then."""
        return False

    def check_first(self, batch: Any, gradient: Vector, *, is_whole: bool) -> None:
        """Check that the first gradient (n,) has been written.

        Args:
            batch: that it is of.
            gradient: marked before.
            is_whole: whether it is only this worker's; otherwise parts may already hold sums.

        Raises:
            ConfigError: if it has not.
        """
        if is_whole:
            check_written(gradient, self.writes)

    def name_of(self, at: int) -> str:
        """Return the name of the array with an element of the gradient; empty without names."""
        whole = np.empty(self._port.role_map.n, np.float32)
        return tensor_with(self._problem, whole, at)

    async def total(self, number: float) -> float:
        """Return the sum of a number over all workers that compute a gradient together."""
        return number

    async def figures(self, theta: Vector, *, last: bool) -> dict[str, float]:
        """Return figures of the parameters (n,); none if that fails after the ``last`` step."""
        try:
            return await self._port.aside(self.evaluate, theta)
        except Exception as error:
            if not last:
                raise
            self.late_error = error
            return {}

    def evaluate(self, theta: Vector) -> dict[str, float]:
        """Return figures of the whole model's parameters (n,); show them to the hooks."""
        found = evaluate(self.whole, theta)
        if self.watched is not None:
            self.watched(theta)
        return found


class LoopCompute(Compute):
    """The user's own loop has computed it; see ``own_loop``."""

    awaits_batches = True
    hint = f"{Compute.hint}; step(samples=0) leaves a batch out"

    def __init__(self, port: Port, loop: OwnLoop) -> None:
        """Set up for a worker with a loop."""
        super().__init__(port, loop)  # type: ignore[arg-type]  # its batches are awaited
        self._loop = loop

    async def batches(
        self, place: int, among: int, epoch: int, own: tuple[Sequence[Any], ...]
    ) -> Iterable[Any] | OwnBatches:
        """Wait for the loop to begin an epoch."""
        return await self._loop.batches(place, among, epoch)

    def computed_s(self, batch: OwnBatch) -> float:
        """Return the seconds since the batch was asked for."""
        return self._port.now() - batch.asked

    def without_loss(self, batch: OwnBatch) -> bool:
        """Whether the loop passes no loss."""
        return batch.loss is None

    def check_first(self, batch: OwnBatch, gradient: Vector, *, is_whole: bool) -> None:
        """Check that it is not zero, too."""
        super().check_first(batch, gradient, is_whole=is_whole)
        self._loop.check_first(batch, gradient)

    def name_of(self, at: int) -> str:
        """Return what the loop's array is called."""
        return self._loop.named(at)


class CutCompute(Compute):
    """The workers of a copy compute together, each its part of the model."""

    by, writes = "a layer", "backward_weight() of the layers"

    def __init__(self, port: Port, cut: CutProblem) -> None:
        """Set up for a worker with a part."""
        super().__init__(port, cut)
        self._cut = cut
        self.drains = cut.drains
        self.whole = cut.whole
        self.samples_in = sample_counter(cut.whole)

    def gradient(
        self, theta: Vector, batch: Any, out: Vector, hook: Hook, clock: int
    ) -> Awaitable[float]:
        """Compute a part together with the others."""
        return self._cut.gradient(theta, batch, out, *hook, clock=clock)

    def first_gradient(
        self, theta: Vector, batch: Any, out: Vector, hook: Hook, clock: int
    ) -> Awaitable[float]:
        """Do so in the first step; a part checks its layers itself."""
        return self.gradient(theta, batch, out, hook, clock)

    async def pass_over(self, theta: Vector, batch: Any, out: Vector) -> None:
        """Make progress on batches in the stages."""
        if isinstance(self._cut, PipeDream):
            await self._cut.gradient(theta, batch, out)

    def name_of(self, at: int) -> str:
        """Return the name of the tensor in the whole model."""
        return self._cut.tensor_at(at)

    async def total(self, number: float) -> float:
        """Return the sum over all parts of a copy."""
        return await self._cut.links.total(number)

    async def figures(self, theta: Vector, *, last: bool) -> dict[str, float]:
        """Evaluate the whole model, at its first cell."""
        return await self._cut.figures(theta, self.evaluate)


def packed(problem: Any, theta: Vector) -> bytes:
    """Return what ``model.safetensors`` would contain of parameters (n,); empty without any."""
    from safetensors.numpy import save  # not needed without a hook

    if not theta.size:
        return b""
    tensors = tensors_of(problem)
    named = {"theta": theta} if tensors is None else tensors(theta)
    # The format requires C order; safetensors would write a strided view's memory unchanged.
    return save({name: np.asarray(it, order="C") for name, it in named.items()})


def compute_of(port: Port, problem: Problem) -> Compute:
    """Return how the worker at a port computes its problem's gradient."""
    if isinstance(problem, OwnLoop):
        return LoopCompute(port, problem)
    if isinstance(problem, CutProblem):
        return CutCompute(port, problem)
    return Compute(port, problem)
