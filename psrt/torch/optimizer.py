"""An optimizer of torch as the user made it, for the spans that a server or worker updates."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from psrt.core.arrays import Vector
from psrt.core.errors import ConfigError
from psrt.core.partition import Span
from psrt.optim.optimizer import step
from psrt.optim.table import Torch
from psrt.torch.course import Course, bare_copy, options_text, rate_of
from psrt.torch.elementwise import check_optimizer, check_scheduler, is_of_torch
from psrt.torch.parameters import Parameters
from psrt.torch.shard_optimizer import TICK, Run, ShardOptimizer
from psrt.torch.staging import to_host

#: Number of elements on which a class of the user's own is tried.
_TRIED = 12


class TorchOptimizer:
    """A ``psrt.optim.optimizer.OwnOptimizer`` that copies the user's for each shard.

    Groups, options and state are those at this time. What was given is not changed.
    """

    def __init__(
        self, parameters: Parameters, optimizer: Any, scheduler: Any, every: str | None
    ) -> None:
        """Look at what was given.

        Args:
            parameters: what is trained.
            optimizer: of torch, of exactly these parameters.
            scheduler: bound to it; None leaves its rates as they are.
            every: when the scheduler steps: after each ``epoch``, as None, or each ``update``.

        Raises:
            ConfigError: if it cannot be run on shards, or is of other parameters.
        """
        check_optimizer(optimizer)
        check_scheduler(scheduler, optimizer)
        self._optimizer, self._name = optimizer, type(optimizer).__name__
        self._parameters, self._runs = parameters, _runs(parameters, optimizer)
        self._course = Course(optimizer, scheduler, every)
        self._numbers = self._begun_numbers()
        groups = range(len(optimizer.param_groups))
        self._kinds = [self._kinds_of(group) for group in groups]
        self._begun = self._begun_state()
        first = self._course.first
        lr = rate_of([{"lr": it.get("initial_lr", it.get("lr", 1.0))} for it in first])
        if not lr > 0:
            raise ConfigError("every learning rate of the optimizer is 0, expected one above 0")
        options = options_text(first, type(optimizer))
        if len(first) > 1:
            options += f"; groups {hashlib.sha256(repr(self._runs).encode()).hexdigest()[:12]}"
        #: What the files of a run say of it.
        self.row = Torch(
            rule=self._name,
            lr=lr,
            options=options or None,
            scheduler=self._course.described(),
            vectors=len(self.make(()).state),
            coasts=any(self._moves(group, (1.0, 0.0)) for group in groups),
            decays=any(self._moves(group, (0.0,)) for group in groups),
        )
        if not is_of_torch(optimizer):
            self._try()

    def make(self, spans: Sequence[Span]) -> ShardOptimizer:
        """Make one for some spans of the parameters, side by side."""
        runs = [
            Run(group, Span(max(it.start, span.start), min(it.stop, span.stop)))
            for span in spans
            for group, it in self._runs
            if it.start < span.stop and span.start < it.stop
        ]
        is_begun = bool(self._numbers or self._begun)
        found = ShardOptimizer(self._optimizer, self._course, self._kinds, runs, is_begun=is_begun)
        found.numbers.update(self._numbers)
        for name, whole in self._begun.items():
            np.concatenate([np.zeros(0, np.float32), *(it.of(whole) for _, it in runs)],
                           out=found.state[name])  # fmt: skip
        return found

    def _begun_numbers(self) -> dict[str, float]:
        """Return what the optimizer has by now of state that is one number per group.

        Raises:
            ConfigError: if parameters of a group are at different steps.
        """
        found, begun = dict[str, float](), set[bool]()
        own = set(self._parameters.tensors)
        for group, of in enumerate(self._optimizer.param_groups):
            for it in own.intersection(of["params"]):
                state = self._optimizer.state.get(it, {})
                begun.add(bool(state))
                for name, value in state.items():
                    if value is not None and not np.ndim(value):
                        known = found.setdefault(f"{name} {group}", float(value))
                        begun.add(known == float(value))
        if len(begun) > 1:
            raise ConfigError(
                f"the optimizer {self._name} has state of parameters at different steps, expected "
                "the same step or no state"
            )
        return found

    def _begun_state(self) -> dict[str, Vector]:
        """Return what the optimizer has by now of state by element, each (n,)."""
        found: dict[str, Vector] = {}
        for tensor, span in zip(self._parameters.tensors, self._parameters.spans, strict=True):
            for name, it in self._optimizer.state.get(tensor, {}).items():
                if it is not None and np.ndim(it):
                    whole = found.setdefault(name, np.zeros(self._parameters.n, np.float32))
                    span.of(whole)[:] = to_host(it).reshape(-1)
        return found

    def _tried(self, group: int, gradients: Sequence[float]) -> tuple[dict[str, Any], list[float]]:
        """Step a small tensor of ones at rate 1; return its state, and its values over time."""
        optimizer, tensor = bare_copy(self._optimizer), torch.ones(TICK)
        optimizer.param_groups = [{**optimizer.param_groups[group], "params": [tensor], "lr": 1.0}]
        of = self._optimizer.state.get(self._optimizer.param_groups[group]["params"][0], {})
        for name, it in of.items():
            is_number = it is None or not np.ndim(it)
            optimizer.state[tensor][name] = torch.ones(TICK) if not is_number else it and it * 1
        values = [1.0]
        with torch.no_grad():
            for gradient in gradients:
                tensor.grad = torch.full((TICK,), gradient)
                optimizer.step()
                values.append(float(tensor[0]))
        return optimizer.state[tensor], values

    def _kinds_of(self, group: int) -> dict[str, Any]:
        """Return the names of a group's state: None if it is by element, else such a number.

        Raises:
            ConfigError: if it is neither.
        """
        state, _ = self._tried(group, (0.0,))
        found: dict[str, Any] = {}
        for name, it in state.items():
            if torch.is_tensor(it) and it.shape == (TICK,) and it.dtype == torch.float32:
                found[name] = None
            elif isinstance(it, int | float) or (torch.is_tensor(it) and not it.ndim):
                found[name] = it
            elif it is not None:
                raise ConfigError(
                    f"the optimizer {self._name} keeps {name}, which is neither a number nor a "
                    "float32 tensor of the parameter's shape"
                )
        return found

    def _moves(self, group: int, gradients: Sequence[float]) -> bool:
        """Return whether the last of these gradients, which is 0, moves an element."""
        _, (*_, before, after) = self._tried(group, gradients)
        return before != after or bool(self._course.first[group].get("weight_decay"))

    def _try(self) -> None:
        """Try whether a class that says so updates each element by itself.

        Raises:
            ConfigError: if a split changes its numbers, or it writes to gradients.
        """
        n = min(_TRIED, self._parameters.n)
        whole, split = self.make([Span(0, n)]), self.make([Span(0, n)])
        rng, one, two = np.random.default_rng(0), np.ones(n, np.float32), np.ones(n, np.float32)
        for _ in range(3):
            gradient = rng.standard_normal(n).astype(np.float32)
            given = gradient.copy()
            step(whole, one, given, one, whole.rate(0.0))
            if not np.array_equal(given, gradient):
                raise ConfigError(f"the optimizer {self._name} writes to gradients")
            split.begin(split.rate(0.0))
            for it in (Span(0, n // 2), Span(n // 2, n)):
                split.update(it, it.of(two), it.of(gradient), it.of(two))
        if not np.allclose(one, two, rtol=1e-5, atol=1e-6):
            raise ConfigError(
                f"the optimizer {self._name} steps differently on parts of a vector, but its class "
                "has elementwise = True"
            )


def own_optimizer(
    parameters: Parameters,
    optimizer: Any = None,
    scheduler: Any = None,
    schedule_every: str | None = None,
) -> TorchOptimizer | None:
    """Return what makes the updates if an optimizer is given; None without one.

    Raises:
        ConfigError: as ``TorchOptimizer``, or if only a scheduler is given.
    """
    if optimizer is not None:
        return TorchOptimizer(parameters, optimizer, scheduler, schedule_every)
    if scheduler is not None or schedule_every is not None:
        raise ConfigError("scheduler= and schedule_every= have no effect without optimizer=")
    return None


def _runs(parameters: Parameters, optimizer: Any) -> list[Run]:
    """Return the group of every element, as runs.

    Raises:
        ConfigError: if the optimizer has other parameters than those that are trained.
    """
    groups = {it: i for i, of in enumerate(optimizer.param_groups) for it in of["params"]}
    for it in set(groups).difference(parameters.tensors):
        if it.requires_grad and it.numel():
            raise ConfigError(
                f"the optimizer has a parameter of shape {tuple(it.shape)} that the module does "
                "not train, expected module.parameters()"
            )
    found: list[Run] = []
    for name, tensor, span in zip(
        parameters.names, parameters.tensors, parameters.spans, strict=True
    ):
        if tensor not in groups:
            raise ConfigError(
                f"the optimizer does not have parameter {name}: requires_grad_(False) leaves it "
                "out of training"
            )
        if found and found[-1].group == groups[tensor]:
            span = Span(found.pop().span.start, span.stop)
        found.append(Run(groups[tensor], span))
    return found
