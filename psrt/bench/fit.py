"""Fit the costs of a machine's messages and memory to times measured on it. Pure.

Each constant is the slope or the intercept of a straight line through readings:

==================  ===========================================================================
α and β             T = α + m·β of one exchange, in which a rank sends m bytes and receives m
γ                   T = m·γ of combining m bytes with others
``sync``, ``byte``  T = 2·⌈lg L⌉·sync + max(1, L/cores)·n·byte of a shared-memory all-reduce
==================  ===========================================================================

α and β are those of an exchange, not of a ping-pong, because a step of a schedule is an exchange: a
rank of a ring sends and receives at once, and if the two share a wire or a core β is larger.

Times reach from microseconds to tens of milliseconds. Least squares of plain differences would fit
only the largest, so *relative* differences are used: each equation is divided by its time.
No constant may be negative. A constant that is negative in the best fit becomes 0, and the rest is
fitted without it, as in Lawson and Hanson, "Solving Least Squares Problems", 1974, chapter 23 (with
two unknowns all subsets can simply be tried).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from psrt.bench.figures import format_table
from psrt.collective.analysis.machine import DEFAULT_COSTS, MachineCosts, NodeCosts
from psrt.collective.costs import LinkCosts
from psrt.collective.registry import LIBRARY


@dataclass(frozen=True, slots=True)
class Fit:
    """A solution and its errors."""

    values: tuple[float, ...]
    #: Root mean square of (predicted − measured)/measured, and the largest of them.
    typical: float
    worst: float
    #: Number of equations.
    readings: int


@dataclass(frozen=True, slots=True)
class Readings:
    """Measured seconds; empty where no ranks could take part."""

    #: Bytes each way → one exchange between two ranks of a host, through windows.
    inside: Mapping[int, float] = field(default_factory=dict)
    #: The same between two hosts, by messages.
    between: Mapping[int, float] = field(default_factory=dict)
    #: Bytes → folding them.
    fold: Mapping[int, float] = field(default_factory=dict)
    #: (ranks, bytes) → a shared-memory all-reduce.
    node: Mapping[tuple[int, int], float] = field(default_factory=dict)
    #: (ranks, bytes) → the library's all-reduce on one host.
    library: Mapping[tuple[int, int], float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fitted:
    """The costs of a machine, and the fits behind them."""

    costs: MachineCosts
    fits: Mapping[str, Fit]


def solve(rows: Sequence[Sequence[float]], seconds: Sequence[float]) -> Fit:
    """Return the non-negative x with the smallest relative errors of ``rows @ x = seconds``.

    Args:
        rows: (equations, unknowns); at least one equation, few unknowns.
        seconds: above 0.

    >>> solve([(1, 0), (1, 1000), (1, 4000)], [2.0, 3.0, 6.0]).values
    (2.0, 0.001)
    """
    times = np.asarray(seconds, np.float64)
    matrix = np.asarray(rows, np.float64) / times[:, None]
    unknowns = matrix.shape[1]
    best, least = np.zeros(unknowns), np.inf
    for count in range(1, unknowns + 1):
        for columns in map(list, combinations(range(unknowns), count)):
            x = np.zeros(unknowns)
            x[columns] = _least_squares(matrix[:, columns])
            error = float(np.sum((matrix @ x - 1) ** 2))
            if (x >= 0).all() and error < least:
                best, least = x, error
    errors = matrix @ best - 1
    return Fit(
        tuple(float(f"{value:.12g}") for value in best),
        typical=float(np.sqrt(np.mean(errors**2))),
        worst=float(np.max(np.abs(errors))),
        readings=len(times),
    )


def _least_squares(matrix: Any) -> Any:
    """Solve ``matrix @ x = 1`` with scaled columns: bytes are many, messages few."""
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    return np.linalg.lstsq(matrix / scale, np.ones(len(matrix)), rcond=None)[0] / scale


def fit_machine(readings: Readings, cores: int) -> Fitted:
    """Fit all costs; those not measured keep psrt's defaults, and have no fit.

    Args:
        readings: the measured times.
        cores: number of cores of a host.
    """
    fits: dict[str, Fit] = {}
    default = DEFAULT_COSTS
    gamma = default.inside.gamma
    if readings.fold:
        fits["fold"] = solve([(m,) for m in readings.fold], list(readings.fold.values()))
        (gamma,) = fits["fold"].values
    links = {}
    for name, guess in (("inside", default.inside), ("between", default.between)):
        exchanges = getattr(readings, name)
        links[name] = LinkCosts(guess.alpha, guess.beta, gamma)
        if exchanges:
            fits[name] = solve([(1, m) for m in exchanges], list(exchanges.values()))
            alpha, beta = fits[name].values
            links[name] = LinkCosts(alpha, beta, gamma)
    node = default.node
    if readings.node:
        rows = [_node_row(ranks, nbytes, cores) for ranks, nbytes in readings.node]
        fits["node"] = solve(rows, list(readings.node.values()))
        node = NodeCosts(*fits["node"].values)
    library = tuple((LIBRARY, (ranks,), n, s) for (ranks, n), s in readings.library.items())
    return Fitted(MachineCosts(**links, node=node, cores=cores, measured=library), fits)


#: The largest values on an otherwise idle machine, in seconds: far above what is measured on one,
#: and below a turn of the kernel's scheduler, which is what a busy machine measures.
_MOST_S = {"inside": 300e-6, "between": 50e-3, "node": 1e-3}
#: Typical relative error above which a line has little to do with its readings.
_LOOSE = 0.6


def doubt(fitted: Fitted) -> str | None:
    """Return why the costs are probably not this machine's; None if nothing suggests that."""
    values = _values(fitted.costs)
    for what, name, place, scale in _CONSTANTS:
        fit = fitted.fits.get(name)
        if fit is None:
            continue
        value, most = values[name][place], _MOST_S.get(name)
        if most is not None and place == 0 and value > most:
            return (
                f"{what.replace(' (µs)', '')}: {value * scale:,.0f} µs, where a machine with "
                f"nothing else to do has less than {most * scale:,.0f}"
            )
        if fit.typical > _LOOSE:
            return f"{what}: the fit is off by {fit.typical:.0%} typically"
    return None


