"""Small jobs in which something goes wrong, and what may come of it.

In some the problem is the oracle: each gradient ticks off an element of its worker, step and
shard, so that the parameters say which pushes were applied, and how often. In the others each
gradient depends on all that was done before, so that nothing may be forgotten if the bits are to be
the same.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from psrt.checkpoint import Checkpoints, Disk, read_part
from psrt.checkpoint.folder import FOLDER, MANIFEST
from psrt.checkpoint.tree import flatten
from psrt.config import TrainConfig
from psrt.config.faults import Fault
from psrt.core.errors import PsrtError
from psrt.history.check.run import check_run
from psrt.history.log import Owner
from psrt.job import giving_back, session
from psrt.job.launcher import Roles
from psrt.job.scenario import Scenario, run_in_virtual_time
from psrt.job.setup import Setup
from psrt.runtime.worker import Worker
from psrt.simulation.cost_flags import VirtualCosts
from support.recording import Ledger

WORKERS, STEPS = 3, 4
#: Checkpoints that are kept where nothing else is said.
KEPT = 2
_TWO = {"servers": 2}
_TOP_K = {"codec": "top-k:density=0.3", "codec_everywhere": True}
#: Every mode, with what is pushed or summed in several parts.
MODES: dict[str, dict[str, Any]] = {
    "sync": {"mode": "sync", **_TWO},
    "backups": {"mode": "sync:backup=1", **_TWO},
    "async": {"mode": "async", **_TWO},
    "ssp": {"mode": "ssp:staleness=1", **_TWO},
    "softsync": {"mode": "softsync:k=1", **_TWO},
    "uneven": {"mode": "async", "servers": 1, "shards_per_server": 2},
    "momentum": {"mode": "sync", "optimizer": "momentum", "shards_per_server": 2, **_TWO},
    "averages": {"mode": "local-sgd:local-steps=2", **_TWO},
    "elastic": {"mode": "easgd:local-steps=2", **_TWO},
    "elastic, async": {"mode": "easgd:local-steps=2,asynchronous=true", **_TWO},
    "node": {"mode": "allreduce", "allreduce": "node"},
    "ring": {"mode": "allreduce", "allreduce": "ring"},
    "averages by ring": {"mode": "local-sgd:local-steps=2", "allreduce": "ring"},
    "gossip": {"mode": "gossip:topology=ring"},
    "stages": {
        "mode": "allreduce", "allreduce": "node", "parallel": "data:1,pipeline:3",
        "micro_batches": 2, "stages": "1,1,1", "hidden": (2, 2),
    },
    "adam": {"mode": "sync", "optimizer": "adam", **_TWO},
    "stale": {"mode": "async", "optimizer": "adam", "staleness_rate": "mean-inverse", **_TWO},
    "residuals": {"mode": "sync", **_TOP_K, **_TWO},
    "replies": {
        "mode": "sync", "codec": "random-k:density=0.4", "codec_reply": "qsgd",
        "codec_everywhere": True, **_TWO,
    },
    "summed residuals": {"mode": "allreduce", "allreduce": "all-pairs", **_TOP_K},
    "sharded": {
        "mode": "allreduce:shard=optimizer", "allreduce": "ring", "optimizer": "adam",
    },
    "outer": {"mode": "local-sgd:local-steps=2,outer=nesterov,outer.momentum=0.9", **_TWO},
    "known": {"mode": "gossip:topology=ring", **_TOP_K},
    "push-sum": {"mode": "gossip:topology=exponential,variant=push-sum"},
    "tracked": {"mode": "gossip:topology=ring,variant=gradient-tracking"},
    "pairs": {"mode": "gossip:topology=star,variant=pairs"},
}  # fmt: skip
#: Those whose parameters are the same bits whoever comes first.
SAME = {
    *("sync", "momentum", "averages", "elastic", "node", "ring", "averages by ring", "gossip"),
    "stages", "adam", "residuals", "replies", "summed residuals", "sharded", "outer", "known",
    "push-sum", "tracked",
}  # fmt: skip
#: Those that train what depends on all that was done before, for two epochs.
DESCENTS = {"stale", *list(MODES)[list(MODES).index("adam") :]}
#: By mode, the part of an element that a push ticks off, with so many live workers.
TICKS: dict[str, Callable[[range], set[float]]] = {
    "async": lambda live: {1.0},
    "uneven": lambda live: {1.0},
    "ssp": lambda live: {1.0},
    "softsync": lambda live: {1 / it for it in range(1, max(live) + 1)},
    "sync": lambda live: {1 / it for it in live},
    "backups": lambda live: {1 / it for it in range(1, max(live) + 1)},
}


#: By mode, the host of each rank, where ranks of several can be simulated.
HOSTS = {"known": (2, 1), "tracked": (1, 2), "stages": (2, 1)}
#: Of a summary, what does not depend on times.
FIGURES = ("steps", "samples", "epochs", "updates", "train_loss", "staleness", "skew", "dropped")
#: In a checkpoint, what does.
TIMES = {"before", "waited", "waited_for", "told", "seconds", "since", "bytes"}
#: By mode, the steps of each worker, where they differ.
UNEVEN = {"uneven": (STEPS, STEPS, 2)}


class Descent(Ledger):
    """A problem whose gradients depend on the parameters and the batch, and are 0 nowhere."""

    def batches(self, worker: int, workers: int, epoch: int) -> list[tuple[int, int]]:
        each = STEPS // 2
        return [(worker, epoch * each + it) for it in range(each)]

    def loss_and_grad(self, theta: np.ndarray, batch: tuple[int, int], out: np.ndarray) -> float:
        noise = np.random.default_rng(batch).standard_normal(theta.size)
        out[:] = theta + noise
        return float(theta @ theta) / 2


class Outcome(NamedTuple):
    """What came of a job."""

    #: (shards, workers, steps), where a ledger is what is trained.
    table: Any
    sha: str
    #: What the summary says.
    steps: int
    samples: int
    #: Events of the last attempt.
    events: int
    #: Ranks that others went on without.
    crashed: tuple[int, ...]
    #: Steps of the dead that only some of the shards have.
    torn: int = 0
    #: Where it ended without a result.
    error: PsrtError | None = None
    #: The lines for the user.
    said: Sequence[str] = ()
    #: The checkpoints that there are at the end, and what is in the newest.
    saved: Sequence[str] = ()
    kept: Mapping[str, str] = {}
    #: Workers that a checkpoint which an attempt went on from was without.
    replaced: Collection[int] = ()
    #: What the summary says of steps, updates, loss and staleness.
    figures: Mapping[str, Any] = {}


def config_of(name: str, out: Path, **more: Any) -> TrainConfig:
    descends = name in DESCENTS
    knobs = {
        "batch_size": 1, "epochs": 1 + descends, "lr": 0.1 if descends else 1.0,
        "optimizer": "sgd", "out": str(out), "timeout_s": 5.0,
    }  # fmt: skip
    if name == "stages":
        knobs |= {"dataset": "synthetic:8x2x2", "batch_size": 2, "steps": STEPS}
        del knobs["epochs"]
    return TrainConfig(**{**knobs, **MODES[name], **more})


def run(
    name: str, out: Path, faults: tuple[Fault, ...] = (), *, restarts: int = 0, **more: Any
) -> Outcome:
    """Run a job, and check the history that it leaves, if any."""
    shutil.rmtree(out, ignore_errors=True)
    config = config_of(name, out, **more)
    problem = None
    if name != "stages":
        kind = Descent if name in DESCENTS else Ledger
        problem = kind(steps_of(name), shards_of(name))
    costs = VirtualCosts(compute="lognormal:0.001:0.5")
    hosts = HOSTS.get(name, ())
    scenario = Scenario(WORKERS, costs, faults=faults, restarts=restarts, hosts=hosts)
    said: list[str] = []
    replaced: set[int] = set()
    try:
        with (
            Durable(),
            mock.patch.object(session, "give_back", partial(_give_back, name, replaced)),
        ):
            found = run_in_virtual_time(config, scenario, problem, say=said.append)
    except PsrtError as error:
        return Outcome(None, "", 0, 0, 0, (), 0, error, said)
    table = None if problem is None else found.theta.reshape(problem.shape)
    if config.record:
        outcome = check_run(out)
        assert outcome.ok, "\n".join(outcome.lines())
    summary, world = found.summary, found.world
    crashed = tuple(world.crashed)
    return Outcome(
        table, summary.parameters_sha256, summary.steps, summary.samples, found.events, crashed,
        summary.torn, said=said, replaced=replaced, saved=_saved(out, faults), kept=_kept(out),
        figures={it: getattr(summary, it) for it in FIGURES},
    )  # fmt: skip


def _kept(out: Path) -> dict[str, str]:
    """Return by path what the newest checkpoint has, but for times and bytes."""
    newest, damaged = Checkpoints(Disk(), out).newest()
    assert not damaged
    if newest is None:
        return {}
    found = {"step": str(newest.manifest.step)}
    for entry in newest.manifest.parts:
        arrays, rest = flatten(read_part(Disk(), newest.path, entry))
        leaves = {it: array.tobytes() for it, array in arrays.items()} | dict(_leaves(rest))
        found |= {f"{entry.name}/{it}": repr(value) for it, value in leaves.items()}
    return {it: value for it, value in found.items() if TIMES.isdisjoint(it.split("/"))}


def _leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(tree, dict):
        yield path, tree
        return
    for name, it in tree.items():
        yield from _leaves(it, f"{path}/{name}" if path else name)


class Durable:
    """Stands for a disk that is synced, and demands that what replaces a checkpoint was.

    Every file of one before it gets its name, and that name before another one is deleted.
    """

    def __init__(self) -> None:
        self._synced: set[int] = set()
        self._renamed: set[int] = set()
        self._patches: list[Any] = [
            mock.patch.object(os, "fsync", self._fsync),
            mock.patch.object(os, "rename", partial(self._rename, os.rename)),
        ]

    def __enter__(self) -> None:
        for it in self._patches:
            it.start()

    def __exit__(self, *_: object) -> None:
        for it in self._patches:
            it.stop()

    def _fsync(self, handle: int) -> None:
        inode = os.fstat(handle).st_ino
        self._synced.add(inode)
        self._renamed.discard(inode)

    def _rename(self, rename: Callable[[Path, Path], None], old: Path, new: Path) -> None:
        folder = new.parent.stat().st_ino
        if new.name.isdecimal():
            for it in (old, *old.iterdir()):
                assert it.stat().st_ino in self._synced, f"{it} was not synced"
            self._renamed.add(folder)
        elif new.name.startswith(".trash-") and old.name.isdecimal():
            assert folder not in self._renamed, f"{old} goes before the new one is durable"
            left = [it for it in old.parent.iterdir() if it.name.isdecimal() and it != old]
            is_replaced = any(old.parent.glob(f"{old.name}.*.part/{MANIFEST}"))
            assert len(left) >= KEPT or is_replaced, f"{old} goes before there is a new one"
        rename(old, new)
        if new.name.startswith(".trash-"):
            # The number of what is written next may be that of what is deleted.
            gone = (new, *new.iterdir()) if new.is_dir() else (new,)
            self._synced -= {it.stat().st_ino for it in gone}


def _saved(out: Path, faults: Sequence[Fault]) -> list[str]:
    """Return the checkpoints of a run that has ended: two, and nothing else is left there.

    What a disk would not delete is, for the next attempt.
    """
    folder = out / FOLDER
    found = sorted(it.name for it in folder.iterdir()) if folder.exists() else []
    if any(it.kind == "disk" for it in faults):
        return [it for it in found if it.isdecimal()]
    assert all(it.isdecimal() for it in found), found
    assert len(found) <= KEPT, found
    return found


def _give_back(
    name: str, replaced: set[int], setup: Setup, roles: Roles, recorded_step: int
) -> dict[int, dict[Owner, int]]:
    """Give roles back what they had, which must be that of the newest checkpoint."""
    recorded = giving_back.give_back(setup, roles, recorded_step)
    if setup.resumption is None:
        return recorded
    replaced.update(setup.resumption.manifest.absent)
    path, step = setup.resumption.path, setup.resumption.manifest.step
    whole = [it for it in path.parent.iterdir() if it.name.isdecimal()]
    assert path == max(whole, key=lambda it: int(it.name))
    clocks = {it.clock for it in roles.values() if isinstance(it, Worker)}
    assert name not in SAME or clocks == {step}, f"workers go on at {clocks} from step {step}"
    return recorded


@functools.cache
def undisturbed(name: str, out: Path, every: int | None = None, *, record: bool = False) -> Outcome:
    """Return what a mode comes to when nothing goes wrong.

    Args:
        name: of the mode.
        out: a folder to use.
        every: steps from one checkpoint to the next; None makes none, and leaves a history.
        record: whether to leave one with checkpoints, too.
    """
    more: dict[str, Any] = {"record": record or every is None, "checkpoint_every": every}
    found = run(name, out / f"undisturbed {name} {every}", **more)
    assert found.error is None
    return found


def steps_of(name: str) -> Sequence[int]:
    return UNEVEN.get(name, [STEPS] * WORKERS)


def shards_of(name: str) -> int:
    return int(MODES[name].get("servers", 1) * MODES[name].get("shards_per_server", 1))


def ranks_of(name: str) -> int:
    return WORKERS + int(MODES[name].get("servers", 0))


def check_ticks(name: str, found: Outcome, lost: set[int]) -> None:
    """Hold what was applied against what was computed: each push once, none lost but of the dead.

    Args:
        name: of the mode.
        found: the result.
        lost: workers that died, without whom the others went on.
    """
    table, tick = np.asarray(found.table), TICKS[name]
    # Who came for one that had died may do steps of it once more, and leave others out.
    others = [it for it in range(WORKERS) if it not in found.replaced]
    fewest = max(1, WORKERS - len(lost.union(found.replaced)))
    ticks = np.isclose(table[..., None], [*tick(range(fewest, WORKERS + 1))]).any(-1)
    is_once = (ticks | (table == 0))[:, others]
    assert is_once.all(), f"a push was applied more than once: {table}"
    if name == "backups":  # which leave out what is late
        return
    torn = 0
    for worker in others:
        done = ticks[:, worker, : steps_of(name)[worker]]
        if worker not in lost:
            assert done.all(), f"a push of worker {worker} was lost: {table}"
        else:  # up to some step, which may have reached some of the shards only
            reached = done.sum(-1)
            torn += int(reached.max() - reached.min())
            assert (done == (np.arange(done.shape[1]) < reached[:, None])).all(), table
            assert reached.max() - reached.min() <= 1, table
    assert found.replaced or found.torn == torn, f"{found.torn} steps are said to be torn: {table}"
