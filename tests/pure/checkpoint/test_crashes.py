"""A crash at any operation leaves the checkpoint before, or the new one, whole."""

from __future__ import annotations

import shutil
from collections import Counter

import numpy as np
import pytest

from psrt.checkpoint import Checkpoints, Disk, Manifest, announce, read_part, write_part
from psrt.checkpoint import folder as folders
from psrt.partition import Span
from support.crashes import RecordingDisk, crash_states

N = 40
NAMES = ("worker-0-of-2", "worker-1-of-2", "shard-0-of-1")


def tree_of(step, name):
    return {"theta": np.full(N, step, np.float32), "role": {"clock": step, "name": name}}


def save(checkpoints, disk, step, keep=2):
    part = checkpoints.begin(step, 0)
    entries = []
    for name in NAMES:
        spans = [Span(0, N)] if name.startswith("shard") else []
        entries.append(write_part(disk, part, name, tree_of(step, name), spans))
        announce(disk, part, entries[-1])
    manifest = Manifest(step=step, n=N, workers=2, servers=1, config="", parts=tuple(entries))
    checkpoints.commit(step, 0, manifest, keep)


def recorded(tmp_path, steps, without=""):
    """Return all operations of writing these checkpoints, and how many are of all but the last."""
    run = tmp_path / "run"
    run.mkdir()
    disk = RecordingDisk(run, without=without)
    checkpoints = Checkpoints(disk, run)
    before = 0
    for step in steps:
        before = len(disk.done)
        save(checkpoints, disk, step)
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
    place, count = tmp_path / "after", 0
    found = {False: Counter(), True: Counter()}
    seen = {}
    for is_over, state in crash_states(done, before):
        count += 1
        key = frozenset(state.found.items())
        if key not in seen:
            place.mkdir()
            state.put(place)
            seen[key] = loaded(place)
            shutil.rmtree(place)
        found[is_over][seen[key]] += 1
    return count, found


def is_right(found, before, new):
    """Whether a crash leaves one of the two, and the new one where the saving was over."""
    return set(found[False]) <= {before, new} and set(found[True]) == {new}


@pytest.mark.parametrize("saved", [2, 1, 3, 4])
@pytest.mark.one_in(4)
def test_a_crash_leaves_the_one_before_or_the_new_one(tmp_path, saved):
    steps = [10 * i for i in range(1, saved + 1)]
    before = steps[-2] if saved > 1 else None
    count, found = outcomes(tmp_path, steps)
    assert is_right(found, before, steps[-1]), found
    assert count > 800  # of the four together more than 3,000
    assert found[False][before] > 800


@pytest.mark.exhaustive
def test_one_that_is_written_again_is_never_lost(tmp_path):
    """An attempt that went on from step 10 comes to step 20, which is there already."""
    _, found = outcomes(tmp_path, [10, 20, 20])
    assert set(found[False]) <= {10, 20}, found
    assert set(found[True]) == {20}


def renamed_first(self, step, attempt, manifest, keep):
    disk, part = self._disk, self.folder / f"{step:08d}.{attempt}.part"
    whole = self.folder / f"{step:08d}"
    disk.rename(part, whole)
    disk.write(whole / folders.MANIFEST, [manifest.to_json().encode()])
    disk.sync_folder(whole)
    disk.sync_folder(self.folder)
    for name in self._names()[keep:]:
        self._drop(name)


def pruned_first(self, step, attempt, manifest, keep):
    for name in self._names():
        self._drop(name)
    COMMIT(self, step, attempt, manifest, keep)


COMMIT = Checkpoints.commit


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "without", ["sync file", "sync", "sync run", "sync checkpoints", "sync 00000020.0.part"]
)
def test_a_sync_that_is_left_out_is_found(tmp_path, without):
    _, found = outcomes(tmp_path, [10, 20], without)
    assert not is_right(found, 10, 20)


@pytest.mark.exhaustive
@pytest.mark.parametrize("mutant", [renamed_first, pruned_first])
def test_an_order_that_is_wrong_is_found(tmp_path, monkeypatch, mutant):
    monkeypatch.setattr(Checkpoints, "commit", mutant)
    _, found = outcomes(tmp_path, [10, 20])
    assert not is_right(found, 10, 20)
