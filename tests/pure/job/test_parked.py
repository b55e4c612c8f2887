"""Checkpoints where workers stop at clocks of their own, and runs that go on from them.

The problem is the oracle: each gradient is 1 at an element of its worker, step and shard, and 0
elsewhere, and updates subtract it. So the parameters say which pushes were applied, and how often.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from psrt.checkpoint import Disk, Manifest, read_part
from psrt.config import TrainConfig
from psrt.errors import ConfigError, PsrtError, StoppedError
from psrt.history.check.run import check_run
from psrt.job.caller import Caller
from psrt.job.resuming import resumed_config
from psrt.job.saving import Saver
from psrt.job.virtual import simulate
from psrt.messages import Push
from psrt.runtime.shard import Shard
from psrt.runtime.shard_server import ShardServer
from psrt.runtime.strategies.easgd import ElasticAverager
from psrt.runtime.strategies.push_pull import PushPull
from psrt.runtime.worker import Worker
from psrt.sync import Cut, Policy
from support.cases import each

WORKERS = 3
MODES = {
    "async": {"mode": "async"},
    "async, servers": {"mode": "async", "servers": 2, "shards_per_server": 2},
    "ssp 0": {"mode": "ssp", "staleness": 0, "servers": 2},
    "ssp 2": {"mode": "ssp", "staleness": 2, "servers": 3},
    "softsync": {"mode": "softsync", "softsync": 1, "servers": 2},
    "all at once": {"mode": "softsync", "softsync": 3},
    "codec": {
        "mode": "async", "servers": 2, "codec": "top-k", "codec_density": 0.02,
        "codec_everywhere": True,
    },
    "codec of replies": {
        "mode": "ssp", "staleness": 1, "servers": 2, "codec": "top-k", "codec_density": 0.02,
        "codec_reply": "float16", "codec_everywhere": True,
    },
    "softsync, codec": {
        "mode": "softsync", "softsync": 1, "servers": 2, "codec": "top-k", "codec_density": 0.02,
        "codec_everywhere": True,
    },
    "backups": {"mode": "sync", "backup": 1, "servers": 2},
    "elastic": {"mode": "easgd", "asynchronous": True, "local_steps": 2, "servers": 2},
    "elastic, codec": {
        "mode": "easgd", "asynchronous": True, "local_steps": 2, "servers": 2,
        "codec": "top-k", "codec_density": 0.1, "codec_reply": "float16", "codec_everywhere": True,
    },
}  # fmt: skip
#: Worker 0 is slow, all are uneven.
DELAYS = ("*:jitter:0.5", "0:delay:0.4")


class Ticks:
    """Each step of a worker ticks off an element of every shard's span.

    Args:
        steps: of each worker.
        shards: of the job.
    """

    def __init__(self, steps, shards):
        self.steps, self.shards = steps, shards
        self.most = max(steps)
        #: What was computed on: (worker, step, the parameters).
        self.reads = []

    def initial(self):
        return np.zeros(self.shards * len(self.steps) * self.most, np.float32)

    def batches(self, worker, workers, epoch):
        return [(worker, i) for i in range(self.steps[worker])]

    def samples(self, batch):
        return 1

    def loss_and_grad(self, theta, batch, out):
        self.reads.append((*batch, theta.copy()))
        out[:] = 0
        self.table(out)[:, batch[0], batch[1]] = 1
        return 0.0

    def table(self, vector):
        return vector.reshape(self.shards, len(self.steps), self.most)

    def evaluate(self, theta):
        return {}


def shards_of(knobs):
    return knobs.get("servers", 1) * knobs.get("shards_per_server", 1)


def quorum_of(knobs):
    """Return the weight of each push in its update, as a number of pushes."""
    return max(1, WORKERS // knobs["softsync"]) if "softsync" in knobs else 1


def config_of(out, knobs, **more):
    return TrainConfig(
        **{
            "batch_size": 1, "epochs": 1, "lr": 1.0, "optimizer": "sgd", "out": str(out),
            "checkpoint_every": 2, "keep": 1000, "inject": DELAYS,
        }
        | knobs | more
    )  # fmt: skip


def saved(out):
    """Return by step the trees of the parts of each checkpoint of a run."""
    found = {}
    for folder in sorted((Path(out) / "checkpoints").iterdir()):
        if folder.name.isdigit():
            manifest = Manifest.from_json((folder / "manifest.json").read_bytes())
            trees = {it.name: read_part(Disk(), folder, it) for it in manifest.parts}
            found[int(folder.name)] = trees
    return found


def clocks_in(trees):
    return [trees[f"worker-{i}-of-{WORKERS}"]["role"]["clock"] for i in range(WORKERS)]


def applied_in(trees, knobs, problem):
    """Return what the pushes in a checkpoint come to, whether applied, pending or kept back."""
    shards, quorum = shards_of(knobs), quorum_of(knobs)
    parts = []
    for i in range(shards):
        tree = trees[f"shard-{i}-of-{shards}"]
        total = -tree["theta"].astype(np.float64) * quorum
        owed = tree["role"]["shard"]["owed"]
        if owed is not None:
            total += owed
        for worker in range(WORKERS) if "codec" in knobs and "local_steps" not in knobs else ():
            encoder = trees[f"worker-{worker}-of-{WORKERS}"]["role"]["strategy"]["encoder"]
            total += encoder["senders"][str(i)]["residual"]
        parts.append(total)
    found = np.concatenate(parts)
    if "local_steps" in knobs:  # forces do not change the sum of the centre and all workers
        for worker in range(WORKERS):
            averager = trees[f"worker-{worker}-of-{WORKERS}"]["role"]["strategy"]["averager"]
            found -= averager["theta"]
    return problem.table(found)


def check_cut(trees, knobs, problem, step):
    """Check that a checkpoint has each push of each worker up to its clock once, and no other."""
    clocks = clocks_in(trees)
    if "backup" in knobs:
        assert set(clocks) <= {step, *problem.steps}, clocks
    elif "local_steps" not in knobs:
        assert sum(clocks) // WORKERS == step, clocks
    due = np.arange(problem.most) < np.array(clocks)[:, None]
    found = applied_in(trees, knobs, problem)
    assert is_once(found, due, knobs), "the pushes of a checkpoint are not those of its clocks"
    check_held(trees, knobs)
    if "local_steps" in knobs or "backup" in knobs:
        return
    for name, tree in trees.items():
        if name.startswith("shard"):
            counted = tree["role"]["shard"]["stats"]["staleness"]
            pending = len(tree["role"]["policy"]["owed"]) // len(Push._fields)
            assert counted_in(counted.values()) == sum(clocks) - pending


def is_once(found, due, knobs):
    """Return whether exactly what is due was applied once, by the weight of its update."""
    if "backup" in knobs:  # a round is the mean of those that came in time
        return np.allclose(found.sum(1), due.any(0), atol=1e-5)
    # Where workers have left, fewer pushes make an update, and each weighs more.
    quorum = quorum_of(knobs)
    weights = [quorum / size for size in range(1, quorum + 1)]
    once = np.isclose(found[..., None], weights, atol=1e-5).any(-1)
    return (once == due).all() and np.allclose(np.where(due, 0, found), 0, atol=1e-5)


def counted_in(histograms):
    return sum(count for histogram in histograms for count in histogram.values())


def check_held(trees, knobs):
    """Check that workers hold what servers, who send them differences, think that they do."""
    shards = shards_of(knobs)
    for worker in range(WORKERS) if "codec_reply" in knobs else ():
        strategy = trees[f"worker-{worker}-of-{WORKERS}"]["role"]["strategy"]
        if "averager" in strategy:
            mine = strategy["averager"]["centre"]
        else:
            mine = np.concatenate([strategy["decoder"]["spans"][str(i)] for i in range(shards)])
        replies = [trees[f"shard-{i}-of-{shards}"]["role"]["replies"] for i in range(shards)]
        assert (mine == np.concatenate([it["each_held"][str(worker)] for it in replies])).all()


def check_reads(problem, knobs, pushes):
    """Check that whoever computed had read what it says, and all that the gate of ssp promises."""
    if "codec" in knobs or quorum_of(knobs) > 1 or knobs["mode"] not in ("async", "ssp"):
        return
    reads = {(worker, step): theta for worker, step, theta in problem.reads}
    for it in pushes:
        version = -problem.table(reads[it.worker, it.clock])[it.shard].sum()
        assert version == it.version, f"{it} read version {version}"
    lead = knobs.get("staleness")
    for worker, step, theta in problem.reads if lead is not None else ():
        seen = -problem.table(theta)
        for other, steps in enumerate(problem.steps):
            due = min(steps, step - lead) if other != worker else step
            assert (seen[:, other, : max(0, due)] == 1).all(), (worker, step, other)


def check_end(run, knobs, problem):
    """Check that every push was applied once at every shard, over both attempts."""
    steps = np.array(problem.steps)
    if "local_steps" in knobs:
        return
    if "codec" not in knobs:
        found = -problem.table(run.theta) * quorum_of(knobs)
        due = np.arange(problem.most) < steps[:, None]
        assert is_once(found, due, knobs), "a push was lost, or came twice"
    if "backup" in knobs:
        return
    assert run.summary.samples == steps.sum()
    assert sum(run.summary.staleness.histogram) == steps.sum() * problem.shards


@contextmanager
def watched():
    """Collect the pushes that shards receive."""
    pushes, handle = [], Policy.handle

    def watching(self, event):
        if type(event) is Push:
            pushes.append(event)
        return handle(self, event)

    with mock.patch.object(Policy, "handle", watching):
        yield pushes


def resumed(out, step, again, problem, seed, **more):
    where = str(Path(out) / "checkpoints" / f"{step:08d}")
    config, write, steps = resumed_config(where, out=str(again), **more), Saver._write, []

    def writing(self, part, step):
        steps.append(step)
        write(self, part, step)

    with mock.patch.object(Saver, "_write", writing):
        run = simulate(config, problem, workers=WORKERS, seed=seed)
    assert min(steps, default=step + 1) > step, "what it goes on from was saved again"
    return run


def judge(tmp_path, knobs, *, steps=(9, 9, 9), seed=0, every=2, resumes=None):
    """Train, go on from each checkpoint, and check all of it; return the steps that were saved."""
    problem = Ticks(steps, shards_of(knobs))
    config = config_of(tmp_path / "run", knobs, checkpoint_every=every)
    with watched() as pushes:
        run = simulate(config, problem, workers=WORKERS, seed=seed)
    check_reads(problem, knobs, pushes)
    check_end(run, knobs, problem)
    cuts = saved(tmp_path / "run")
    for step, trees in cuts.items():
        check_cut(trees, knobs, problem, step)
    for step in list(cuts)[:resumes]:
        clocks, problem.reads = clocks_in(cuts[step]), []
        again = tmp_path / f"from-{step}"
        with watched() as pushes:
            run = resumed(tmp_path / "run", step, again, problem, seed + 50)
        taken = sorted(it[:2] for it in problem.reads)
        left = [range(*it) for it in zip(clocks, steps, strict=True)]
        due = [(worker, i) for worker, of_worker in enumerate(left) for i in of_worker]
        if "backup" in knobs:  # whoever is overtaken skips steps
            assert set(taken) <= set(due)
            assert len(taken) == len(set(taken))
        else:
            assert taken == due
        check_reads(problem, knobs, pushes)
        check_end(run, knobs, problem)
        for later, trees in saved(again).items():
            assert later > step
            check_cut(trees, knobs, problem, later)
    return list(cuts)


def test_each_push_counts_once_over_both_attempts(tmp_path):
    for mode, knobs in MODES.items():
        assert len(judge(tmp_path / mode, knobs, steps=(6, 6, 6), resumes=1)) == 3, mode


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("steps", [(9, 9, 9), (12, 3, 7), (1, 10, 2)])
@pytest.mark.rest_one_in(3)
@pytest.mark.exhaustive
def test_it_does_so_from_every_step_in_many_orders(tmp_path, mode, steps):
    for seed in range(3):
        assert judge(tmp_path / str(seed), MODES[mode], steps=steps, seed=seed, every=1)


@each("mode", ["async", "ssp 2", "softsync", "elastic"])
def test_workers_that_are_done_are_saved_as_they_were_then(tmp_path, mode):
    steps = (9, 2, 5)
    cuts = judge(tmp_path / mode, MODES[mode], steps=steps, every=1, resumes=0)
    trees = saved(tmp_path / mode / "run")[cuts[-1]]
    assert clocks_in(trees)[1] == 2
    problem, knobs = Ticks(steps, shards_of(MODES[mode])), MODES[mode]
    run = resumed(tmp_path / mode / "run", cuts[-1], tmp_path / mode / "on", problem, 9)
    assert {it[0] for it in problem.reads} <= {0, 2}
    assert run.summary.steps == 9
    check_end(run, knobs, problem)


@each("mode", ["async", "softsync"])
def test_a_worker_that_dies_while_others_are_parked_holds_nobody(tmp_path, mode):
    knobs = MODES[mode]
    for i in (4, 11):  # parked itself, and the last that is waited for
        problem, out = Ticks((6, 6, 6), shards_of(knobs)), tmp_path / f"{mode} {i}"
        config = config_of(out, knobs, checkpoint_every=1)
        run = simulate(config, problem, workers=WORKERS, seed=i, crashes=[(0, 0.2 + 0.3 * i)])
        assert run.summary.steps == 6
        whole = {step: it for step, it in saved(out).items() if "worker-0-of-3" in it}
        for step, trees in whole.items():
            check_cut(trees, knobs, problem, step)
        assert max(saved(out)) > max(whole, default=0)  # of the others, see test_resume_survivors


def test_a_folder_is_named_by_the_steps_of_workers_on_average(tmp_path):
    assert judge(tmp_path, MODES["async"], steps=(4, 12, 2), every=1, resumes=0)[-1] == 18 // 3


@each(
    ("mode", "before", "after"),
    [("async", 1, 3), ("async", 3, 2), ("ssp 2", 3, 1), ("backups", 2, 3)],
)
def test_other_servers_go_on_where_all_shards_made_the_same_updates(tmp_path, mode, before, after):
    knobs = MODES[mode] | {"servers": before, "optimizer": "sgd"}
    problem, folder = Ticks((6, 6, 6), 6), tmp_path / f"{mode} {before}"
    simulate(config_of(folder / "run", knobs), problem, workers=WORKERS)
    step, trees = list(saved(folder / "run").items())[1]
    problem.reads = []
    run = resumed(folder / "run", step, folder / "on", problem, 5, servers=after)
    found = -problem.table(run.theta)
    assert np.allclose(found.sum(1) if "backup" in knobs else found, 1)
    assert len(problem.reads) <= 18 - sum(clocks_in(trees))
    assert sorted(saved(folder / "on"))[0] > step


def test_other_servers_apply_what_was_pending(tmp_path):
    problem = Ticks((7, 7, 7), 6)
    run = config_of(tmp_path / "run", MODES["softsync"] | {"softsync": 1}, checkpoint_every=1)
    simulate(run, problem, workers=WORKERS)
    steps = [
        step
        for step, trees in saved(tmp_path / "run").items()
        if trees["shard-0-of-2"]["role"]["policy"]["owed"]
    ]
    assert steps
    for servers in (1, 3):
        run = resumed(
            tmp_path / "run", steps[0], tmp_path / f"{servers}", problem, 0, servers=servers
        )
        found = -problem.table(run.theta) * WORKERS
        assert is_once(found, np.ones(found.shape[1:], bool), MODES["softsync"])


def stopped(config, problem):
    """Train until somebody asks to stop, in step 3; return the error."""
    call = Caller.call

    def asked(self, step):
        if step >= 3:
            self.ask(stop=True)
        return call(self, step)

    with mock.patch.object(Caller, "call", asked), pytest.raises(StoppedError) as caught:
        simulate(config, problem, workers=WORKERS)
    return caught


@each("mode", list(MODES))
def test_a_run_that_is_stopped_goes_on_as_if_it_were_not(tmp_path, mode):
    """It may be asked to at any time; all workers save the same cut, and take no step after it."""
    knobs = MODES[mode]
    problem = Ticks((6, 6, 6), shards_of(knobs))
    caught = stopped(config_of(tmp_path / mode, knobs, checkpoint_every=100), problem)
    ((step, trees),) = saved(tmp_path / mode).items()
    assert str(caught.value).startswith(f"stopped as asked; --resume goes on from step {step}, ")
    check_cut(trees, knobs, problem, step)
    assert len(problem.reads) == sum(clocks_in(trees))
    problem.reads = []
    run = resumed(tmp_path / mode, step, tmp_path / f"{mode} on", problem, 5)
    check_end(run, knobs, problem)
    if "backup" not in knobs:
        assert len(problem.reads) == 18 - sum(clocks_in(trees))


def test_the_history_of_a_run_that_was_stopped_is_unfinished_until_it_goes_on(tmp_path):
    out, problem = tmp_path / "run", Ticks((6, 6, 6), shards_of(MODES["async"]))
    stopped(config_of(out, MODES["async"], checkpoint_every=100, record=True), problem)
    with pytest.raises(ConfigError, match="unfinished run"):
        check_run(out)
    simulate(resumed_config(str(out)), problem, workers=WORKERS)
    assert check_run(out).ok


def one_parked_early(mp):
    def release(self, decisions):
        if len(self.parked) >= len(self.clock) - 1 and self.parked:
            decisions.append(Cut(self._cut))
            self.waiting.update(self.parked)
            self.parked.clear()
            self._bound = -math.inf
            self._serve(decisions)

    mp.setattr(Policy, "_release", release)


def none_park(mp):
    async def park(self, clock):
        self._cut = 0

    mp.setattr(PushPull, "park", park)


def saved_when_asked(mp):
    ask = ShardServer.ask

    def asks(self):
        before = self._cut
        ask(self)
        if self._cut and not before:
            self.early = self.state(), self.shard.theta.copy()

    state = ShardServer.state
    mp.setattr(ShardServer, "ask", asks)
    mp.setattr(ShardServer, "state", lambda self: getattr(self, "early", (state(self),))[0])


def forgets(kind, name):
    def mutate(mp):
        mp.setattr(kind, "saved", tuple(it for it in kind.saved if it != name))

    return mutate


def late_worker_saved(mp):
    async def boundary(self):
        await self._park()
        if self.at_boundary is not None:
            self._stops = await self.at_boundary(self.clock)

    mp.setattr(Worker, "_boundary", boundary)


def leaves_again(mp):
    mp.setattr(Worker, "saved", tuple(it for it in Worker.saved if it != "has_left"))


def reads_nothing_when_parked(mp):
    park = ElasticAverager.park

    async def parks(self, averages):
        before = self._centre.copy()
        await park(self, averages)
        self._centre[:] = before

    mp.setattr(ElasticAverager, "park", parks)


MUTANTS = {
    "a shard is saved before all are parked": (one_parked_early, ("async", "ssp 2", "elastic")),
    "nobody parks": (none_park, ("async", "softsync")),
    "a shard saves itself when it asks": (saved_when_asked, ("async", "codec")),
    "pending pushes are forgotten": (forgets(Policy, "_owed"), ("softsync",)),
    "their sum is": (forgets(Shard, "_owed"), ("softsync",)),
    "their notes are": (forgets(Shard, "_owed_notes"), ("softsync",)),
    "a shard's counts are": (forgets(Shard, "stats"), ("async",)),
    "clocks are": (forgets(Policy, "clock"), ("async", "ssp 2")),
    "what a codec kept back is": (forgets(PushPull, "_encoder"), ("codec",)),
    "whoever goes on does not park": (forgets(PushPull, "_cut"), ("async", "ssp 2")),
    "a worker is saved after it was parked": (late_worker_saved, ("async", "elastic")),
    "who has left leaves again": (leaves_again, ("async",)),
    "the centre is not read again": (reads_nothing_when_parked, ("elastic, codec",)),
}


@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.one_in(4)
def test_the_oracle_finds(tmp_path, monkeypatch, name):
    mutate, modes = MUTANTS[name]
    mutate(monkeypatch)
    for mode in modes:
        with pytest.raises((AssertionError, PsrtError, KeyError, ValueError)):
            judged(tmp_path / mode, MODES[mode])


def judged(tmp_path, knobs):
    for seed in range(8):
        steps = (4, 12, 8) if seed % 2 else (9, 9, 9)
        found = judge(tmp_path / str(seed), knobs, steps=steps, seed=seed)
        assert len(found) >= 3, "checkpoints are missing"


@each(
    ("mode", "after"),
    [
        (mode, after)
        for mode in ("codec", "codec of replies", "softsync, codec")
        for after in (1, 3)
    ],
)
def test_other_servers_go_on_with_what_codecs_kept_back(tmp_path, mode, after):
    """What is kept back belongs to elements, and workers hold what the new servers think."""
    problem, folder = Ticks((9, 9, 9), 6), tmp_path / f"{mode} {after}"
    simulate(config_of(folder / "run", MODES[mode]), problem, workers=WORKERS)
    step = sorted(saved(folder / "run"))[1]
    resumed(folder / "run", step, folder / "on", problem, 5, servers=after)
    knobs = MODES[mode] | {"servers": after}
    assert saved(folder / "on")
    for trees in saved(folder / "on").values():
        due = np.arange(problem.most) < np.array(clocks_in(trees))[:, None]
        assert is_once(applied_in(trees, knobs, problem), due, knobs)
        check_held(trees, knobs)


#: Workers have 5 batches an epoch. The last one begins 4/5 through it, so 1.9 epochs are 2 whole
#: ones; the others end within one, at the end with some workers that are done before others.
PARTS_OF_EPOCHS = {0.4: 2, 1.9: 10, 2.5: 13}


@each(
    ("mode", "epochs"),
    [*((it, 2.5) for it in ("ssp 2", "softsync", "elastic", "backups", "rounds", "sums"))]
    + [("async", it) for it in PARTS_OF_EPOCHS],
)
def test_a_run_that_ends_within_an_epoch_resumes_from_its_last_checkpoints(tmp_path, mode, epochs):
    more = {"rounds": {"mode": "sync"}, "sums": {"mode": "allreduce"}}
    out = tmp_path / f"{mode} {epochs}"
    knobs = {
        "dataset": "synthetic:15x4x3", "hidden": (3,), "batch_size": 1, "epochs": epochs,
        "checkpoint_every": 1, "keep": 3, "inject": DELAYS, "record": True,
    }  # fmt: skip
    simulate(TrainConfig(**knobs | (MODES | more)[mode], out=str(out)), workers=WORKERS, seed=1)
    cuts = [it for it in (out / "checkpoints").iterdir() if it.name.isdigit()]
    assert len(cuts) >= 2
    for cut in sorted(cuts)[-2:]:
        on = out / f"from {cut.name}"
        config = resumed_config(str(cut), out=str(on), checkpoint_every=None, keep=None)
        run = simulate(config, workers=WORKERS, seed=2)
        assert run.summary.steps == PARTS_OF_EPOCHS[epochs]
        assert check_run(on).ok


@each(("epochs", "steps", "good"), [(2.2, None, 11), (1.9, None, 10), (None, 7, 7)])
def test_what_a_shorter_run_would_not_have_done_it_does_not_resume_from(
    tmp_path, epochs, steps, good
):
    out = tmp_path / f"{epochs} {steps}"
    knobs = {"dataset": "synthetic:15x4x3", "hidden": (3,), "batch_size": 1, "epochs": 3}
    config = TrainConfig(**knobs, out=str(out), mode="sync", checkpoint_every=1, keep=99)
    simulate(config, workers=WORKERS)
    for step in good, good + 1:
        where, on = str(out / "checkpoints" / f"{step:08d}"), str(out / f"on {step}")
        again = resumed_config(
            where, out=on, keep=None, checkpoint_every=None, epochs=epochs, steps=steps
        )
        if step > good:
            with pytest.raises(PsrtError, match="a shorter run"):
                simulate(again, workers=WORKERS)
        else:
            assert simulate(again, workers=WORKERS).summary.steps == good
