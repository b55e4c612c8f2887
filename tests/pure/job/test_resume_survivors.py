"""Checkpoints that are made after a worker has died, and runs that go on from them.

The problem is the oracle: each gradient is 1 at an element of its attempt, epoch, sample and shard,
and updates subtract it. So the parameters say which pushes were applied, and how often. A worker
dies before an event; who goes on where is worked out here once more.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from psrt.checkpoint import Checkpoints, Disk, read_part
from psrt.config import TrainConfig
from psrt.config.faults import EVENT, Fault
from psrt.errors import ConfigError, PsrtError
from psrt.job import giving_back, regroup
from psrt.job.crew import Crew
from psrt.job.resuming import Resumption, resumed_config
from psrt.job.saving import Committer
from psrt.job.virtual import simulate
from psrt.partition import Span
from psrt.runtime.worker import Worker

pytestmark = pytest.mark.rest_one_in(3)

WORKERS, EPOCHS, SAMPLES, ATTEMPTS = 3, 2, 12, 3
MODES = {
    "sync": {"mode": "sync", "servers": 2},
    "backups": {"mode": "sync", "backup": 1, "servers": 2},
    "async": {"mode": "async", "servers": 2},
    "ssp": {"mode": "ssp", "staleness": 1, "servers": 1, "shards_per_server": 2},
    "softsync": {"mode": "softsync", "softsync": 1, "servers": 2},
    "averages": {"mode": "local-sgd", "local_steps": 2, "servers": 2},
    "elastic": {"mode": "easgd", "local_steps": 2, "servers": 2},
    "elastic, async": {"mode": "easgd", "asynchronous": True, "local_steps": 2, "servers": 2},
}  # fmt: skip
ROUNDS = {"sync", "averages", "elastic"}


class Samples:
    """Each step ticks off its sample, at each shard."""

    def __init__(self):
        self.attempt = 0
        #: (attempt, epoch, sample) of each gradient, and who of how many had the sample.
        self.taken, self.whose = [], {}

    def initial(self):
        return np.zeros(2 * ATTEMPTS * EPOCHS * SAMPLES, np.float32)

    def batches(self, place, among, epoch):
        own = [(self.attempt, epoch, it) for it in range(place, SAMPLES, among)]
        self.whose |= dict.fromkeys(own, (place, among))
        return own

    def samples(self, batch):
        return 1

    def loss_and_grad(self, theta, batch, out):
        self.taken.append(batch)
        out[:] = 0
        self.table(out)[:, *batch] = 1
        return 0.5

    def table(self, vector):
        return vector.reshape(2, ATTEMPTS, EPOCHS, SAMPLES)

    def evaluate(self, theta):
        return {}

    def samples_of(self, attempt, worker, dead):
        """Return what a worker took in an attempt in which another one died, in order."""
        left = [it for it in range(WORKERS) if it != dead]
        found = []
        for batch in self.taken:
            if batch[0] == attempt:
                place, among = self.whose[batch]
                if (place if among == WORKERS else left[place]) == worker:
                    found.append(batch)
        return found


def config_of(out, mode, **more):
    return TrainConfig(
        **{
            "batch_size": 1, "epochs": EPOCHS, "lr": 1.0, "optimizer": "sgd", "out": str(out),
            "checkpoint_every": 2, "keep": 1000, "survive": True,
            "inject": ("*:jitter:0.5", "0:delay:0.2"),
        }
        | MODES[mode] | more
    )  # fmt: skip


def crash(worker, event):
    return Fault("crash", (("worker", worker),), EVENT, event)


class Cut:
    """A checkpoint."""

    def __init__(self, path, manifest):
        self.path, self.manifest, self.absent = path, manifest, manifest.absent
        trees = {it.name: read_part(Disk(), path, it) for it in manifest.parts}
        self.roles = {
            int(name.split("-")[1]): tree["role"]
            for name, tree in trees.items()
            if name.startswith("worker")
        }
        self.shards = [tree for name, tree in sorted(trees.items()) if name.startswith("shard")]
        assert {*self.roles, *self.absent} == {*range(manifest.workers)}
        assert len(self.roles) + len(self.absent) == manifest.workers
        files = {it.name for it in path.iterdir()} - {"manifest.json"}
        assert files == {it.file for it in manifest.parts}

    def applied_and_kept(self):
        """Return what is in the parameters, and what codecs keep back."""
        found = []
        for i, tree in enumerate(self.shards):
            senders = [it["strategy"]["encoder"]["senders"] for it in self.roles.values()]
            found.append(sum(it[str(i)]["residual"] for it in senders) - tree["theta"])
        return np.concatenate(found)

    def places(self, after):
        """Return the epoch and the step of it at which each worker goes on; None: it is done."""
        roles, before = self.roles, self.manifest.workers
        training = [it for it in roles if not roles[it]["has_left"]]
        if after >= before:
            stays = [it if it in roles else None for it in range(before)]
        else:
            stays = training + [it for it in roles if it not in training]
        stays = (stays + [None] * after)[:after]
        slowest = min(training, key=lambda it: (roles[it]["clock"], it))
        return [
            self._place(roles[slowest if it is None else it], after)
            if it is None or it in training
            else None
            for it in stays
        ]

    def _place(self, role, after):
        return role["epoch"], (role["taken"] + role["skip"]) * role["among"] // after


def cuts_of(out):
    """Return the checkpoints that are without a worker, the first one first, and all."""
    found = [Cut(*it) for it in Checkpoints(Disk(), Path(out)).listed(verify=True)][::-1]
    return [it for it in found if it.absent], found


def due(problem, places):
    """Return what each worker is to take when it goes on."""
    return Counter(
        (problem.attempt, epoch, sample)
        for worker, place in enumerate(places)
        if place is not None
        for epoch in range(place[0], EPOCHS)
        for i, sample in enumerate(range(worker, SAMPLES, len(places)))
        if (epoch, i) >= place
    )


def went_on(problem, mode, cut, after, out, **more):
    """Go on from a checkpoint to the end, and check what was taken, and that it counts once."""
    problem.attempt += 1
    problem.taken = [it for it in problem.taken if it[0] < problem.attempt]
    config = resumed_config(str(cut.path), out=str(out), **more)
    run = simulate(config, problem, workers=after, seed=problem.attempt)
    wanted = due(problem, cut.places(after))
    taken = Counter(it for it in problem.taken if it[0] == problem.attempt)
    if mode == "backups":
        assert set(taken) <= set(wanted)
    else:
        assert taken == wanted, "samples are missing, or were taken twice"
    table = -problem.table(run.theta)
    if mode.startswith("elastic"):
        assert np.isfinite(table).all()
        return run, table
    check_once(mode, table[:, problem.attempt], wanted)
    for found, it in zip(table, () if more else run.servers, strict=not more):
        # An update is a mean, of a step.
        assert mode == "averages" or np.allclose(found.sum(), it.shard.version, atol=1e-3)
    return run, table


def check_once(mode, found, wanted):
    """Check that these pushes were applied, once at each shard, and no others."""
    is_due = np.zeros(found.shape[1:], bool)
    for _, *it in wanted:
        is_due[*it] = True
    sizes = [2, 3] if mode in ROUNDS else [1, 2, 3]
    ticked = np.isclose(found[..., None], [1 / it for it in sizes], atol=1e-5).any(-1)
    assert (ticked | (np.abs(found) < 1e-5)).all(), "a push came more than once"
    assert not (ticked & ~is_due).any(), "a push came from nowhere"
    if mode != "backups":  # which leave out what is late
        assert (ticked == is_due).all(), "a push was lost"


def check_before(problem, mode, table, cut, dead, died_at, run):
    """Check that what came before the cut is in the parameters, and nothing that came after."""
    attempt = problem.attempt - 1
    table, torn = table[:, attempt], []
    left = []
    for worker, role in cut.roles.items():
        left += problem.samples_of(attempt, worker, dead)[: role["clock"]]
    own = problem.samples_of(attempt, dead, dead) if dead in cut.absent else []
    each = MODES[mode].get("local_steps", 1)
    for shard in range(2):
        mine = table[shard].copy()
        ticked = [not np.isclose(mine[*it[1:]], 0, atol=1e-5) for it in own]
        for it in own:
            mine[*it[1:]] = 0
        if mode != "backups":
            count = sum(ticked)
            assert ticked == [True] * count + [False] * (len(own) - count)
            assert not own or count >= died_at // each * each, "what was answered is lost"
            torn.append(count // each)
        check_once(mode, mine[None], left)
    if mode != "backups":
        assert max(torn) - min(torn) == run.summary.torn


def judge(folder, mode, dead, event, *, groups=(3, 2), cuts=slice(None)):
    """Have a worker die before an event, and go on from each checkpoint without it.

    Returns:
        How many there are.
    """
    problem = Samples()
    out = folder / f"{mode} {dead} {event}"
    first = simulate(
        config_of(out, mode), problem, workers=WORKERS, faults=(crash(dead, event),), seed=3
    )
    found, every = cuts_of(out)
    # The last one that has all of them, too: who has died may have come so far.
    for cut in [it for it in every if not it.absent][-1:] + found[cuts]:
        for after in groups:
            if after <= MODES[mode].get("backup", 0):
                continue
            problem.attempt = 0
            run, table = went_on(problem, mode, cut, after, out / f"{cut.path.name} on {after}")
            if not mode.startswith("elastic"):
                check_before(problem, mode, table, cut, dead, first.workers[dead].clock, run)
            if mode in ROUNDS and after == WORKERS:
                check_epoch(problem, cut, dead)
    return len(found)


def check_epoch(problem, cut, dead):
    """Check that, where the dead one had no share of it, an epoch has lost none of its samples."""
    (place, *_) = cut.places(WORKERS)
    of_both = [
        sample
        for worker, role in cut.roles.items()
        for _, epoch, sample in problem.samples_of(0, worker, dead)[: role["clock"]]
        if epoch == place[0]
    ]
    if {problem.whose[0, place[0], it][1] for it in of_both} == {WORKERS - 1}:
        again = [it[2] for it in problem.taken if it[:2] == (1, place[0])]
        counts = Counter(of_both + again)
        assert set(counts) == set(range(SAMPLES))
        assert sum(counts.values()) - SAMPLES < WORKERS


PARTS = 35


@pytest.mark.one_in(200)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("mode", MODES)
def test_who_dies_before_any_event_costs_no_checkpoint_after_that(tmp_path, mode, part):
    """Each push counts once, whoever goes on from there: as many workers, or who is left."""
    made = [
        judge(tmp_path, mode, event % WORKERS, event, cuts=slice(event % 3, None, 2))
        for event in range(1 + part, 140, PARTS)
    ]
    assert made[0] >= 2


@pytest.mark.one_in(40)
@pytest.mark.parametrize("dead", range(WORKERS))
@pytest.mark.parametrize("mode", MODES)
def test_another_one_dies_in_what_goes_on(tmp_path, mode, dead):
    """A second loss, from the first one's checkpoint on: what came before is left as it was."""
    problem = Samples()
    faults = (crash(1, 40),)
    simulate(config_of(tmp_path / "one", mode), problem, workers=WORKERS, faults=faults, seed=3)
    ((cut, *_), _) = cuts_of(tmp_path / "one")
    assert cut.absent == (1,)
    for event in range(4, 90, 12):
        out = tmp_path / f"two {event}"
        problem.attempt, problem.taken = 1, [it for it in problem.taken if not it[0]]
        again = resumed_config(str(cut.path), out=str(out))
        second = simulate(again, problem, workers=WORKERS, faults=(crash(dead, event),), seed=5)
        for later in cuts_of(out)[0][:2]:
            assert later.absent == (dead,)
            problem.attempt = 1
            _, table = went_on(problem, mode, later, WORKERS, out / f"three {later.path.name}")
            if not mode.startswith("elastic"):
                before = -problem.table(second.theta)[:, 0]
                assert np.allclose(table[:, 0] != 0, before != 0), "of the first attempt"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mode", ["sync", "async", "softsync"])
