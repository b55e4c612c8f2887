"""Every optimizer and staleness-aware rate: a new one is a file with its class and a row here.

Data only, and without numpy: flags are made from it. A row knows where its class is.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from psrt.optim.optimizer import Optimizer
    from psrt.optim.staleness import StalenessRate


@dataclass(frozen=True, slots=True)
class _Row:
    """What optimizers and rates have in common."""

    #: As users write it.
    name: str
    #: Module and class, as ``package.module:Class``.
    home: str
    #: Knobs of users that the class takes.
    knobs: tuple[str, ...] = ()
    #: Arguments that are always the same.
    fixed: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def made(self, **arguments: Any) -> Any:
        """Return an object of the class."""
        module, _, name = self.home.partition(":")
        return getattr(importlib.import_module(module), name)(**self.fixed, **arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerRow(_Row):
    """An optimizer."""

    #: The learning rate that it starts from when none is given.
    lr: float
    #: Vectors that it keeps, each as long as the parameters.
    vectors: int = 0
    #: Whether it moves an element whose gradient is 0, by what it keeps of earlier ones.
    coasts: bool = False
    #: The codec whose other half it is.
    codec: str | None = None

    def make(self, n: int, *, weight_decay: float, **knobs: Any) -> Optimizer:
        """Return one of ``n`` elements."""
        made: Optimizer = self.made(n=n, weight_decay=weight_decay, **knobs)
        return made


@dataclass(frozen=True, slots=True)
class RateRow(_Row):
    """A staleness-aware rate; ``n`` and ``max_lr`` are no knobs of users, but of the run."""

    def make(self, **knobs: Any) -> StalenessRate:
        """Return one."""
        made: StalenessRate = self.made(**knobs)
        return made


_SGD, _ADAM, _SIGN = "psrt.optim.sgd:", "psrt.optim.adam:Adam", "psrt.optim.sign_sgd:SignSgd"
_OF_ADAM = ("beta1", "beta2", "epsilon")

#: Every optimizer by its name.
OPTIMIZERS: Final[dict[str, OptimizerRow]] = {
    row.name: row
    for row in (
        OptimizerRow("sgd", _SGD + "Sgd", lr=0.1),
        OptimizerRow(
            "momentum", _SGD + "Momentum", ("momentum",), lr=0.05, vectors=1, coasts=True
        ),
        OptimizerRow(
            "nesterov", _SGD + "Momentum", ("momentum",), {"nesterov": True}, lr=0.05, vectors=1,
            coasts=True,
        ),
        OptimizerRow("adagrad", "psrt.optim.adagrad:Adagrad", ("epsilon",), lr=0.02, vectors=1),
        OptimizerRow("adam", _ADAM, _OF_ADAM, lr=0.002, vectors=2, coasts=True),
        OptimizerRow(
            "adamw", _ADAM, _OF_ADAM, {"decoupled": True}, lr=0.002, vectors=2, coasts=True
        ),
        OptimizerRow("sign-sgd", _SIGN, lr=0.001),
        OptimizerRow("demo", _SIGN, lr=0.001, codec="demo"),
    )
}  # fmt: skip

_RATES = "psrt.optim.staleness:"

#: Every staleness-aware rate by its name.
STALENESS_RATES: Final[dict[str, RateRow]] = {
    row.name: row
    for row in (
        RateRow("constant", _RATES + "Constant"),
        RateRow("inverse", _RATES + "Inverse"),
        RateRow("mean-inverse", _RATES + "MeanInverse", ("window",)),
        RateRow("power", _RATES + "Power", ("power",)),
        RateRow("exponential", _RATES + "Exponential", ("decay",)),
        RateRow("drop", _RATES + "Drop", ("limit",)),
        RateRow(
            "delay-compensated", "psrt.optim.delay_compensated:DelayCompensated",
            ("n", "dc_lambda", "adaptive"),
        ),
        RateRow("gap-aware", "psrt.optim.gap_aware:GapAware", ("n", "max_lr")),
    )
}  # fmt: skip


def optimizers_with(knob: str) -> tuple[str, ...]:
    """Return the names of the optimizers that obey a knob.

    >>> optimizers_with("momentum")
    ('momentum', 'nesterov')
    """
    return tuple(row.name for row in OPTIMIZERS.values() if knob in row.knobs)
