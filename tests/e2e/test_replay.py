"""``--replay``: the same bits, or a line that says why not; never written over what it repeats."""

import json
import re
import shutil
import socket
import zlib

import numpy as np
import pytest

from psrt.history import Kind
from support.cases import also
from support.traces import check_trace, read_trace

pytestmark = pytest.mark.xdist_group("replay")


SHORT = ["--dataset", "data.npz", "--steps", "25", "--batch-size", "8", "--hidden", "8"]


ASYNC = ["--mode", "async", "--servers", "2", *SHORT]


DELAYS = ["--inject", "0:jitter:0.005", "--inject", "1:tail:0.001:1.5"]


RANKS = 4


PUSH_READ = ["push", "read"]


#: What a run may be made from.
SOURCES = [
    ["simulate", "--like", "run"],
    ["simulate", "--like", "run/history"],
    ["simulate", "--compute", "run:run"],
    ["simulate", "--replay", "run"],
    ["train", "--machine-costs", "run/costs.json", "--mode", "allreduce"],
]


def write_data(path, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((300, 6)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int) + (x[:, 1] > 0)
    np.savez(path, x_train=x[:250], y_train=y[:250], x_test=x[250:], y_test=y[250:])


@pytest.fixture(scope="session")
def run(tmp_path_factory, launch_in):
    """A folder with data and a run on it that was recorded over MPI."""
    launch = launch_in(tmp_path_factory.mktemp("replay"))
    write_data(launch.folder / "data.npz", seed=1)
    done = launch.train(RANKS, *ASYNC, *DELAYS, "--out", "run", "--record")
    assert done.status == 0, done.stderr
    return launch


@pytest.fixture
def copy(run, tmp_path, launch_in):
    """A copy of that folder, to be changed."""
    return launch_in(shutil.copytree(run.folder, tmp_path / "copy"))


def sha256_of(folder):
    return json.loads((folder / "summary.json").read_text())["parameters_sha256"]


def verdict(done):
    return next(line for line in done.stdout.splitlines() if line.startswith("replay: "))


def refused(done, *words, status=2):
    assert done.status == status, (done.status, done.stderr)
    assert len(done.errors) == 1, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert re.search(word, done.errors[0]), done.errors[0]


def test_what_ranks_recorded_is_drawn(run):
    done = run.psrt("trace", "run", "--format", "json", "-o", "it.trace.json.gz")
    assert (done.status, done.stderr) == (0, "")
    read = read_trace(run.folder / "it.trace.json.gz")
    check_trace(read)
    roles = ["server 0", "server 1", "worker 0", "worker 1"]
    assert read.hosts == {f"rank {i}: {it}": socket.gethostname() for i, it in enumerate(roles)}
    kinds = np.concatenate([np.load(it)["kind"] for it in run.folder.glob("run/history/*.npy")])
    whole = [flow for flow in read.flows.values() if [it.name for _, it in flow][::4] == PUSH_READ]
    assert len(whole) == (kinds == Kind.PUSH).sum()
    done = run.psrt("watch", "run")
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout.startswith("epoch ")


def test_over_mpi_and_in_one_process_or_a_line_that_says_why_not(run):
    """Of another run, a damaged one, or one whose config was edited."""
    for name in ("damaged", "edited"):
        shutil.copytree(run.folder / "run", run.folder / name)
    path = run.folder / "damaged/history/rank-00001.npy"
    path.write_bytes(path.read_bytes()[:-100])
    path = run.folder / "edited/config.toml"
    path.write_text(path.read_text().replace("seed = 0", "seed = 1"))
    cases = {
        "run --seed 7": ["--replay run would not be that run: seed 7 instead of 0"],
        "run --out run --overwrite": ["would overwrite --replay"],
        "damaged": ["rank-00001.npy: damaged"],
        "edited": ["does not go with the history", "seed 1 instead"],
    }
    commands = {"again": ["train", "--replay", "run", "--out", "again", "--record"]}
    commands |= {flags: ["train", "--replay", *flags.split()] for flags in cases}
    done, *others = run.one_after_another(RANKS, commands)
    recorded = sha256_of(run.folder / "run")
    same = f"replay: the same parameters to the bit (sha256 {recorded})"
    assert (done.status, done.errors) == (0, []), done.stderr
    assert verdict(done) == same
    assert sha256_of(run.folder / "again") == recorded
    first, second = (
        np.load(run.folder / name / "history/rank-00000.npy") for name in ("run", "again")
    )
    for name in ("kind", "worker", "clock", "version", "tau", "samples"):
        np.testing.assert_array_equal(first[name][:-1], second[name][:-1])
    for done, words in zip(others, cases.values(), strict=True):
        refused(done, *words)
    done = run.psrt("simulate", "--replay", "run")
    assert done.status == 0, done.stderr
    assert verdict(done) == same


def test_nothing_is_written_over_what_it_is_made_from(run):
    """But beside it."""
    folder = run.folder / "run"
    (run.folder / "link").symlink_to("run")
    (run.folder / "x").mkdir()
    (folder / "costs.json").write_text("{}")
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    commands = {
        f"{words} {out}": [*words, "--out", out, "--overwrite"]
        for words in SOURCES
        for out in ("run", "link", "./x/../run")
    }
    for done in run.one_after_another(0, commands):
        refused(done, "would overwrite --")
    beside = {it: ["simulate", it, "run", "--out", f"run/{it}"] for it in ("--like", "--replay")}
    for done in run.one_after_another(0, beside):
        assert done.status == 0, done.stderr
    assert {path: path.read_bytes() for path in before} == before


def edit_events(path):
    """Give the last push of a server's file a clock that nobody will push, and a check sum."""
    events = np.load(path)
    at = np.flatnonzero(events["kind"] == Kind.RECEIVE)[-1]
    events["clock"][at] += 3
    header = path.read_bytes()[: -events.nbytes]
    events["version"][-1] = zlib.crc32(header, zlib.crc32(events[:-1].tobytes()))
    path.write_bytes(header + events.tobytes())
    return at


@pytest.mark.parametrize("ranks", [0, also(RANKS)])
def test_a_replay_that_diverges_or_comes_to_something_else_fails(copy, ranks):
    shutil.copytree(copy.folder / "run", copy.folder / "other")
    at = edit_events(copy.folder / "run/history/rank-00001.npy")
    path = copy.folder / "other/summary.json"
    path.write_text(path.read_text().replace(sha256_of(path.parent), "0" * 64))
    if ranks:  # of which the first ends the job
        diverged, other = (copy.train(ranks, "--replay", it) for it in ("run", "other"))
    else:
        commands = {it: ["simulate", "--replay", it] for it in ("run", "other")}
        diverged, other = copy.one_after_another(0, commands)
    words = [
        f"the replay diverges at event {at} of shard 1: worker . pushed clock 24 on version",
        "in the recorded run it pushed clock 27 on version",
    ]
    refused(diverged, *words, status=1)
    words = ["the replay of other ended with other parameters: sha256 .* instead of 0000"]
    refused(other, *words, status=1)