def test_it_goes_on_with_other_servers_too(tmp_path, mode):
    """Also where a push waits for its update at one shard, and not at another one."""
    differ = 0
    for event in range(20, 90, 10):
        problem, out = Samples(), tmp_path / str(event)
        config = config_of(out, mode)
        first = simulate(config, problem, workers=WORKERS, faults=(crash(1, event),), seed=3)
        cut = cuts_of(out)[0][0]
        run, table = went_on(problem, mode, cut, WORKERS, out / "on", servers=1)
        check_before(problem, mode, table, cut, 1, first.workers[1].clock, run)
        differ += len({len(it["role"]["policy"]["owed"]) for it in cut.shards}) > 1
    assert (differ > 0) == (mode == "softsync")


def test_record_has_no_history_with_another_worker_in_the_place_of_the_dead(tmp_path):
    problem = Samples()
    simulate(
        config_of(tmp_path / "run", "sync"), problem, workers=3, faults=(crash(1, 40),), seed=3
    )
    ((cut, *_), _) = cuts_of(tmp_path / "run")
    for workers, who in ((3, "others in place of the dead"), (2, "others in place of the dead")):
        again = resumed_config(str(cut.path), out=str(tmp_path / "on"), record=True)
        with pytest.raises(ConfigError, match=f"{who}, which --record cannot have"):
            simulate(again, problem, workers=workers)


