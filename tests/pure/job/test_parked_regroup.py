"""Runs whose workers stop at clocks of their own, which go on with other workers, and back.

The problem is the oracle, as in ``test_parked``: each gradient is 1 at an element of its attempt,
worker, batch and shard, and updates subtract it. Who goes on where is worked out here once more.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from psrt.checkpoint import Disk, Manifest, read_part
from psrt.config import TrainConfig
from psrt.errors import PsrtError
from psrt.job import giving_back, regroup
from psrt.job.crew import Crew
from psrt.job.resuming import resumed_config
from psrt.job.virtual import simulate
from psrt.messages import Push
from psrt.simulation import SimulationCosts
from psrt.sync import Policy
from support.cases import each

MODES = {
    "async": {"mode": "async", "servers": 2},
    "async, shards": {"mode": "async", "servers": 2, "shards_per_server": 2},
    "delay-compensated": {"mode": "async", "staleness_rate": "delay-compensated", "dc_lambda": 0.0},
    "ssp 0": {"mode": "ssp", "staleness": 0, "servers": 2},
    "ssp 2": {"mode": "ssp", "staleness": 2, "servers": 3},
    "softsync": {"mode": "softsync", "softsync": 1, "servers": 2},
    "softsync 2": {"mode": "softsync", "softsync": 2},
    "backups": {"mode": "sync", "backup": 1, "servers": 2},
}
GROUPS = [(3, 2), (2, 3), (4, 2), (2, 4), (3, 1), (3, 4)]
ATTEMPTS, MOST = 3, 24


class Ticks:
    """Each step ticks off an element of every shard's span.

    Args:
        shards: of the job.
        steps: of each worker of an epoch, by the number of workers.
    """

    def __init__(self, shards, steps):
        self.shards, self.steps, self.attempt = shards, steps, 0
        #: (attempt, worker, batch) of each gradient.
        self.taken = []

    def initial(self):
        return np.zeros(self.shards * ATTEMPTS * 4 * MOST, np.float32)

    def batches(self, worker, workers, epoch):
        return [(self.attempt, worker, i) for i in range(self.steps[workers][worker])]

    def samples(self, batch):
        return 1

    def loss_and_grad(self, theta, batch, out):
        self.taken.append(batch)
        out[:] = 0
        self.table(out)[:, *batch] = 1
        return 0.5

    def table(self, vector):
        return vector.reshape(self.shards, ATTEMPTS, 4, MOST)

    def evaluate(self, theta):
        return {}


def shards_of(knobs):
    return knobs.get("servers", 1) * knobs.get("shards_per_server", 1)


def steps_of(uneven):
    """Return the steps of each worker of up to four: 24 samples, dealt out to all."""
    found = {workers: [24 // workers] * workers for workers in (1, 2, 3, 4)}
    for workers in (3, 4) if uneven else ():
        found[workers][1] = 3  # done early
    return found


def config_of(out, knobs, **more):
    return TrainConfig(
        **{
            "batch_size": 1, "epochs": 1, "lr": 1.0, "optimizer": "sgd", "out": str(out),
            "checkpoint_every": 1, "keep": 1000, "log_every": 2,
            "inject": ("*:jitter:0.5", "0:delay:0.4"),
        }
        | knobs | more
    )  # fmt: skip


def saved(out):
    found = {}
    for folder in sorted((Path(out) / "checkpoints").iterdir()):
        manifest = Manifest.from_json((folder / "manifest.json").read_bytes())
        found[folder.name] = {it.name: read_part(Disk(), folder, it) for it in manifest.parts}
    return found


def roles_in(trees, workers):
    return [trees[f"worker-{i}-of-{workers}"]["role"] for i in range(workers)]


def expected(roles, before, after):
    """Return (clock, batch) at which each worker goes on; None for one that has nothing to do."""
    places = [(it["clock"], (it["taken"] + it["skip"]) * before // after) for it in roles]
    training = [i for i in range(before) if not roles[i]["has_left"]]
    stays = training + [i for i in range(before) if i not in training]
    if after >= before:  # there is room for all
        stays.sort()
    slowest = min((roles[i]["clock"], i) for i in training)[1]
    found = [None if roles[i]["has_left"] else places[i] for i in stays[:after]]
    return found + [places[slowest]] * (after - before)


def run_on(problem, config, workers, seed):
    """Go on; return the run, and the pushes that came to each shard, in order."""
    pushes, handle = [], Policy.handle

    def watching(self, event):
        if type(event) is Push:
            pushes.append((event, dict(self.clock)))
        return handle(self, event)

    with mock.patch.object(Policy, "handle", watching):
        return simulate(config, problem, workers=workers, seed=seed), pushes


def check(out, problem, knobs, run, pushes, places, workers, before):
    """Check what an attempt did, and that nothing of those before it was lost or came twice."""
    attempt, steps = problem.attempt, problem.steps[workers]
    taken = Counter(it[1:] for it in problem.taken if it[0] == attempt)
    due = {
        (worker, i)
        for worker, place in enumerate(places)
        if place is not None
        for i in range(place[1], steps[worker])
    }
    if "backup" in knobs:
        assert set(taken) <= due
    else:
        assert taken == Counter(due), "batches are missing, or were taken twice"
    for shard in range(problem.shards):
        clocks = {}
        for push, _ in pushes:
            if push.shard == shard:
                clocks.setdefault(push.worker, []).append(push.clock)
        for worker, found in clocks.items():
            if "backup" not in knobs:
                assert found == list(range(places[worker][0], places[worker][0] + len(found)))
    lead = knobs.get("staleness")
    for push, known in pushes if lead is not None else ():
        assert push.clock <= min(known.values()) + lead, "further ahead than it may be"
    table = -problem.table(run.theta)
    found = table[:, attempt]
    if "backup" in knobs:
        last = range(min(it[1] for it in places if it), max(steps))
        assert np.allclose(found.sum(1)[:, list(last)], 1, atol=1e-5)
    else:
        mask = np.zeros(found.shape[1:], bool)
        for it in due:
            mask[it] = True
        sizes = [1 / size for size in range(1, 5)]
        once = np.isclose(found[..., None], sizes, atol=1e-5).any(-1)
        assert (once == mask).all(), "a push was lost, or came twice"
        assert np.allclose(np.where(mask, 0, found), 0, atol=1e-5)
    # Each update is a mean, so it weighs 1.
    assert np.allclose(table.sum((1, 2, 3)), run.summary.updates, atol=1e-3)
    if "backup" not in knobs:
        total = before + len(due)
        assert run.summary.samples == total
        assert sum(run.summary.staleness.histogram) == total * problem.shards
        assert last_record(out)["samples"] == total
    return found


def last_record(out):
    return json.loads((Path(out) / "metrics.jsonl").read_text().splitlines()[-1])


def judge(folder, knobs, group, *, seed=0, uneven=False, every=1, cuts=None):
    """Train, go on with others from each cut, and with as many as at first from one of theirs."""
    before, after = group
    problem = Ticks(shards_of(knobs), steps_of(uneven))
    simulate(
        config_of(folder / "run", knobs, checkpoint_every=every), problem, workers=before, seed=seed
    )
    number = 0
    for name, trees in list(saved(folder / "run").items())[:cuts]:
        roles = roles_in(trees, before)
        if all(it["has_left"] for it in roles):
            continue
        number += 1
        problem.attempt, problem.taken = 1, []
        places = expected(roles, before, after)
        where, out = folder / "run/checkpoints" / name, folder / f"on-{name}"
        run, pushes = run_on(problem, resumed_config(str(where), out=str(out)), after, seed + 50)
        counted = sum(it["clock"] for it in roles)
        check(out, problem, knobs, run, pushes, places, after, counted)
        check_earlier(problem, knobs, run, 0, [it["clock"] for it in roles])
        later = list(saved(out).items())
        assert all(it > name for it, _ in later)
        if not later:
            continue
        name, trees = later[len(later) // 2]
        roles = roles_in(trees, after)
        counted = sum(it["meter"]["stats"]["samples"] for it in roles)
        problem.attempt, problem.taken = 2, []
        places = expected(roles, after, before)
        where, out = out / "checkpoints" / name, folder / f"back-{number}"
        run, pushes = run_on(problem, resumed_config(str(where), out=str(out)), before, seed + 99)
        check(out, problem, knobs, run, pushes, places, before, counted)
    return number


def check_earlier(problem, knobs, run, attempt, clocks):
    """Check that what came before the cut is in the parameters, and nothing that came after."""
    found = -problem.table(run.theta)[:, attempt]
    due = np.zeros(found.shape[1:], bool)
    for worker, clock in enumerate(clocks):
        due[worker, :clock] = True
    if "backup" in knobs:
        assert np.allclose(found.sum(1), due.any(0), atol=1e-5)
        return
    once = np.isclose(found[..., None], [1 / size for size in range(1, 5)], atol=1e-5).any(-1)
    assert (once == due).all(), "a push before the cut was lost, or came twice"


def possible(mode, group):
    """Whether there are workers enough: more than backups, and a share of them for softsync."""
    knobs = MODES[mode]
    return knobs.get("backup", 0) < min(group) and knobs.get("softsync", 1) <= min(group)


@each("mode", list(MODES))
def test_each_push_counts_once_with_other_workers(tmp_path, mode):
    for group in [(3, 2), (2, 3)]:
        assert judge(tmp_path / f"{mode} {group}", MODES[mode], group, every=4, cuts=1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.rest_one_in(3)
@pytest.mark.exhaustive
def test_it_does_so_from_every_cut(tmp_path, mode, group):
    for uneven in (False, True) if possible(mode, group) else ():
        assert judge(tmp_path / str(uneven), MODES[mode], group, seed=uneven, uneven=uneven)


def test_pending_pushes_are_part_of_the_next_update_where_one_is_enough(tmp_path):
    assert judge(tmp_path, MODES["softsync"], (3, 1), cuts=6)


@pytest.mark.parametrize("servers", [2, 1])
def test_shards_that_made_other_updates_of_the_same_pushes_go_on(tmp_path, servers):
    """One hears that a worker has left, whereby the quorum falls, before a push, another after."""
    costs = SimulationCosts(
        compute=lambda _, rng: rng.uniform(0.2, 1.2), latency=lambda rng: rng.random()
    )
    knobs, problem = MODES["softsync"], Ticks(2, steps_of(uneven=True))
    config = config_of(tmp_path / "run", knobs)
    simulate(config, problem, workers=3, seed=10, costs=costs)
    different, taken = 0, 0
    for name, trees in saved(tmp_path / "run").items():
        pending = {len(trees[f"shard-{i}-of-2"]["role"]["policy"]["owed"]) for i in (0, 1)}
        if len(pending) == 1:
            continue
        different += 1
        problem.attempt, problem.taken = 1, []
        where, out = tmp_path / "run/checkpoints" / name, tmp_path / name
        again = resumed_config(str(where), out=str(out), servers=servers)
        run = simulate(again, problem, workers=2, seed=11, costs=costs)
        check_earlier(problem, knobs, run, 0, [it["clock"] for it in roles_in(trees, 3)])
        found = -problem.table(run.theta)[:, 1]
        taken += len(problem.taken)
        assert all((found[:, *it[1:]] > 0.2).all() for it in problem.taken), "a push was lost"
        assert np.count_nonzero(found) == 2 * len(problem.taken)
    assert taken
    assert different, "no shard heard of a leave before a push, and another one after it"


def patched(module, name, make):
    """Return a mutant: ``make`` of what stands under a name takes its place."""
    return lambda mp: mp.setattr(module, name, make(getattr(module, name)))


MUTANTS = {
    "pending pushes are forgotten": (
        patched(regroup, "_owed", lambda _: lambda *rest: []), "softsync", (3, 2)
    ),
    "their owners stay": (
        patched(regroup, "_owed", lambda _: lambda fields, *rest: fields), "softsync", (3, 2)
    ),
    "who joins begins where the first is": (
        patched(regroup, "_place", lambda of: lambda role: [-it for it in of(role)]),
        "ssp 2", (2, 4),
    ),
    "places are not those of other batches": (
        patched(giving_back, "worker_tree", lambda tree: lambda a, b, c, d, e, f, **rest:
                tree(a, b, c, d, e, (1, 9), **rest)),
        "async", (3, 2),
    ),
    "who is done stays": (
        patched(Crew, "of", lambda of: lambda training, *, before, now, absent:
                of(range(before), before=before, now=now)),
        "async", (3, 2),
    ),
    "counts of who is gone are lost": (
        patched(regroup, "_of_workers", lambda of: lambda found, crew:
                of([it if i in crew.stays else {} for i, it in enumerate(found)], crew)),
        "async", (3, 2),
    ),
    "reports that no record has are lost": (
        patched(regroup, "_reports", lambda _: lambda told: []), "async", (3, 2)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.one_in(20)
def test_the_oracle_finds(tmp_path, monkeypatch, name):
    mutate, mode, group = MUTANTS[name]
    judged(tmp_path / "sound", mode, group)
    mutate(monkeypatch)
    with pytest.raises((AssertionError, PsrtError, LookupError, ValueError, TypeError)):
        judged(tmp_path / "mutant", mode, group)


def judged(folder, mode, group):
    for seed in range(3):
        judge(folder / str(seed), MODES[mode], group, seed=seed, uneven=True, every=2, cuts=4)


CODED = {
    "async": {"mode": "async", "codec": "top-k", "codec_density": 0.001},
    "replies": {
        "mode": "ssp", "staleness": 1, "codec": "top-k", "codec_density": 0.001,
        "codec_reply": "float16",
    },
    "sync": {"mode": "sync", "codec": "top-k", "codec_density": 0.001},
    "sync, replies": {
        "mode": "sync", "codec": "top-k", "codec_density": 0.001, "codec_reply": "float16",
    },
}  # fmt: skip


@pytest.mark.exhaustive
@each(
    ("mode", "group", "servers"),
    [(mode, group, servers) for mode in CODED for group in [(3, 2), (2, 3)] for servers in (2, 3)],
)
def test_what_codecs_kept_back_reaches_the_parameters(tmp_path, mode, group, servers):
    """It is what it was as a part of an update, whoever has it now, and at whichever server."""
    (before, after), folder = group, tmp_path / f"{mode} {group} {servers}"
    knobs = CODED[mode] | {"servers": 2, "codec_everywhere": True}
    problem = Ticks(6, steps_of(False))
    simulate(config_of(folder / "run", knobs, checkpoint_every=3), problem, workers=before)
    name, trees = next(iter(saved(folder / "run").items()))
    clocks, problem.attempt = [it["clock"] for it in roles_in(trees, before)], 1
    where = str(folder / "run/checkpoints" / name)
    again = resumed_config(where, out=str(folder / "on"), servers=servers, checkpoint_every=1)
    simulate(again, problem, workers=after, seed=5)
    rounds = knobs["mode"] == "sync"
    due = np.zeros((4, MOST))
    for worker, clock in enumerate(clocks):
        due[worker, :clock] = 1 / before if rounds else 1
    later = saved(folder / "on")
    assert later
    for trees in later.values():
        found = kept_and_applied(trees, after, servers, 1 / after if rounds else 1)
        assert np.allclose(problem.table(found)[:, 0], due, atol=1e-5)
        check_held(trees, knobs, after, servers)


def kept_and_applied(trees, workers, shards, weight):
    """Return what is in the parameters, or is still to reach them."""
    found = []
    for i in range(shards):
        total = -trees[f"shard-{i}-of-{shards}"]["theta"].astype(np.float64)
        for role in roles_in(trees, workers):
            kept = role["strategy"]["encoder"]["senders"][str(i)]["residual"]
            total += kept.astype(np.float64) * weight
        found.append(total)
    return np.concatenate(found)


def check_held(trees, knobs, workers, shards):
    """Check that workers hold what servers, who send them differences, think that they do."""
    for worker, role in enumerate(roles_in(trees, workers) if "codec_reply" in knobs else ()):
        for i in range(shards):
            held = trees[f"shard-{i}-of-{shards}"]["role"]["replies"]["each_held"]
            theirs = held.get(str(worker), held["0"])
            assert (role["strategy"]["decoder"]["spans"][str(i)] == theirs).all()


CODED_MUTANTS = {
    "what who is gone kept back is lost": (
        patched(Crew, "before", lambda _: lambda crew, i: crew.stays[i : i + 1]), "async", (3, 2)
    ),
    "it is no part of a mean": (
        patched(giving_back, "worker_tree", lambda tree: lambda *args, **rest:
                tree(*args, **rest | {"weight": 1.0})),
        "sync", (3, 2),
    ),
    "who joins holds something else": (
        patched(regroup, "marked", lambda of: lambda owner, mark:
                of(owner, mark) if mark != "per_worker" else ()),
        "replies", (2, 3),
    ),
    "it belongs to other elements": (
        patched(regroup, "recut", lambda _: lambda role, owner: role), "async", (3, 2)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CODED_MUTANTS)
@pytest.mark.one_in(2)
def test_the_oracle_finds_what_codecs_lost(tmp_path, monkeypatch, name):
    mutate, mode, group = CODED_MUTANTS[name]
    mutate(monkeypatch)
    test = test_what_codecs_kept_back_reaches_the_parameters.__wrapped__
    with pytest.raises((AssertionError, PsrtError, LookupError, ValueError, TypeError)):
        test(tmp_path, mode, group, 3)
