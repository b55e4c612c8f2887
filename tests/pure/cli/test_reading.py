"""Commands that read runs: psrt check, report and checkpoints, and one line for what is none."""

from __future__ import annotations

import functools
import json
import os
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from psrt.__main__ import main
from psrt.cli.checkpoints import main as checkpoints_main
from psrt.config import TrainConfig
from psrt.core.errors import ConfigError
from psrt.history import EventLog, Kind
from psrt.history.folder import HEADER
from psrt.history.header import sealed
from psrt.job.virtual import simulate
from support.pages import make_run

FLAGS = [
    *("simulate", "--mode", "ssp:staleness=1", "--servers", "2", "--workers", "3"),
    *("--steps", "4", "--timing-only", "--parameters", "10", "--record", "--seed", "5", "--out"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("made") / "run"
    assert main([*FLAGS, str(path)]) == 0
    return path


@pytest.fixture
def recorded(made, tmp_path):
    """A copy of a recorded run, to be broken."""
    return shutil.copytree(made, tmp_path / "run")


@pytest.fixture
def called(capsys):
    def call(*words):
        capsys.readouterr()
        status = main([*map(str, words)])
        return status, *capsys.readouterr()

    return call


@pytest.fixture
def checked(called):
    return functools.partial(called, "check")


def test_a_run_that_kept_its_contract(checked, recorded):
    for path in (recorded, recorded / "history"):
        status, out, err = checked(path)
        assert (status, err) == (0, "")
        first, *_, last = out.splitlines()
        assert first.startswith("ssp (staleness 1), 3 workers and 2 shards:")
        assert "bounded-staleness read" in out
        assert last == "ok: nothing contradicts the contract of its mode"


def test_a_run_that_did_not(checked, recorded):
    path = recorded / "history" / "events.npy"
    events = np.load(path)[:-1].copy()
    events["version"][np.flatnonzero(events["kind"] == Kind.REPLY)[5]] += 1
    path.unlink()
    with EventLog(path) as log:
        log.keep(events, (False, 0))
    status, out, err = checked(recorded)
    assert (status, err) == (1, "")
    assert "violated: versions" in out
    assert out.splitlines()[2].startswith("  shard ")
    found = json.loads(checked(recorded, "--json")[1])
    assert (found["ok"], found["workers"], found["shards"]) == (False, 3, 2)
    assert found["violation"]["rule"] == "versions"


def refused(checked, *words):
    status, out, err = checked(*words)
    assert (status, out) == (2, "")
    assert err.startswith("psrt: error: ")
    assert err.count("\n") == 1
    return err


def test_what_is_no_history_is_refused(checked, recorded, tmp_path):
    assert "no run at" in refused(checked, tmp_path / "none")
    assert "--record" in refused(checked, tmp_path)
    assert "required: RUN" in refused(checked)
    assert "unknown flag --fast" in refused(checked, recorded, "--fast")
    (recorded / "history" / "events.npy").write_bytes(b"\x93NUMPY")
    assert "damaged" in refused(checked, recorded)


def test_a_history_of_another_run_is_refused(checked, recorded):
    path = recorded / "config.toml"
    path.write_text(path.read_text().replace("staleness=1", "staleness=2"))
    line = "it has mode 'ssp:staleness=2', the history 'ssp:staleness=1'"
    assert line in refused(checked, recorded)
    path.unlink()
    assert checked(recorded)[0] == 0


def test_a_summary_of_another_run_is_found_out(checked, recorded):
    path = recorded / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"updates": 1}))
    status, out, _ = checked(recorded)
    assert status == 1
    assert "updates: the summary says 1, the history 12" in out
    for text, line in (("{", "summary.json: not JSON"), ("[]", "not a JSON object")):
        path.write_text(text)
        assert line in refused(checked, recorded)


@pytest.mark.parametrize(("change", "text"), [
    *(({"config": {name: value}}, text) for name, value, text in [
        ("mode", "rumour", "an unknown mode: it must be one of serial, sync, "),
        ("shards_per_server", 2, "has 2 shards at 2 servers, its config 2 per server"),
    ]),
    ({"workers": [2, 3, 3]}, "one rank to two roles"),
    ({"spans": [[0, 5], [5, 11]]}, "do not make up its 10 parameters"),
    ({"workers": [2, 3]}, "worker 2"),
])  # fmt: skip
def test_a_header_that_cannot_be_is_refused(checked, recorded, change, text):
    (recorded / "config.toml").unlink()
    path = recorded / "history" / HEADER
    header = json.loads(path.read_text())
    change = {**change, "config": header["config"] | change.get("config", {})}
    path.write_text(sealed(header | change))
    assert text in refused(checked, recorded)


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    return make_run("ssp", tmp_path_factory.mktemp("report") / "run")


@pytest.fixture
def reported(called):
    def report(*words):
        status, out, err = called("report", *words)
        return status, out + err

    return report