@pytest.mark.parametrize("mode", ["async", "ssp"])
def test_what_codecs_of_those_who_are_left_kept_back_is_still_to_come(tmp_path, mode):
    """That of the dead one is lost with it, and nothing else."""
    codec = {"codec": "top-k", "codec_density": 0.02, "codec_everywhere": True}
    problem = Samples()
    config = config_of(tmp_path / "run", mode, **codec)
    simulate(config, problem, workers=WORKERS, faults=(crash(1, 70),), seed=3)
    ((cut, *_), _) = cuts_of(tmp_path / "run")
    own = {it: problem.samples_of(0, it, 1) for it in range(WORKERS)}
    left = {it[1:] for worker, role in cut.roles.items() for it in own[worker][: role["clock"]]}
    problem.attempt = 1
    for workers in (3, 2):
        again = resumed_config(str(cut.path), out=str(tmp_path / f"on {workers}"))
        simulate(again, problem, workers=workers, seed=5)
        _, later = cuts_of(tmp_path / f"on {workers}")
        assert later
        for it in later:
            found = problem.table(it.applied_and_kept())[:, 0]
            mine = {it[1:] for it in own[1]}
            for epoch, sample in np.ndindex(EPOCHS, SAMPLES):
                if (epoch, sample) not in mine:
                    due = float((epoch, sample) in left)
                    assert np.allclose(found[:, epoch, sample], due, atol=1e-5)
            assert (found <= 1 + 1e-5).all()


