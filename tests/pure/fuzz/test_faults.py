"""Random faults, up to four in a job: it ends, says why, and what counts, counts once."""

from __future__ import annotations

import os

import pytest

from support.faulty_jobs import FaultyJob
from support.fuzz import SEED

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