def test_a_page_that_is_there_is_replaced_if_asked(shown, reported, tmp_path):
    path = tmp_path / "page.html"
    path.write_text("mine")
    assert reported(shown, "-o", path) == (
        2, f"psrt: error: {path} exists: give --overwrite to replace it, or another -o\n",
    )  # fmt: skip
    assert path.read_text() == "mine"
    assert reported(shown, "-o", path, "--overwrite")[0] == 0
    assert path.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(("words", "message"), [
    (["{tmp}/nothing"], "no run at {tmp}/nothing: psrt train --out {tmp}/nothing makes one"),
    (["{run}", "-o", "{tmp}/no/page.html"], "cannot write {tmp}/no/page.html: No such file"),
    (["{run}", "-o", "{run}/summary.json", "--overwrite"], "-o {run}/summary.json: the name of"),
])  # fmt: skip
def test_what_is_wrong_is_one_line(shown, reported, tmp_path, words, message):
    here = {"run": shown, "tmp": tmp_path}
    status, text = reported(*(it.format(**here) for it in words))
    assert status == 2
    assert text.startswith(f"psrt: error: {message.format(**here)}")
    assert text.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    out = tmp_path_factory.mktemp("checkpoints") / "run"
    config = TrainConfig(
        dataset="synthetic:70x12x4", hidden=(8,), batch_size=4, epochs=2, mode="sync", servers=2,
        out=str(out), checkpoint_every=4, keep=2,
    )  # fmt: skip
    return out, simulate(config, workers=3)


def test_it_lists_the_newest_first_and_says_what_is_in_one(saved, capsys, tmp_path):
    out, _ = saved
    assert checkpoints_main([str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[1].split(", ")[:2] for line in lines] == [
        ["step 12", "3 workers and 2 servers"],
        ["step 8", "3 workers and 2 servers"],
    ]
    checkpoints_main([str(out), "--json"])
    rows = json.loads(capsys.readouterr().out)
    files = (out / "checkpoints" / "00000012").glob("*.safetensors")
    assert [row["step"] for row in rows] == [12, 8]
    assert rows[0]["bytes"] == sum(it.stat().st_size for it in files)
    checkpoints_main([str(out), "--step", "8", "--show"])
    text = capsys.readouterr().out
    for words in ("worker-2-of-3.safetensors", "  role/clock  8", "parameters 0 to 70"):
        assert words in text
    assert "  theta  float32[70]" in text
    # The model of the last one is that of the run, which ended at that step.
    file = tmp_path / "model.safetensors"
    assert checkpoints_main([str(out), "--export", str(file)]) == 0
    exported, own = load_file(file), load_file(out / "model.safetensors")
    assert exported.keys() == own.keys()
    for name, array in own.items():
        assert np.array_equal(exported[name], array)
    assert "140 parameters" in capsys.readouterr().out


def test_one_that_is_damaged_is_told(saved, capsys, tmp_path):
    out, _ = saved
    part = out / "checkpoints" / "00000012" / "worker-1-of-3.safetensors"
    data = part.read_bytes()
    part.write_bytes(data[:-1])
    try:
        assert checkpoints_main([str(out)]) == 1
        first, second = capsys.readouterr().out.splitlines()
        assert f"cannot be read: {part}: has" in first
        assert "step 8" in second
        checkpoints_main([str(out), "--show"])
        assert capsys.readouterr().out.startswith(f"{out}/checkpoints/00000008")
        with pytest.raises(ConfigError, match=r"has \d+ of \d+ bytes"):
            checkpoints_main([str(out), "--step", "12", "--export", str(tmp_path / "x")])
        with pytest.raises(ConfigError, match="there is no checkpoint of step 5"):
            checkpoints_main([str(out), "--step", "5"])
    finally:
        part.write_bytes(data)


def test_an_export_replaces_a_file_and_nothing_else(saved, tmp_path):
    """A device would become a file, as root, and a part of a checkpoint another one."""
    out, _ = saved
    os.mkfifo(tmp_path / "pipe")
    part = out / "checkpoints" / "00000012" / "manifest.json"
    before = part.read_bytes()
    for file, line in (
        (tmp_path / "pipe", "not a regular file"),
        (part, "would be written into the checkpoints"),
        (tmp_path, "Is a directory"),
        (tmp_path / "none" / "model", "No such file or directory"),
    ):
        with pytest.raises(ConfigError, match=line):
            checkpoints_main([str(out), "--export", str(file)])
    assert part.read_bytes() == before
    (tmp_path / "link").symlink_to("there")
    assert checkpoints_main([str(out), "--export", str(tmp_path / "link")]) == 0
    assert (tmp_path / "link").is_symlink()
    assert load_file(tmp_path / "there").keys() == load_file(out / "model.safetensors").keys()
