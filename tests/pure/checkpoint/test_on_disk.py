"""What an object is made of goes to the disk and comes back, whatever a crash leaves there."""

from __future__ import annotations

import math
import random
import shutil
from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file

from psrt.checkpoint import (
    Checkpoints,
    Disk,
    Manifest,
    announce,
    announce_failure,
    announced,
    from_text,
    read_part,
    to_text,
    write_part,
)
from psrt.checkpoint.state import paths_by_element, restore, state_of
from psrt.core.errors import CheckpointError
from psrt.core.partition import Span
from support.cases import each, some
from support.crashes import RecordingDisk, crash_states

# --- one part, and a tree as text -----------------------------------------------------------------

TREE = {
    "theta": np.arange(5, dtype=np.float32),
    "role": {
        "state": {"m": np.zeros((0,), np.float64), "t": np.array(7.5, np.float32)},
        "flags": np.array([True, False]),
        "strided": np.arange(24, dtype=np.int64).reshape(4, 6)[::2, ::-1],
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
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


def test_a_tree_comes_back_as_a_file_and_as_text(tmp_path):
    entry = write_part(Disk(), tmp_path, "worker-0-of-4", TREE, [Span(0, 5)])
    assert same(read_part(Disk(), tmp_path, entry), TREE)
    assert entry.spans == (Span(0, 5),)
    assert entry.nbytes == (tmp_path / entry.file).stat().st_size
    arrays = load_file(tmp_path / entry.file)  # as others read them
    own = {f"role/{it}" for it in ("state/m", "state/t", "flags", "strided", "fortran")}
    assert set(arrays) == {"theta", *own}
    assert np.array_equal(arrays["theta"], TREE["theta"])
    assert arrays["role/state/t"].shape == ()
    text = to_text(TREE)
    assert "\n" not in text
    assert same(from_text(text), TREE)
    assert from_text(to_text({})) == {}


def test_a_part_that_is_not_what_was_written_is_refused(tmp_path):
    entry = write_part(Disk(), tmp_path, "worker-0-of-4", TREE)
    path = tmp_path / entry.file
    data = path.read_bytes()
    for place in range(0, len(data), 97):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(CheckpointError, match="its checksum is not"):
            read_part(Disk(), tmp_path, entry)
    for other, told in ((data[:-1], "bytes"), (data + b"x", "expected at most")):
        path.write_bytes(other)
        with pytest.raises(CheckpointError, match=told):
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


@each("bad", ["../up", "", "Worker", "a" * 101, ".hidden"])
def test_a_name_that_is_none_is_refused(tmp_path, bad):
    with pytest.raises(CheckpointError, match="cannot be the name"):
        write_part(Disk(), tmp_path, bad, {})


@each("bad", [{"a/b": 1}, {"": 1}, {"float": 1}, {1: 1}, {"a": object()}, {"a": np.array(1j)}])
def test_what_a_checkpoint_cannot_hold_is_refused(tmp_path, bad):
    with pytest.raises(CheckpointError):
        write_part(Disk(), tmp_path, "part", bad)
    with pytest.raises(CheckpointError):
        to_text(bad)
    with pytest.raises(CheckpointError, match="a object does not list its state"):
        state_of([object()])


# --- objects --------------------------------------------------------------------------------------


class Pair(NamedTuple):
    left: int
    right: float


class Inner:
    saved = ("state", "_updates")
    by_element = ("state",)

    def __init__(self, fill=0.0):
        self.state = {"mean": np.full(3, fill, np.float32)}
        self._updates = int(fill)


class Outer(Inner):
    saved = ("inner", "_flat", "of_all", "pair", "seen", "many", "rng", "draw", "lazy", "_first")
    by_element = ("many",)

    def __init__(self, fill=0.0):
        super().__init__(fill)
        self.inner = Inner(fill + 1)
        self._flat = [int(fill), 1.5, -2]
        self.of_all = (fill, fill)
        self.pair = Pair(int(fill), 0.5)
        self.seen = {3: int(fill)}
        self.many = [np.full(2, fill), np.full(2, fill)]
        self.rng = np.random.default_rng(int(fill))
        self.draw = random.Random(int(fill))
        self.lazy = np.full(1, fill) if fill else None
        self._first = np.float32(fill)


def test_a_tree_has_plain_values_and_the_arrays_in_use_only():
    it = Outer(2.0)
    tree = state_of(it)
    assert list(tree) == [
        *("state", "updates", "inner", "flat", "of_all", "pair", "seen", "many", "rng", "draw"),
        *("lazy", "first"),
    ]
    assert tree["flat"] == [2, 1.5, -2]
    assert (tree["pair"], tree["seen"], tree["first"]) == ([2, 0.5], {"3": 2}, 2.0)
    assert type(tree["first"]) is float
    assert tree["inner"]["updates"] == 3
    assert tree["state"]["mean"] is it.state["mean"]
    assert tree["many"]["1"] is it.many[1]
    assert paths_by_element(it) == {"state/mean", "inner/state/mean", "many/0", "many/1"}


def test_restore_gives_all_of_it_back_in_place():
    new, old = Outer(), Outer(2.0)
    old.seen[5] = 7
    mean, many, seen = new.state["mean"], new.many, new.seen
    expected = old.rng.bit_generator.state, old.draw.getstate()
    restore(new, state_of(old))
    assert new.state["mean"] is mean
    assert new.many is many
    assert new.seen is seen
    assert mean.tolist() == [2, 2, 2]
    assert seen == {3: 2, 5: 7}
    assert (new.rng.bit_generator.state, new.draw.getstate()) == expected
    assert new.pair == Pair(2, 0.5)
    assert [type(it) for it in (new.pair, new.of_all, new._first)] == [Pair, tuple, np.float32]
    assert new.lazy.tolist() == [2.0]
    assert repr(state_of(new)) == repr(state_of(old))


def test_nothing_of_a_tree_is_kept():
    new, old = Outer(), Outer(2.0)
    tree = state_of(old)
    restore(new, tree)
    old.lazy[:] = old.state["mean"][:] = 9
    tree["seen"]["3"] = tree["flat"][0] = 9
    tree["rng"]["state"]["state"] = tree["draw"]["words"][0] = 0
    assert (new.lazy.tolist(), new.seen, new._flat[0]) == ([2.0], {3: 2}, 2)
    assert new.rng.integers(1 << 30) == np.random.default_rng(2).integers(1 << 30)


@each(("path", "value", "line"), [
    ("updates", None, " of the checkpoint has no updates"),
    ("more", 1, " of the checkpoint has more"),
    ("inner", 3, ".inner of the checkpoint is a int, expected state, updates"),
    ("inner/state/mean", np.zeros(4, np.float32), ".inner.state.mean of the"),
    ("inner/state/mean", np.zeros(3), ".inner.state.mean of the checkpoint is"),
    ("inner/state/mean", 1.0, ".inner.state.mean of the checkpoint is float"),
    ("updates", np.zeros(1), ".updates of the checkpoint is a ndarray, expected a int"),
    ("many", {"0": np.zeros(2)}, ".many of the checkpoint has no 1"),
    ("seen", 1, ".seen of the checkpoint has no names"),
    ("rng", {"state": 1}, ".rng of the checkpoint is not a generator's"),
    ("draw", {"version": 3, "words": [1], "spare": None}, ".draw of the checkpoint is"),
    ("lazy", 7, ".lazy of the checkpoint is a int"),
    ("updates", -1, ".updates of the checkpoint is -1, which it cannot be"),
    ("updates", 1 << 54, ".updates of the checkpoint is 18014398509481984, which it"),
    ("flat", [True], ".flat of the checkpoint is a bool, expected a int"),
    ("pair", [1], ".pair of the checkpoint has 1 numbers"),
    ("seen", {"3": None}, ".seen.3 of the checkpoint is a NoneType, expected a int"),
    ("seen", {str(1 << 25): 1}, ".seen of the checkpoint has the key 33554432"),
])  # fmt: skip
def test_a_tree_of_something_else_is_one_line(path, value, line):
    tree = at = state_of(Outer(1.0))
    *folders_of, name = path.split("/")
    for it in folders_of:
        at = at[it]
    if value is None:
        del at[name]
    else:
        at[name] = value
    with pytest.raises(CheckpointError, match=f"Outer{line}") as caught:
        restore(Outer(), tree)
    assert "\n" not in str(caught.value)


# --- crashes --------------------------------------------------------------------------------------

N = 40
NAMES = ("worker-0-of-2", "worker-1-of-2", "shard-0-of-1")


def save(checkpoints, disk, step, keep=2):
    part = checkpoints.begin(step, 0)
    entries = []
    for name in NAMES:
        spans = [Span(0, N)] if name.startswith("shard") else []
        tree = {"theta": np.full(N, step, np.float32), "role": {"clock": step, "name": name}}
        entries.append(write_part(disk, part, name, tree, spans))
        announce(disk, part, entries[-1])
    manifest = Manifest(step=step, n=N, workers=2, servers=1, config="", parts=tuple(entries))
    checkpoints.commit(step, 0, manifest, keep)


def recorded(tmp_path, steps, without=""):
    """Return all operations of writing these checkpoints, and how many are of all but the last."""
    run = tmp_path / "run"
    run.mkdir()
    disk, before = RecordingDisk(run, without=without), 0
    for step in steps:
        before = len(disk.done)
        save(Checkpoints(disk, run), disk, step)
    return disk.done, before


def loaded(run):
    """Return the step of what a run goes on from, after reading all of it."""
    found, _ = Checkpoints(Disk(), run).newest()
    if found is None:
        return None
    step = found.manifest.step
    for entry in found.manifest.parts:
        tree = read_part(Disk(), found.path, entry)
        assert tree["role"] == {"clock": step, "name": entry.name}
        assert (tree["theta"] == step).all()
    assert [it.name for it in found.manifest.parts] == list(NAMES)
    return step


def test_whoever_reads_finds_the_newest_while_old_ones_are_deleted(tmp_path, monkeypatch):
    """Of one that is kept, the listed one is gone, and another one there, before it is read."""
    run, disk = tmp_path / "run", Disk()
    run.mkdir()
    checkpoints, steps = Checkpoints(disk, run), iter((2, 3))
    save(checkpoints, disk, 1, keep=1)
    read = Disk.read

    def deleted(it, path, most):
        for step in steps:
            save(checkpoints, disk, step, keep=1)
            break
        return read(it, path, most)

    monkeypatch.setattr(Disk, "read", deleted)
    found, remarks = Checkpoints(disk, run).newest()
    assert found.manifest.step == 3
    assert not remarks
    only = Checkpoints.at(disk, found.path)
    shutil.rmtree(found.path)
    assert only.newest()[0] is None, "there is no other one of that name"


def outcomes(tmp_path, steps, without=""):
    """Return what runs go on from after crashes of the last of these savings, and after its end."""
    done, before = recorded(tmp_path, steps, without)
    place, found, seen = tmp_path / "after", {False: Counter(), True: Counter()}, {}
    for is_over, state in crash_states(done, before):
        key = frozenset(state.found.items())
        if key not in seen:
            place.mkdir()
            state.put(place)
            seen[key] = loaded(place)
            shutil.rmtree(place)
        found[is_over][seen[key]] += 1
    return found


def is_right(found, before, new):
    """Whether a crash leaves one of the two, and the new one where the saving was over."""
    return set(found[False]) <= {before, new} and set(found[True]) == {new}


@pytest.mark.parametrize("saved", some([2, 1, 3, 4], one_in=4))
def test_a_crash_leaves_the_one_before_or_the_new_one(tmp_path, saved):
    steps = [10 * i for i in range(1, saved + 1)]
    before = steps[-2] if saved > 1 else None
    found = outcomes(tmp_path, steps)
    assert is_right(found, before, steps[-1]), found
    assert found[False][before] > 800


@pytest.mark.exhaustive
def test_one_that_is_written_again_is_never_lost(tmp_path):
    """An attempt that went on from step 10 comes to step 20, which is there already."""
    found = outcomes(tmp_path, [10, 20, 20])
    assert is_right(found, 10, 20), found


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "without", ["sync file", "sync", "sync run", "sync checkpoints", "sync 00000020.0.part"]
)
def test_a_sync_that_is_left_out_is_found(tmp_path, without):
    assert not is_right(outcomes(tmp_path, [10, 20], without), 10, 20)
