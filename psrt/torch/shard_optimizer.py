"""An optimizer of torch on some spans of the parameters, as an optimizer of psrt.

State is in psrt's arrays, of which torch has views, so checkpoints and other shardings treat it as
that of any optimizer. What is one number, such as a count of steps, is the same for all elements of
a group. A small tensor per group steps along to know it, also of groups that have no elements here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from psrt.core.arrays import Vector
from psrt.core.errors import ConfigError
from psrt.core.partition import Span
from psrt.torch.course import Course, bare_copy, rate_of
from psrt.torch.views import tensors_on

#: The elements of a small tensor: several, so that state by element is not shaped like a number.
TICK = 3


class Run(NamedTuple):
    """Elements that follow each other and are of one group."""

    group: int
    span: Span


@dataclass(slots=True, eq=False)
class Piece:
    """Elements of one group in a block: for torch a tensor that moves from vector to vector."""

    group: int
    #: Their place in the block, and in the optimizer's vector; none there of a small tensor.
    within: Span
    whole: Span
    tensor: Any = field(default_factory=lambda: torch.empty(0))
    #: Their state by element, in psrt's arrays; and the updates behind what torch has of it.
    views: dict[str, Any] = field(default_factory=dict)
    updates: int = -1


class ShardOptimizer:
    """Takes torch's steps on a vector, block by block; a ``psrt.optim.optimizer.RatedOptimizer``.

    One tensor takes the place of all parameters of a group in a block: a step is element-wise.
    """

    saved = ("state", "numbers", "updates")
    by_element = ("state",)

    def __init__(
        self,
        optimizer: Any,
        course: Course,
        kinds: Sequence[Mapping[str, Any]],
        runs: Sequence[Run],
        *,
        is_begun: bool,
    ) -> None:
        """Set up.

        Args:
            optimizer: of torch, whose class and options are taken.
            course: the options of its groups over time.
            kinds: by group, the names of its state: None if it is by element, else such a number.
            runs: of the elements of the vector, in order.
            is_begun: whether there is state before the first update, which the caller fills in.
        """
        self._optimizer, self._course, self._options = bare_copy(optimizer), course, course.first
        self._kinds, self._runs, self._is_begun = kinds, runs, is_begun
        n = sum(it.span.size for it in runs)
        names = sorted({name for it in kinds for name, like in it.items() if like is None})
        self.state: dict[str, Vector] = {name: np.zeros(n, np.float32) for name in names}
        #: State that is one number per group, by name and group.
        self.numbers = {f"{name} {group}": 0.0 for group, name, _ in self._likes()}
        self.updates = 0
        self._before = dict(self.numbers)
        self._pieces: dict[Span, list[Piece]] = {}
        self._ticks = [Piece(it, Span(0, TICK), Span(0, 0)) for it in range(len(kinds))]

    def rate(self, progress: float) -> float:
        """Return the largest rate of groups in the next update, and take up their options."""
        self._options = self._course.at(progress, self.updates)
        return rate_of(self._options)

    def begin(self, lr: float) -> None:
        """Begin an update with the options that ``rate`` found ``lr`` in."""
        self.updates += 1
        self._before = dict(self.numbers)
        if not self.numbers:
            return
        zeros = np.zeros(TICK, np.float32)
        self._step(self._ticks, zeros, zeros.copy())
        for group, name, _ in self._likes():
            state = self._optimizer.state[self._ticks[group].tensor]
            self.numbers[f"{name} {group}"] = float(state[name])

    def update(self, span: Span, theta: Vector, grad: Vector, out: Vector) -> None:
        """Write the next parameters of one block; see ``psrt.optim.Optimizer``."""
        if out is not theta:
            np.copyto(out, theta)
        if span not in self._pieces:
            self._pieces[span] = list(self._pieces_of(span))
        self._step(self._pieces[span], grad, out)

    def _likes(self) -> Iterator[tuple[int, str, Any]]:
        """Yield group, name, and what it is like, of state that is a number."""
        for group, kinds in enumerate(self._kinds):
            yield from ((group, name, it) for name, it in kinds.items() if it is not None)

    def _pieces_of(self, block: Span) -> Iterator[Piece]:
        at = 0
        for group, span in self._runs:
            start, stop = max(block.start, at), min(block.stop, at + span.size)
            if start < stop:
                yield Piece(group, Span(start - block.start, stop - block.start), Span(start, stop))
            at += span.size

    def _step(self, pieces: Sequence[Piece], grad: Vector, out: Vector) -> None:
        gradient, new = tensors_on([grad, out])
        groups: dict[int, list[Any]] = {}
        for it in pieces:
            start, stop = it.within
            it.tensor.data, it.tensor.grad = new[start:stop], gradient[start:stop]
            groups.setdefault(it.group, []).append(it.tensor)
            if it.updates != self.updates - 1:  # at first, or after a checkpoint was loaded
                self._load(it)
        self._optimizer.param_groups = [
            {**self._options[group], "params": tensors} for group, tensors in groups.items()
        ]
        with torch.no_grad():
            self._optimizer.step()
        for it in pieces:
            self._keep(it)
            it.updates = self.updates

    def _load(self, piece: Piece) -> None:
        """Give torch the state of a piece after the last update; at first none, as it expects."""
        names = [name for name, like in self._kinds[piece.group].items() if like is None]
        arrays = [piece.whole.of(self.state[name]) for name in names]
        if not piece.whole.size:
            arrays = [np.ones(TICK, np.float32) for _ in names]
        piece.views = dict(zip(names, tensors_on(arrays), strict=True))
        self._optimizer.state[piece.tensor] = found = {}
        if self.updates > 1 or self._is_begun:
            found.update(piece.views)
            for group, name, like in self._likes():
                if group == piece.group:
                    value = self._before[f"{name} {group}"]
                    is_tensor = torch.is_tensor(like)
                    found[name] = torch.full_like(like, value) if is_tensor else type(like)(value)

    def _keep(self, piece: Piece) -> None:
        """Move state that torch made, rather than changed in place, into psrt's arrays."""
        state = self._optimizer.state[piece.tensor]
        for name, value in state.items():
            view = piece.views.get(name)
            if view is not None and value is not view:
                state[name] = view.copy_(value)
            elif view is None and torch.is_tensor(value) and value.ndim:
                raise ConfigError(
                    f"the optimizer {type(self._optimizer).__name__} begins to keep {name} in the "
                    "middle of a run, which no checkpoint has a place for"
                )
