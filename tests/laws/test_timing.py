"""Law: a job that computes nothing, but takes its time, does the same in the same order.

Promised in docs/simulation.md: without numerics a simulation has the events, times and bytes of the
one with them. Seen red: a frame whose length is another than the codec's formula.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from psrt.history import Kind, read_history
from support.jobs import Job, ran

#: Codecs whose frames are as long as what the numbers leave to be sent.
BY_NUMBERS = ("threshold", "nonzero")
#: Events that tell of numbers only.
OF_NUMBERS = (Kind.DECODE, Kind.FORCE, Kind.CENTRE)
#: Of an event, what needs no numbers.
WHAT = ("kind", "worker", "clock", "version", "tau", "samples", "time")


def is_told_by_shapes(job: Job) -> bool:
    """Return whether no number decides what is sent: neither a checkpoint nor a sparse reply."""
    sparse = job["codec"] in ("top-k", "dgc") and job.served
    return not job.saves and not sparse and job.codec not in BY_NUMBERS


@pytest.mark.of(which=is_told_by_shapes)
@pytest.mark.one_in(2)
def test_the_same_events_and_bytes(job, result, tmp_path):
    full = result(job)
    bare = ran(job, tmp_path / "run", dataclasses.replace(job.scenario(), numerics=False))
    assert str(bare.error) == str(full.error)
    if full.run is None:
        return
    one, other = full.run.summary, bare.run.summary
    for name in ("bytes_sent", "bytes_received", "steps", "samples", "updates", "seconds"):
        assert getattr(one, name) == getattr(other, name), name
    if job["cut"] == "whole":
        for mine, its in zip(
            read_history(full.out).shards, read_history(bare.out).shards, strict=True
        ):
            told = mine[~np.isin(mine["kind"], OF_NUMBERS)]
            for name in WHAT:
                np.testing.assert_array_equal(told[name], its[name])
