"""Checkpoints where workers stop at clocks of their own, or have died, and whoever resumes there.

The problem is the oracle: each gradient is 1 at an element of its attempt, epoch and sample, in
each row, and updates subtract it. So parameters, with what codecs keep back, say which pushes they
are made of, and how often. Who resumes where is worked out here once more. That each push counts
once where all live, nothing is encoded and nobody is drawn is a law of all jobs, with other workers
and servers, too.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from psrt.checkpoint import Checkpoints, Disk, read_part
from psrt.config import TrainConfig
from psrt.config.faults import EVENT, Fault
from psrt.config.modes import MODES as MODE_ROWS
from psrt.core.errors import ConfigError, StoppedError
from psrt.history.check.run import check_run
from psrt.job.boundaries import Boundaries
from psrt.job.resuming import resumed_config
from psrt.job.virtual import simulate
from psrt.runtime.worker import Worker
from support.cases import each

WORKERS, ROWS, ATTEMPTS, EPOCHS, SAMPLES = 3, 12, 2, 2, 12
#: Of the grid of events.
PARTS = 35
TOP_K = {"codec": "top-k:density=0.001", "codec_everywhere": True}
ELASTIC = {"mode": "easgd:local-steps=2", "servers": 2}
MODES = {
    "sync": {"mode": "sync", "servers": 2},
    "async": {"mode": "async", "servers": 2},
    "ssp": {"mode": "ssp:staleness=1", "servers": 1, "shards_per_server": 2},
    "softsync": {"mode": "softsync:k=1", "servers": 2},
    "averages": {"mode": "local-sgd:local-steps=2", "servers": 2},
    "elastic, async": ELASTIC | {"mode": "easgd:local-steps=2,asynchronous=true"},
}  # fmt: skip
CODED = {
    "codec": {"mode": "async", "servers": 2, **TOP_K},
    "replies": {"mode": "ssp:staleness=1", "servers": 2, "codec_reply": "float16", **TOP_K},
    "sync, codec": {"mode": "sync", "servers": 2, "codec_reply": "float16", **TOP_K},
    "elastic, codec": ELASTIC
    | {"mode": "easgd:local-steps=2,asynchronous=true", "codec_reply": "float16", **TOP_K},
}
ROUNDS = {"sync", "averages", "sync, codec"}


class Samples:
    """Each step ticks off its sample, in each row."""

    def __init__(self):
        self.attempt = 0
        #: The worker that dies in the first one, if any.
        self.dead = None
        #: (attempt, epoch, sample) of each gradient, and who of how many had the sample.
        self.taken, self.whose = [], {}

    def initial(self):
        return np.zeros(ROWS * ATTEMPTS * EPOCHS * SAMPLES, np.float32)

    def batches(self, place, among, epoch):
        own = [(self.attempt, epoch, it) for it in range(place, SAMPLES, among)]
        self.whose |= dict.fromkeys(own, (place, among))
        return own

    def samples(self, batch):
        return 1

    def loss_and_grad(self, theta, batch, out):
        self.taken.append(batch)
        out[:] = 0
        table_of(out)[:, *batch] = 1
        return 0.5

    def evaluate(self, theta):
        return {}

    def again(self):
        """Begin the second attempt, anew."""
        self.attempt = 1
        self.taken = [it for it in self.taken if it[0] == 0]

    def samples_of(self, worker):
        """Return what a worker took in the first attempt, in which one may have died, in order."""
        left = [it for it in range(WORKERS) if it != self.dead]
        found = []
        for batch in self.taken:
            if batch[0] == 0:
                place, among = self.whose[batch]
                if (place if among == WORKERS else left[place]) == worker:
                    found.append(batch)
        return found


def table_of(vector):
    return vector.reshape(ROWS, ATTEMPTS, EPOCHS, SAMPLES)


def first_of(problem, mode, out, *, dead=None, event=40, **more):
    """Train; if a worker is said to die before an event, without it from then on."""
    knobs = {
        "batch_size": 1, "epochs": EPOCHS, "lr": 1.0, "optimizer": "sgd", "out": str(out),
        "checkpoint_every": 2, "keep": 1000, "survive": True,
        "inject": ("*:jitter:0.5", "0:delay:0.2"),
    }  # fmt: skip
    config, problem.dead = TrainConfig(**knobs | (MODES | CODED)[mode] | more), dead
    faults = () if dead is None else (crash(dead, event),)
    return simulate(config, problem, workers=WORKERS, faults=faults, seed=3)


def crash(worker, event):
    return Fault("crash", (("worker", worker),), EVENT, event)


class Cut:
    """A checkpoint."""

    def __init__(self, path, manifest):
        self.path, self.before, self.absent = path, manifest.workers, manifest.absent
        trees = {it.name: read_part(Disk(), path, it) for it in manifest.parts}
        self.roles = {
            int(name.split("-")[1]): tree["role"]
            for name, tree in trees.items()
            if name.startswith("worker")
        }
        self.shards = [tree for name, tree in sorted(trees.items()) if name.startswith("shard")]
        assert {*self.roles, *self.absent} == {*range(self.before)}

    @property
    def goes_on(self):
        """Whether somebody has steps left."""
        return not all(role["has_left"] for role in self.roles.values())

    def pushes(self, mode):
        """Return what the pushes come to, whether applied, pending or kept back."""
        weight = 1 / len(self.roles) if mode in ROUNDS else 1
        parts = []
        for i, tree in enumerate(self.shards):
            total, owed = -tree["theta"].astype(np.float64), tree["role"]["shard"]["owed"]
            if owed is not None:
                total += owed
            for role in self.roles.values() if mode in CODED and "elastic" not in mode else ():
                total += role["strategy"]["encoder"]["senders"][str(i)]["residual"] * weight
            parts.append(total)
        found = np.concatenate(parts)
        if "elastic" in mode:  # forces do not change the sum of the centre and all workers
            found -= sum(it["strategy"]["averager"]["theta"] for it in self.roles.values())
        return table_of(found)

    def check_held(self, mode):
        """Check that workers hold what servers, who send them differences, think that they do."""
        replies = "codec_reply" in (MODES | CODED)[mode]
        for worker, role in self.roles.items() if replies else ():
            strategy, held = role["strategy"], []
            for it in self.shards:
                by_worker = it["role"]["replies"]["held"]
                held.append(by_worker.get(str(worker), by_worker["0"]))
            if "averager" in strategy:
                mine = strategy["averager"]["centre"]
            else:
                spans = strategy["decoder"]["spans"]
                mine = np.concatenate([spans[str(i)] for i in range(len(held))])
            assert (mine == np.concatenate(held)).all()

    def places(self, after):
        """Return the clock, epoch and step of it at which each worker resumes; None: it is done."""
        roles, before = self.roles, self.before
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
        step = (role["taken"] + role["skip"]) * role["among"] // after
        return role["clock"], role["epoch"], step


def cuts_of(out):
    """Return the checkpoints that are without a worker, the first one first, and all."""
    found = [Cut(*it) for it in Checkpoints(Disk(), Path(out)).listed(verify=True)][::-1]
    return [it for it in found if it.absent], found


def due(places):
    """Return by worker what it is to take when it resumes, in order."""
    return [
        []
        if place is None
        else [
            (1, epoch, sample)
            for epoch in range(place[1], EPOCHS)
            for i, sample in enumerate(range(worker, SAMPLES, len(places)))
            if (epoch, i) >= place[1:]
        ]
        for worker, place in enumerate(places)
    ]


def check_once(mode, found, wanted, among=WORKERS):
    """Check that these pushes are there, once in each row, and no others.

    Args:
        mode: of the job.
        found: what there is of each.
        wanted: the pushes.
        among: the number of workers then; in an update there are fewer where some had died.
    """
    is_due = np.zeros(found.shape[1:], bool)
    for _, *it in wanted:
        is_due[*it] = True
    sizes = [1]
    if mode == "softsync":  # the next update has what was pending, too
        sizes = range(1, 5)
    elif mode in ("sync", "averages"):
        sizes = range(2, among + 1)
    elif mode == "sync, codec":
        sizes = [among]
    ticked = np.isclose(found[..., None], [1 / it for it in sizes], atol=1e-5).any(-1)
    assert (ticked | (np.abs(found) < 1e-5)).all(), "a push came more than once"
    assert (ticked == is_due).all(), "a push was lost, or came from nowhere"


def went_on(problem, mode, cut, after, out, servers=None):
    """Resume to the end, and check what was taken, and that it counts once."""
    problem.again()
    more = {} if servers is None else {"servers": servers}
    config = resumed_config(str(cut.path), out=str(out), checkpoint_every=3, **more)
    run = simulate(config, problem, workers=after, seed=1)
    by_worker = due(cut.places(after))
    wanted = [it for its in by_worker for it in its]
    taken = Counter(it for it in problem.taken if it[0] == 1)
    assert taken == Counter(wanted), "samples are missing, or were taken twice"
    if not cut.absent:
        done = sum(it["clock"] for it in cut.roles.values())
        assert run.summary.samples == done + len(wanted)
    table = -table_of(run.theta)
    if mode in MODES and "elastic" not in mode:
        check_once(mode, table[:, 1], wanted, after)
    clocks = [0 if it is None else it[0] for it in cut.places(after)]
    lost = bool(cut.absent) or after != WORKERS
    for later in [] if "elastic" in mode and lost else cuts_of(out)[1]:
        assert later.path.name > cut.path.name
        later.check_held(mode)
        there = [
            it
            for worker, role in later.roles.items()
            for it in by_worker[worker][: role["clock"] - clocks[worker]]
        ]
        if mode in CODED or "elastic" in mode:
            check_once(mode, later.pushes(mode)[:, 1], there, after)
            check_before(problem, mode, later.pushes(mode), cut)
    return run, table


def check_before(problem, mode, table, cut, died_at=0):
    """Check that what came before the cut is there, and nothing that came after.

    Of the dead it is what it was answered for, and perhaps one push more; codecs lose some of that.

    Returns:
        By how many pushes shards differ in what they have of the dead.
    """
    table, counts = table[:, 0].copy(), set()
    left = []
    for worker, role in cut.roles.items():
        left += problem.samples_of(worker)[: role["clock"]]
    own = problem.samples_of(problem.dead) if problem.dead in cut.absent else []
    step = MODE_ROWS.read((MODES | CODED)[mode]["mode"]).local_steps
    for row in table:
        ticked = [not np.isclose(row[*it[1:]], 0, atol=1e-5) for it in own]
        for it in own:
            row[*it[1:]] = 0
        if mode not in CODED:
            count = sum(ticked)
            assert ticked == [True] * count + [False] * (len(own) - count)
            assert not own or count >= died_at // step * step, "what was answered is lost"
            counts.add(count // step)
    check_once(mode, table, left)
    return max(counts, default=0) - min(counts, default=0)


# --- workers that stop, and all resume, or others -------------------------------------------------

#: (mode, workers, servers)
GROUPS = [
    *(("codec", 3, 1), ("replies", 2, None), ("sync, codec", 4, 3), ("elastic, async", 3, None)),
    *(("elastic, codec", 3, None), ("codec", 4, None), ("replies", 4, 1), ("codec", 2, 3)),
]


def resumes(folder, mode, after, servers, cuts):
    problem = Samples()
    out = folder / f"{mode} {after} {servers}"
    # Worker 1 is slow: at the end it trains alone.
    first_of(problem, mode, out, inject=("*:jitter:0.5", "1:delay:0.4"), checkpoint_every=1)
    found = [it for it in cuts_of(out)[1] if it.goes_on]
    assert len(found) >= 3
    for cut in found[cuts]:
        cut.check_held(mode)
        went_on(problem, mode, cut, after, out / f"on {cut.path.name}", servers)


@each(("mode", "after", "servers"), GROUPS[:4])
def test_each_push_counts_once_with_whoever_resumes(tmp_path, mode, after, servers):
    """That is also what is kept back of it, as a part of an update, whoever has it then."""
    resumes(tmp_path, mode, after, servers, slice(1, 2))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("mode", "after", "servers"), GROUPS)
def test_it_does_so_from_every_cut(tmp_path, mode, after, servers):
    resumes(tmp_path, mode, after, servers, slice(None))


@each("mode", ["async", "codec", "elastic, codec"])
def test_a_run_that_is_stopped_goes_on_as_if_it_were_not(tmp_path, mode):
    """It may be asked to at any time; all workers save the same cut, and take no step after it."""
    problem, out, call = Samples(), tmp_path / mode, Boundaries.call

    def asked(self, step, last):
        if step >= 3:
            self.ask(stop=True)
        return call(self, step, last)

    with mock.patch.object(Boundaries, "call", asked), pytest.raises(StoppedError) as caught:
        first_of(problem, mode, out, checkpoint_every=100)
    _, (cut,) = cuts_of(out)
    line = f"stopped as asked; --resume continues from step {int(cut.path.name)}, "
    assert str(caught.value).startswith(line)
    assert len(problem.taken) == sum(it["clock"] for it in cut.roles.values())
    if "elastic" not in mode:
        assert int(cut.path.name) == len(problem.taken) // WORKERS, "steps on average"
    went_on(problem, mode, cut, WORKERS, tmp_path / f"{mode} on")


@each(("mode", "epochs", "steps"), [("ssp", 2.5, 13), ("sums", 2.5, 13)])
def test_a_run_that_ends_within_an_epoch_resumes_from_its_last_checkpoint(
    tmp_path, mode, epochs, steps
):
    """Of 5 batches a worker; at the end some workers are done before others."""
    knobs = {
        "dataset": "synthetic:15x4x3", "hidden": (3,), "batch_size": 1, "epochs": epochs,
        "checkpoint_every": 1, "keep": 3, "inject": ("*:jitter:0.5", "0:delay:0.4"), "record": True,
    }  # fmt: skip
    out, knobs = tmp_path / mode, knobs | (MODES | {"sums": {"mode": "allreduce"}})[mode]
    simulate(TrainConfig(**knobs, out=str(out)), workers=WORKERS, seed=1)
    config = resumed_config(str(out), out=str(out / "on"), checkpoint_every=None, keep=None)
    assert simulate(config, workers=WORKERS, seed=2).summary.steps == steps
    assert check_run(out / "on").ok


# --- workers that have died -----------------------------------------------------------------------


def judge(folder, mode, dead, event, *, groups=(3, 2), cuts=slice(None)):
    """Have a worker die before an event, and resume from checkpoints without it."""
    problem = Samples()
    out = folder / f"{mode} {dead} {event}"
    first = first_of(problem, mode, out, dead=dead, event=event)
    found, every = cuts_of(out)
    # The last one that has all of them, too: who has died may have come so far.
    for cut in [it for it in every if not it.absent][-1:] + found[cuts]:
        for after in groups:
            on = out / f"{cut.path.name} on {after}"
            run, table = went_on(problem, mode, cut, after, on)
            if "elastic" in mode or mode in CODED:
                continue
            torn = check_before(problem, mode, table, cut, first.workers[dead].clock)
            assert torn == run.summary.torn


#: (mode, event). In the first, a step of the dead is at some shards only.
DEATHS = [
    *(("sync", 74), ("softsync", 66), ("averages", 75), ("elastic, async", 93), ("codec", 70)),
]


@each(("mode", "event"), DEATHS)
def test_who_dies_costs_no_checkpoint_after_that(tmp_path, mode, event):
    """Each push counts once, whoever resumes from there: as many workers, or who is left."""
    judge(tmp_path, mode, event % WORKERS, event, groups=(2 + event % 2,), cuts=slice(0, 1))


@pytest.mark.exhaustive
@pytest.mark.rest_one_in(3)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("mode", [*MODES, "codec", "replies"])
def test_nor_does_who_dies_before_any_event(tmp_path, mode, part):
    for event in range(1 + part, 140, PARTS):
        judge(tmp_path, mode, event % WORKERS, event, cuts=slice(event % 3, None, 2))


@each(("mode", "event"), [("softsync", 60), ("sync", 30)])
def test_it_goes_on_with_other_servers_too(tmp_path, mode, event):
    """Also where a push waits for its update at one shard, and not at another one."""
    problem, out = Samples(), tmp_path / mode
    first = first_of(problem, mode, out, dead=1, event=event)
    cut = cuts_of(out)[0][0]
    run, table = went_on(problem, mode, cut, WORKERS, out / "on", servers=1)
    torn = check_before(problem, mode, table, cut, first.workers[1].clock)
    assert torn == run.summary.torn
    if mode == "softsync":
        assert len({len(it["role"]["policy"]["owed"]) for it in cut.shards}) > 1


def test_a_manifest_that_says_who_is_absent_must_be_right(tmp_path):
    first_of(Samples(), "sync", tmp_path / "run", dead=0)
    cut = cuts_of(tmp_path / "run")[0][0].path
    again = {"out": str(tmp_path / "on")}
    with pytest.raises(ConfigError, match="in place of dead ones, which --record does not allow"):
        simulate(resumed_config(str(cut), record=True, **again), Samples(), workers=WORKERS)
    manifest = cut / "manifest.json"
    values = json.loads(manifest.read_text())
    assert values["absent"] == [0]
    for absent, why in (
        ([1], "it has other workers than it says"),
        ([], "it has no worker-0-of-3"),
        (["0"], "its absent workers are invalid"),
    ):
        manifest.write_text(json.dumps(values | {"absent": absent}))
        with pytest.raises(ConfigError, match=why):
            simulate(resumed_config(str(cut), **again), Samples(), workers=WORKERS)


# --- workers that train alone, and average at servers ---------------------------------------------


def velocity_of(strategy):
    return strategy["updater"]["optimizer"]["state"]["velocity"]


@each(
    ("mode", "before", "after"),
    [("averages", 3, 2), ("averages", 2, 4), ("elastic, async", 2, 3)],
)
def test_who_stays_has_what_it_had_and_who_joins_begins_at_the_centre(
    tmp_path, mode, before, after
):
    out = tmp_path / f"{mode} {before}"
    config = TrainConfig(
        **MODES[mode], dataset="synthetic:72x12x4", hidden=(8,), epochs=1, lr=0.05, keep=1000,
        checkpoint_every=1, optimizer="momentum", batch_size=12 // before, out=str(out),
    )  # fmt: skip
    simulate(config, workers=before)
    cut, found, restore = cuts_of(out)[1][1], {}, Worker.restore

    def restoring(self, tree):
        found[self.number] = tree["strategy"]
        restore(self, tree)

    again = resumed_config(str(cut.path), out=str(out / "on"), batch_size=12 // after)
    with mock.patch.object(Worker, "restore", restoring):
        assert simulate(again, workers=after).summary.epochs == 1
    centre = np.concatenate([it["theta"] for it in cut.shards])
    for worker in range(after):
        mine, momentum = found[worker]["averager"].get("theta"), velocity_of(found[worker])
        if worker >= before:
            assert not momentum.any()
            assert mine is None or (mine == centre).all()
            continue
        theirs = cut.roles[worker]["strategy"]
        assert momentum.any()
        assert (momentum == velocity_of(theirs)).all()
        assert mine is None or (mine == theirs["averager"]["theta"]).all()