def _node_row(ranks: int, nbytes: int, cores: int) -> tuple[float, float]:
    """Return the factors of ``sync`` and ``byte`` in ``NodeCosts.seconds``."""
    return NodeCosts(1.0, 0.0).seconds(ranks, nbytes, cores), NodeCosts(0.0, 1.0).seconds(
        ranks, nbytes, cores
    )


#: Constant → its description, its fit, and its position in the fit; β's are per byte.
_CONSTANTS = (
    ("α inside a host, per step (µs)", "inside", 0, 1e6),
    ("β inside a host (ns/byte)", "inside", 1, 1e9),
    ("α between hosts, per step (µs)", "between", 0, 1e6),
    ("β between hosts (ns/byte)", "between", 1, 1e9),
    ("γ, combining (ns/byte)", "fold", 0, 1e9),
    ("sync, a round of a barrier (µs)", "node", 0, 1e6),
    ("byte, a rank's pass over the vector (ns/byte)", "node", 1, 1e9),
)


def as_text(fitted: Fitted) -> str:
    """Return the constants as text, each with the relative residuals of its fit."""
    values = _values(fitted.costs)
    rows = []
    for what, name, place, scale in _CONSTANTS:
        fit = fitted.fits.get(name)
        off = ["not measured", ""] if fit is None else [f"{fit.typical:.0%}", f"{fit.worst:.0%}"]
        count = 0 if fit is None else fit.readings
        rows.append([what, f"{values[name][place] * scale:.4g}", *off, count])
    for what, alone in (("MPI.Allreduce on a host", True), ("all-reduces between hosts", False)):
        count = sum((len(hosts) == 1) == alone for _, hosts, _, _ in fitted.costs.measured)
        rows.append([what, "by size" if count else "-", "", "", count])
    return format_table(["constant", "value", "typical error", "largest", "readings"], rows)


def _values(costs: MachineCosts) -> dict[str, tuple[float, ...]]:
    return {
        "inside": (costs.inside.alpha, costs.inside.beta),
        "between": (costs.between.alpha, costs.between.beta),
        "fold": (costs.inside.gamma,),
        "node": (costs.node.sync_s, costs.node.byte_s),
    }
