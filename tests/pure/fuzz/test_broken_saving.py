"""Each way to break saving, recovery and the loss of a worker is found by a few random jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from psrt.checkpoint import state
from psrt.checkpoint.disk import Disk
from psrt.checkpoint.folder import Checkpoints
from psrt.job import giving_back, resuming, saving
from psrt.job.saving import Saver
from psrt.runtime.shard_server import ShardServer
from psrt.runtime.worker import Worker
from psrt.sync.policy import Policy
from support.faults import undisturbed
from support.faulty_jobs import FaultyJob

#: Jobs that may be needed.
JOBS = 200

Break = Callable[[pytest.MonkeyPatch], None]

#: What a role may forget to take back, by the end of its path in the role.
FORGOTTEN = (
    "Worker.clock",
    "Worker.epoch",
    "Worker.taken",
    "Worker.meter",
    "Worker.meter.steps",
    "Worker.meter.stats",
    "Worker.meter.reported_step",
    "meter.reported_samples",
    "meter.loss_sum",
    "Worker.meter.staleness",
    "Worker.strategy",
    "reducer.updates",
    "ShardServer.policy.version",
    "ShardServer.policy.clock",
    "ShardServer.policy.owed",
    "ShardServer.shard.version",
    "ShardServer.shard.stats",
    "ShardServer.shard.owed",
    "ShardServer.shard.updater",
    "ShardServer.shard.rate",
    "ShardServer.clock",
    "reducer.updater",
    "optimizer.updates",
    "optimizer.state",
    "encoder.senders.0.residual",
    "sums.0.senders.0.residual",
    "strategy.weight",
)


def forgets(what: str) -> Break:
    """Return what has roles go on with what they begin with in one place."""

    def breaks(patch: pytest.MonkeyPatch) -> None:
        restored = state._restored

        def some(value: Any, tree: Any, path: str) -> Any:
            is_forgotten = path == what or path.endswith(f".{what}")
            return value if is_forgotten else restored(value, tree, path)

        patch.setattr(state, "_restored", some)

    breaks.__name__ = f"forgets {what}"
    return breaks


def _after(patch: pytest.MonkeyPatch, kind: Any, name: str, then: Callable[..., Any]) -> None:
    """Have something happen to what a method returns: ``then(self, returned, *arguments)``."""
    method = getattr(kind, name)
    patch.setattr(kind, name, lambda self, *args: then(self, method(self, *args), *args))


def a_batch_is_passed_over(patch):
    def one_more(self, _, *__):
        self._taken += self.clock > 0

    _after(patch, Worker, "restore", one_more)


def a_batch_is_trained_on_twice(patch):
    def one_less(self, _, *__):
        self._taken = max(0, self._taken - 1)

    _after(patch, Worker, "restore", one_less)


def a_step_is_counted_twice(patch):
    def one_more(self, _, *__):
        self.clock += 1

    _after(patch, Worker, "restore", one_more)


def a_version_is_skipped(patch):
    def one_more(self, _, *__):
        self.shard.version += 1

    _after(patch, ShardServer, "restore", one_more)


def shards_begin_with_zeros(patch):
    _after(patch, resuming.Resumption, "theta", lambda self, theta, *_: theta * 0)


def a_shard_loses_an_element(patch):
    def without(self, theta, *_):
        theta = theta.copy()
        theta[-1:] = 0
        return theta

    _after(patch, resuming.Resumption, "theta", without)


def the_first_copy_is_saved_for_ever(patch):
    copied = saving.copied
    patch.setattr(saving, "copied", lambda tree, into=None: copied(tree) if into is None else into)


def files_are_not_synced(patch):
    def write(self, path, pieces):
        with open(path, "xb") as file:
            file.writelines(pieces)

    patch.setattr(Disk, "write", write)


def folders_are_not_synced(patch):
    patch.setattr(Disk, "sync_folder", lambda self, path: None)


def the_older_goes_first(patch):
    commit = Checkpoints.commit

    def early(self, step, attempt, manifest, keep):
        for name in self._names()[max(keep - 1, 0) :]:
            self._drop(name)
        return commit(self, step, attempt, manifest, keep)

    patch.setattr(Checkpoints, "commit", early)


def _kept(more):
    def breaks(patch):
        commit = Checkpoints.commit
        patch.setattr(
            Checkpoints, "commit",
            lambda self, step, attempt, manifest, keep: commit(
                self, step, attempt, manifest, keep + more
            ),
        )  # fmt: skip

    return breaks


def one_more_is_kept(patch):
    _kept(1)(patch)


def one_fewer_is_kept(patch):
    _kept(-1)(patch)


def the_newest_is_deleted(patch):
    commit = Checkpoints.commit

    def newest(self, step, attempt, manifest, keep):
        whole = commit(self, step, attempt, manifest, keep + 1)
        if len(names := self._names()) > keep:
            self._drop(names[0])
        return whole

    patch.setattr(Checkpoints, "commit", newest)


def the_oldest_is_gone_on_from(patch):
    names = Checkpoints._names
    patch.setattr(Checkpoints, "_names", lambda self: names(self)[::-1])


def nothing_is_swept(patch):
    patch.setattr(Checkpoints, "prepare", lambda self: self._make())


def nothing_is_saved(patch):
    patch.setattr(Saver, "_write", lambda self, part, step: None)


def saves_a_step_later(patch):
    at = Saver.at

    async def later(self, part, step):
        return await at(self, part, max(step - 1, 0))

    patch.setattr(Saver, "at", later)


def the_step_is_named_one_more(patch):
    write = Saver._write
    patch.setattr(Saver, "_write", lambda self, part, step: write(self, part, step + 1))


def a_part_is_not_announced(patch):
    announce = saving.announce
    patch.setattr(
        saving, "announce",
        lambda disk, folder, it: it.name.startswith("worker-1") or announce(disk, folder, it),
    )  # fmt: skip


def a_cut_leaves_out_the_last(patch):
    release = Policy._release

    def early(self, decisions):
        if len(self.parked) == len(self.clock) - 1 and self.parked:
            spare = self.clock
            self.clock = {it: spare[it] for it in self.parked}
            release(self, decisions)
            self.clock = spare
        else:
            release(self, decisions)

    patch.setattr(Policy, "_release", early)


def who_parked_is_not_answered(patch):
    release = Policy._release

    def silent(self, decisions):
        release(self, decisions)
        decisions[:] = [it for it in decisions if type(it).__name__ != "Serve"]

    patch.setattr(Policy, "_release", silent)


def the_push_of_the_dead_is_kept(patch):
    leave = Policy._leave

    def keeps(self, event):
        return [it for it in leave(self, event) if type(it).__name__ != "Drop"]

    patch.setattr(Policy, "_leave", keeps)


def the_dead_are_waited_for(patch):
    leave = Policy._leave

    def waits(self, event):
        fill = Policy._fill
        self._fill = lambda decisions: None
        try:
            return leave(self, event)
        finally:
            self._fill = fill.__get__(self)

    patch.setattr(Policy, "_leave", waits)


def the_dead_hold_the_gate(patch):
    leave = Policy._leave

    def holds(self, event):
        self._serve = lambda decisions: None
        try:
            return leave(self, event)
        finally:
            del self._serve

    patch.setattr(Policy, "_leave", holds)


def what_reached_the_shard_is_one_more(patch):
    note = ShardServer._note_reached
    patch.setattr(
        ShardServer, "_note_reached",
        lambda self, worker, steps: note(self, worker, steps + self.number),
    )  # fmt: skip


def events_of_the_dead_stay(patch):
    patch.setattr(giving_back, "_events_of", lambda tree: tree["events"] + 1)


def events_are_cut_off(patch):
    patch.setattr(giving_back, "_events_of", lambda tree: max(0, tree["events"] - 1))


def the_last_push_is_applied_again(patch):
    def again(self, _, *__):
        theta = self.shard.theta
        theta[:] += theta.astype(bool)

    _after(patch, ShardServer, "restore", again)


def parts_change_places(patch):
    part = resuming.Resumption.part

    def other(self, name):
        places = {"worker-0": "worker-1", "worker-1": "worker-0"}
        return part(self, places.get(name[:8], name[:8]) + name[8:])

    patch.setattr(resuming.Resumption, "part", other)


BREAKS = [
    *map(forgets, FORGOTTEN),
    a_batch_is_passed_over,
    a_batch_is_trained_on_twice,
    a_step_is_counted_twice,
    a_version_is_skipped,
    shards_begin_with_zeros,
    a_shard_loses_an_element,
    the_first_copy_is_saved_for_ever,
    files_are_not_synced,
    folders_are_not_synced,
    the_older_goes_first,
    one_more_is_kept,
    one_fewer_is_kept,
    the_newest_is_deleted,
    the_oldest_is_gone_on_from,
    nothing_is_swept,
    nothing_is_saved,
    saves_a_step_later,
    the_step_is_named_one_more,
    a_part_is_not_announced,
    a_cut_leaves_out_the_last,
    who_parked_is_not_answered,
    the_push_of_the_dead_is_kept,
    the_dead_are_waited_for,
    the_dead_hold_the_gate,
    what_reached_the_shard_is_one_more,
    events_of_the_dead_stay,
    events_are_cut_off,
    the_last_push_is_applied_again,
    parts_change_places,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("broken")


@pytest.mark.one_in(12)
@pytest.mark.parametrize("breaks", BREAKS, ids=lambda it: it.__name__.replace(" ", "_"))
def test_a_break_of_saving_is_found(breaks, folder, monkeypatch):
    # Before anything is broken, what a job comes to is known.
    for seed in range(JOBS):
        job = FaultyJob(seed)
        with monkeypatch.context() as patch:
            undisturbed(job.name, folder)
            if job.saves:
                undisturbed(job.name, folder, job.every, record=job.records)
            breaks(patch)
            try:
                job.keeps_its_promise(folder)
            except Exception:
                return
    pytest.fail(f"no job of {JOBS} found it")
