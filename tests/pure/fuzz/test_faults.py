"""Random faults, up to four in a job: it ends, says why, and what counts, counts once.

Half of the jobs leave a history, which is checked; the other half make checkpoints, from which they
go on whenever they die.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from psrt.config.faults import EVENT, OPERATION, SECONDS, Fault
from psrt.errors import ConfigError, TransportError
from support.faults import MODES, SAME, TICKS, WORKERS, check_ticks, ranks_of, run, undisturbed

#: How many jobs are tried, and the seed of the first; ``make fuzz`` sets both.
JOBS = int(os.environ.get("PSRT_FUZZ_FAULTS", "300"))
SEED = int(os.environ.get("PSRT_FUZZ_SEED", "0"))
#: Jobs of a test.
EACH = 10


class Drawn:
    """What a seed stands for."""

    def __init__(self, seed):
        self.rng = np.random.default_rng([seed, 77])
        self.name = self.one(list(MODES))
        self.saves = bool(self.rng.integers(2))
        self.faults = tuple(self.fault() for _ in range(self.rng.integers(1, 5)))
        self.every = int(self.rng.integers(1, 3))

    def one(self, choices):
        return choices[self.rng.integers(len(choices))]

    def fault(self):
        """Most of what strikes is a crash; times are those of a job that takes about 5 ms."""
        kind = self.one(["crash"] * 4 + ["pause", "cut", "slow", "suspect", "disk"])
        if kind == "disk" and self.saves:
            how = self.one(["torn", "torn", "full", "error"])
            return Fault(kind, (), OPERATION, int(self.rng.integers(1, 80)), how=how)
        if kind == "disk":
            kind = "crash"
        who = self.rng.permutation(ranks_of(self.name))[: self.rng.choice([1, 1, 1, 2])]
        ranks = tuple(("rank", int(rank)) for rank in who)
        unit, at = EVENT, int(self.rng.integers(1, 250))
        if self.rng.integers(3) == 0:
            unit, at = SECONDS, float(self.rng.exponential(4e-3))
        lasts = self.one([None, 1e-3, 0.1, 7.0])
        if kind == "suspect":
            lasts = None
        return Fault(kind, ranks, unit, at, lasts, 30.0 if kind == "slow" else 0.0)


def keeps_its_promise(seed, folder):
    it = Drawn(seed)
    before = undisturbed(it.name, folder)
    more = {"record": True}
    if it.saves:
        more = {"checkpoint_every": it.every, "resume": "auto"}
    found = run(it.name, folder / "run", it.faults, restarts=20 * it.saves, **more)
    if found.error is not None:
        if it.saves:  # the folder could not be made, or cleared
            assert isinstance(found.error, ConfigError), found.error
            assert str(found.error).startswith("--checkpoint-every: "), found.error
        else:
            assert isinstance(found.error, TransportError), found.error
            said = str(found.error)
            assert "crashed at" in said or "is taken to be dead at" in said, found.error
        return
    lost = {rank - (ranks_of(it.name) - WORKERS) for rank in found.crashed}
    if not lost:
        if it.saves and it.name in SAME and not any(fault.kind == "disk" for fault in it.faults):
            assert found.saved == undisturbed(it.name, folder, it.every).saved
        counts = (found.steps, found.samples) == (before.steps, before.samples)
        assert counts or it.name == "backups"
        assert found.sha == before.sha or it.name not in SAME
    if it.name in TICKS:
        check_ticks(it.name, found, lost)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("faults")


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.exhaustive] * (first >= SEED + 100))
        for first in range(SEED, SEED + JOBS, EACH)
    ],
)
def test_a_job_in_which_much_goes_wrong_keeps_its_promises(first, folder):
    for seed in range(first, min(first + EACH, SEED + JOBS)):
        try:
            keeps_its_promise(seed, folder)
        except Exception as error:
            error.add_note(f"{Drawn(seed).name}: {' '.join(map(str, Drawn(seed).faults))}")
            error.add_note(f"to repeat it: make fuzz JOBS=0 CASES=0 FAULTS=1 SEED={seed}")
            raise
