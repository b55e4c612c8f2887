"""``ParameterServer``: named arrays on servers, pushed to and pulled from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from psrt.config import TrainConfig
from psrt.config.modes import MODES, Mode
from psrt.core.arrays import AnyArray
from psrt.core.errors import ConfigError
from psrt.trainer.trainer import Trainer, Words

if TYPE_CHECKING:
    from mpi4py import MPI

#: Modes in which gradients are pushed to servers.
_MODES = MODES.where(lambda mode: mode.needs_servers and not mode.averages)
#: The most pushes of a worker; it may leave earlier.
_STEPS = 1 << 31


class ParameterServer(Trainer):
    """Named arrays in shards on servers: the interface that users of ps-lite and MXNet know.

    ::

        with psrt.ParameterServer(comm, {"w": (784, 10), "b": (10,)}, optimizer="adam") as server:
            while not server.serves and more_to_do():
                values = server.pull()
                gradients = compute(values)
                server.push(gradients, samples=64)

    It is a ``Trainer`` and promises what its mode promises: with ``mode="ssp"`` no pulled value is
    older than ``staleness`` allows; with ``sync`` no worker continues before all have pushed. The
    reply to a push carries the new values, so a pull after it sends nothing.

    Source: Li, Andersen, Park, Smola et al., "Scaling Distributed Machine Learning with the
    Parameter Server", OSDI 2014.
    """

    _words = Words(
        once="a ParameterServer serves once: make another one",
        not_entered="a ParameterServer is entered first: with psrt.ParameterServer(…) as server:",
        over="the servers are done: push() and pull(fresh=True) are for the with block; pull() "
        "returns what they ended with",
        nothing="nothing was pushed by any worker",
    )

    _pushes = True

    def __init__(
        self,
        comm: MPI.Comm | None,
        shapes: Mapping[str, Sequence[int] | AnyArray],
        *,
        mode: Mode | str = "async",
        **knobs: Any,
    ) -> None:
        """Set up; nothing starts before the ``with`` block is entered.

        Args:
            comm: the ranks; None takes all of them.
            shapes: the arrays by name: a shape, for an array that starts as zeros, or float32
                values to start from; those of rank 0 are used.
            mode: one with servers: ``async``, ``ssp:staleness=3``, ``softsync`` or ``sync``.
            knobs: of ``TrainConfig``, such as ``optimizer``, ``lr``, ``servers``.

        Raises:
            ConfigError: if the mode has no servers, or a knob is invalid.
        """
        if not isinstance(shapes, Mapping):
            raise ConfigError(f"got {type(shapes).__name__}, expected shapes by name: a dictionary")
        if not shapes:
            raise ConfigError("there are no arrays, expected shapes by name")
        for name in ("epochs", "steps"):
            if name in knobs:
                raise ConfigError(f"{name} is for trainers: a worker pushes until it leaves")
        config = TrainConfig(mode=mode, steps=_STEPS, **knobs)
        if not config.scheme.needs_servers or config.scheme.averages:
            raise ConfigError(f"mode must be {', '.join(_MODES)}, got {mode}")
        #: What moves an array even when no gradient of it is pushed.
        self._moves = config.optimizer.moves_without(config.weight_decay)
        begun = {name: _array(name, it) for name, it in shapes.items()}
        self._zeros = {name: np.zeros_like(it) for name, it in begun.items()}
        super().__init__(config, begun, comm=comm)

    def __enter__(self) -> Self:
        """Start; collective. On a server, return when all workers have left."""
        super().__enter__()
        self.epoch()
        return self

    def push(
        self,
        gradients: Mapping[str, Any],
        *,
        samples: int = 1,
    ) -> None:
        """Push gradients, and wait until the mode lets this worker continue.

        Args:
            gradients: arrays by name; an array left out has no part in this push. Optimizers
                that would move it anyway, by momentum or weight decay, need all names.
            samples: the number of samples behind them: their weight in a mean over workers.

        Raises:
            ConfigError: if a name is unknown, a shape is wrong, an array is left out that would
                move anyway, or this rank is a server.
        """
        for name in gradients:
            self._check_known(name)
        left = [name for name in self._zeros if name not in gradients]
        if left and self._moves:
            raise ConfigError(
                f"push() leaves out {left[0]!r}, which {self._moves} would move anyway: push "
                "every name, with zeros where that is meant, or take sgd or adagrad without "
                "weight decay"
            )
        whole = {name: gradients.get(name, zeros) for name, zeros in self._zeros.items()}
        self.step(whole, samples=samples)

    def pull(
        self, names: str | Sequence[str] | None = None, *, fresh: bool = False
    ) -> dict[str, AnyArray]:
        """Return values by name: read-only views, which change with the next push.

        Args:
            names: of the arrays to return; None returns all.
            fresh: ask the servers, by an empty push; otherwise return the values that came with
                the reply to this worker's last push.
        """
        names = (names,) if isinstance(names, str) else names
        for name in names or ():
            self._check_known(name)
        if fresh:
            self.step(samples=0)
        values: dict[str, AnyArray] = self.parameters
        return dict(values) if names is None else {name: values[name] for name in names}

    def push_pull(self, gradients: Mapping[str, Any], *, samples: int = 1) -> dict[str, AnyArray]:
        """Push gradients and return the values that follow, as ``push`` and ``pull`` do."""
        self.push(gradients, samples=samples)
        return self.pull()

    @property
    def clock(self) -> int:
        """The number of this worker's pushes."""
        return self.steps

    def _check_known(self, name: str) -> None:
        if name not in self._zeros:
            raise ConfigError(
                f"there is no array {name!r}, expected one of {', '.join(map(repr, self._zeros))}"
            )


def _array(name: str, given: Sequence[int] | AnyArray) -> AnyArray:
    """Return the values to start from: zeros of a shape, or the given values."""
    if isinstance(given, np.ndarray):
        return given
    try:
        return np.zeros(tuple(given), np.float32)
    except (TypeError, ValueError):
        raise ConfigError(
            f"{name!r} is {given!r}, expected a shape such as (784, 10), or an array"
        ) from None
