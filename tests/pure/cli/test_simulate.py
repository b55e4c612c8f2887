"""psrt simulate: its flags are those of train and a few more, and every mistake is one line."""

from __future__ import annotations

import json
import re

import pytest

from psrt.__main__ import main as psrt
from psrt.checkpoint.failures import FailureCosts
from psrt.cli.like import config_like
from psrt.cli.simulate import main, parse_simulate, simulate_parser
from psrt.codec.table import Int8, Sign, TopK
from psrt.config import TrainConfig, resolve
from psrt.config.injection import Injection
from psrt.core.errors import ConfigError
from psrt.simulation.distributions import FORMS
from support.cases import each
from support.histories import header_of

#: A job that is over in a few hundredths of a second.
SMALL = "--timing-only --parameters 50 --steps 3"


def refusal(flags):
    with pytest.raises(ConfigError) as caught:
        parse_simulate(flags.split())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_flags_of_train_and_of_virtual_time():
    argv = (
        "--mode ssp:staleness=2 --workers 12 --servers 3 --seed 5 --compute pareto:0.01:1.5 "
        "--link 0:inf --server-apply inf --crash 4:0.5 --crash 1:2,2:4 "
        "--inject 0:delay:0.1 --timing-only --parameters 1000"
    )
    config, scenario = parse_simulate(argv.split())
    assert config == TrainConfig(
        mode="ssp:staleness=2", servers=3, seed=5,
        inject=(Injection(0, "delay", (0.1,)),),
    )  # fmt: skip
    assert (scenario.workers, scenario.numerics, scenario.parameters) == (12, False, 1000)
    assert scenario.crashes == ((4, 0.5), (1, 2.0), (2, 4.0))
    costs = scenario.costs
    assert (costs.compute, costs.link, costs.server_apply) == ("pareto:0.01:1.5", "0:inf", "inf")
    cut = "--parallel data:2,pipeline:3 --stage-costs 1:0:1,2:2:2,3:3:3 --small-products 8:2:2:2"
    _, scenario = parse_simulate(cut.split())
    assert (scenario.workers, scenario.numerics, scenario.crashes) == (6, True, ())
    assert scenario.costs.stage_costs == "1:0:1,2:2:2,3:3:3"
    assert scenario.costs.small_products == "8:2:2:2"
    assert parse_simulate([])[1].workers == 4


LAWS = ", ".join(FORMS)
#: Forms of a flag, and what has none of them.
FORMED = [
    (f"compute must be one of {LAWS}", "compute", ["fast"]),
    ("compute must be constant:SECONDS, SECONDS {}", "compute", ["constant", "constant:-1"]),
    ("compute must be normal:MEAN:SD, MEAN {0}, SD {0}", "compute", ["normal:1", "normal:1:-1"]),
    ("compute must be pareto:SCALE:SHAPE, SCALE {}, SHAPE from 0.1 to 1000000", "compute",
     ["pareto:1:0"]),
    ("link must be LATENCY_S:BYTES_PER_S, LATENCY_S {}, BYTES_PER_S from 1 to inf", "link",
     ["5e-5", "-1:1e9", "inf:1e9", "0:0", "0:nan", "0:"]),
    ("server-apply must be BYTES_PER_S, BYTES_PER_S from 1 to inf", "server-apply", ["0", "fast"]),
    ("crash must be WORKER:SECONDS, WORKER from 0, SECONDS from 0 to 1000000000", "crash",
     ["1", "x:2", "1:-1", "1:inf", "-1:2"]),
    ("small-products must be ROWS:FORWARD:BACKWARD_INPUT:BACKWARD_WEIGHT, ROWS from 1 to "
     "1000000000, FORWARD from 0.001 to 1000, BACKWARD_INPUT from 0.001 to 1000, "
     "BACKWARD_WEIGHT from 0.001 to 1000", "parallel pipeline:2 --small-products", ["8:1:1"]),
    ("checkpoint-every must be steps such as 100, seconds such as 30s, or auto",
     "mtbf 60 --checkpoint-every", ["5m"]),
]  # fmt: skip


@each(("form", "flag", "value"), [(*it, value) for *it, values in FORMED for value in values])
def test_a_flag_that_has_another_form(form, flag, value):
    message = form.format("from 0 to 1000000")
    assert refusal(f"--{flag}={value}") == f"{message}, got {value!r}"


@each(("flags", "message"), [
    ("--workers 0", "workers must be at least 1, got 0"),
    ("--workers 9999999", "workers must be at most 1000000, got 9999999"),
    ("--timeout-s 5", "--timeout-s 5 has no effect in virtual time"),
    ("--crash 9:1", "crash names worker 9, which does not exist; the last is 3"),
    ("--stage-costs 1:1:1", "--stage-costs 1:1:1 has no effect without --parallel"),
    ("--parallel pipeline:2 --stage-costs 0:0:0", "stage-costs must not all be 0, got '0:0:0'"),
    ("--parallel pipeline:2 --small-products 8:1:1:1,8:2:2:2",
     "small-products must name a number of rows once, got '8:1:1:1,8:2:2:2'"),
    ("--checkpoint-cost 1", "--checkpoint-cost 1 has no effect without --mtbf"),
    ("--parameters 10",
     "--parameters 10 has no effect when a model is trained; it belongs to --timing-only"),
])  # fmt: skip
def test_what_will_not_do(flags, message):
    assert refusal(flags) == message


