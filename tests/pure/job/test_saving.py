"""Saving when the disk does not do as it is told."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from psrt.checkpoint import Checkpoints, Disk, Manifest, announced
from psrt.errors import ConfigError, OutputError
from psrt.job.saving import MOST_FAILURES, Committer, Part, Saver, copied
from psrt.transport import drive


class FullDisk(Disk):
    """Takes no part of these steps; announcements fit."""

    def __init__(self, steps):
        self.steps = steps

    def write(self, path, pieces):
        full = (
            path.suffix == ".safetensors" and int(path.parent.name.partition(".")[0]) in self.steps
        )
        if full:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(path, pieces)


def saver_of(
    tmp_path, disk, said, *, names=("worker-0-of-1",), threaded=True, timeout_s=0.2, gone=tuple
):
    checkpoints = Checkpoints(disk, tmp_path)
    saver = Saver(checkpoints, disk, every=10, threaded=threaded)
    saver.committer = Committer(
        checkpoints,
        disk,
        names=names,
        keep=2,
        attempt=0,
        timeout_s=timeout_s,
        manifest=lambda step, parts: Manifest(
            step=step, n=3, workers=1, servers=0, config="", parts=tuple(parts)
        ),
        say=said.append,
        gone=gone,
    )
    return saver


def steps_of(tmp_path):
    return [found.step for _, found in Checkpoints(Disk(), tmp_path).listed()]


@pytest.mark.parametrize("threaded", [True, False])
def test_training_goes_on_after_a_failed_write(tmp_path, threaded):
    said, theta = [], np.zeros(3, np.float32)
    saver = saver_of(tmp_path, FullDisk({20, 30}), said, threaded=threaded)
    part = Part("worker-0-of-1", lambda: {"theta": theta})
    for step in range(1, 61):
        theta += 1
        drive(saver.at(part, step))
    saver.finish()
    assert steps_of(tmp_path) == [60, 50]
    assert said == [
        f"checkpoint of step {step}: No space left on device; training continues without it"
        for step in (20, 30)
    ]
    found, _ = Checkpoints(Disk(), tmp_path).newest()
    assert found.manifest.step == 60
    assert not [it for it in tmp_path.rglob("*.safetensors") if it.read_bytes() == b"half"]


@pytest.mark.parametrize("threaded", [True, False])
def test_it_ends_after_three_in_a_row(tmp_path, threaded):
    said = []
    saver = saver_of(tmp_path, FullDisk({20, 30, 40}), said, threaded=threaded)
    part = Part("worker-0-of-1", lambda: {"theta": np.zeros(3)})
    line = "checkpoint of step 40: No space left on device; 3 in a row have failed"

    def train():
        for step in range(1, 51):
            drive(saver.at(part, step))

    with pytest.raises(OutputError, match=line):
        train()
    assert len(said) == MOST_FAILURES - 1
    assert steps_of(tmp_path) == [10]


def test_a_part_that_does_not_come_is_named(tmp_path):
    said = []
    names = ("worker-0-of-2", "worker-1-of-2")
    saver = saver_of(tmp_path, Disk(), said, names=names)
    drive(saver.at(Part(names[0], lambda: {"theta": np.zeros(3)}), 10))
    saver.finish()
    assert said == [
        "checkpoint of step 10: no worker-1-of-2 within 0.2 s; training continues without it"
    ]


def test_what_is_saved_is_what_was_there_at_the_step(tmp_path):
    theta = np.arange(100_000, dtype=np.float32)
    saver = saver_of(tmp_path, Disk(), [])
    part = Part("worker-0-of-1", lambda: {"theta": theta})
    drive(saver.at(part, 10))
    theta[:] = -1
    saver.finish()
    checkpoints = Checkpoints(Disk(), tmp_path)
    found, _ = checkpoints.newest()
    data = (found.path / "worker-0-of-1.safetensors").read_bytes()
    assert data.endswith(np.arange(100_000, dtype=np.float32).tobytes())


def test_one_step_is_saved_once_and_only_when_it_is_time(tmp_path):
    saver = saver_of(tmp_path, Disk(), [], threaded=False)
    part = Part("worker-0-of-1", lambda: {"theta": np.zeros(3)})
    saver.since(part.name, 20)
    for step in (20, 21, 29):
        drive(saver.at(part, step))
    assert steps_of(tmp_path) == []
    for step in (31, 32, 39):  # rounds of several steps pass the mark
        drive(saver.at(part, step))
    assert steps_of(tmp_path) == [31]


def test_copies_lie_where_earlier_ones_did():
    tree = {"a": np.arange(3.0), "b": {"c": np.zeros((2, 2)), "d": [1, 2], "e": 5}}
    first = copied(tree)
    second = copied({**tree, "a": np.arange(4.0)}, first)
    assert second["b"]["c"] is first["b"]["c"] is not tree["b"]["c"]
    assert second["a"] is not first["a"]
    assert second["b"]["d"] == [1, 2]
    assert second["b"]["d"] is not tree["b"]["d"]


def test_the_memory_of_copies_is_there_before_the_first(tmp_path):
    theta = np.arange(3.0)
    saver = saver_of(tmp_path, Disk(), [])
    part = Part("worker-0-of-1", lambda: {"theta": theta})
    saver.warm(part)
    with mock.patch.object(np, "empty_like", side_effect=AssertionError("made while it trains")):
        theta += 1
        drive(saver.at(part, 10))
    saver.finish()
    data = (tmp_path / "checkpoints/00000010/worker-0-of-1.safetensors").read_bytes()
    assert data.endswith(theta.tobytes())  # not what was there when the memory was got


def test_a_folder_that_others_may_write_to_is_refused(tmp_path):
    folder = Path(tmp_path / "checkpoints")
    folder.mkdir()
    folder.chmod(0o777)
    said = []
    saver = saver_of(tmp_path, Disk(), said, threaded=False)
    drive(saver.at(Part("worker-0-of-1", lambda: {"theta": np.zeros(3)}), 10))
    saver.finish()
    assert len(said) == 1
    assert "others may write to it" in said[0]


def test_what_could_not_be_written_fails_once_however_often_roles_end(tmp_path):
    said = []
    names = ("worker-0-of-2", "worker-1-of-2")
    saver = saver_of(tmp_path, FullDisk({10}), said, names=names, threaded=False)
    for name in names:
        drive(saver.at(Part(name, lambda: {"theta": np.zeros(3)}), 10))
        saver._step = -1  # as another process
    for name in names * 2:
        drive(saver.ended(Part(name, dict), stays=True))
    saver.finish()
    assert said == ["checkpoint of step 10: No space left on device; training continues without it"]


def test_a_role_that_is_done_is_no_failure(tmp_path):
    said = []
    names = ("worker-0-of-2", "worker-1-of-2")
    saver = saver_of(tmp_path, Disk(), said, names=names, timeout_s=60.0)
    drive(saver.ended(Part(names[1], dict)))
    for step in range(1, 90):
        drive(saver.at(Part(names[0], lambda: {"theta": np.zeros(3)}), step))
    saver.finish()
    assert said == ["worker-1-of-2 has done all its steps: no more checkpoints"]


class SlowDisk(Disk):
    """Writes parts only after others may have said what they have to say."""

    def __init__(self):
        self.said, self.order = threading.Event(), []

    def write(self, path, pieces):
        if path.suffix == ".safetensors":
            self.said.wait(0.1)
        super().write(path, pieces)

    def rename(self, old, new):
        super().rename(old, new)
        self.order.append(new.parent.name)
        self.said.set()


def test_a_role_that_is_done_right_after_its_step_is_part_of_that_checkpoint(tmp_path):
    # As where a run is stopped: workers save themselves, and leave.
    disk, names = SlowDisk(), ("worker-0-of-2", "worker-1-of-2")
    theirs = Saver(Checkpoints(disk, tmp_path), disk, every=10)
    part = Part(names[1], lambda: {"theta": np.zeros(3, np.float32)})
    drive(theirs.at(part, 10))
    drive(theirs.ended(part))
    assert disk.order == ["00000010.0.part", "00000000.0.done.part"]
    said = []
    first = saver_of(tmp_path, Disk(), said, names=names, timeout_s=60.0)
    drive(first.at(Part(names[0], lambda: {"theta": np.zeros(3, np.float32)}), 10))
    first.finish()
    assert said == []
    assert steps_of(tmp_path) == [10]


NAMES = ("worker-0-of-2", "worker-1-of-2", "shard-0-of-1")


def zeros():
    return {"theta": np.zeros(3, np.float32)}


def others(tmp_path, *parts):
    """Save parts of other processes, of step 10."""
    saver = Saver(Checkpoints(Disk(), tmp_path), Disk(), every=10, threaded=False)
    for part in parts:
        drive(saver.at(part, 10))
    return saver


OWN = Part(NAMES[2], zeros)


def committed(tmp_path, *, gone=lambda: {1}, own=OWN):
    """Save a part at the first process; return what the checkpoint of step 10 has, and is said."""
    said = []
    first = saver_of(tmp_path, Disk(), said, names=NAMES, timeout_s=60.0, gone=gone)
    drive(first.at(own, 10))
    first.finish()
    found, _ = Checkpoints(Disk(), tmp_path).newest()
    folder = set() if found is None else {it.stem for it in found.path.iterdir()} - {"manifest"}
    names = [] if found is None else [it.name for it in found.manifest.parts]
    assert folder == set(names)
    return names, said


def test_who_is_gone_is_not_waited_for(tmp_path):
    others(tmp_path, Part(NAMES[0], zeros))
    assert committed(tmp_path) == ([NAMES[0], NAMES[2]], [])


def test_what_it_has_written_before_is_a_part_like_any_other(tmp_path):
    folder = Checkpoints(Disk(), tmp_path).begin(10, 0)
    died = []

    def gone():  # as late as can be: all others are there
        if not died and NAMES[2] in announced(Disk(), folder):
            others(tmp_path, Part(NAMES[1], zeros))
            died.append(1)
        return died

    others(tmp_path, Part(NAMES[0], zeros))
    assert committed(tmp_path, gone=gone) == ([*NAMES], [])


@pytest.mark.parametrize("gone", [{1}, set()])
def test_but_not_if_a_shard_had_gone_on_without_it(tmp_path, gone):
    others(tmp_path, Part(NAMES[0], zeros), Part(NAMES[1], zeros))
    own = Part(NAMES[2], zeros, without=lambda: [1])
    assert committed(tmp_path, gone=lambda: gone, own=own) == ([NAMES[0], NAMES[2]], [])


def test_who_was_done_before_is_part_of_it_as_it_was(tmp_path):
    saver = others(tmp_path, Part(NAMES[0], zeros))
    drive(saver.ended(Part(NAMES[1], zeros), stays=True))
    own = Part(NAMES[2], zeros, without=lambda: [1])
    assert committed(tmp_path, own=own) == ([*NAMES], [])


def test_there_is_none_from_which_nobody_would_go_on(tmp_path):
    drive(others(tmp_path).ended(Part(NAMES[0], zeros), stays=True))
    assert committed(tmp_path) == ([], [])


def test_what_is_over_is_in_no_checkpoint_any_more(tmp_path):
    others(tmp_path, Part(NAMES[0], zeros), Part(NAMES[1], zeros))
    own = Part(NAMES[2], zeros, over=lambda: "is alone")
    names, (line,) = committed(tmp_path, own=own)
    assert names == []
    assert line == "shard-0-of-1 is alone: no more checkpoints"


def test_a_process_that_does_not_see_the_folder_says_so(tmp_path):
    saver = saver_of(tmp_path, Disk(), [])
    with pytest.raises(ConfigError, match="needs an --out that every rank can write to"):
        saver.check()
    Checkpoints(Disk(), tmp_path).prepare()
    saver.check()
