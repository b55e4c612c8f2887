"""psrt simulate: its flags are those of train and a few more, and every mistake is one line."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from psrt.__main__ import main as psrt
from psrt.checkpoint.failures import FailureCosts
from psrt.cli.like import config_like
from psrt.cli.simulate import main, parse_simulate, simulate_parser
from psrt.config import TrainConfig, resolve
from psrt.config.injection import Injection
from psrt.config.knobs import knobs_of
from psrt.errors import ConfigError
from psrt.simulation.cost_flags import DEFAULT_COMPUTE, DEFAULT_LINK, DEFAULT_SERVER_APPLY
from psrt.simulation.distributions import FORMS
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
        "--mode ssp --staleness 2 --workers 12 --servers 3 --seed 5 --compute pareto:0.01:1.5 "
        "--link 0:inf --server-apply inf --crash 4:0.5 --crash 1:2,2:4 "
        "--inject 0:delay:0.1 --timing-only --parameters 1000"
    )
    config, scenario = parse_simulate(argv.split())
    assert config == TrainConfig(
        mode="ssp", staleness=2, servers=3, seed=5,
        inject=(Injection(0, "delay", (0.1,)),),
    )  # fmt: skip
    assert (scenario.workers, scenario.numerics, scenario.parameters) == (12, False, 1000)
    assert scenario.crashes == ((4, 0.5), (1, 2.0), (2, 4.0))
    costs = scenario.costs
    assert (costs.compute, costs.link, costs.server_apply) == ("pareto:0.01:1.5", "0:inf", "inf")


def test_models_that_are_cut():
    cut = "--parallel data:2,pipeline:3 --stage-costs 1:0:1,2:2:2,3:3:3"
    _, scenario = parse_simulate([*cut.split(), "--small-products", "8:2:2:2"])
    assert scenario.workers == 6
    assert scenario.costs.stage_costs == "1:0:1,2:2:2,3:3:3"
    assert scenario.costs.small_products == "8:2:2:2"


def test_defaults():
    config, scenario = parse_simulate([])
    assert config == TrainConfig()
    assert (scenario.workers, scenario.numerics, scenario.crashes) == (4, True, ())


LAWS = ", ".join(FORMS)
SECONDS = "from 0 to 1000000"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--workers 0", "workers must be at least 1, got 0"),
        ("--workers -3", "workers must be at least 1, got -3"),
        ("--workers many", "workers must be a whole number, got 'many'"),
        ("--workers 1e9", "workers must be a whole number, got '1e9'"),
        ("--workers 9999999", "workers must be at most 1000000, got 9999999"),
        ("--workers", "--workers: expected one argument"),
        ("--worker 3", "unknown flag --worker (did you mean --workers?)"),
        ("--ranks 3", "unknown flag --ranks (did you mean --workers?)"),
        ("--timeout-s 5", "--timeout-s 5 has no effect in virtual time"),
        ("fast", "unexpected argument 'fast'"),
        ("--mode asinc", "mode must be one of serial, sync, async, ssp, softsync, local-sgd, "
         "easgd, allreduce, gossip, got 'asinc' (did you mean async?)"),
        ("--compute fast", f"compute must be one of {LAWS}, got 'fast'"),
        (
            "--compute lognormall:1:2",
            f"compute must be one of {LAWS}, got 'lognormall:1:2' (did you mean lognormal?)",
        ),
        ("--compute 0.01", f"compute must be one of {LAWS}, got '0.01'"),
        ("--compute uniform:0:1", f"compute must be one of {LAWS}, got 'uniform:0:1'"),
        ("--compute constant", f"compute must be constant:SECONDS, SECONDS {SECONDS}, "
         "got 'constant'"),
        ("--compute constant:1:2", f"compute must be constant:SECONDS, SECONDS {SECONDS}, "
         "got 'constant:1:2'"),
        ("--compute constant:-1", f"compute must be constant:SECONDS, SECONDS {SECONDS}, "
         "got 'constant:-1'"),
        ("--compute constant:nan", f"compute must be constant:SECONDS, SECONDS {SECONDS}, "
         "got 'constant:nan'"),
        ("--compute exponential:inf", f"compute must be exponential:MEAN, MEAN {SECONDS}, "
         "got 'exponential:inf'"),
        ("--compute normal:1", f"compute must be normal:MEAN:SD, MEAN {SECONDS}, SD {SECONDS}, "
         "got 'normal:1'"),
        ("--compute normal:1:-1", f"compute must be normal:MEAN:SD, MEAN {SECONDS}, SD {SECONDS}, "
         "got 'normal:1:-1'"),
        ("--compute lognormal:1:x", f"compute must be lognormal:MEDIAN:SIGMA, MEDIAN {SECONDS}, "
         "SIGMA from 0 to 20, got 'lognormal:1:x'"),
        ("--compute pareto:1:0", f"compute must be pareto:SCALE:SHAPE, SCALE {SECONDS}, "
         "SHAPE from 0.1 to 1000000, got 'pareto:1:0'"),
        *((f"--link={link}", f"link must be LATENCY_S:BYTES_PER_S, LATENCY_S {SECONDS}, "
           f"BYTES_PER_S from 1 to inf, got {link!r}")
          for link in ("5e-5", "-1:1e9", "inf:1e9", "0:0", "0:nan", "0:")),
        *((f"--server-apply {rate}", "server-apply must be BYTES_PER_S, BYTES_PER_S from 1 to inf, "
           f"got {rate!r}") for rate in ("0", "fast")),
        *((f"--crash={crash}", f"crash must be WORKER:SECONDS, WORKER from 0, SECONDS from 0 to "
           f"1000000000, got {crash!r}") for crash in ("1", "x:2", "1:-1", "1:inf", "-1:2")),
        ("--crash 9:1", "crash names worker 9 that does not exist, the last is 3"),
        ("--crash 1:2 --crash 1:3", "crash names worker 1 twice"),
        ("--stage-costs 1:1:1", "--stage-costs 1:1:1 has no effect without --parallel"),
        ("--parallel pipeline:2 --stage-costs 0:0:0",
         "stage-costs must not all be 0, got '0:0:0'"),
        ("--parallel pipeline:2 --small-products 8:1:1:1,8:2:2:2",
         "small-products must name a number of rows once, got '8:1:1:1,8:2:2:2'"),
        ("--parallel pipeline:2 --small-products 8:1:1",
         "small-products must be ROWS:FORWARD:BACKWARD_INPUT:BACKWARD_WEIGHT, ROWS from 1 to "
         "1000000000, FORWARD from 0.001 to 1000, BACKWARD_INPUT from 0.001 to 1000, "
         "BACKWARD_WEIGHT from 0.001 to 1000, got '8:1:1'"),
        ("--pass-overhead 1e-5", "--pass-overhead 1e-5 has no effect without --parallel"),
        ("--parallel pipeline:2 --pass-overhead=-1",
         f"pass-overhead must be SECONDS, SECONDS {SECONDS}, got '-1'"),
        ("--worker-apply 0",
         "worker-apply must be BYTES_PER_S, BYTES_PER_S from 1 to inf, got '0'"),
        ("--checkpoint-cost 1", "--checkpoint-cost 1 has no effect without --mtbf"),
        ("--restart-cost 1", "--restart-cost 1 has no effect without --mtbf"),
        ("--mtbf 0", "mtbf must be above 0, got 0"),
        ("--mtbf 60 --checkpoint-cost 1:-2", "checkpoint-cost must be STALL_S[:WRITE_S], "
         f"STALL_S {SECONDS}, WRITE_S {SECONDS}, got '1:-2'"),
        ("--mtbf 60 --restart-cost x", f"restart-cost must be SECONDS, SECONDS {SECONDS}, got 'x'"),
        ("--mtbf 60 --checkpoint-every 5m", "checkpoint-every must be steps such as 100, seconds "
         "such as 30s, or auto, got '5m'"),
        ("--parameters 10", "--parameters 10 has no effect with a model, which has its own; "
         "it belongs to --timing-only"),
        ("--timing-only --parameters 0", "parameters must be at least 1, got 0"),
        ("--timing-only --parameters x", "parameters must be a whole number, got 'x'"),
    ],
)  # fmt: skip
def test_what_will_not_do(flags, message):
    assert refusal(flags) == message


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--servers 60", "60 shards of 50 parameters: each must own at least one"),
        ("--mode softsync --softsync 5", "--softsync 5 is more than the 4 workers"),
        ("--mode sync --backup 4", "--backup 4 leaves no worker to wait for, there are 4"),
        ("--mode serial", "--mode serial is one process, got 4 ranks; choose another --mode"),
        ("--compute run:", "compute run:DIR names the folder of a run that was made with --record"),
        ("--compute run:gone", "no run at gone"),
        ("--mode allreduce --allreduce mpi", "all-reduce mpi needs MPI; in virtual time there are"),
        (
            "--mode allreduce --machine-costs gone",
            "--machine-costs gone: cannot be read: No such file",
        ),
        ("--config gone", "gone: cannot be read: No such file"),
    ],
)
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
    assert "a step of 1000 workers together takes 32000 samples" in capsys.readouterr().err
    assert psrt(["simulate", "--workers", "1000", "--timing-only", "--epochs", "1"]) == 2
    assert psrt(["simulate", "--workers", "200", "--timing-only", "--steps", "1"]) == 0


def test_nobody_goes_on_without_the_dead_where_there_are_no_servers(capsys):
    assert psrt(["simulate", *SMALL.split(), "--mode", "allreduce", "--crash", "2:0.0015"]) == 5
    line = "worker 2 (rank 2) crashed at 0.0015 s of virtual time, at clock 1"
    assert capsys.readouterr().err == f"psrt: error: {line}\n"


def test_a_stage_that_dies_ends_the_job(capsys):
    cut = "--parallel data:2,pipeline:2 --micro-batches 2 --timing-only --steps 3"
    cut += " --compute constant:0.1 --crash 3:0.1"
    assert psrt(["simulate", *cut.split()]) == 5
    err = capsys.readouterr().err
    line = "worker 3, stage 1 of copy 1 (rank 3) crashed at 0.1 s of virtual time, at clock 1"
    assert err == f"psrt: error: {line}\n"


def test_a_run_that_diverges(capsys):
    flags = "--mode async --lr 1e6 --dataset synthetic:200x4x3 --batch-size 5 --epochs 5"
    assert psrt(["simulate", *flags.split()]) == 3
    error = capsys.readouterr().err
    assert error.startswith("psrt: error: diverged: ")
    assert "try a smaller --lr, or scale the inputs" in error


def test_not_under_mpirun(monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "4")
    with pytest.raises(
        ConfigError, match=r"runs all ranks in one process: start it without mpirun$"
    ):
        main(SMALL.split())


def test_a_run_s_config_is_one_of_simulate(tmp_path, capsys):
    out = tmp_path / "run"
    assert psrt(["simulate", *SMALL.split(), "--mode", "ssp", "--out", str(out)]) == 0
    again = ["simulate", "--config", str(out / "config.toml"), *SMALL.split()]
    assert psrt([*again, "--out", str(tmp_path / "again")]) == 0
    for name in ("metrics.jsonl", "simulation.json"):
        assert (out / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    one, other = (json.loads((it / "summary.json").read_text()) for it in (out, tmp_path / "again"))
    assert one.pop("shards_why") != other.pop("shards_why") == "as asked"
    assert one.pop("environment").keys() == other.pop("environment").keys()
    assert one == other


def test_help_tells_every_flag_that_means_something(capsys):
    with pytest.raises(SystemExit) as caught:
        parse_simulate(["--help-all"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "--timeout-s" not in text
    assert "--gather" not in text
    ours = (
        "workers", "compute", "link", "server-apply", "codec-speed", "crash", "timing-only",
        "parameters", "checkpoint-cost", "restart-cost",
    )  # fmt: skip
    absent = ("timeout-s", "busy-timeout-s", "last-events", "gather", "bind-cores")
    for name in (*(name.replace("_", "-") for name in knobs_of(TrainConfig)), *ours):
        found = re.findall(rf"^  --{name}[ ,]", text, re.MULTILINE)
        assert len(found) == (name not in absent), name
    words = " ".join(text.split())
    assert all(form in words for form in FORMS)
    for default in (DEFAULT_COMPUTE, DEFAULT_LINK, DEFAULT_SERVER_APPLY):
        assert f"(default: {default})" in words


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


def test_time_that_does_not_pass_is_not_lost(capsys):
    words = "--compute constant:0 --link 0:inf --server-apply inf --mtbf 600"
    assert psrt(["simulate", *SMALL.split(), *words.split()]) == 2
    assert "--mtbf 600 needs steps that take time" in capsys.readouterr().err


def test_help_needs_neither_numpy_nor_mpi():
    code = (
        "import sys; from psrt.__main__ import main\n"
        "try: main(['simulate', '--help'])\n"
        "except SystemExit: pass\n"
        "print(*{'numpy', 'mpi4py'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: psrt simulate ")
    assert done.stderr == "\n"


def test_a_run_needs_no_mpi():
    code = (
        "import sys; from psrt.__main__ import main\n"
        f"main(['simulate', '--quiet', *{SMALL.split()}])\n"
        "print(*{'mpi4py', 'matplotlib'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "\n"


@pytest.mark.parametrize(
    ("ran", "asked", "expected"),
    [
        # Another codec has its own defaults, and takes over what was asked for.
        ({"codec": "sign"}, [], {"codec_bucket": 1024, "error_feedback": True}),
        ({"codec": "sign"}, ["--codec", "int8"], {"codec_bucket": None, "error_feedback": None}),
        ({"codec": "sign", "codec_bucket": 64}, ["--codec", "int8"], {"codec_bucket": 64}),
        ({"codec": "sign"}, ["--codec-reply", "int8"], {"codec": "sign", "codec_bucket": None}),
        (
            {"codec": "sign", "error_feedback": False}, ["--codec", "top-k"],
            {"codec_bucket": None, "error_feedback": False},
        ),
    ],
)  # fmt: skip
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
    assert "without a summary, after step 2; restart 1 of 2 in 1 s\ngoing on from step 2" in out
    assert psrt(["simulate", *job.split(), "--fault", "crash:worker9@1s"]) == 2
    assert "fault crash:worker9@1.0s names worker 9, the last is 1" in capsys.readouterr().err
    assert psrt(["simulate", *job.split(), "--restarts", "2"]) == 2
    assert "--restarts 2 needs a run that goes on" in capsys.readouterr().err


def test_a_job_that_dies_too_often_is_given_up(capsys, tmp_path):
    job = f"{SHORT} --mode allreduce --workers 2 --steps 6"
    saving = f"--out {tmp_path / 'run'} --checkpoint-every 5 --resume auto --restarts 1"
    faults = "--fault crash:rank1@event10 --fault crash:rank1@event20"
    assert psrt(["simulate", *job.split(), *saving.split(), *faults.split()]) == 7
    said = capsys.readouterr()
    assert "given up after 1 restart without a new checkpoint" in said.out
    assert said.err.startswith("psrt: error: worker 1 (rank 1) crashed at ")
