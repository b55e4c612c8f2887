"""Law: a recorded run can be had again, to the bit, whoever is late this time.

Promised in docs/guarantees.md, "The same run again". Seen red: servers that take what comes first.
"""

from __future__ import annotations

import dataclasses
import zlib

import numpy as np
import pytest

from psrt import recorded_config
from psrt.history import read_history
from psrt.job.scenario import run_in_virtual_time
from support.jobs import OTHER_COSTS, Job, Ran, ran

#: Of an event, what is no time.
WHAT = ("kind", "worker", "clock", "version", "tau", "samples", "rate", "flag")


def is_one_of_few(job: Job) -> bool:
    """Whether it is out of order, or one in three.

    Those in order are also `who is late` of test_equivalences.
    """
    return not job.in_order or zlib.crc32(repr(job).encode()) % 3 == 0


@pytest.mark.of(which=lambda job: job.undisturbed)
@pytest.mark.first(which=is_one_of_few)
def test_the_same_bits_and_the_same_order(job, result, tmp_path):
    then: Ran = result(job)
    config = recorded_config(then.out, out=str(tmp_path / "now"), record=True)
    scenario = dataclasses.replace(job.scenario(), costs=OTHER_COSTS)
    now = run_in_virtual_time(config, scenario)
    np.testing.assert_array_equal(now.theta, then.run.theta)
    if job["cut"] == "whole":
        before, after = read_history(then.out), read_history(tmp_path / "now")
        for one, other in zip(before.shards, after.shards, strict=True):
            for name in WHAT:
                np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.one_in(5)
def test_a_job_and_its_seed_are_the_same_files(job, result, tmp_path):
    then, now = result(job), ran(job, tmp_path / "now")
    assert str(then.error) == str(now.error)
    events = [
        {it.name: it.read_bytes() for it in sorted((out / "history").rglob("*.npy"))}
        for out in (then.out, now.out)
    ]
    assert events[0]
    assert events[0] == events[1]
    if then.run is not None:
        one, other = (
            dataclasses.replace(it.run.summary, environment={}).to_json() for it in (then, now)
        )
        assert one == other
