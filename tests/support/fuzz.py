"""Random jobs: everything that a job in virtual time can be, drawn from one seed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from psrt.collective import ALGORITHMS
from psrt.config import STALENESS_RATE_NAMES, TrainConfig
from psrt.job.scenario import Scenario
from psrt.simulation.cost_flags import VirtualCosts
from support.cases import also

#: The seed of the first case of all random tests; ``make fuzz`` sets it, and how many there are.
SEED = int(os.environ.get("PSRT_FUZZ_SEED", "0"))
_JOBS = range(SEED, SEED + int(os.environ.get("PSRT_FUZZ", "150")))
#: Tries a test on each ``seed`` of the jobs that are asked for, the first 6 in ``make test``.
each_job = pytest.mark.parametrize("seed", [*_JOBS[:6], *map(also, _JOBS[6:])])

RATES = tuple(name for name in STALENESS_RATE_NAMES if name != "constant")
COMPUTE = (
    "constant:0.001",
    "normal:0.001:0.0005",
    "lognormal:0.001:1",
    "pareto:0.0005:1.1",
    "exponential:0.001",
    "constant:0",
)
LINKS = ("5e-5:1.25e9", "1e-3:1e5", "0:inf", "2e-3:inf", "1e-5:2e4")


@dataclass(frozen=True)
class Job:
    """What a seed stands for."""

    seed: int
    knobs: dict[str, Any]
    scenario: Scenario
    #: For another run of it, that must not come to anything else when it is a replay.
    other_costs: VirtualCosts = field(default_factory=VirtualCosts)

    def config(self, **more: Any) -> TrainConfig:
        return TrainConfig(**{**self.knobs, **more})


class Draw:
    """Draws the parts of a job."""

    def __init__(self, seed: int):
        self.seed = seed
        self.rng = np.random.default_rng([seed, 1604, 981])

    def whole(self, least: int, most: int) -> int:
        return int(self.rng.integers(least, most + 1))

    def one(self, choices: Any) -> Any:
        return list(choices)[self.whole(0, len(choices) - 1)]

    def maybe(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def job(self) -> Job:
        workers = self.whole(1, 8)
        mode = self.one(("sync", "async", "ssp", "softsync", "local-sgd", "allreduce"))
        knobs = {
            "mode": mode,
            "seed": self.seed,
            **self.training(workers),
            **self.mode(mode, workers),
        }
        served = bool(knobs["servers"])
        if "bucket_bytes" in knobs:
            knobs.pop("clip_norm", None)
        if served and self.maybe(0.3):
            knobs["placement"] = self.one(("first", "last"))
        knobs["inject"] = tuple(self.injection(workers) for _ in range(self.whole(0, 2)))
        crashes = self.crashes(workers) if served and self.maybe(0.3) else ()
        if knobs.get("placement") == "last":  # worker 0 is rank 0, without which nobody goes on
            crashes = tuple(it for it in crashes if it[0])
        return Job(
            self.seed,
            knobs,
            Scenario(workers, self.costs(), crashes=crashes, numerics=self.maybe(0.8)),
            self.costs(),
        )

    def training(self, workers: int) -> dict[str, Any]:
        """With so few samples, the last batches of an epoch are smaller, or none."""
        batch = self.whole(1, 7)
        samples = max(batch * workers, 5) + self.whole(0, 40)
        knobs = {"dataset": f"synthetic:{samples}x3x2", "hidden": (), "batch_size": batch}
        knobs |= {"lr": 0.01, "optimizer": self.one(("sgd", "momentum", "adam"))}
        knobs |= {"shared_memory": self.maybe(0.5), "log_every": self.whole(1, 9)}
        if self.maybe(0.2):
            knobs["clip_norm"] = 0.5
        return knobs | ({"epochs": self.one((1, 2, 2.5))} if self.maybe(0.6) else {
            "steps": self.whole(3, 20)
        })  # fmt: skip

    def mode(self, mode: str, workers: int) -> dict[str, Any]:
        knobs: dict[str, Any] = {"servers": self.whole(1, 4)}
        if self.maybe(0.4):
            knobs["shards_per_server"] = self.whole(2, 8 // knobs["servers"])  # of 8 parameters
        served = knobs
        if mode == "sync":
            return knobs | {"backup": self.whole(0, (workers - 1) // 2)}
        if mode in ("async", "ssp", "softsync"):
            knobs |= {"staleness": self.whole(0, 3)} if mode == "ssp" else {}
            knobs |= {"softsync": self.whole(1, workers)} if mode == "softsync" else {}
            return knobs | (self.rate() if self.maybe(0.5) else {})
        knobs = {"servers": 0, "allreduce": self.one((*ALGORITHMS, "auto")), "check_every": 2}
        if mode == "allreduce":
            return knobs | ({"bucket_bytes": 4} if self.maybe(0.5) else {})
        if self.maybe(0.5):
            knobs = served
        knobs["local_steps"] = self.whole(1, 4)
        knobs |= {"post_local_epoch": 1} if self.maybe(0.3) else {}
        return knobs | ({"outer_lr": 0.7, "outer_momentum": 0.5} if self.maybe(0.3) else {})

    def rate(self) -> dict[str, Any]:
        rate = self.one(RATES)
        limit = {"staleness_limit": self.whole(0, 4)} if rate == "drop" else {}
        return {"staleness_rate": rate, **limit}

    def injection(self, workers: int) -> str:
        kind = self.one(
            ("delay:0.002", "jitter:0.001", "tail:0.0005:1.2", "pause:2:0.03", "slow:4:1")
        )
        return f"{self.one(('*', *range(workers)))}:{kind}"

    def costs(self) -> VirtualCosts:
        return VirtualCosts(self.one(COMPUTE), self.one(LINKS), self.one(("2e9", "1e5", "inf")))

    def crashes(self, workers: int) -> tuple[tuple[int, float], ...]:
        """Draw who dies, and when: all but one at most, without whom there is no result."""
        who = self.rng.permutation(workers)[: self.whole(1, max(workers - 1, 1))]
        dies = tuple((int(worker), float(self.rng.exponential(0.01))) for worker in who)
        return dies if workers > 1 else ()


@contextmanager
def told(seed: int) -> Iterator[None]:
    """Say how to repeat what fails."""
    try:
        yield
    except Exception as error:
        error.add_note(f"to repeat it: make fuzz SEED={seed} JOBS=1")
        raise
