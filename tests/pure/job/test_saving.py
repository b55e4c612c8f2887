"""Parts of a checkpoint are saved, gathered and committed, whatever the disk or a worker does."""

from __future__ import annotations

import errno
import os
import threading
from unittest import mock

import numpy as np
import pytest

from psrt.checkpoint import Checkpoints, Disk, Manifest, announced
from psrt.core.errors import ConfigError, OutputError
from psrt.job.background import Background
from psrt.job.boundaries import Boundaries
from psrt.job.committing import Committer
from psrt.job.saving import Part, Saver
from psrt.sync.cut import Cuts
from psrt.transport import drive
from support.cases import each

OWN, OTHER, SHARD = NAMES = ("worker-0-of-2", "worker-1-of-2", "shard-0-of-1")


class FullDisk(Disk):
    """Takes no part of these steps; announcements fit."""

    def __init__(self, steps):
        self.steps = steps

    def write(self, path, pieces):
        step = int(path.parent.name.partition(".")[0])
        if path.suffix == ".safetensors" and step in self.steps:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(path, pieces)


def zeros():
    return {"theta": np.zeros(3, np.float32)}


def saver_of(
    folder, said=None, *, disk=None, names=(OWN,), threaded=True, timeout_s=60.0, gone=tuple
):
    """Return a saver of the first process, which gathers the parts of these names."""
    disk = disk or Disk()
    checkpoints = Checkpoints(disk, folder)
    committer = Committer(
        checkpoints=checkpoints,
        disk=disk,
        names=names,
        keep=2,
        attempt=0,
        timeout_s=timeout_s,
        manifest=lambda step, parts: Manifest(
            step=step, n=3, workers=1, servers=0, config="", parts=tuple(parts)
        ),
        say=[].append if said is None else said.append,
        asked="--checkpoint-every 10",
        gone=gone,
    )
    boundaries = Boundaries(Cuts(0, processes=1))
    return Saver(
        checkpoints=checkpoints,
        disk=disk,
        boundaries=boundaries,
        every=10,
        threaded=threaded,
        committer=committer,
    )


def test_who_asked_for_checkpoints_and_got_none_is_told(tmp_path):
    said = []
    saver = saver_of(tmp_path, said, threaded=False)
    drive(saver.at(Part(OWN, zeros), 9))
    saver.close()
    why = "the run ended before one was due"
    assert said == [f"--checkpoint-every 10: no checkpoint was made: {why}"]


def steps_of(folder):
    return [found.step for _, found in Checkpoints(Disk(), folder).listed()]


@each("threaded", [True, False])
def test_training_goes_on_after_a_failed_write_and_ends_after_three(tmp_path, threaded):
    said, folder = [], tmp_path / f"{threaded}"
    folder.mkdir()
    saver = saver_of(folder, said, disk=FullDisk({20, 30, 70, 80, 90}), threaded=threaded)
    part = Part(OWN, zeros)
    for step in range(1, 61):
        drive(saver.at(part, step))
    saver.finish()
    assert steps_of(folder) == [60, 50]
    assert said == [
        f"checkpoint of step {step}: No space left on device; training continues without it"
        for step in (20, 30)
    ]
    assert not [it for it in folder.rglob("*.safetensors") if it.read_bytes() == b"half"]

    def train():
        for step in range(61, 101):
            drive(saver.at(part, step))

    line = "checkpoint of step 90: No space left on device; 3 in a row have failed"
    with pytest.raises(OutputError, match=line):
        train()
    assert len(said) == 4
    assert steps_of(folder) == [60, 50]


def test_a_part_that_does_not_come_is_named(tmp_path):
    said = []
    saver = saver_of(tmp_path, said, names=(OWN, OTHER), timeout_s=0.2)
    drive(saver.at(Part(OWN, zeros), 10))
    saver.finish()
    assert said == [
        "checkpoint of step 10: no worker-1-of-2 within 0.2 s; training continues without it"
    ]


def test_what_is_saved_is_what_was_there_at_the_step(tmp_path):
    """In memory that is there before the first, and not with what was there then."""
    theta = np.arange(100_000, dtype=np.float32)
    saver, part = saver_of(tmp_path), Part(OWN, lambda: {"theta": theta})
    saver.warm(part)
    with mock.patch.object(np, "empty_like", side_effect=AssertionError("made while it trains")):
        theta += 1
        due = theta.tobytes()
        drive(saver.at(part, 10))
    theta[:] = -1
    saver.finish()
    data = (tmp_path / "checkpoints/00000010" / f"{OWN}.safetensors").read_bytes()
    assert data.endswith(due)


def test_one_step_is_saved_once_and_only_when_it_is_time(tmp_path):
    saver, part = saver_of(tmp_path, threaded=False), Part(OWN, zeros)
    saver.since(part.name, 20)
    for step in (20, 21, 29):
        drive(saver.at(part, step))
    assert steps_of(tmp_path) == []
    for step in (31, 32, 39):  # rounds of several steps pass the mark
        drive(saver.at(part, step))
    assert steps_of(tmp_path) == [31]


