"""The options of an optimizer's groups over time, as its scheduler sets them."""

from __future__ import annotations

import copy
import hashlib
import inspect
import math
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from psrt.core.errors import ConfigError

#: When a scheduler steps: after each epoch, or after each update.
EPOCH, UPDATE = "epoch", "update"
#: Relative error of a progress that was rounded, as in ``psrt.optim.schedule``.
_HAIR = 1e-6
#: Number of steps that describe a scheduler in the files of a run.
_DESCRIBED = 100
#: Names in a group: its parameters, its rate, and an option of speed alone.
_PARAMS, _LR, _FOREACH = "params", "lr", "foreach"

#: Options of an optimizer's groups, without their parameters.
Options = Sequence[Mapping[str, Any]]


class Course:
    """Options as a function of a scheduler's steps, of which a copy is stepped.

    A function, unlike a scheduler, needs no state in checkpoints, and pushes of workers that are in
    different epochs may ask in any order.
    """

    def __init__(self, optimizer: Any, scheduler: Any, every: str | None) -> None:
        """Set up.

        Args:
            optimizer: of torch; not changed.
            scheduler: bound to it, also not changed; None for constant options.
            every: ``epoch``, as None, or ``update``.

        Raises:
            ConfigError: if ``every`` is another one, or says when and there is no scheduler.
        """
        if every not in (None, EPOCH, UPDATE):
            raise ConfigError(f"schedule_every is {every!r}, expected {EPOCH!r} or {UPDATE!r}")
        if scheduler is None and every is not None:
            raise ConfigError(f"schedule_every={every!r} has no effect without scheduler=")
        bare = bare_copy(optimizer)
        #: The options at the start.
        self.first: Options = [options_of(it) for it in bare.param_groups]
        self._every, self._kind = every or EPOCH, type(optimizer)
        self.name = None if scheduler is None else type(scheduler).__name__
        self._source = copy.deepcopy(scheduler, {id(optimizer): bare})
        self._walker, self._steps = copy.deepcopy(self._source), 0
        self._cached = lru_cache(maxsize=64)(self._walk)

    def at(self, progress: float, updates: int) -> Options:
        """Return the options of an update.

        Args:
            progress: of training, in epochs.
            updates: number of updates before it.

        Raises:
            ConfigError: if the scheduler ends before.
        """
        if self._source is None:
            return self.first
        whole = math.floor(progress * (1 + _HAIR)) if self._every == EPOCH else updates
        return self._cached(whole)

    def described(self) -> str | None:
        """Return what distinguishes the scheduler from others; None without one."""
        if self._source is None:
            return None
        digest = hashlib.sha256()
        for steps in range(_DESCRIBED):
            try:
                digest.update(options_text(self._walk(steps), self._kind).encode())
            except ConfigError:  # it has fewer steps
                break
        return f"{self.name} every {self._every} {digest.hexdigest()[:12]}"

    def _walk(self, steps: int) -> Options:
        if steps < self._steps:
            self._walker, self._steps = copy.deepcopy(self._source), 0
        while self._steps < steps:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it warns that the optimizer makes no steps
                try:
                    self._walker.step()
                except ValueError as error:
                    raise ConfigError(f"the scheduler {self.name} ends: {error}") from error
            self._steps += 1
        return [options_of(it) for it in self._walker.optimizer.param_groups]


def bare_copy(optimizer: Any) -> Any:
    """Return an optimizer of the same class and options, without parameters and state.

    Its class is not called: each takes other arguments, and may make state of its parameters.
    """
    found = object.__new__(type(optimizer))
    own = ("step", "state", "param_groups")  # a scheduler has bound ``step`` to the original
    found.__dict__.update({k: it for k, it in vars(optimizer).items() if k not in own})
    found.state = defaultdict(dict)
    found.param_groups = [{**options_of(it), _PARAMS: []} for it in optimizer.param_groups]
    return found


def options_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a group's options, without its parameters."""
    return {name: copy.deepcopy(it) for name, it in group.items() if name != _PARAMS}


def rate_of(options: Options) -> float:
    """Return the largest learning rate of groups; 1 of an optimizer without rates."""
    return max((float(it[_LR]) for it in options if _LR in it), default=1.0)


def options_text(options: Options, kind: type) -> str:
    """Return the options of groups that are not the defaults of a class, without commas."""
    return "; ".join(" ".join(_words(it, kind)) for it in options)


def _words(group: Mapping[str, Any], kind: type) -> Iterator[str]:
    taken = inspect.signature(kind).parameters
    takes_any = any(it.kind is inspect.Parameter.VAR_KEYWORD for it in taken.values())
    for name, it in sorted(group.items()):
        if name in taken and name != _LR:
            if it == taken[name].default or name == _FOREACH:
                continue
        elif name != _LR and not takes_any:  # notes of a scheduler
            continue
        parts = it if isinstance(it, list | tuple) else [it]
        yield f"{name}={'/'.join(map(_word, parts))}".replace(",", " ")


def _word(value: Any) -> str:
    if isinstance(value, str | bool):
        return str(value)
    try:
        # Six digits: libraries of different hosts may round the rates of a scheduler differently.
        return f"{float(value):.6g}"
    except (TypeError, ValueError, RuntimeError):
        return type(value).__name__
