"""Random jobs, recorded: each keeps its contract, and can be had again, to the bit."""

from __future__ import annotations

import dataclasses

from psrt import recorded_config
from psrt.history.check.run import check_run
from psrt.history.folder import EVENTS
from psrt.job.scenario import run_in_virtual_time
from support.fuzz import Draw, each_job, told


@each_job
def test_a_job_keeps_its_contract_and_can_be_had_again(seed, tmp_path):
    with told(seed):
        job = Draw(seed).job()

        def run(name, scenario=job.scenario, config=None):
            config = config or job.config(record=True, out=str(tmp_path / name))
            return run_in_virtual_time(config, scenario).summary

        first = run("run")
        outcome = check_run(tmp_path / "run")
        assert outcome.ok, "\n".join(outcome.lines())
        again = run("again")
        bits = [(tmp_path / n / "history" / EVENTS).read_bytes() for n in ("run", "again")]
        assert bits[0] == bits[1]
        texts = [dataclasses.replace(it, environment={}).to_json() for it in (first, again)]
        assert texts[0] == texts[1]
        if job.scenario.numerics and not job.scenario.crashes:
            late = dataclasses.replace(job.scenario, costs=job.other_costs)
            replayed = run("", late, recorded_config(tmp_path / "run"))
            assert replayed.parameters_sha256 == first.parameters_sha256
            assert replayed.staleness == first.staleness