@pytest.mark.parametrize(("flags", "message"), [
    ("--servers 60", "60 shards of 50 parameters: each must own at least one"),
    ("--compute run:gone", "no run at gone"),
    ("--mode allreduce --allreduce mpi", "all-reduce mpi needs MPI; in virtual time there are"),
])  # fmt: skip
def test_what_cannot_be_is_one_line_and_status_2(flags, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert psrt(["simulate", *SMALL.split(), "--out", "kept", *flags.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"psrt: error: {message}")
    assert err.count("\n") == 1
    assert not (tmp_path / "kept").exists()


def test_more_workers_than_the_data_has_batches(capsys):
    assert psrt(["simulate", "--workers", "1000"]) == 2
    assert "a step of all 1000 workers takes 32000 samples" in capsys.readouterr().err
    assert psrt(["simulate", "--workers", "1000", "--timing-only", "--epochs", "1"]) == 2
    assert psrt(["simulate", "--workers", "200", "--timing-only", "--steps", "1"]) == 0


def test_not_under_mpirun(monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "4")
    with pytest.raises(
        ConfigError, match=r"runs all ranks in one process: start it without mpirun$"
    ):
        main(SMALL.split())


def test_failures_are_those_of_the_flags():
    words = "--mtbf 3600 --checkpoint-cost 0.5:10 --restart-cost 30 --checkpoint-every"
    config, scenario = parse_simulate([*words.split(), "30s"])
    assert scenario.failures == FailureCosts(3600.0, 0.5, 10.0, 30.0, "30s")
    assert config.checkpoint_every is None
    _, scenario = parse_simulate(["--mtbf", "60"])
    assert scenario.failures == FailureCosts(60.0)
    config, scenario = parse_simulate([*words.split(), "20", "--out", "runs/x"])
    assert (config.checkpoint_every, scenario.failures.every) == (20, 20)


def test_what_failures_cost_is_said_and_kept(tmp_path, capsys):
    words = "--compute constant:0.5 --link 0:inf --server-apply inf --mtbf 600 --checkpoint-cost 2"
    flags = [*SMALL.split(), *words.split(), "--out", tmp_path / "run"]
    assert psrt(["simulate", *map(str, flags), "--checkpoint-every", "auto"]) == 0
    said = capsys.readouterr().out
    (row,) = [line for line in said.splitlines() if "--checkpoint-every" in line]
    assert row.split()[:3] == ["49", "s", "98"]
    found = json.loads((tmp_path / "run" / "simulation.json").read_text())
    assert found["failures"]["mtbf_s"] == 600
    steps = {it["steps"]: it for it in found["lost"]}
    assert steps[98]["again"] == pytest.approx(0.043, rel=0.1)


@each(("ran", "asked", "expected"), [
    # Another codec has its own knobs and defaults.
    ({"codec": "sign:bucket=64"}, [], {"codec": Sign(64), "error_feedback": True}),
    ({"codec": "sign:bucket=64"}, ["--codec", "int8"], {"codec": Int8(), "error_feedback": None}),
    ({"codec": "sign"}, ["--codec-reply", "int8"], {"codec": Sign(), "codec_reply": Int8()}),
    ({"codec": "sign", "error_feedback": False}, ["--codec", "top-k"],
     {"codec": TopK(), "error_feedback": False}),
])  # fmt: skip
def test_like_a_run_with_another_codec(ran, asked, expected):
    config = resolve(TrainConfig(mode="async", **ran), ranks=3)
    flags = simulate_parser().parse_args(asked)
    like = config_like(header_of(config, workers=2, servers=1), flags)
    assert {name: getattr(like, name) for name in expected} == expected


#: Little to compute.
SHORT = "--dataset synthetic:64x3x2 --batch-size 4 --hidden none"


def test_a_job_that_dies_goes_on(capsys, tmp_path):
    job = f"{SHORT} --mode allreduce --workers 2 --steps 6"
    saving = f"--out {tmp_path / 'run'} --checkpoint-every 2 --resume auto --restarts 2"
    faults = "--fault crash:rank1@event32 --fault crash:host0@event36"
    assert psrt(["simulate", *job.split(), *saving.split(), *faults.split()]) == 0
    out = capsys.readouterr().out
    assert re.search(r"error: worker 1 \(rank 1\) crashed at .* s of virtual time, at clock", out)
    assert "without a summary, after step 2; restart 1 of 2 in 1 s\nresuming from step 2" in out
    assert psrt(["simulate", *job.split(), "--fault", "crash:worker9@1s"]) == 2
    assert "fault crash:worker9@1.0s names worker 9, but the last is 1" in capsys.readouterr().err
    assert psrt(["simulate", *SMALL.split(), "--mode", "allreduce", "--crash", "2:0.0015"]) == 5
    line = "worker 2 (rank 2) crashed at 0.0015 s of virtual time, at clock 1"
    assert capsys.readouterr().err == f"psrt: error: {line}\n"
    assert psrt(["simulate", *job.split(), "--restarts", "2"]) == 2
    assert "--restarts 2 needs a run that can resume" in capsys.readouterr().err


def test_the_last_bytes_on_a_link_arrive_however_fast_it_is(capsys):
    """Where they take less time than a clock of many seconds can tell."""
    job = "--mode gossip --hosts 1,1,1,1 --compute constant:1000 --link 1e-6:1e18"
    assert psrt(["simulate", *job.split(), *SMALL.split()]) == 0
