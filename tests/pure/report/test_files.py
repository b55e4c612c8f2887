import errno
import fcntl
import os
import pathlib
import tempfile
from contextlib import closing

import numpy as np
import pytest
from safetensors.numpy import load_file

from psrt.errors import ConfigError, OutputError
from psrt.report import OutputFolder, Summary, read_metrics
from psrt.report.end import EndFile
from psrt.report.files import FILES


def content(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_whole_run(tmp_path, record, summary):
    folder = OutputFolder(tmp_path / "runs" / "first")
    folder.prepare("seed = 7\n")
    with closing(folder.metrics()) as metrics:
        metrics.write(record)
    theta = np.arange(6, dtype=np.float32)
    folder.write_model({"layers.0.weight": theta[:4].reshape(2, 2), "layers.0.bias": theta[4:]})
    folder.write_text("simulation.json", "{}\n")
    folder.write_text("roster.json", "[]\n")
    folder.write_progress("{}\n")
    EndFile(str(folder.path), "seed = 7\n").write("killed", 5)
    folder.write_summary(summary)

    assert sorted(os.listdir(folder.path)) == sorted(FILES)
    assert (folder.path / "config.toml").read_text() == "seed = 7\n"
    assert read_metrics(folder.path / "metrics.jsonl")[0]["step"] == 135
    tensors = load_file(folder.path / "model.safetensors")
    assert tensors["layers.0.weight"].tolist() == [[0, 1], [2, 3]]
    assert tensors["layers.0.bias"].tolist() == [4, 5]
    assert (folder.path / "simulation.json").read_text() == "{}\n"
    assert Summary.from_json((folder.path / "summary.json").read_text()) == summary
    # Whoever may read one may read all.
    assert len({(folder.path / name).stat().st_mode for name in FILES}) == 1


def test_strided_tensors_are_stored_by_value(tmp_path):
    folder = OutputFolder(tmp_path)
    folder.prepare("")
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3).T
    folder.write_model({"w": matrix, "v": np.arange(6, dtype=np.float32)[::2]})
    tensors = load_file(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(tensors["w"], matrix)
    assert tensors["v"].tolist() == [0, 2, 4]


def test_the_path_is_a_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="is a file"):
        OutputFolder(path).prepare("", overwrite=True)
    assert path.read_text() == "mine"


def test_the_path_is_below_a_file(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match=r"cannot write to .*Not a directory"):
        OutputFolder(tmp_path / "file" / "run").prepare("")


def test_a_name_that_the_file_system_refuses(tmp_path):
    """As a folder below one that only another user may enter: asking whether it is there fails."""
    with pytest.raises(ConfigError, match=r"cannot write to .*: File name too long"):
        OutputFolder(tmp_path / ("x" * 300)).prepare("")


@pytest.mark.parametrize("name", FILES)
def test_a_used_folder_is_left_alone(tmp_path, name):
    (tmp_path / name).write_text("old")
    with pytest.raises(ConfigError, match=rf"holds a run already \({name}\); --overwrite"):
        OutputFolder(tmp_path).prepare("new")
    assert content(tmp_path) == {name: b"old"}


def test_overwrite_removes_only_own_files(tmp_path):
    others = ["notes.md", "metrics.jsonl.bak", "sub/summary.json"]
    (tmp_path / "sub").mkdir()
    for name in [*FILES, "model.safetensors.part", *others]:
        (tmp_path / name).write_text("old")
    folder = OutputFolder(tmp_path)
    folder.prepare("new", overwrite=True)
    folder.commit()
    assert content(tmp_path) == {"config.toml": b"new"} | dict.fromkeys(others, b"old")


def earlier_run(folder):
    """Make a finished run with a history, and files of the user's beside; return what is in it."""
    (folder / "history").mkdir()
    for name in [*FILES, "notes.md", "history/header.json", "history/rank-00000.npy", "history/me"]:
        (folder / name).write_text(f"old {name}")
    return content(folder)


def test_an_earlier_run_comes_back_if_the_new_one_cannot_begin(tmp_path):
    before = earlier_run(tmp_path)
    folder = OutputFolder(tmp_path)
    folder.prepare("new", overwrite=True, record=True)
    assert (tmp_path / "config.toml").read_text() == "new"
    folder.discard()
    assert content(tmp_path) == before


def test_an_earlier_run_goes_when_the_new_one_begins(tmp_path):
    earlier_run(tmp_path)
    folder = OutputFolder(tmp_path)
    folder.prepare("new", overwrite=True, record=True)
    folder.commit()
    assert content(tmp_path) == {
        "config.toml": b"new", "notes.md": b"old notes.md", "history/me": b"old history/me",
    }  # fmt: skip


def test_an_earlier_run_survives_a_start_that_was_killed(tmp_path):
    before = earlier_run(tmp_path)
    OutputFolder(tmp_path).prepare("killed", overwrite=True)
    with pytest.raises(ConfigError, match="holds a run already"):
        OutputFolder(tmp_path).prepare("next")
    assert content(tmp_path) == before


