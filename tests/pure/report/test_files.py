"""The folder of a run: whole files, an earlier run that comes back, and nobody else's files."""

from __future__ import annotations

import errno
import fcntl
import os
import pathlib
import tempfile
from contextlib import closing

import numpy as np
import pytest
from safetensors.numpy import load_file

from psrt.core.errors import ConfigError, OutputError
from psrt.report import OutputFolder, Summary, read_metrics
from psrt.report.end import EndFile, RunEnd
from psrt.report.files import FILES


def content(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refused(path, line, **how):
    with pytest.raises(ConfigError, match=line):
        OutputFolder(path).prepare("new", **how)


def write_all(folder, record, summary):
    """Write all that a run can leave, into a folder that is prepared."""
    with closing(folder.metrics()) as metrics:
        metrics.write(record)
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3).T  # which does not lie in one piece
    folder.write_model({"w": matrix, "v": np.arange(6, dtype=np.float32)[::2]})
    for name in ("simulation.json", "roster.json"):
        folder.write_text(name, "{}\n")
    folder.write_progress("{}\n")
    EndFile(str(folder.path), "seed = 7\n").write("killed", 5)
    folder.write_summary(summary)


def test_a_whole_run(tmp_path, record, summary):
    folder = OutputFolder(tmp_path / "runs" / "first")
    folder.prepare("seed = 7\n")
    write_all(folder, record, summary)
    assert sorted(os.listdir(folder.path)) == sorted(FILES)
    assert (folder.path / "config.toml").read_text() == "seed = 7\n"
    assert read_metrics(folder.path / "metrics.jsonl")[0]["step"] == 135
    tensors = load_file(folder.path / "model.safetensors")
    assert tensors["w"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert tensors["v"].tolist() == [0, 2, 4]
    assert (folder.path / "simulation.json").read_text() == "{}\n"
    assert Summary.from_json((folder.path / "summary.json").read_text()) == summary
    # Whoever may read one may read all.
    assert len({(folder.path / name).stat().st_mode for name in FILES}) == 1


@pytest.mark.parametrize("whole", [True, False])
def test_no_link_is_followed(tmp_path, record, summary, whole):
    """Somebody has put links where a run writes, to files, or to nothing that they want made."""
    out, theirs = tmp_path / "out", tmp_path / "theirs"
    out.mkdir()
    theirs.mkdir()
    for name in [name + end for name in FILES for end in ("", ".part")]:
        if whole:
            (theirs / name).write_text("precious")
        (out / name).symlink_to(theirs / name)
    before = content(theirs)
    folder = OutputFolder(out)
    folder.prepare("seed = 7\n", overwrite=True, record=True)
    write_all(folder, record, summary)
    folder.commit()
    assert content(theirs) == before
    assert sorted(it.name for it in out.iterdir() if it.is_file()) == sorted(FILES)
    assert not any(it.is_symlink() for it in out.iterdir())


def test_paths_that_cannot_be_written_to(tmp_path, monkeypatch):
    """Permissions do not bind root, who may be running this: a refusal is put in by hand."""
    path = tmp_path / "file"
    path.write_text("mine")
    refused(path, "is a file", overwrite=True)
    refused(path / "run", r"cannot write to .*Not a directory")
    (tmp_path / "a" / "summary.json").mkdir(parents=True)
    refused(tmp_path / "a", r"has a folder summary.json", overwrite=True)
    (tmp_path / "a" / "summary.json").rmdir()
    (tmp_path / "a" / "config.toml").write_text("old")

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    refused(tmp_path / "a", r"cannot write to .*: Permission denied", overwrite=True)
    assert content(tmp_path) == {"file": b"mine", "a/config.toml": b"old"}


@pytest.mark.parametrize("name", FILES)
def test_a_used_folder_is_left_alone(tmp_path, name):
    (tmp_path / name).write_text("old")
    refused(tmp_path, rf"holds a run already \({name}\); --overwrite")
    assert content(tmp_path) == {name: b"old"}


def test_overwrite_removes_only_own_files(tmp_path):
    others = ["notes.md", "metrics.jsonl.bak", "sub/summary.json"]
    (tmp_path / "sub").mkdir()
    for name in others:
        (tmp_path / name).write_text("old")
    OutputFolder(tmp_path).prepare("free")
    for name in [*FILES, "model.safetensors.part"]:
        (tmp_path / name).write_text("old")
    folder = OutputFolder(tmp_path)
    folder.prepare("new", overwrite=True)
    folder.commit()
    assert content(tmp_path) == {"config.toml": b"new"} | dict.fromkeys(others, b"old")


@pytest.fixture
def earlier(tmp_path):
    """What is in a folder with a finished run, a history, and files of the user's beside."""
    (tmp_path / "history").mkdir()
    for name in [*FILES, "notes.md", "history/header.json", "history/rank-00000.npy", "history/me"]:
        (tmp_path / name).write_text(f"old {name}")
    return content(tmp_path)


def test_an_earlier_run_comes_back_if_the_new_one_cannot_begin(tmp_path, earlier):
    folder = OutputFolder(tmp_path)
    folder.prepare("new", overwrite=True, record=True)
    assert (tmp_path / "config.toml").read_text() == "new"
    folder.discard()
    assert content(tmp_path) == earlier
    folder.release()
    # Also if that was killed.
    folder.prepare("killed", overwrite=True)
    folder.release()
    refused(tmp_path, "holds a run already")
    assert content(tmp_path) == earlier


def test_an_earlier_run_goes_when_the_new_one_begins(tmp_path, earlier):
    folder = OutputFolder(tmp_path)
    folder.prepare("new", overwrite=True, record=True)
    folder.commit()
    assert content(tmp_path) == {
        "config.toml": b"new", "notes.md": b"old notes.md", "history/me": b"old history/me",
    }  # fmt: skip


def test_a_history_that_cannot_be_made_costs_no_earlier_run(tmp_path):
    for name in ["summary.json", "history"]:
        (tmp_path / name).write_text("old")
    refused(tmp_path, "cannot write to", overwrite=True, record=True)
    assert content(tmp_path) == {"summary.json": b"old", "history": b"old"}


def test_nothing_half_written_takes_a_files_place(tmp_path, summary, monkeypatch):
    folder = OutputFolder(tmp_path)
    folder.prepare("")
    folder.write_summary(summary)
    before = content(tmp_path)

    def fail_midway(path, text, **_):
        path.write_bytes(text[:9].encode())
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pathlib.Path, "write_text", fail_midway)
    with pytest.raises(OutputError, match="No space"):
        folder.write_summary(summary)
    assert content(tmp_path) == before


