"""``psrt checkpoints``: what it lists, shows and exports of a run in virtual time."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import load_file

from psrt.cli import checkpoints
from psrt.cli.checkpoints import main
from psrt.config import TrainConfig
from psrt.errors import ConfigError
from psrt.job.virtual import simulate


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("checkpoints") / "run"
    config = TrainConfig(
        dataset="synthetic:70x12x4", hidden=(8,), batch_size=4, epochs=2, mode="sync", servers=2,
        out=str(out), checkpoint_every=4, keep=2,
    )  # fmt: skip
    return out, simulate(config, workers=3)


def test_it_lists_the_newest_first(run, capsys):
    out, _ = run
    assert main([str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[1].split(", ")[:2] for line in lines] == [
        ["step 12", "3 workers and 2 servers"],
        ["step 8", "3 workers and 2 servers"],
    ]
    assert main([str(out), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["step"] for row in rows] == [12, 8]
    assert rows[0]["bytes"] == sum(
        it.stat().st_size for it in (out / "checkpoints" / "00000012").glob("*.safetensors")
    )


def test_it_says_what_is_in_one(run, capsys):
    out, _ = run
    assert main([str(out), "--step", "8", "--show"]) == 0
    text = capsys.readouterr().out
    assert "worker-2-of-3.safetensors" in text
    assert "  role/clock  8" in text
    assert "parameters 0 to 70" in text
    assert "  theta  float32[70]" in text


def test_its_model_is_that_of_the_run(run, capsys, tmp_path):
    out, _ = run
    file = tmp_path / "model.safetensors"
    assert main([str(out), "--export", str(file)]) == 0
    exported, own = load_file(file), load_file(out / "model.safetensors")
    assert exported.keys() == own.keys()
    for name, array in own.items():
        assert np.array_equal(exported[name], array)  # the run ended at that step
    assert "140 parameters" in capsys.readouterr().out


def test_one_that_is_damaged_is_told(run, capsys, tmp_path):
    out, _ = run
    part = out / "checkpoints" / "00000012" / "worker-1-of-3.safetensors"
    data = part.read_bytes()
    part.write_bytes(data[:-1])
    try:
        assert main([str(out)]) == 1
        first, second = capsys.readouterr().out.splitlines()
        assert f"cannot be read: {part}: has" in first
        assert "step 8" in second
        main([str(out), "--show"])
        assert capsys.readouterr().out.startswith(f"{out}/checkpoints/00000008")
        with pytest.raises(ConfigError, match=r"has \d+ of \d+ bytes"):
            main([str(out), "--step", "12", "--export", str(tmp_path / "x")])
    finally:
        part.write_bytes(data)


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["nowhere"], "nowhere: there is no checkpoint"),
        (["{out}", "--step", "5"], "there is no checkpoint of step 5"),
        (["{out}", "--export", "{out}/none/x"], "cannot write .*/none/x"),
        ([], "RUN"),
    ],
)
def test_what_cannot_be_is_one_line(run, argv, line):
    with pytest.raises(ConfigError, match=line):
        main([it.format(out=run[0]) for it in argv])


def test_an_export_replaces_a_file_and_nothing_else(run, tmp_path):
    """A device would become a file, as root, and a part of a checkpoint another one."""
    out, _ = run
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
            main([str(out), "--export", str(file)])
    assert part.read_bytes() == before
    (tmp_path / "link").symlink_to("there")
    assert main([str(out), "--export", str(tmp_path / "link")]) == 0
    assert (tmp_path / "link").is_symlink()
    assert load_file(tmp_path / "there").keys() == load_file(out / "model.safetensors").keys()


def test_a_full_disk_is_one_line(run, tmp_path, monkeypatch):
    def full(arrays, file):
        raise SafetensorError("while serializing: I/O error: No space left (os error 28)")

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    with pytest.raises(ConfigError, match=r"cannot write .*model: No space left on device$"):
        main([str(run[0]), "--export", str(tmp_path / "model")])
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("flag", ["--export", "--show"])
def test_one_that_is_deleted_while_it_is_read_gives_way_to_the_next(
    run, capsys, tmp_path, monkeypatch, flag
):
    """As by a run under way that keeps few: what was listed is gone, and another one there."""
    out, kept, listed = tmp_path / "run", tmp_path / "kept", checkpoints._listed
    shutil.copytree(run[0], out)
    newest = out / "checkpoints" / "00000012"
    shutil.copytree(newest, kept)
    argv = [str(out), flag, *([str(tmp_path / "model")] if flag == "--export" else [])]

    def then_deleted(*args):
        found = listed(*args)
        shutil.rmtree(newest, ignore_errors=True)
        return found

    monkeypatch.setattr(checkpoints, "_listed", then_deleted)
    assert main(argv) == 0
    assert "00000008" in capsys.readouterr().out

    def always(*args):
        shutil.copytree(kept, newest)
        return then_deleted(*args)

    monkeypatch.setattr(checkpoints, "_listed", always)
    with pytest.raises(ConfigError, match="00000012 was deleted while it was read"):
        main(argv)


def test_a_flag_that_has_no_effect_is_refused(run):
    with pytest.raises(ConfigError, match="no effect with --show"):
        main([str(run[0]), "--json", "--show"])
