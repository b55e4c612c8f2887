"""The scripts of ``apps/``, started as a user starts them."""

import csv
import importlib
import importlib.util
import json
import shutil
import sys

import pytest
from script import run_script

from psrt.__main__ import main as psrt
from support.cases import also, each
from support.launching import ROOT, Done

EXHAUSTIVE = pytest.mark.exhaustive
APPS = ROOT / "apps"
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None


@pytest.fixture
def start(launch):
    """Return what runs a script of ``apps/`` to its end, under mpirun if there are ranks."""

    def started(script, *words, ranks=0):
        run = [launch.ranks, ranks] if ranks else [launch.python]
        return run[0](*run[1:], APPS / script, *words)

    return started


@pytest.fixture
def refused(monkeypatch, capsys):
    """Return what runs a script in this process, which must say in one line what is wrong.

    How it begins is seen elsewhere.
    """

    def started(script, words, message):
        monkeypatch.setattr(sys, "argv", [script, *map(str, words)])
        status = run_script(importlib.import_module(script.removesuffix(".py")).main)
        done = Done(status, *capsys.readouterr())
        assert done.status == 2, done.stdout
        assert message in done.stderr
        assert done.stderr.startswith(f"{script}: error: ")
        assert done.stderr.count("\n") == 1

    return started


def succeeded(done):
    assert done.status == 0, done.stderr
    return done.stdout


def failed(done, message):
    """Assert that the user was told once, in one line."""
    assert done.status == 2, done.stderr
    assert [line for line in done.stderr.splitlines() if "error:" in line] == [message]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def table_of(out):
    """Return the table at the end of a run."""
    rows = (line.partition(" ") for line in out.splitlines())
    return {name: value.strip() for name, _, value in rows}


def read(path):
    return json.loads(path.read_text())


@EXHAUSTIVE
def test_train_mlp(start):
    words = ["--config", APPS / "configs/ssp.toml", "--epochs", 2, "--hidden", 8]
    table = table_of(succeeded(start("train_mlp.py", *words, ranks=4)))
    assert table["mode"] == "ssp, 2 servers, 2 workers"
    assert "after epoch" in table["best"]
    message = "train_mlp.py: error: unknown flag --epoch (did you mean --epochs?)"
    failed(start("train_mlp.py", "--epoch", 2, ranks=3), message)


@pytest.mark.parametrize(
    ("script", "ranks", "mode"),
    [
        ("own_model.py", 0, "serial, 1 worker"),
        also("own_loop.py", 3, "ssp, 1 server, 2 workers"),
    ],
)
def test_a_loop_and_a_model_of_ones_own(start, script, ranks, mode):
    words = ["--lr", 0.5, "--epochs", 3, "--mode", "ssp"] if ranks else []
    table = table_of(succeeded(start(script, *words, ranks=ranks)))
    assert table["mode"] == mode
    # No classifier can be better than the clouds' overlap allows, 94.1 %, but by luck of the draw.
    accuracy = table["ends" if script == "own_loop.py" else "accuracy"]
    assert 92 < float(accuracy.strip("with %")) < 96


@EXHAUSTIVE
def test_own_chain(start):
    table = table_of(succeeded(start("own_chain.py", "data:2,pipeline:2", ranks=4)))
    assert float(table["accuracy"].rstrip(" %")) > 97
    assert table["model"].startswith("cut")


