"""Weights of the gradients of ``join``, so that every sample counts equally."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch

from psrt.core.errors import DifferentCallsError
from psrt.torch.communicator import Communicator
from psrt.torch.passes import pass_number


class Turn:
    """The current turn of ``join`` of a communicator's ranks; shared by all its Gradients."""

    def __init__(self) -> None:
        #: The weights of all open Gradients of the communicator.
        self.members: WeakSet[Weights] = WeakSet()
        #: The Gradients whose sums start while backward runs. The sums of the others follow at its
        #: end: an unused parameter could otherwise make one rank start sums in another order.
        self.eager: Any = None
        #: Number of this turn, since the start; 0 outside of ``join``.
        self.number = 0
        self._count = 0
        #: Samples of this rank's batch.
        self.samples = 0
        #: Samples over all ranks of this turn, and of the first turn that had any: the unit of
        #: weights.
        self.total = self.unit = 0
        #: Outermost ``join`` loops that have come to their end.
        self.epoch = 0

    def begin(self, samples: int, total: int) -> int:
        """Start a turn with a batch of this rank; return its number.

        Every member uses the turn's weight, even one that opens during the turn.
        """
        self._count += 1
        self.number, self.samples, self.total = self._count, samples, total
        self.unit = self.unit or total
        for it in self.members:
            it.hook()
        return self.number

    @property
    def now(self) -> tuple[int, int, int]:
        """Number, samples and total, for ``end`` of a turn within this one."""
        return self.number, self.samples, self.total

    def end(self, number: int, samples: int, total: int) -> None:
        """Return to the enclosing turn, if any; see ``now``."""
        self.number, self.samples, self.total = number, samples, total
        if not number:
            for it in self.members:
                it.unhook()

    def add(self, member: Weights) -> None:
        """Add a member."""
        self.members.add(member)
        if self.number:
            member.hook()

    def remove(self, member: Weights) -> None:
        """Remove a member."""
        self.members.discard(member)
        member.unhook()

    def explained(self, error: DifferentCallsError) -> DifferentCallsError:
        """Return an error of the communicator, extended by what the loop should do."""
        expected = "expected the same backward passes and turns of join() on every rank"
        if len(self.members) > 1:
            expected += (
                "; with several optimizers, a backward pass must reach those of the same ones on "
                "every rank: detach() what it should not reach, or call wait() of the others"
            )
        return DifferentCallsError(f"{error}; {expected}")


_TURNS: WeakKeyDictionary[Any, Turn] = WeakKeyDictionary()


def turn_of(communicator: Communicator) -> Turn:
    """Return the turn of a communicator, the same object every time."""
    return _TURNS.setdefault(communicator, Turn())


class Weights:
    """The samples in the gradients of some parameters, whose weights add up over micro-batches.

    With n samples in a turn a gradient G is added as G·n·W/U, U being the unit; the mean over W
    ranks of what has added up is then multiplied by k·U/Σn, over all turns and ranks. If the losses
    of k turns are each divided by k, this is Σ n·G / Σ n, the mean over all samples.
    """

    def __init__(self, tensors: Sequence[Any], turn: Turn, size: int) -> None:
        self.tensors, self._turn, self._size = tensors, turn, size
        #: The last counted pass, its weight, and the parameters that had no gradient before it.
        self._pass, self._scale = -1, 1.0
        self._had_none: set[int] = set()
        self._hooks: list[Any] = []
        self.clear()

    def clear(self) -> None:
        """Start new gradients, after an optimizer step."""
        #: Samples of this rank, the number of turns, and the last turn.
        self.samples = self._turns = self._last = 0
        #: The factor by which the gradients are already multiplied.
        self._applied = 1.0
        #: The parameter whose gradient came last, and the gradient's version (None if ``grad`` was
        #: still None).
        self._left: tuple[int, int | None] | None = None

    def hook(self) -> None:
        """Register hooks for as long as ``join`` runs; further calls do nothing."""
        for i, it in () if self._hooks else enumerate(self.tensors):
            needs = it.requires_grad
            it.requires_grad_(True)  # a frozen tensor has no such node, and may be unfrozen later
            # Of what adds to ``grad``: a hook of the tensor would also weigh what
            # ``torch.autograd.grad`` returns. Torch forgets the node unless somebody keeps it.
            ((node, _),) = it.expand_as(it).grad_fn.next_functions
            self._hooks.append((node, node.register_prehook(partial(self._weigh, i))))
            it.requires_grad_(needs)

    def unhook(self) -> None:
        """Remove the hooks."""
        for _, hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _weigh(self, i: int, gradients: tuple[Any]) -> tuple[Any]:
        """Return a gradient multiplied by its weight, before it is added to ``grad``."""
        (gradient,) = gradients
        if (now := pass_number()) != self._pass:
            self._pass = now
            self._enter()
        if not self._turn.samples:
            if self.tensors[i].grad is None:
                self._had_none.add(i)
            return (torch.zeros_like(gradient),)  # not gradient · 0, which keeps a NaN
        return gradients if self._scale == 1 else (gradient * self._scale,)

    def _enter(self) -> None:
        if self._was_zeroed():
            self.clear()
        self._had_none.clear()
        turn = self._turn
        if turn.number != self._last:
            self._last = turn.number
            self._turns += 1
            self.samples += turn.samples
        self._scale = turn.samples * self._size / max(1, turn.unit) * self._applied

    def _was_zeroed(self) -> bool:
        """Return whether gradients were reset since the last pass, without a step."""
        if self._left is None or self._left[1] is None:
            return False
        gradient = self.tensors[self._left[0]].grad
        if gradient is None:
            return True
        return gradient._version != self._left[1] and not dense(gradient).any()

    def note(self, i: int) -> None:
        """Note that parameter i has its gradient, in a turn of ``join``."""
        if i in self._had_none:  # a batch without samples leaves no gradient
            self._had_none.remove(i)
            self.tensors[i].grad = None
        gradient = self.tensors[i].grad
        self._left = i, None if gradient is None else gradient._version

    def note_mean(self) -> None:
        """Note that the gradients have become means."""
        if self._left is not None:
            self.note(self._left[0])

    @property
    def turns(self) -> int:
        """Turns times samples; see ``factor``."""
        return self.samples * self._turns

    def factor(self, samples: int, turns: int) -> float:
        """Return the factor of the mean over all ranks.

        Args:
            samples: the sum over all ranks; 0 outside of ``join``.
            turns: the sum over all ranks, to which a rank without samples adds nothing.
        """
        whole = turns / samples * self._turn.unit / samples if samples else 1.0
        factor, self._applied = whole / self._applied, whole
        return factor


def dense(gradient: Any) -> Any:
    """Return a gradient as a dense tensor."""
    return gradient.to_dense() if gradient.is_sparse else gradient
