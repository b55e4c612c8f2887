"""Optimizers and staleness rates by name, with their knobs checked; see ``table``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from psrt.errors import ConfigError
from psrt.optim.table import OPTIMIZERS, STALENESS_RATES

if TYPE_CHECKING:
    from psrt.optim.optimizer import Optimizer
    from psrt.optim.staleness import StalenessRate

RowT = TypeVar("RowT")


def moves_without(optimizer: str, weight_decay: float, *, had_one: bool = True) -> str:
    """Return what would move a parameter that has no gradient; empty if nothing.

    Args:
        optimizer: a name in ``OPTIMIZERS``.
        weight_decay: at least 0.
        had_one: whether it had a gradient in an earlier step.
    """
    if had_one and OPTIMIZERS[optimizer].coasts:
        return f"what {optimizer} keeps of earlier gradients"
    return "weight decay" if weight_decay else ""


def make_optimizer(
    name: str,
    n: int,
    *,
    momentum: float | None = None,
    weight_decay: float = 0.0,
    beta1: float | None = None,
    beta2: float | None = None,
    epsilon: float | None = None,
) -> Optimizer:
    """Make an optimizer of ``n`` elements.

    Args:
        name: a name in ``OPTIMIZERS``.
        n: number of elements of its vector.
        momentum: fraction of the velocity that a step keeps, in ``[0, 1)``; None for 0.9.
        weight_decay: L2 coefficient, coupled to the gradient in all but adamw, sign-sgd and demo.
        beta1: memory of Adam's mean, in ``[0, 1)``; None for 0.9.
        beta2: memory of Adam's mean square, in ``[0, 1)``; None for 0.999.
        epsilon: added to the root of the mean square, above 0; None for 1e-8.

    Raises:
        ConfigError: if the name is unknown, or a knob is out of range or not taken.
    """
    row = _row(OPTIMIZERS, name, "optimizer")
    for knob, memory in (("momentum", momentum), ("beta1", beta1), ("beta2", beta2)):
        if memory is not None and not 0 <= memory < 1:
            raise ConfigError(f"{knob} {memory}, expected at least 0 and below 1")
    if epsilon is not None and not epsilon > 0:
        raise ConfigError(f"epsilon {epsilon}, expected above 0")
    if not weight_decay >= 0:
        raise ConfigError(f"weight decay {weight_decay}, expected at least 0")
    knobs = {"momentum": momentum, "beta1": beta1, "beta2": beta2, "epsilon": epsilon}
    return row.make(n, weight_decay=weight_decay, **_taken(knobs, row.knobs, name))


def make_staleness_rate(
    name: str,
    n: int,
    *,
    window: int | None = None,
    power: float | None = None,
    decay: float | None = None,
    limit: int | None = None,
    dc_lambda: float | None = None,
    adaptive: bool | None = None,
    max_lr: float | None = None,
) -> StalenessRate:
    """Make a staleness-aware rate of a shard of ``n`` elements.

    Args:
        name: a name in ``STALENESS_RATES``.
        n: number of elements of the shard.
        window: number of gradients that mean-inverse averages over; None for 32.
        power: p of power; None for 0.5.
        decay: b of exponential; None for 0.2.
        limit: largest staleness that drop keeps; required by it.
        dc_lambda: strength of delay-compensated; None for 0.04, or 2 if adaptive.
        adaptive: whether that strength follows the gradient's mean square; None for no.
        max_lr: largest learning rate of the run; required by gap-aware, accepted by all.

    Raises:
        ConfigError: if the name is unknown, or a knob is out of range, missing or not taken.
    """
    row = _row(STALENESS_RATES, name, "staleness rate")
    knobs = {
        "window": window,
        "power": power,
        "decay": decay,
        "limit": limit,
        "dc_lambda": dc_lambda,
        "adaptive": adaptive or None,
    }
    # max_lr describes the run and not the rule, so every rule accepts it.
    run = {"n": n, "max_lr": max_lr}
    taken = _taken({**knobs, **{k: v for k, v in run.items() if k in row.knobs}}, row.knobs, name)
    for required in ("limit", "max_lr"):
        if required in row.knobs and required not in taken:
            raise ConfigError(f"staleness rate {name} needs {required}")
    return row.make(**taken)


def _taken(given: Mapping[str, Any], takes: tuple[str, ...], name: str) -> dict[str, Any]:
    """Return the knobs that were given.

    Raises:
        ConfigError: if the constructor does not take one of them.
    """
    knobs = {knob: value for knob, value in given.items() if value is not None}
    for knob in knobs:
        if knob not in takes:
            raise ConfigError(f"{name} takes no {knob}")
    return knobs


def _row(registry: Mapping[str, RowT], name: str, kind: str) -> RowT:
    """Look a name up.

    Raises:
        ConfigError: if it is not there.
    """
    if name not in registry:
        raise ConfigError(f"unknown {kind} {name!r}, expected one of {', '.join(registry)}")
    return registry[name]
