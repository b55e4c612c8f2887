"""The scripts of ``apps/``, started as a user starts them."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
from typing import NamedTuple

import pytest
from script import run_script

ROOT = pathlib.Path(__file__).parents[2]
APPS = ROOT / "apps"
CONFIGS = sorted(path.stem for path in (APPS / "configs").glob("*.toml"))

#: The mpirun of the environment that the tests run in, else whatever there is.
MPIRUN = shutil.which("mpirun", path=str(pathlib.Path(sys.executable).parent)) or shutil.which(
    "mpirun"
)
#: What lets any MPI start more ranks than there are cores, root or not.
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "OPENBLAS_NUM_THREADS": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_osc": "^ucx",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}

parallel = pytest.mark.skipif(MPIRUN is None, reason="there is no mpirun")
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None


class Ended(NamedTuple):
    status: int
    out: str
    err: str


def start(script, *words, ranks=0, timeout_s=120.0):
    """Run a script of ``apps/`` to its end, under mpirun if there are ranks."""
    command = [sys.executable, str(APPS / script), *map(str, words)]
    if ranks:
        command = [MPIRUN, "-n", str(ranks), *command]
    with subprocess.Popen(
        command, env=ENVIRONMENT, text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)  # mpirun takes its ranks with it
            raise
    return Ended(process.returncode, out, err)


@pytest.fixture
def start_here(monkeypatch, capsys):
    """Return what runs a script in this process: how it begins is seen elsewhere."""

    def started(script, *words):
        monkeypatch.setattr(sys, "argv", [script, *map(str, words)])
        status = run_script(importlib.import_module(script.removesuffix(".py")).main)
        return Ended(status, *capsys.readouterr())

    return started


def succeeded(ended):
    assert ended.status == 0, ended.err
    return ended.out


def failed(ended, message):
    """Assert that the user was told once, in one line."""
    assert ended.status == 2, ended.err
    assert [line for line in ended.err.splitlines() if "error:" in line] == [message]
    assert "Traceback" not in ended.err
    assert ended.out == ""


def table_of(out):
    """Return the table at the end of a run."""
    rows = (line.partition(" ") for line in out.splitlines())
    return {name: value.strip() for name, _, value in rows}


@pytest.mark.parametrize(
    ("words", "ranks", "mode"),
    [
        ([], 0, "serial, 1 worker"),
        pytest.param(
            ["--config", APPS / "configs/ssp.toml"], 4, "ssp, 2 servers, 2 workers", marks=parallel
        ),
    ],
)
def test_train_mlp(words, ranks, mode):
    out = succeeded(start("train_mlp.py", *words, "--epochs", 2, "--hidden", 8, ranks=ranks))
    assert [line.split()[1] for line in out.splitlines() if line.startswith("epoch")] == ["1", "2"]
    table = table_of(out)
    assert table["mode"] == mode
    assert "after epoch" in table["best"]
    assert table["parameters"].startswith("610,")


@pytest.mark.parametrize("ranks", [0, pytest.param(3, marks=parallel)])
def test_train_mlp_tells_an_error_once(ranks):
    message = "train_mlp.py: error: unknown flag --epoch (did you mean --epochs?)"
    failed(start("train_mlp.py", "--epoch", 2, ranks=ranks), message)


@pytest.mark.parametrize(
    ("ranks", "mode"),
    [(0, "serial, 1 worker"), pytest.param(3, "sync, 1 server, 2 workers", marks=parallel)],
)
def test_own_loop(ranks, mode):
    words = ["--mode", "ssp"] if ranks else []
    out = succeeded(start("own_loop.py", "--lr", 0.5, "--epochs", 3, *words, ranks=ranks))
    assert table_of(out)["mode"] == mode.replace("sync", "ssp")
    # No classifier can be better than the clouds' overlap allows, 94.1 %, but by luck of the draw.
    assert 92 < float(table_of(out)["ends"].strip("with %")) < 96


@pytest.mark.parametrize(
    ("ranks", "mode"),
    [(0, "serial, 1 worker"), pytest.param(3, "sync, 1 server, 2 workers", marks=parallel)],
)
def test_own_model(ranks, mode):
    table = table_of(succeeded(start("own_model.py", ranks=ranks)))
    assert table["mode"] == mode
    # No classifier can be better than the clouds' overlap allows, 94.1 %, but by luck of the draw.
    assert 92 < float(table["accuracy"].rstrip(" %")) < 96


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (0, ()),
        pytest.param(2, ("pipeline:2",), marks=parallel),
        pytest.param(4, ("data:2,pipeline:2",), marks=[parallel, pytest.mark.exhaustive]),
    ],
)
def test_own_chain(ranks, words):
    table = table_of(succeeded(start("own_chain.py", *words, ranks=ranks)))
    assert float(table["accuracy"].rstrip(" %")) > 97
    assert table.get("model", "").startswith("cut") == bool(words)


def compared(folder):
    """Return the document and the rows that compare_modes.py wrote."""
    document = json.loads((folder / "modes.json").read_text())
    with open(folder / "modes.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["mode"] for row in rows] == [run["mode"] for run in document["runs"]]
    assert (folder / "modes.png").exists() == HAS_MATPLOTLIB
    return document, rows


SHORT = ["--epochs", 2, "--hidden", 8, "--target", 0]


@parallel
def test_compare_modes(tmp_path):
    modes = "serial,sync-backup,async,local-sgd-servers,allreduce-ring"
    words = [*SHORT, "--modes", modes, "--scenarios", "calm,delay", "--seeds", 2, "--servers", 1]
    out = succeeded(start("compare_modes.py", "--out", tmp_path / "new/out", *words, ranks=4))
    document, rows = compared(tmp_path / "new/out")
    runs, medians = document["runs"], document["medians"]
    expected = [("serial", "calm")] + [
        (mode, scenario) for scenario in ("calm", "delay") for mode in modes.split(",")[1:]
    ]
    assert [(run["mode"], run["scenario"]) for run in runs] == 2 * expected
    assert [run["seed"] for run in runs] == [0] * 9 + [1] * 9
    assert [(row["mode"], row["scenario"]) for row in medians] == expected
    assert {(run["workers"], run["servers"]) for run in runs} == {(1, 0), (3, 1), (4, 0)}
    assert all(0 < row["fastest"] <= row["seconds_to_accuracy"] for row in medians)
    assert all(row["worst_accuracy"] <= row["test_accuracy"] for row in medians)
    assert {(row["scenario"], row["workers"], row["inject"]) for row in rows} == {
        ("calm", "1", ""), ("calm", "3", ""), ("calm", "4", ""),
        ("delay", "3", "2:delay:0.003"), ("delay", "4", "3:delay:0.003"),
    }  # fmt: skip
    lines = out.splitlines()
    headings = [i for i, line in enumerate(lines) if "to target" in line]
    tables = [lines[i + 1 : i + 1 + count] for i, count in zip(headings, (5, 4), strict=True)]
    assert [line.split()[0] for table in tables for line in table] == [m for m, _ in expected]
    # What is injected is felt by those who wait for all: 30 steps with 3 ms more each.
    delayed = [run for run in runs if (run["mode"], run["scenario"]) == ("allreduce-ring", "delay")]
    assert all(run["seconds"] > 0.06 for run in delayed)
    verdict = "\n".join(document["verdict"])
    assert verdict in out
    assert "the same bits whoever is late" in verdict
    assert [line for line in document["verdict"] if line in modes.split(",")] == modes.split(",")


def test_compare_modes_in_virtual_time(tmp_path):
    words = [*SHORT, "--modes", "serial,sync,async", "--scenarios", "calm,slow,pause", "--seeds", 3]
    words += ["--simulate", "--workers", 3, "--compute", "constant:0.01"]
    out = succeeded(start("compare_modes.py", "--out", tmp_path / "a", *words))
    document, rows = compared(tmp_path / "a")
    assert len(rows) == 3 * (1 + 3 * 2)
    assert {row["inject"] for row in rows} == {"", "2:slow:20:20", "2:pause:20:0.3"}
    seconds = {(run["mode"], run["scenario"]): run["seconds"] for run in document["runs"]}
    # 15 steps an epoch; from step 20 on the last worker takes 0.2 s, or stops once for 0.3 s.
    assert seconds["sync", "calm"] == pytest.approx(30 * 0.01, rel=0.05)
    assert seconds["sync", "slow"] == pytest.approx(20 * 0.01 + 10 * 0.2, rel=0.05)
    assert seconds["sync", "pause"] == pytest.approx(30 * 0.01 + 0.3, rel=0.05)
    to_target = {(c["mode"], c["scenario"]): c["seconds_to_accuracy"] for c in document["medians"]}
    assert to_target["async", "calm"] == pytest.approx(to_target["async", "slow"], rel=0.05)
    assert "virtual time" in out
    succeeded(start("compare_modes.py", "--out", tmp_path / "b", *words))
    assert (tmp_path / "b/modes.json").read_text() == (tmp_path / "a/modes.json").read_text()


def test_compare_modes_says_how_to_start_it(tmp_path):
    ended = start("compare_modes.py", "--out", tmp_path / "out")
    assert ended.status == 2
    assert "-n 4" in ended.err
    assert "--simulate" in ended.err
    assert ended.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


SIMULATED = [
    ("--scenarios calm,clam", "no scenario 'clam', there are calm, delay, tail, pause, slow"),
    ("--modes sync,allreduce-mpi", "allreduce-mpi cannot be simulated, it takes the MPI library"),
    ("--target 95", "--target: must be from 0 to 1, got '95'"),
    ("--workers 0", "--workers: must be a whole number of at least 1, got '0'"),
    ("--link 1", "link must be LATENCY_S:BYTES_PER_S, LATENCY_S from 0 to 1000000"),
    ("--modes sync --steps 10", "--inject 3:pause:20:0.3 begins at step 20, the run has 10"),
]


@pytest.mark.parametrize(("words", "message"), SIMULATED)
def test_compare_modes_cannot_simulate(start_here, tmp_path, words, message):
    ended = start_here("compare_modes.py", "--simulate", *words.split(), "--out", tmp_path / "out")
    assert ended.status == 2
    assert ended.err.startswith(f"compare_modes.py: error: {message}")
    assert ended.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@parallel
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--modes sync,async --servers 4", "--servers 4 leaves no worker among 4 ranks"),
        ("--workers 3", "--workers has no effect without --simulate"),
    ],
)
def test_compare_modes_checks_all_before_it_runs_any(tmp_path, words, message):
    ended = start("compare_modes.py", "--out", tmp_path / "out", *words.split(), ranks=4)
    failed(ended, f"compare_modes.py: error: {message}")
    assert not (tmp_path / "out").exists()


@parallel
@pytest.mark.exhaustive
def test_every_mode_learns_with_its_config(tmp_path):
    words = ["--scenarios", "calm", "--seeds", 1]
    succeeded(start("compare_modes.py", "--out", tmp_path, *words, ranks=4))
    runs = json.loads((tmp_path / "modes.json").read_text())["runs"]
    assert sorted(run["mode"] for run in runs) == CONFIGS
    assert {run["mode"]: run["test_accuracy"] for run in runs if run["test_accuracy"] < 0.95} == {}


SOFTSYNC = ["--workers", 6, "--softsync", "1,6", "--seeds", 2, "--epochs", 2, "--hidden", 4]


@pytest.mark.exhaustive
def test_staleness_study(tmp_path):
    words = [*SOFTSYNC, "--servers", 2]
    out = succeeded(start("staleness_study.py", *words, "--out", tmp_path / "a"))
    rows = json.loads((tmp_path / "a/softsync.json").read_text())["runs"]
    assert [(row["softsync"], row["staleness_rate"], row["seed"]) for row in rows] == [
        (n, rate, seed) for n in (1, 6) for rate in ("constant", "inverse") for seed in (0, 1)
    ]
    for row in rows:
        # Between the read and the push of one worker come those of the W - 1 others, a quorum to
        # an update.
        expected = (6 - 1) / (6 // row["softsync"])
        found = row["staleness"]
        assert found["mean"] == pytest.approx(expected, rel=0.1)
        assert (len(found["by_worker"]), len(found["by_shard"])) == (6, 2)
        assert row["beyond_2n"] < 0.05
        assert [epoch for epoch, _ in row["errors"]] == [1, 2]
        assert 0 < row["test_error"] < 1
    line = out[out.index("P(τ > 2n)") :].splitlines()[2].split()
    assert line[0] == "6"
    assert float(line[1]) == pytest.approx(5, rel=0.1)
    assert (tmp_path / "a/softsync.png").exists() == HAS_MATPLOTLIB
    succeeded(start("staleness_study.py", *words, "--out", tmp_path / "b"))
    for name in ("softsync.json", *(["softsync.png"] if HAS_MATPLOTLIB else [])):
        assert (tmp_path / "b" / name).read_bytes() == (tmp_path / "a" / name).read_bytes()


@pytest.mark.exhaustive
def test_staleness_study_finds_that_stale_gradients_need_smaller_rates(tmp_path):
    words = ["--softsync", "1,30", "--seeds", 1, "--epochs", 20]
    succeeded(start("staleness_study.py", *words, "--out", tmp_path))
    rows = json.loads((tmp_path / "softsync.json").read_text())["runs"]
    error = {(row["softsync"], row["staleness_rate"]): row["test_error"] for row in rows}
    assert error[30, "constant"] > 0.8
    assert max(error[1, "constant"], error[1, "inverse"], error[30, "inverse"]) < 0.25
    [found] = {row["staleness"]["mean"] for row in rows if row["softsync"] == 30}
    assert found == pytest.approx(29, rel=0.05)


@pytest.mark.parametrize("words", [[], ["--study", "workers"]])
def test_staleness_study_shows_runs_that_diverge(tmp_path, words):
    few = ["--modes", "async"] if words else ["--softsync", 2]
    words = [*words, *few, "--workers", 2, "--rates", "constant", "--seeds", 1]
    words += ["--optimizer", "momentum", "--lr", "1e6", "--activation", "relu"]
    out = succeeded(start("staleness_study.py", *words, "--out", tmp_path))
    assert "diverged" in "".join(out[out.index("\n\n") :].splitlines()[-5:])
    [path] = tmp_path.glob("*.json")
    [row] = json.loads(path.read_text())["runs"]
    assert row.get("test_accuracy") is row.get("test_error") is None


WRONG = [
    ("--softsync 31", "--softsync 31"),
    ("--rates constant,inverted", "staleness-rate"),
    ("--compute lognormal:1", "compute"),
    ("--link fast", "link"),
    ("--workers 2,3", "--workers: must be a whole number"),
    ("--seed 3", "--seed has no effect here: the study varies it"),
    ("--study workers --mode=ssp", "--mode has no effect here: the study varies it"),
    ("--epoch 3", "unknown flag --epoch (did you mean --epochs?)"),
    ("--study spread", "study must be one of softsync, workers, got 'spread'"),
    ("--study workers --run runs/a", "--run: not allowed with argument --study"),
    ("--run runs/a --epochs 3", "unknown flag --epochs"),
    ("--run nowhere", "nowhere/summary.json: cannot be read: No such file or directory"),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("words", "message"), WRONG)
def test_staleness_study_refuses_what_cannot_be(start_here, tmp_path, words, message):
    ended = start_here("staleness_study.py", *words.split(), "--out", tmp_path / "out")
    assert ended.status == 2, ended.out
    assert message in ended.err
    assert ended.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


STUDY = ["--study", "workers", "--rates", "constant,inverse", "--seeds", 2, "--epochs", 1]


def test_study_of_workers(tmp_path):
    words = [*STUDY, "--workers", "1,6", "--hidden", 4]
    out = succeeded(start("staleness_study.py", *words, "--out", tmp_path / "a"))
    rows = json.loads((tmp_path / "a/workers.json").read_text())["runs"]
    assert len(rows) == 2 * 2 * 2 * 2
    assert {(row["mode"], row["staleness_rate"], row["workers"], row["seed"]) for row in rows} == {
        (mode, rate, workers, seed)
        for mode in ("async", "softsync")
        for rate in ("constant", "inverse")
        for workers in (1, 6)
        for seed in (0, 1)
    }
    alone, raise_on_all = ([r for r in rows if r["workers"] == count] for count in (1, 6))
    assert all(row["staleness_mean"] == 0 for row in alone)
    # An update takes one gradient in async, two in softsync.
    expected = {"async": 5, "softsync": 2.5}
    for row in raise_on_all:
        assert row["staleness_mean"] == pytest.approx(expected[row["mode"]], rel=0.1)
    assert out.count("mean staleness") == 2
    for mode in ("async", "softsync"):
        assert (tmp_path / f"a/workers-{mode}.png").exists() == HAS_MATPLOTLIB
    succeeded(start("staleness_study.py", *words, "--out", tmp_path / "b"))
    again = (tmp_path / "b/workers.json").read_text()
    assert again == (tmp_path / "a/workers.json").read_text()


CODECS = ["--modes", "async", "--rates", "0.1", "--seeds", 1, "--epochs", 2, "--workers", 2]


def test_compression_study(tmp_path):
    words = [*CODECS, "--settings", "none,sign,demo", "--links", "1 Gbit/s,100 Mbit/s"]
    out = succeeded(start("compression_study.py", *words, "--out", tmp_path, "--rates", "0.1,0.2"))
    document = json.loads((tmp_path / "compression.json").read_text())
    rows = document["runs"]
    assert [(row["mode"], row["setting"], row["link"]) for row in rows] == [
        ("async", setting, link)
        for setting in ("none", "sign", "demo")
        for link in ("1 Gbit/s", "100 Mbit/s")
    ]
    plain, sign = rows[1], rows[3]
    assert sign["bytes_sent"] < 0.6 * plain["bytes_sent"]
    assert sign["seconds"] < plain["seconds"]
    assert plain["encode_us"] is plain["decode_us"] is None
    assert min(sign["encode_us"], sign["decode_us"], sign["gradient_us"]) > 0
    assert "async at 100 Mbit/s:" in out
    assert document["verdict"][-1].endswith(" of 4 cases pay.")
    assert (tmp_path / "compression.png").exists() == HAS_MATPLOTLIB


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--settings", "none,zip"], "no setting 'zip' here, there are: none; "),
        (
            ["--links", "1 Tbit/s"],
            "no link '1 Tbit/s' (did you mean 1 Gbit/s?), there are: 100 Mbit/s, ",
        ),
        (["--modes", "serial"], "no mode 'serial' here, there are: "),
        (["--rates", "0.1,none"], "--rates: must be a number above 0, got 'none'"),
        (["--codec", "sign"], "--codec has no effect here: the study varies it"),
    ],
)
def test_compression_study_refuses_what_cannot_be(start_here, tmp_path, words, message):
    ended = start_here("compression_study.py", *CODECS, *words, "--out", tmp_path)
    assert ended.status == 2, ended.out
    assert message in ended.err
    assert ended.err.count("\n") == 1


GRAPHS = ["--partitions", "iid", "--rates", "0.1", "--seeds", 1, "--epochs", 1, "--workers", 4]


def test_decentralized_study(tmp_path):
    words = [*GRAPHS, "--settings", "all-reduce,ring,one-peer exponential", "--slow", 20]
    out = succeeded(start("decentralized_study.py", *words, "--out", tmp_path))
    rows = json.loads((tmp_path / "decentralized.json").read_text())["runs"]
    assert [(row["setting"], row["slow"]) for row in rows] == [
        (setting, slow)
        for setting in ("all-reduce", "ring", "one-peer exponential")
        for slow in (1, 20)
    ]
    reduced, _, ring, slow, peer, _ = rows
    assert reduced["apart"] == 0 < ring["apart"]
    assert peer["step_bytes"] < 0.6 * ring["step_bytes"]
    assert slow["seconds"] > ring["seconds"]
    assert "with straggler" in out
    assert (tmp_path / "decentralized.png").exists() == HAS_MATPLOTLIB


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--settings", "rings"], "no setting 'rings' here (did you mean ring?), there are: "),
        (["--partitions", "iid,by-label"], "partition must be by-label:K, K"),
        (["--settings", "hypercube", "--workers", 6], "hypercube: a hypercube has a power of two"),
        (["--mode", "sync"], "--mode has no effect here: the study varies it"),
    ],
)
def test_decentralized_study_refuses_what_cannot_be(start_here, tmp_path, words, message):
    ended = start_here("decentralized_study.py", *GRAPHS, *words, "--out", tmp_path)
    assert ended.status == 2, ended.out
    assert message in ended.err
    assert ended.err.count("\n") == 1


@parallel
def test_staleness_study_is_not_for_mpirun(tmp_path):
    ended = start("staleness_study.py", *SOFTSYNC, "--out", tmp_path, ranks=2)
    assert ended.status == 2
    assert ended.err.count("start it without mpirun") == 1


@pytest.mark.exhaustive
@pytest.mark.skipif(not HAS_MATPLOTLIB, reason="there is no matplotlib")
@pytest.mark.parametrize(
    ("ranks", "words", "told"),
    [
        (0, ["--epochs", 2], "gap        not measured"),
        pytest.param(4, ["--mode", "ssp", "--servers", 2, "--epochs", 2], "", marks=parallel),
        pytest.param(2, ["--mode", "allreduce", "--epochs", 2], "sums over all", marks=parallel),
    ],
)
def test_staleness_of_a_run(tmp_path, ranks, words, told):
    succeeded(start("train_mlp.py", *words, "--out", tmp_path / "run", ranks=ranks))
    out = succeeded(start("staleness_study.py", "--run", tmp_path / "run"))
    assert told in out
    heading = out.splitlines().index("worker  mean τ  max τ         waiting  mostly for")
    workers = [int(line.split()[0]) for line in out.splitlines()[heading + 1 : -2]]
    assert sorted(workers) == list(range(max(ranks, 1) - 2 * ("ssp" in words)))
    assert (tmp_path / "run/staleness.png").read_bytes().startswith(b"\x89PNG")


DAMAGES = [
    ("summary.json", "{", "summary.json: summary is not JSON"),
    ("summary.json", "{}", "summary.json: summary lacks"),
    ("summary.json", ("waiting", 0, "seconds", "no"), "has text or nothing where numbers belong"),
    ("summary.json", ("skew", "histogram", {"-9": 1}), "has text or nothing where numbers belong"),
    ("summary.json", ("servers", None), "summary.json: has text or nothing where numbers belong"),
    ("metrics.jsonl", "[1]\n", "expected a JSON object"),
    ("metrics.jsonl", '{"seconds": "x"}\n', "metrics.jsonl has"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    succeeded(start("train_mlp.py", "--epochs", 1, "--hidden", 4, "--out", path))
    return path


@pytest.mark.xdist_group("damaged run")
@pytest.mark.parametrize(("name", "text", "message"), DAMAGES)
def test_staleness_of_a_damaged_run(start_here, run, tmp_path, name, text, message):
    path = shutil.copytree(run, tmp_path / "run") / name
    if isinstance(text, tuple):
        *parts, last, value = text
        summary = part = json.loads(path.read_text())
        for key in parts:
            part = part[key]
        part[last] = value
        text = json.dumps(summary)
    path.write_text(text)
    ended = start_here("staleness_study.py", "--run", tmp_path / "run")
    assert ended.status == 2, ended.out
    assert message in ended.err
    assert ended.err.count("\n") == 1