def test_a_history_that_cannot_be_made_costs_no_earlier_run(tmp_path):
    for name in ["summary.json", "history"]:
        (tmp_path / name).write_text("old")
    with pytest.raises(ConfigError, match="cannot write to"):
        OutputFolder(tmp_path).prepare("new", overwrite=True, record=True)
    assert content(tmp_path) == {"summary.json": b"old", "history": b"old"}


def test_a_folder_with_other_files_is_free(tmp_path):
    (tmp_path / "notes.md").write_text("mine")
    OutputFolder(tmp_path).prepare("new")
    assert content(tmp_path) == {"config.toml": b"new", "notes.md": b"mine"}


def test_a_folder_in_the_place_of_a_file(tmp_path):
    (tmp_path / "summary.json").mkdir()
    (tmp_path / "config.toml").write_text("old")
    with pytest.raises(ConfigError, match=r"has a folder summary.json"):
        OutputFolder(tmp_path).prepare("new", overwrite=True)
    assert content(tmp_path) == {"config.toml": b"old"}


def test_an_unwritable_folder_is_left_alone(tmp_path, monkeypatch):
    """Permissions do not bind root, who may be running this: the refusal is put in by hand."""
    (tmp_path / "config.toml").write_text("old")

    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(ConfigError, match=r"cannot write to .*: Permission denied"):
        OutputFolder(tmp_path).prepare("new", overwrite=True)
    assert content(tmp_path) == {"config.toml": b"old"}


def test_a_folder_that_cannot_be_made(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(pathlib.Path, "mkdir", refuse)
    with pytest.raises(ConfigError, match=r"cannot write to .*/new: Permission denied"):
        OutputFolder(tmp_path / "new").prepare("")
    assert not (tmp_path / "new").exists()


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


@pytest.mark.parametrize("whole", [True, False])
def test_no_link_is_followed(tmp_path, record, summary, whole):
    """Somebody has put links where a run writes, to files, or to nothing that they want made."""
    out, theirs = tmp_path / "out", tmp_path / "theirs"
    out.mkdir()
    theirs.mkdir()
    names = [name + end for name in FILES for end in ("", ".part")]
    for name in names:
        if whole:
            (theirs / name).write_text("precious")
        (out / name).symlink_to(theirs / name)
    before = content(theirs)
    folder = OutputFolder(out)
    folder.prepare("seed = 7\n", overwrite=True, record=True)
    with closing(folder.metrics()) as metrics:
        metrics.write(record)
    folder.write_model({"w": np.ones(3, np.float32)})
    for name in ("simulation.json", "roster.json"):
        folder.write_text(name, "{}\n")
    folder.write_progress("{}\n")
    EndFile(str(out), "seed = 7\n").write("killed", 5)
    folder.write_summary(summary)
    folder.commit()
    assert content(theirs) == before
    assert sorted(it.name for it in out.iterdir() if it.is_file()) == sorted(FILES)
    assert not any(it.is_symlink() for it in out.iterdir())


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
    with pytest.raises(ConfigError, match=f"{name} is no folder of your own: a link, or others"):
        OutputFolder(out).prepare("", overwrite=True, record=True)
    assert content(theirs) == {"header.json": b"precious"}
    assert [it.name for it in out.iterdir()] == [name]


def test_an_output_folder_that_others_can_write_to_is_refused(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(0o777)
    with pytest.raises(ConfigError, match=r"out can be written to by others; expected one of your"):
        OutputFolder(out).prepare("")
    assert not list(out.iterdir())
    link = tmp_path / "link"
    link.symlink_to(out)
    with pytest.raises(ConfigError, match="can be written to by others"):
        OutputFolder(link).prepare("")
    out.chmod(0o1777)  # as /tmp is
    OutputFolder(link).prepare("")


def test_a_new_folder_is_written_to_by_nobody_else(tmp_path):
    before = os.umask(0)
    try:
        OutputFolder(tmp_path / "a" / "b").prepare("", record=True)
    finally:
        os.umask(before)
    for path in ("b", "b/history"):
        assert not (tmp_path / "a" / path).stat().st_mode & 0o022


def test_a_folder_has_one_run_at_a_time(tmp_path):
    """A job that is started twice, as by a queue and by hand, would delete what the other saves."""
    first = OutputFolder(tmp_path / "run")
    first.prepare("first")
    before = content(tmp_path)
    for more in ({"overwrite": True}, {"resumes": True}, {}):
        second = OutputFolder(tmp_path / "run")
        with pytest.raises(ConfigError, match="run is in use by a run under way"):
            second.prepare("second", **more)
        assert content(tmp_path) == before
    first.release()
    second.prepare("second", overwrite=True)
    third = OutputFolder(tmp_path / "run")
    with pytest.raises(ConfigError, match="in use"):
        third.prepare("third", overwrite=True)
    del second  # as when its process ends
    third.prepare("third", overwrite=True)


def test_a_file_system_without_locks_has_none(tmp_path, monkeypatch):
    def flock(handle, how):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(fcntl, "flock", flock)
    first = OutputFolder(tmp_path)
    first.prepare("first")
    OutputFolder(tmp_path).prepare("second", overwrite=True)
