"""A problem that gets its batches and gradients from the user's own loop.

The roles are those of every other run. Where a worker's role would take a batch and compute, it
suspends, and the user's loop continues; ``psrt.trainer.Trainer`` resumes it with the loop's next
event.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import coroutine
from typing import Any, Protocol

from psrt.checkpoint import Tree
from psrt.codec.matrices import Matrix
from psrt.core.arrays import AnyArray, Vector
from psrt.core.errors import CheckpointError, ConfigError
from psrt.optim.optimizer import OwnOptimizer
from psrt.runtime.checksum import fingerprint
from psrt.runtime.named_arrays import NamedShape

#: In a tree, what a loop keeps of itself, beside what is held.
_LOOP = "loop"


class Ending(Enum):
    """What a loop may reach instead of a batch."""

    #: The end of an epoch.
    EPOCH = "epoch"
    #: That of training: this worker leaves.
    TRAINING = "training"


#: Writes a gradient (n,), and returns the names of the arrays that have none.
Writer = Callable[[Vector], Sequence[str]]


@dataclass(slots=True)
class OwnBatch:
    """A batch whose gradient the loop has computed."""

    #: Number of its samples.
    samples: int
    #: Its mean loss; None where nobody says.
    loss: float | None
    write: Writer
    #: When the role asked for it, on the port's clock.
    asked: float = math.nan


#: What a loop comes to next; the number of an epoch's steps, or 0, begins one.
Next = OwnBatch | Ending | int


@coroutine
def _next() -> Generator[None, Next, Next]:
    """Suspend the role, and return what it is resumed with."""
    return (yield)


class Held(Protocol):
    """What is trained beside the parameters, such as running means: each worker's own."""

    def state(self) -> Tree:
        """Return it as a checkpoint has it."""
        ...

    def load_state(self, tree: Tree) -> None:
        """Take back what ``state`` returned, here or in another process."""
        ...

    def conclude(self, states: Mapping[int, Tree]) -> None:
        """Take what the workers have, by their numbers, together; with none change nothing."""
        ...


class OwnBatches:
    """The batches of an epoch, as the loop comes to them."""

    def __init__(self, steps: int, held: Held | None = None) -> None:
        """Set up.

        Args:
            steps: their number; 0 where nobody knows.
            held: what the loop trains beside the parameters.
        """
        self._steps, self._held = steps, held

    def __len__(self) -> int:
        return self._steps

    async def next(self, now: Callable[[], float], *, counts: bool) -> OwnBatch | Ending:
        """Wait for the next batch, or the end of the epoch or of training.

        Args:
            now: returns the time.
            counts: whether a step may be taken with it. Else the loop, which does not know, changes
                nothing that is held by computing with it.
        """
        asked = now()
        before = None if counts or self._held is None else self._held.state()
        found = await _next()
        assert not isinstance(found, int), "an epoch ends before the next one begins"
        if isinstance(found, OwnBatch):
            found.asked = asked
            if self._held is not None and before is not None:
                self._held.load_state(before)
        return found


class Member(Protocol):
    """What a loop may ask of its worker."""

    #: Gradient steps finished.
    clock: int
    #: Epochs finished.
    epoch: int

    @property
    def theta(self) -> Vector:
        """(n,) the parameters as this worker has them."""
        ...

    @property
    def versions(self) -> Sequence[int]:
        """By shard, the version of the parameters that it has; empty without servers."""
        ...

    @property
    def taken(self) -> int:
        """The number of batches of this epoch that are behind it."""
        ...

    @property
    def owns_theta(self) -> bool:
        """Whether ``theta`` is this worker's alone between two steps, and may be written to."""
        ...


