"""Random jobs: of each factor of ``support.jobs`` a level, and numbers that no level has."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from psrt.config.modes import MODES
from psrt.job.scenario import Scenario
from psrt.optim.table import Drop
from psrt.simulation.cost_flags import VirtualCosts
from support.cases import also
from support.jobs import FACTORS, Job, refused_by

#: The seed of the first case of all random tests; ``make fuzz`` sets it, and how many there are.
SEED = int(os.environ.get("PSRT_FUZZ_SEED", "0"))
_JOBS = range(SEED, SEED + int(os.environ.get("PSRT_FUZZ", "150")))
#: Tries a test on each ``seed`` of the jobs that are asked for, the first 6 in ``make test``.
each_job = pytest.mark.parametrize("seed", [*_JOBS[:6], *map(also, _JOBS[6:])])

COMPUTE = (
    *("constant:0.001", "normal:0.001:0.0005", "lognormal:0.001:1", "pareto:0.0005:1.1"),
    *("exponential:0.001", "constant:0"),
)
LINKS = ("5e-5:1.25e9", "1e-3:1e5", "0:inf", "2e-3:inf", "1e-5:2e4")


class Draw:
    """Draws a job."""

    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, np.random.default_rng([seed, 1604, 981])

    def whole(self, least: int, most: int) -> int:
        return int(self.rng.integers(least, most + 1))

    def one(self, choices: Sequence[Any]) -> Any:
        return choices[self.whole(0, len(choices) - 1)]

    def job(self) -> Job:
        """Return a job that no rule forbids; with so few samples, last batches may be empty."""
        levels: dict[str, str] = {}
        for factor in FACTORS:
            fit = [it for it in FACTORS[factor] if refused_by(levels | {factor: it}) is None]
            levels[factor] = self.one(fit)
        job = Job(tuple(levels.values()))
        batch = self.whole(2, 7)
        samples = max(20, batch * job.copies) + self.whole(0, 40)
        more = {"seed": self.seed, "batch_size": batch, "dataset": f"synthetic:{samples}x12x4"}
        more["log_every"] = self.whole(1, 9)
        drawn = {"shards_per_server": (1, 3)}
        if job["cut"] == "whole":  # each part of one that is cut has as many
            drawn["servers"] = 1, 4
        more |= {it: self.whole(*drawn[it]) for it in drawn if it in job.knobs()}
        of_mode = {"staleness": (0, 3), "k": (1, job.copies), "local_steps": (2, 4)}
        if job["mode"] == "streaming" and job.saves:  # with 2, an average is under way at all times
            of_mode["local_steps"] = 3, 4
        mode = MODES.read(job.knobs()["mode"])
        own = {it: self.whole(*of_mode[it]) for it in of_mode if it in mode.given}
        more["mode"] = replace(mode, **own).text
        if job["rate"] == "drop":
            more["staleness_rate"] = Drop(self.whole(0, 4))
        return Job(job.levels, tuple(more.items()))

    def costs(self, job: Job) -> VirtualCosts:
        links = [it for it in LINKS if not (job.hosts and "inf" in it)]  # which hosts share
        return VirtualCosts(self.one(COMPUTE), self.one(links), self.one(("2e9", "1e5", "inf")))

    def scenario(self, job: Job) -> Scenario:
        """Return when it computes how long, and who dies: all but one at most."""
        crashes: list[tuple[int, float]] = []
        if job["event"] == "loses a worker":
            # Where worker 0 is rank 0 nobody goes on without it.
            who = 1 + self.rng.permutation(job.workers - 1)[: self.whole(1, 3)]
            crashes = [(int(it), float(self.rng.exponential(0.01))) for it in who]
        return job.scenario(costs=self.costs(job), crashes=tuple(crashes))


@contextmanager
def told(seed: int) -> Iterator[None]:
    """Say how to repeat what fails."""
    try:
        yield
    except Exception as error:
        error.add_note(f"to repeat it: make fuzz SEED={seed} JOBS=1")
        raise