def test_a_folder_that_others_may_write_to_is_refused(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints").chmod(0o777)
    said = []
    saver = saver_of(tmp_path, said, threaded=False)
    drive(saver.at(Part(OWN, zeros), 10))
    saver.finish()
    (line,) = said
    assert "others may write to it" in line


def test_a_process_that_does_not_see_the_folder_says_so(tmp_path):
    saver = saver_of(tmp_path)
    with pytest.raises(ConfigError, match="needs an --out that every rank can write to"):
        saver.check()
    Checkpoints(Disk(), tmp_path).prepare()
    saver.check()


def test_a_role_that_is_done_is_no_failure(tmp_path):
    said = []
    saver = saver_of(tmp_path, said, names=(OWN, OTHER))
    drive(saver.ended(Part(OTHER, dict)))
    for step in range(1, 90):
        drive(saver.at(Part(OWN, zeros), step))
    saver.finish()
    assert said == ["worker-1-of-2 has done all its steps: no more checkpoints"]


# --- workers that are gone ------------------------------------------------------------------------


def others(folder, *names):
    """Save parts of other processes, of step 10."""
    boundaries = Boundaries(Cuts(0, processes=1))
    saver = Saver(
        checkpoints=Checkpoints(Disk(), folder),
        disk=Disk(),
        boundaries=boundaries,
        every=10,
        threaded=False,
    )
    for name in names:
        drive(saver.at(Part(name, zeros), 10))
    return saver


def committed(folder, *, gone=lambda: {1}, **own):
    """Save a part at the first process; return what the checkpoint of step 10 has, and is said."""
    said = []
    first = saver_of(folder, said, names=NAMES, gone=gone)
    drive(first.at(Part(SHARD, zeros, **own), 10))
    first.finish()
    found, _ = Checkpoints(Disk(), folder).newest()
    there = set() if found is None else {it.stem for it in found.path.iterdir()} - {"manifest"}
    names = [] if found is None else [it.name for it in found.manifest.parts]
    assert there == set(names)
    return names, said


def test_what_it_has_written_before_is_a_part_like_any_other(tmp_path):
    folder = Checkpoints(Disk(), tmp_path).begin(10, 0)
    died = []

    def gone():  # as late as can be: all others are there
        if not died and SHARD in announced(Disk(), folder):
            others(tmp_path, OTHER)
            died.append(1)
        return died

    others(tmp_path, OWN)
    assert committed(tmp_path, gone=gone) == ([*NAMES], [])


#: Who has saved its part of step 10, who was done before, what else is so, and what comes of it.
COMMITTED = [
    ([OWN], None, {}, [OWN, SHARD]),  # who is gone is not waited for
    # A shard had gone on without it.
    ([OWN, OTHER], None, {"without": lambda: [1]}, [OWN, SHARD]),
    ([OWN, OTHER], None, {"without": lambda: [1], "gone": set}, [OWN, SHARD]),
    ([OWN], OTHER, {"without": lambda: [1]}, [*NAMES]),
    ([], OWN, {}, []),  # nobody would go on from it
]


@each(("saved", "done", "more", "wanted"), COMMITTED)
def test_a_checkpoint_has_who_was_there_and_whom_shards_know(tmp_path, saved, done, more, wanted):
    folder = tmp_path / f"{saved} {done} {[*more]}"
    folder.mkdir()
    saver = others(folder, *saved)
    if done is not None:
        drive(saver.ended(Part(done, zeros), stays=True))
    assert committed(folder, **more) == (wanted, [])


def test_what_is_over_is_in_no_checkpoint_any_more(tmp_path):
    others(tmp_path, OWN, OTHER)
    line = "shard-0-of-1 is alone: no more checkpoints"
    assert committed(tmp_path, over=lambda: "is alone") == ([], [line])


# --- a thread that is there before there is something to do ---------------------------------------


def test_it_does_all_in_order_and_only_then_has_finished():
    background, may_go, done = Background(), threading.Event(), []
    background.do(lambda: done.append(may_go.wait(60)))
    for i in range(5):
        background.do(lambda i=i: done.append(i))
    assert done == []  # whoever asks goes on
    may_go.set()
    background.finish()
    assert done == [True, 0, 1, 2, 3, 4]
    background.close()


def test_its_thread_survives_an_error_and_ends(capfd):
    background, ran_in = Background(), []
    background.do(lambda: 1 / 0)
    background.do(lambda: ran_in.append(threading.current_thread()))
    background.finish()
    assert "ZeroDivisionError" in capfd.readouterr().err
    background.close()
    ran_in[0].join(60)
    assert not ran_in[0].is_alive()