class OwnLoop:
    """What is trained in the user's own loop; a ``Problem`` except for its batches."""

    def __init__(
        self,
        initial: Callable[[], Vector],
        matrices: Sequence[Matrix],
        arrays: Sequence[NamedShape],
        *,
        evaluate: Callable[[Vector], Mapping[str, float]] | None = None,
        state: Callable[[], Any] | None = None,
        load_state: Callable[[Any], None] | None = None,
        held: Held | None = None,
        tensors: Callable[[Vector], Mapping[str, AnyArray]],
        nothing: str,
        may_be_zero: bool = False,
    ) -> None:
        """Set up.

        Args:
            initial: returns the (n,) parameters to start from.
            matrices: those among them.
            arrays: what they are made of, in order.
            evaluate: returns figures on held-out data, of parameters (n,); None where the loop
                reports them.
            state: returns what a checkpoint keeps of the loop; None keeps nothing.
            load_state: takes it back.
            held: what is trained besides the parameters; None for nothing.
            tensors: returns what ``model.safetensors`` contains, of parameters (n,).
            nothing: the error's text where no worker has taken a step.
            may_be_zero: whether the first gradient may be zero in every element.
        """
        self.initial = initial
        self._matrices = matrices
        self.arrays = arrays
        self._evaluate = evaluate
        self.state, self.load_state, self.held = state, load_state, held
        if held is not None:
            self.state, self.load_state = self._state, self._load_state
            self._of_loop = state, load_state
        self.tensors, self.nothing = tensors, nothing
        #: What makes the updates; None if the config's optimizer does.
        self.own_optimizer: OwnOptimizer | None = None
        self._may_be_zero = may_be_zero
        #: Names of the arrays that had no gradient in the last step.
        self.without_gradient: Sequence[str] = ()
        #: The worker of this rank; None at one of servers.
        self.member: Member | None = None
        #: This worker's place among those that share the epoch's samples, and their number.
        self.place, self.places = 0, 0
        #: What the loop has reported on held-out data, and the fingerprint of the parameters then.
        self._told: tuple[int, Mapping[str, float]] = 0, {}
        #: (n,) the parameters at the end of the job, where they could be had.
        self.final: Vector | None = None

    def _state(self) -> Tree:
        assert self.held is not None, "else the state is the loop's alone"
        of_loop, _ = self._of_loop
        tree = self.held.state()
        return tree if of_loop is None else {_LOOP: of_loop(), **tree}

    def _load_state(self, tree: Tree) -> None:
        assert self.held is not None, "else the state is the loop's alone"
        _, load = self._of_loop
        if (load is None) != (_LOOP not in tree):
            raise CheckpointError("the checkpoint or Trainer lacks a state of the loop")
        if load is not None:
            load(tree[_LOOP])
        self.held.load_state(tree)

    def matrices(self) -> Sequence[Matrix]:
        """Return the matrices among the parameters."""
        return self._matrices

    async def batches(self, worker: int, workers: int, epoch: int) -> OwnBatches | Sequence[Ending]:
        """Wait for the beginning of the next epoch, and return its batches."""
        self.place, self.places = worker, workers
        steps = await _next()
        if isinstance(steps, Ending):
            return (Ending.TRAINING,)
        assert isinstance(steps, int), "an epoch begins before its first batch"
        return OwnBatches(steps, self.held)

    def samples(self, batch: OwnBatch) -> int:
        """Return the number of samples of a batch."""
        return batch.samples

    def loss_and_grad(self, theta: Vector, batch: OwnBatch, out: Vector) -> float:
        """Write the gradient that the loop has computed; return nan where its loss is not said."""
        self.without_gradient = batch.write(out)
        return math.nan if batch.loss is None else batch.loss

    def named(self, at: int) -> str:
        """Return what the array with an element of the parameters is called; empty if by nothing.

        Args:
            at: the place of the element, in [0, n).
        """
        for name, shape in self.arrays:
            at -= math.prod(shape)
            if at < 0:
                return name
        raise AssertionError("an element of the parameters")

    def check_first(self, batch: OwnBatch, gradient: Vector) -> None:
        """Check that the first gradient is one: exactly zero, it would train nothing.

        Where the loss is 0, as of a margin that is kept, it may be; where pushes are not said to be
        of a loss, too.

        Raises:
            ConfigError: if it is not.
        """
        if self._may_be_zero or batch.loss == 0 or gradient.any():
            return
        raise ConfigError(
            "the first gradient is exactly zero in every element: call step() after the gradient "
            "was computed and before it is reset, as by zero_grad()"
        )

    def tell(self, theta: Vector, figures: Mapping[str, float]) -> None:
        """Take what the loop has found on held-out data, with parameters (n,)."""
        self._told = fingerprint(theta), figures

    def evaluate(self, theta: Vector) -> Mapping[str, float]:
        """Return figures of these parameters; none if the loop has said something of others only.

        Those of the end may be others than those of any worker: a mean, or what servers have.
        """
        if self._evaluate is not None:
            return self._evaluate(theta)
        of, figures = self._told
        return figures if figures and of == fingerprint(theta) else {}
