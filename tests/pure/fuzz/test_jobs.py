"""Random jobs, recorded: each keeps its contract, and can be had again, to the bit."""

from __future__ import annotations

import dataclasses

import numpy as np

from psrt import recorded_config
from psrt.core.errors import TransportError
from psrt.history.check.run import check_run
from psrt.job.scenario import run_in_virtual_time
from support.fuzz import Draw, each_job, told
from support.jobs import ran


@each_job
def test_a_job_keeps_its_contract_and_can_be_had_again(seed, tmp_path):
    with told(seed):
        draw = Draw(seed)
        job = draw.job()
        scenario = draw.scenario(job)
        first, again = (ran(job, tmp_path / it, scenario) for it in ("run", "again"))
        bits = [
            {file.name: file.read_bytes() for file in (it.out / "history").rglob("*.npy")}
            for it in (first, again)
        ]
        assert bits[0] == bits[1], job
        if first.error is not None:
            assert isinstance(first.error, TransportError), (job, first.error)
            assert job["event"] == "loses a worker", job
            return
        outcome = check_run(first.out)
        assert outcome.ok, "\n".join([str(job), *outcome.lines()])
        if job.undisturbed:
            late = dataclasses.replace(scenario, costs=draw.costs(job))
            config = recorded_config(first.out, out=str(tmp_path / "late"))
            replayed = run_in_virtual_time(config, late)
            np.testing.assert_array_equal(replayed.theta, first.run.theta, str(job))