@EXHAUSTIVE
def test_compare_modes_in_virtual_time(start, tmp_path):
    words = ["--modes", "serial,sync,async", "--scenarios", "calm,slow,pause", "--seeds", 1]
    words += ["--simulate", "--workers", 3, "--compute", "constant:0.01"]
    words += ["--epochs", 2, "--hidden", 8, "--target", 0]
    out = succeeded(start("compare_modes.py", "--out", tmp_path, *words))
    document = read(tmp_path / "modes.json")
    with open(tmp_path / "modes.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["mode"] for row in rows] == [run["mode"] for run in document["runs"]]
    assert (tmp_path / "modes.png").exists() == HAS_MATPLOTLIB
    assert len(rows) == 1 + 3 * 2
    assert {row["inject"] for row in rows} == {"", "2:slow:20:20", "2:pause:20:0.3"}
    seconds = {(run["mode"], run["scenario"]): run["seconds"] for run in document["runs"]}
    # 15 steps an epoch; from step 20 on the last worker takes 0.2 s, or stops once for 0.3 s.
    assert seconds["sync", "calm"] == pytest.approx(30 * 0.01, rel=0.05)
    assert seconds["sync", "slow"] == pytest.approx(20 * 0.01 + 10 * 0.2, rel=0.05)
    assert seconds["sync", "pause"] == pytest.approx(30 * 0.01 + 0.3, rel=0.05)
    to_target = {(c["mode"], c["scenario"]): c["seconds_to_accuracy"] for c in document["medians"]}
    assert to_target["async", "calm"] == pytest.approx(to_target["async", "slow"], rel=0.05)
    assert "virtual time" in out


@each(("script", "words", "message"), [
    ("compare_modes.py", "", "-n 4"),
    ("compare_modes.py", "--simulate --scenarios calm,clam",
     "no scenario 'clam', there are calm, delay, tail, pause"),
    ("compare_modes.py", "--simulate --modes sync,allreduce-mpi",
     "allreduce-mpi cannot be simulated, it takes the MPI"),
    ("compare_modes.py", "--simulate --modes sync --steps 10",
     "--inject 3:pause:20:0.3 begins at step 20, the run has"),
    ("staleness_study.py", "--softsync 31", "--mode softsync:k=31 needs at least 31 workers"),
    ("staleness_study.py", "--seed 3", "--seed has no effect here: the study varies it"),
    ("staleness_study.py", "--study workers --mode=ssp", "--mode has no effect here"),
    ("staleness_study.py", "--study spread", "study must be one of softsync, workers, got"),
    ("staleness_study.py", "--study workers --run runs/a", "--run: not allowed with argument"),
    ("staleness_study.py", "--run nowhere", "nowhere/summary.json: cannot be read: No such file"),
    ("compression_study.py", "--modes async --workers 2 --rates 0.1,none",
     "--rates: must be a number above 0, got 'none'"),
    ("decentralized_study.py", "--workers 4 --partitions iid,by-label", "must be by-label:K, K"),
    ("decentralized_study.py", "--settings hypercube --workers 6", "a hypercube has a power of"),
    ("learners_study.py", "--studies goodput --sweeps links",
     "no 'links' here (did you mean link?), there are: workers, spread, mtbf, link, many"),
    ("learners_study.py", "--mode sync", "--mode has no effect here: the study varies it"),
])  # fmt: skip
def test_what_cannot_be_is_a_line_before_anything_runs(refused, tmp_path, script, words, message):
    refused(script, [*words.split(), "--out", tmp_path / "out"], message)
    assert list(tmp_path.rglob("*.*")) == []


@EXHAUSTIVE
def test_every_mode_learns_with_its_config(start, tmp_path):
    words = ["--scenarios", "calm", "--seeds", 1]
    succeeded(start("compare_modes.py", "--out", tmp_path, *words, ranks=4))
    runs = read(tmp_path / "modes.json")["runs"]
    assert {run["mode"] for run in runs} == {
        path.stem for path in (APPS / "configs").glob("*.toml")
    }
    assert {run["mode"]: run["test_accuracy"] for run in runs if run["test_accuracy"] < 0.95} == {}


@EXHAUSTIVE
def test_staleness_study(start, tmp_path):
    words = ["--workers", 6, "--softsync", "1,6", "--seeds", 2, "--epochs", 2, "--hidden", 4]
    words += ["--servers", 2, "--out", tmp_path / "a"]
    out = succeeded(start("staleness_study.py", *words))
    rows = read(tmp_path / "a/softsync.json")["runs"]
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
    assert "P(τ > 2n)" in out
    assert (tmp_path / "a/softsync.png").exists() == HAS_MATPLOTLIB


CODECS = ["--modes", "async", "--rates", "0.1", "--seeds", 1, "--epochs", 2, "--workers", 2]


@EXHAUSTIVE
def test_compression_study(start, tmp_path):
    words = [*CODECS, "--settings", "none,sign,demo", "--links", "1 Gbit/s,100 Mbit/s"]
    out = succeeded(start("compression_study.py", *words, "--out", tmp_path, "--rates", "0.1,0.2"))
    document = read(tmp_path / "compression.json")
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


GRAPHS = ["--partitions", "iid", "--rates", "0.1", "--seeds", 1, "--epochs", 1, "--workers", 4]


@EXHAUSTIVE
def test_decentralized_study(start, tmp_path):
    words = [*GRAPHS, "--settings", "all-reduce,ring,one-peer exponential", "--slow", 20]
    out = succeeded(start("decentralized_study.py", *words, "--out", tmp_path))
    rows = read(tmp_path / "decentralized.json")["runs"]
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


@EXHAUSTIVE
def test_learners_study(start, tmp_path):
    words = ["--studies", "goodput,merges,outers", "--sweeps", "spread", "--simulated", 1000]
    words += ["--seeds", 1, "--merges", "mean,median", "--outers", "plain", "--hidden", 16]
    words += ["--wrongs", "none,wrong sign", "--out", tmp_path]
    out = succeeded(start("learners_study.py", *words))
    goodput = found(tmp_path / "goodput.jsonl")
    shares = {(row["scheme"], row["spread"]): row["goodput"] for row in goodput}
    assert all(0.4 < it < 1.01 for it in shares.values())
    assert shares["quorum 1", 4] > 0.98 > 0.7 > shares["local SGD", 4]
    for row in goodput:
        if "closed_form" in row:
            assert row["closed_form"] == pytest.approx(row["goodput"], abs=0.05)
    merges = found(tmp_path / "merges.jsonl")
    ends = {(row["merge"], row["wrong"]): row["accuracy"] for row in merges if row["seed"] == 0}
    assert ends["median", "wrong sign"] > 0.8 > (ends["mean", "wrong sign"] or 0.0)
    for study in "goodput", "merges", "outers":
        assert (tmp_path / f"{study}.png").exists() == HAS_MATPLOTLIB
    # What is known is read, not sought again.
    before = (tmp_path / "merges.jsonl").read_bytes()
    assert succeeded(start("learners_study.py", *words)) == out
    assert (tmp_path / "merges.jsonl").read_bytes() == before


@EXHAUSTIVE
def test_learners_are_real_under_mpirun(start, tmp_path):
    words = ["--studies", "merges", "--seeds", 1, "--merges", "median", "--outers", "plain"]
    words += ["--wrongs", "wrong sign", "--out", tmp_path]
    failed(start("learners_study.py", *words, ranks=3), "learners_study.py: error: real learners "
           "are 5 ranks, and of merges, outers, text, text-outers alone; the other studies are in "
           "virtual time, without mpirun")  # fmt: skip
    succeeded(start("learners_study.py", *words, ranks=5))
    (row,) = found(tmp_path / "merges.jsonl")
    assert row["is_real"]
    assert row["accuracy"] > 0.8


def found(path):
    """Return the rows that a study has kept."""
    lines = map(json.loads, path.read_text().splitlines())
    return [line["setting"] | line["found"] for line in lines]


DAMAGES = [
    ("summary.json", "{", "summary.json: summary is not JSON"),
    ("summary.json", ("waiting", 0, "seconds", "no"), "has text or nothing where numbers belong"),
    ("summary.json", ("servers", None), "summary.json: has text or nothing where numbers belong"),
    ("metrics.jsonl", '{"seconds": "x"}\n', "metrics.jsonl has"),
]


def test_staleness_of_a_damaged_run(refused, tmp_path):
    assert (
        psrt(["simulate", "--steps", "3", "--hidden", "4", "--out", str(tmp_path / "whole")]) == 0
    )
    for number, (name, text, message) in enumerate(DAMAGES):
        path = shutil.copytree(tmp_path / "whole", tmp_path / str(number)) / name
        if isinstance(text, tuple):
            *parts, last, value = text
            summary = part = read(path)
            for key in parts:
                part = part[key]
            part[last] = value
            text = json.dumps(summary)
        path.write_text(text)
        refused("staleness_study.py", ["--run", path.parent], message)
