"""The learning rate of each gradient: that of its update times what its staleness is worth.

Sources: inverse, Zhang et al., IJCAI 2016 (1511.05950); mean-inverse, Gupta et al., ICDM 2016
(1509.04210); element-wise rules have no factor for a gradient as a whole.
"""

from __future__ import annotations

import numpy as np

from psrt.history.check.contract import Contract
from psrt.history.check.fates import Fates
from psrt.history.check.findings import Findings, Spot
from psrt.history.check.rules import RATES
from psrt.history.check.shard import Shard
from psrt.history.check.table import Floats, Ints, Table
from psrt.history.events import Kind
from psrt.history.header import Header

#: Gradients that the mean of mean-inverse is over.
_WINDOW = 32
#: Relative error of a product of two rates, as a float32.
_ROUNDING = 1e-5
#: Below this a float32 has too few digits to be held against another.
_TINY = 1e-30


def check_rates(
    contract: Contract, header: Header, shard: Shard, fates: Fates, findings: Findings
) -> None:
    """Check that the gradients of an update had one rate between them, but for their staleness."""
    table = shard.table
    at = table.where(Kind.APPLY)
    at = at[(table["worker"][at] >= 0) & (table["samples"][at] > 0)]
    if header.knob("staleness_rate") == "mean-inverse":
        factor = _mean_inverse(shard, fates, at)
    else:
        factor = _factor(header, table.real("tau")[at])
    rate = table.real("rate")[at] / np.maximum(factor, _TINY)
    lr = 1.0 if contract.mode.averages else steady_rate(header)
    firm = factor * (lr or 1e-6) > _TINY
    version = table["version"][at]
    same = np.diff(version, prepend=0) == 0
    base = np.concatenate([[0.0], rate])[:-1]
    steady = np.concatenate([[False], firm])[:-1] & firm
    holds = ~(same & steady) | (np.abs(rate - base) <= _ROUNDING * np.abs(base))
    findings.expect(
        RATES, holds, table, at,
        lambda i: f"shard {shard.number} took clock {table['clock'][at[i]]} of worker "
        f"{table['worker'][at[i]]} with rate {table.real('rate')[at[i]]:g}, of staleness "
        f"{table['tau'][at[i]]}, and another gradient of the update with "
        f"{table.real('rate')[at[i - 1]]:g}, of staleness {table['tau'][at[i - 1]]}",
        lambda i: shard.spots(int(at[i - 1])),
    )  # fmt: skip
    if lr is None or header.knob("outer_lr") is not None:
        return
    _check_steady(lr, shard.table, at[firm], rate[firm], findings)


def check_own_rates(header: Header, table: Table, kind: Kind, findings: Findings) -> None:
    """Check the rate of steps that workers take by themselves, or all together."""
    lr = steady_rate(header)
    at = table.where(kind)
    brought = table["samples"] > 0 if kind == Kind.STEP else table.real("weight") > 0
    at = at[brought[at]]
    if lr is not None:
        _check_steady(lr, table, at, table.real("rate")[at], findings)


def _check_steady(lr: float, table: Table, at: Ints, rate: Floats, findings: Findings) -> None:
    findings.expect(
        RATES, np.abs(rate - lr) <= _ROUNDING * lr, table, at,
        lambda i: f"a gradient of worker {table['worker'][at[i]]} at clock "
        f"{table['clock'][at[i]]} had rate {rate[i]:g} but for its staleness, expected {lr:g}",
        lambda i: (Spot(table, int(at[i])),),
    )  # fmt: skip


def steady_rate(header: Header) -> float | None:
    """Return the learning rate of a run that has one and the same; None for any other."""
    lr = header.knob("lr")
    steady = header.knob("schedule", "constant") == "constant"
    steady &= not header.knob("warmup_epochs", 0.0)
    return float(lr) if steady and type(lr) in (int, float) else None


def _factor(header: Header, tau: Floats) -> Floats:
    """Return r(τ), which is 1 where the rule has no factor for a gradient as a whole."""
    name = header.knob("staleness_rate", "constant")
    if name == "inverse":
        return np.reciprocal(np.maximum(tau, 1.0))
    if name == "power":
        return np.power(1.0 + tau, -_number(header, "staleness_power", 0.5))
    if name == "exponential":
        return np.exp(-_number(header, "staleness_decay", 0.2) * tau)
    return np.ones(len(tau))


def _mean_inverse(shard: Shard, fates: Fates, at: Ints) -> Floats:
    """Return 1/⟨τ⟩ of the last gradients up to each, in the order in which they were first used.

    One that was kept was used then, whatever came before its update.
    """
    of = shard.find_take(at)
    kept = np.where(of >= 0, fates.kept[of], len(shard.table)) if len(at) else at
    order = np.argsort(np.minimum(kept, at), kind="stable")
    total = np.concatenate([[0], np.cumsum(shard.table["tau"][at][order])])
    count = np.arange(1, len(at) + 1)
    seen = np.minimum(count, _WINDOW)
    recent = total[count] - total[count - seen]
    factor = np.empty(len(at))
    factor[order] = np.minimum(1.0, seen / np.maximum(recent, 1))
    return factor


def _number(header: Header, name: str, otherwise: float) -> float:
    value = header.knob(name, otherwise)
    return float(value) if type(value) in (int, float) else otherwise