def patched(module, name, make):
    """Return a mutant: ``make`` of what stands under a name takes its place."""
    return lambda mp: mp.setattr(module, name, make(getattr(module, name)))


MUTANTS = {
    "epochs are taken to be dealt out to all": (
        lambda mp: mp.setattr(
            Worker, "_among", property(lambda _: WORKERS, lambda *_: None), raising=False
        ), "sync",
    ),
    "the number that they were dealt out to is not used": (
        patched(giving_back, "worker_tree", lambda tree: lambda trees, *a, **b: tree(
            {i: {**it, "role": {**it["role"], "among": 3}} for i, it in trees.items()}, *a, **b
        )), "sync",
    ),
    "the dead stay": (
        patched(Crew, "of", lambda of: lambda training, *, before, now, absent:
                of(training, before=before, now=now)), "async",
    ),
    "what shards say of the dead is not heard": (
        patched(Committer, "_lost", lambda _: lambda *rest: set()), "async",
    ),
    "torn steps are forgotten": (
        patched(regroup, "_of_the_dead", lambda _: lambda reached: {}), "sync",
    ),
    "of those in rounds, too": (
        patched(regroup, "_stats", lambda stats: lambda *rest: stats(*rest[:-1], ())), "sync",
    ),
    "shards get what another one had": (
        patched(giving_back, "shard_tree", lambda tree: lambda parts, *rest, **more:
                tree([([*of, Span(0, 0)], it) for of, it in parts], *rest, **more)), "softsync",
    ),
    "pending pushes of the dead are forgotten": (
        patched(regroup, "_owed", lambda _: lambda *rest: []), "softsync",
    ),
    "another worker is taken for the one that died": (
        patched(Resumption, "part", lambda part: lambda it, name:
                part(it, name.replace("worker-1-", "worker-0-"))), "async",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.exhaustive
def test_the_oracle_finds(tmp_path, monkeypatch, name):
    mutate, mode = MUTANTS[name]
    judged(tmp_path / "sound", mode)
    mutate(monkeypatch)
    with pytest.raises((AssertionError, PsrtError, LookupError, ValueError, TypeError)):
        judged(tmp_path / "mutant", mode)


def judged(folder, mode):
    for event in range(2, 120, 3):
        judge(folder, mode, 1, event, groups=(3,), cuts=slice(0, 1))


@pytest.mark.parametrize(
    ("absent", "why"),
    [
        ([1], "it has other workers than it says"),
        ([], "it has no worker-0-of-3"),
        ([0, 1, 2], "those of its workers that are absent are none"),
        ([1, 0], "those of its workers that are absent are none"),
        ([3], "those of its workers that are absent are none"),
        (["0"], "those of its workers that are absent are none"),
        (0, "its parts, or who is absent, are no list"),
    ],
)
def test_a_manifest_that_says_who_is_absent_must_be_right(tmp_path, absent, why):
    config = config_of(tmp_path / "run", "sync")
    simulate(config, Samples(), workers=WORKERS, faults=(crash(0, 40),), seed=3)
    path = cuts_of(tmp_path / "run")[0][0].path
    values = json.loads((path / "manifest.json").read_text())
    assert values["absent"] == [0]
    (path / "manifest.json").write_text(json.dumps(values | {"absent": absent}))
    with pytest.raises(ConfigError, match=why):
        simulate(resumed_config(str(path), out=str(tmp_path / "on")), Samples(), workers=WORKERS)
