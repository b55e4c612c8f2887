"""The cost of failures of a long job, by how often it saves: thousands of them, drawn at once.

Between two failures psrt's own rules determine everything. A checkpoint stops training while the
state is copied. It is written while training continues, and is of use once it is written. The next
one waits for it. So a failure is two draws: when it happens, and how often the job dies again while
it restarts. Of the job itself, only the time of a step is simulated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from psrt.checkpoint.interval import daly_lost, young_lost, young_s

#: Failures drawn for each interval, the same for all: enough for a share of lost time to be off by
#: less than 1 % of itself.
FAILURES = 200_000
#: If restarts take this many times the time between failures, one in 10¹³ succeeds.
_HOPELESS = 30.0
#: Intervals that are tried, as factors of Young's.
_FACTORS = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True, slots=True)
class FailureCosts:
    """The time that failures and checkpoints take, in seconds."""

    #: M, mean time between failures of the whole job; they are a Poisson process.
    mtbf_s: float
    #: δ, for how long a checkpoint stops training.
    stall_s: float = 0.0
    #: How long writing then takes.
    write_s: float = 0.0
    #: R, from a failure until the job trains again.
    restart_s: float = 0.0
    #: An interval to add to the table, in steps or as a text such as ``30s``; None adds none.
    every: int | str | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """Time lost with one interval, as shares of the time that the steps themselves take."""

    #: From one checkpoint to the next.
    steps: int
    #: τ, the time that these steps take.
    seconds: float
    #: As simulated: by saving, by repeating steps, by restarting.
    saving: float
    again: float
    down: float
    #: The total by the formulas.
    young: float
    daly: float

    @property
    def total(self) -> float:
        """The total, as simulated."""
        return self.saving + self.again + self.down


def lost_with(steps: int, step_s: float, costs: FailureCosts, *, seed: int = 0) -> Lost:
    """Return the time that a job loses if it saves every ``steps`` steps.

    Args:
        steps: from one checkpoint to the next.
        step_s: the time of a step.
        costs: of failures and checkpoints.
        seed: of the draws.
    """
    rng, mtbf_s = np.random.default_rng(seed), costs.mtbf_s
    trained_s = rng.exponential(mtbf_s, FAILURES)
    tau, stall, write = steps * step_s, costs.stall_s, costs.write_s
    # The first copy is made after τ + δ, each further one a period later.
    first, period = tau + stall, tau + stall + max(0.0, write - tau)
    copied = np.where(trained_s < first, 0, np.floor((trained_s - first) / period) + 1)
    by_write = np.where(trained_s < first + write, 0, (trained_s - first - write) // period + 1)
    # The job resumes from the newest checkpoint that was written when it died.
    saved = float(by_write.sum()) * tau
    # Each period costs all but τ; the last one counts as far as it came.
    since = np.where(copied == 0, trained_s, trained_s - first - (copied - 1) * period)
    full_s = np.where(copied == 0, 0.0, stall + (copied - 1) * (period - tau))
    saving_s = float((full_s + np.clip(since - tau, 0.0, None)).sum())
    down_s = _down_s(costs, rng)
    if not saved:
        formulas = (fn(tau, stall, costs.restart_s, mtbf_s) for fn in (young_lost, daly_lost))
        return Lost(steps, tau, math.inf, math.inf, math.inf, *formulas)
    again_s = float(trained_s.sum()) - saving_s - saved
    return Lost(
        steps,
        tau,
        saving=saving_s / saved,
        again=again_s / saved,
        down=down_s / saved,
        young=young_lost(tau, stall, costs.restart_s, mtbf_s),
        daly=daly_lost(tau, stall, costs.restart_s, mtbf_s),
    )


def _down_s(costs: FailureCosts, rng: np.random.Generator) -> float:
    """Return the total time to restart after all failures; the job may die again meanwhile."""
    if not costs.restart_s:
        return 0.0
    if costs.restart_s > _HOPELESS * costs.mtbf_s:
        return math.inf
    survives = math.exp(-costs.restart_s / costs.mtbf_s)
    tries = rng.geometric(survives, FAILURES)
    # A failed restart lasts as long as an exponential draw below R, on average.
    short = costs.mtbf_s - costs.restart_s * survives / -math.expm1(-costs.restart_s / costs.mtbf_s)
    return FAILURES * costs.restart_s + float((tries - 1).sum()) * short


def table_of_lost(step_s: float, costs: FailureCosts, *, seed: int = 0) -> tuple[Lost, ...]:
    """Return the time lost for intervals around Young's and for the given one, in order.

    Args:
        step_s: the time of a step.
        costs: of failures and checkpoints.
        seed: of the draws.
    """
    shortest_s = costs.mtbf_s * 1e-6  # if saving is free, more often is always better
    best = max(young_s(costs.stall_s, costs.mtbf_s), shortest_s) / step_s
    tried = {max(1, round(best * factor)) for factor in _FACTORS}
    if asked := asked_for(costs, step_s):
        tried.add(asked)
    return tuple(lost_with(steps, step_s, costs, seed=seed) for steps in sorted(tried))


def asked_for(costs: FailureCosts, step_s: float) -> int | None:
    """Return the interval that the user asks about, in steps; None if there is none."""
    every = costs.every
    if every is None or isinstance(every, int):
        return every
    seconds = float(every[:-1]) if every.endswith("s") else young_s(costs.stall_s, costs.mtbf_s)
    return max(1, round(seconds / step_s))
