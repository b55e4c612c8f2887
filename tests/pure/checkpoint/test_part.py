"""A tree goes to the disk and comes back, and other tools read the file."""

import math

import numpy as np
import pytest
from safetensors.numpy import load_file

from psrt.checkpoint import Disk, announce, announce_failure, announced, read_part, write_part
from psrt.errors import CheckpointError
from psrt.partition import Span

TREE = {
    "theta": np.arange(5, dtype=np.float32),
    "role": {
        "state": {"m": np.zeros((0,), np.float64), "t": np.array(7.5, np.float32)},
        "flags": np.array([True, False]),
        "clock": 400,
        "seed": 2**127 + 1,
        "losses": [0.1, -0.0, math.inf, -math.inf],
        "mean": math.nan,
        "empty": {},
        "none": None,
        "name": "µ/τ",
    },
}


def same(a, b):
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return repr(a) == repr(b)


def test_a_part_comes_back_as_it_was(tmp_path):
    entry = write_part(Disk(), tmp_path, "worker-0-of-4", TREE, [Span(0, 5)])
    assert same(read_part(Disk(), tmp_path, entry), TREE)
    assert entry.spans == (Span(0, 5),)
    assert entry.nbytes == (tmp_path / entry.file).stat().st_size


def test_safetensors_reads_the_arrays_of_a_part(tmp_path):
    entry = write_part(Disk(), tmp_path, "worker-0-of-4", TREE)
    arrays = load_file(tmp_path / entry.file)
    assert set(arrays) == {"theta", "role/state/m", "role/state/t", "role/flags"}
    assert np.array_equal(arrays["theta"], TREE["theta"])
    assert arrays["role/state/t"].shape == ()


def test_a_part_that_is_not_what_was_written_is_refused(tmp_path):
    entry = write_part(Disk(), tmp_path, "worker-0-of-4", TREE)
    path = tmp_path / entry.file
    data = path.read_bytes()
    for place in range(0, len(data), 7):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(CheckpointError, match="its sum is not"):
            read_part(Disk(), tmp_path, entry)
        path.write_bytes(data[:place])
        with pytest.raises(CheckpointError, match="bytes"):
            read_part(Disk(), tmp_path, entry)
    path.write_bytes(data + b"x")
    with pytest.raises(CheckpointError, match="expected at most"):
        read_part(Disk(), tmp_path, entry)


def test_a_link_is_not_followed(tmp_path):
    entry = write_part(Disk(), tmp_path, "worker-0-of-4", TREE)
    (tmp_path / entry.file).rename(tmp_path / "elsewhere")
    (tmp_path / entry.file).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        read_part(Disk(), tmp_path, entry)
    with pytest.raises(OSError, match="File exists"):
        write_part(Disk(), tmp_path, "worker-0-of-4", TREE)


def test_who_commits_learns_which_parts_are_there(tmp_path):
    disk = Disk()
    entry = write_part(disk, tmp_path, "shard-1-of-2", TREE, [Span(3, 8)])
    announce(disk, tmp_path, entry)
    announce_failure(disk, tmp_path, "shard-0-of-2", "No space left on device")
    assert announced(disk, tmp_path) == {
        "shard-0-of-2": "No space left on device",
        "shard-1-of-2": entry,
    }


@pytest.mark.parametrize("bad", ["../up", "", "Worker", "a" * 101, ".hidden"])
def test_a_name_that_is_none_is_refused(tmp_path, bad):
    with pytest.raises(CheckpointError, match="cannot be the name"):
        write_part(Disk(), tmp_path, bad, {})


@pytest.mark.parametrize(
    "bad", [{"a/b": 1}, {"": 1}, {"float": 1}, {1: 1}, {"a": object()}, {"a": np.array(1j)}]
)
def test_what_a_checkpoint_cannot_hold_is_refused(tmp_path, bad):
    with pytest.raises(CheckpointError):
        write_part(Disk(), tmp_path, "part", bad)
