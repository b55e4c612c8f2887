"""psrt check: a run's folder in, a report and a status out; one line for what is no history."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from psrt.__main__ import main
from psrt.history import EVENT, EventLog
from psrt.history.folder import HEADER
from psrt.history.header import sealed
from support.launching import TIMEOUT_S

FLAGS = [
    *("simulate", "--mode", "ssp", "--staleness", "1", "--servers", "2", "--workers", "3"),
    *("--steps", "4", "--timing-only", "--parameters", "10", "--record", "--seed", "5", "--out"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("made") / "run"
    assert main([*FLAGS, str(path)]) == 0
    return path


@pytest.fixture
def run(made, tmp_path):
    """A copy of a recorded run, to be broken."""
    import shutil

    return shutil.copytree(made, tmp_path / "run")


@pytest.fixture
def told(capsys):
    def tell(*words):
        capsys.readouterr()
        status = main(["check", *map(str, words)])
        out, err = capsys.readouterr()
        return status, out, err

    return tell


def rewrite(run, change):
    """Write the events of a run anew, with a change."""
    path = run / "history" / "events.npy"
    events = np.load(path)[:-1].copy()
    change(events)
    path.unlink()
    with EventLog(path) as log:
        for event in events:
            kind, flag, shard, worker, clock, version, progress, time, *rest = event.tolist()
            tau, samples, rate, gap, weight, seconds = rest
            log.add(
                kind, time, worker, clock, version, shard, samples, progress, tau, rate, gap,
                weight, seconds, flag,
            )  # fmt: skip


def test_a_run_that_kept_its_contract(told, run):
    for path in (run, run / "history"):
        status, out, err = told(path)
        assert (status, err) == (0, "")
        first, *_, last = out.splitlines()
        assert first.startswith("ssp (staleness 1), 3 workers and 2 shards:")
        assert "bounded-staleness read" in out
        assert last == "ok: nothing contradicts the contract of its mode"


def test_a_run_that_did_not(told, run):
    def change(events):
        events["version"][np.flatnonzero(events["kind"] == 20)[5]] += 1

    rewrite(run, change)
    status, out, err = told(run)
    assert (status, err) == (1, "")
    assert "violated: versions" in out
    assert out.splitlines()[2].startswith("  shard ")
    status, out, _ = told(run, "--json")
    assert status == 1
    assert json.loads(out)["violation"]["rule"] == "versions"


def test_json(told, run):
    status, out, _ = told("--json", run)
    found = json.loads(out)
    assert status == 0
    assert (found["ok"], found["workers"], found["shards"]) == (True, 3, 2)
    assert found["checked"]["progress"] == 3 * 2 * 4


def refused(told, *words):
    status, out, err = told(*words)
    assert (status, out) == (2, "")
    assert err.startswith("psrt: error: ")
    assert err.count("\n") == 1
    return err


def test_what_is_no_history_is_refused(told, run, tmp_path):
    assert "no run at" in refused(told, tmp_path / "none")
    assert "--record" in refused(told, tmp_path)
    assert "required: RUN" in refused(told)
    assert "unknown flag --fast" in refused(told, run, "--fast")
    (run / "history" / "events.npy").write_bytes(b"\x93NUMPY")
    assert "damaged" in refused(told, run)


def test_a_history_of_another_run_is_refused(told, run):
    path = run / "config.toml"
    text = path.read_text()
    path.write_text(text.replace("staleness = 1\n", "staleness = 2\n"))
    assert "it has staleness 2, the history 1" in refused(told, run)
    path.write_text("mode = ")
    assert "not TOML" in refused(told, run)
    path.unlink()
    assert told(run)[0] == 0


def test_a_summary_of_another_run_is_found_out(told, run):
    path = run / "summary.json"
    summary = json.loads(path.read_text())
    path.write_text(json.dumps(summary | {"updates": 1}))
    status, out, _ = told(run)
    assert status == 1
    assert "updates: the summary says 1, the history 12" in out
    path.write_text("{")
    assert "summary.json: not JSON" in refused(told, run)
    path.write_text("[]")
    assert "not a JSON object" in refused(told, run)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("mode", "rumour", "of mode 'rumour', which this psrt cannot check"),
        ("mode", "allreduce", "of mode allreduce with 2 servers"),
        ("staleness", -1, "has staleness -1"),
        ("staleness", "3", "has staleness '3'"),
        ("staleness", 1.5, "has staleness 1.5"),
        ("staleness", True, "has staleness True"),
        ("servers", 3, "has 2 servers, its config 3"),
        ("shards_per_server", 2, "has 2 shards at 2 servers, its config 2 a server"),
        ("batch_size", 0, "has batch_size 0"),
        ("epochs", "many", "has epochs 'many'"),
        ("epochs", -1, "has epochs -1"),
    ],
)
def test_a_config_that_cannot_be_is_refused(told, run, name, value, text):
    (run / "config.toml").unlink()
    path = run / "history" / HEADER
    header = json.loads(path.read_text())
    header["config"][name] = value
    path.write_text(sealed(header))
    assert text in refused(told, run)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("workers", [2, 3, 3], "one rank to two roles"),
        ("workers", [2, 3, 1], "one rank to two roles"),
        ("servers", [1, 1], "has 1 servers, its config 2"),
        ("spans", [[0, 5], [6, 10]], "do not make up its 10 parameters"),
        ("spans", [[0, 5], [5, 11]], "do not make up its 10 parameters"),
        ("workers", [2, 3], "worker 2"),
    ],
)
def test_a_header_that_cannot_be_is_refused(told, run, name, value, text):
    path = run / "history" / HEADER
    header = json.loads(path.read_text())
    path.write_text(sealed(header | {name: value}))
    assert text in refused(told, run)


def test_an_empty_history_is_no_good_one(told, run):
    rewrite(run, lambda events: None)
    path = run / "history" / "events.npy"
    path.unlink()
    EventLog(path).close()
    status, out, _ = told(run)
    assert status == 1
    assert "never said that it leaves" in out
    assert EVENT.itemsize == 64


def test_help_needs_neither_numpy_nor_mpi():
    code = (
        "import sys; from psrt.__main__ import main\n"
        "try: main(['check', '--help'])\n"
        "except SystemExit as end: assert not end.code\n"
        "assert not {'numpy', 'mpi4py'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", code]
    out = subprocess.run(
        command, check=True, text=True, stdout=subprocess.PIPE, timeout=TIMEOUT_S
    ).stdout
    assert "exit status is 0" in " ".join(out.split())
