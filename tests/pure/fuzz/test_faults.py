"""Random faults, up to five in a job: it ends, says why, and what counts, counts once.

Some jobs leave a history, which is checked; some make checkpoints, from which they resume whenever
they die; some do both.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from psrt.config.faults import EVENT, OPERATION, SECONDS, Fault
from psrt.core.errors import ConfigError, TransportError
from support.faults import (
    HOSTS,
    MODES,
    SAME,
    TICKS,
    WORKERS,
    check_ticks,
    ranks_of,
    run,
    undisturbed,
)
from support.fuzz import SEED

#: What an attempt may end with.
REASONS = (
    *("crashed at", "is declared dead at", "--checkpoint-every: "),
    *("the job was killed while", "the job is dead"),
)


class FaultyJob:
    """A job that a seed stands for."""

    def __init__(self, seed):
        self.rng = np.random.default_rng([seed, 77])
        # More of those that count each push; of gossip every other one without rounds.
        self.name = self.one([*(it for it in MODES if it != "pairs"), *TICKS, *TICKS])
        if self.name == "gossip" and seed % 2:
            self.name = "pairs"
        self.saves = bool(self.rng.integers(2))
        self.faults = tuple(self.fault() for _ in range(self.rng.integers(1, 5)))
        self.every = int(self.rng.integers(1, 3))
        if self.saves:  # so that most attempts have a next: neighbours go on until all are dead
            event = int(self.rng.integers(20, 200))
            mixes = MODES[self.name]["mode"].startswith("gossip")
            who = tuple(("rank", rank) for rank in range(ranks_of(self.name) if mixes else 1))
            self.faults += (Fault("crash", who, EVENT, event),)
        self.records = not self.saves or bool(self.rng.integers(2))

    def __str__(self):
        what = ["", f" --checkpoint-every {self.every}"][self.saves] + " --record" * self.records
        return f"{self.name}{what}: {' '.join(map(str, self.faults))}"

    def one(self, choices):
        return choices[int(self.rng.integers(len(choices)))]

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
        if self.name in HOSTS and self.rng.integers(3) == 0:
            ranks = (("host", int(self.rng.integers(2))),)
        unit, at = EVENT, float(self.rng.integers(1, 250))
        if self.rng.integers(3) == 0:
            unit, at = SECONDS, float(self.rng.exponential(4e-3))
        lasts = self.one([None, 1e-3, 0.1, 7.0])
        if kind == "suspect":
            lasts = None
        return Fault(kind, ranks, unit, at, lasts, 30.0 if kind == "slow" else 0.0)

    def keeps_its_promise(self, folder):
        """Run it in a folder, and hold what came of it against the job without faults."""
        before = undisturbed(self.name, folder)
        more = {"record": self.records}
        if self.saves:
            more |= {"checkpoint_every": self.every, "resume": "auto"}
        found = run(self.name, folder / "run", self.faults, restarts=20 * self.saves, **more)
        for line in found.said:  # of attempts, too
            ends = line.startswith("error: ")
            assert not ends or any(it in line for it in REASONS), line
        if found.error is not None:
            self.ends_for_a_reason(found.error)
            return
        lost = {rank - (ranks_of(self.name) - WORKERS) for rank in found.crashed}
        if not lost and not found.replaced:
            counts = (found.steps, found.samples) == (before.steps, before.samples)
            assert counts or self.name == "backups"
            if self.name in SAME:
                assert found.sha == before.sha
                assert found.figures == before.figures
                if self.saves and not any(fault.kind == "disk" for fault in self.faults):
                    due = undisturbed(self.name, folder, self.every, record=self.records)
                    assert found.saved == due.saved
                    wrong = [it for it in due.kept if due.kept[it] != found.kept.get(it)]
                    if any(fault.kind == "suspect" for fault in self.faults):
                        # Taken to be dead after its last step: a checkpoint has no part of it.
                        parts = {it.split("/")[0] for it in found.kept}
                        wrong = [it for it in wrong if it.split("/")[0] in parts]
                    assert not wrong, wrong
        if self.name in TICKS:
            check_ticks(self.name, found, lost)

    def ends_for_a_reason(self, error):
        if self.saves:  # the folder could not be made, or cleared
            assert isinstance(error, ConfigError), error
            assert str(error).startswith("--checkpoint-every: "), error
            return
        assert isinstance(error, TransportError), error
        assert "crashed at" in str(error) or "is declared dead at" in str(error), error


#: How many jobs are tried; ``make fuzz`` sets it.
JOBS = int(os.environ.get("PSRT_FUZZ_FAULTS", "300"))
#: Jobs of a test.
EACH = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("faults")


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.exhaustive] * (first > SEED))
        for first in range(SEED, SEED + JOBS, EACH)
    ],
)
def test_a_job_in_which_much_goes_wrong_keeps_its_promises(first, folder):
    for seed in range(first, min(first + EACH, SEED + JOBS)):
        try:
            FaultyJob(seed).keeps_its_promise(folder)
        except Exception as error:
            error.add_note(str(FaultyJob(seed)))
            error.add_note(f"to repeat it: make fuzz JOBS=0 CASES=0 FAULTS=1 SEED={seed}")
            raise