@pytest.mark.parametrize("name", [".earlier-run", "history"])
@pytest.mark.parametrize("is_link", [True, False])
def test_a_folder_in_it_that_is_not_its_own_is_refused(tmp_path, name, is_link):
    out, theirs = tmp_path / "out", tmp_path / "theirs"
    out.mkdir()
    theirs.mkdir()
    (theirs / "header.json").write_text("precious")
    if is_link:
        (out / name).symlink_to(theirs)
    else:
        (out / name).mkdir()
        (out / name).chmod(0o777)
    line = f"{name} is no folder of your own: a link, or others"
    refused(out, line, overwrite=True, record=True)
    assert content(theirs) == {"header.json": b"precious"}
    assert [it.name for it in out.iterdir()] == [name]


def test_an_output_folder_that_others_can_write_to_is_refused_and_a_new_one_is_none(tmp_path):
    out, link = tmp_path / "out", tmp_path / "link"
    out.mkdir()
    out.chmod(0o777)
    link.symlink_to(out)
    refused(out, r"out can be written to by others; expected one of your")
    refused(link, "can be written to by others")
    assert not list(out.iterdir())
    out.chmod(0o1777)  # as /tmp is
    OutputFolder(link).prepare("")
    before = os.umask(0)
    try:
        OutputFolder(tmp_path / "a" / "b").prepare("", record=True)
    finally:
        os.umask(before)
    for path in ("b", "b/history"):
        assert not (tmp_path / "a" / path).stat().st_mode & 0o022


def test_a_folder_has_one_run_at_a_time(tmp_path, monkeypatch):
    """A job that is started twice, as by a queue and by hand, would delete what the other saves."""
    first, second = OutputFolder(tmp_path / "run"), OutputFolder(tmp_path / "run")
    first.prepare("first")
    before = content(tmp_path)
    for more in ({"overwrite": True}, {"resumes": True}, {}):
        refused(tmp_path / "run", "run is in use by another run", **more)
        assert content(tmp_path) == before
    first.release()
    second.prepare("second", overwrite=True)
    third = OutputFolder(tmp_path / "run")
    with pytest.raises(ConfigError, match="in use"):
        third.prepare("third", overwrite=True)
    del second  # as when its process ends
    third.prepare("third", overwrite=True)

    def flock(handle, how):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(fcntl, "flock", flock)  # a file system without locks has none
    OutputFolder(tmp_path / "run").prepare("fourth", overwrite=True)


# --- how a run ended early, for whoever looks at its folder later --------------------------------

CONFIG = 'mode = "sync"\n'


@pytest.fixture
def run(tmp_path):
    (tmp_path / "config.toml").write_text(CONFIG)
    return tmp_path


def test_an_end_is_read_as_it_was_written_unless_who_knows_better_replaces_it(run):
    file = EndFile(str(run), CONFIG)
    file.write("psrt: error: worker 1 was killed\n", 5)
    end = RunEnd.read(run)
    assert (end.text, end.status) == ("worker 1 was killed", 5)
    assert str(end) == f"ended early, {end.ended}, with status 5: worker 1 was killed"
    assert sorted(it.name for it in run.iterdir()) == ["config.toml", "end.json"]
    for text, replaces in (("first", True), ("vague", False), ("better", True)):
        file.write(text, 5, replaces=replaces)
        assert RunEnd.read(run).text == ("first" if text == "vague" else text)


def test_the_end_of_neither_another_run_nor_a_finished_one_is_written(run):
    EndFile(str(run), CONFIG + "steps = 3\n").write("other", 5)
    EndFile(str(run / "not there"), CONFIG).write("other", 5)
    (run / "summary.json").write_text("{}")
    EndFile(str(run), CONFIG).write("late", 5)
    assert RunEnd.read(run) is None
