"""The parts of a run's checkpoints: which role saves what, under which name, and gets it back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from psrt.checkpoint import (
    Checkpoints,
    Disk,
    Manifest,
    PartEntry,
    Tree,
    assemble,
    paths_by_element,
    restore,
    state_of,
)
from psrt.config import TrainConfig, to_toml
from psrt.config.values import seconds_of
from psrt.errors import CheckpointError, ConfigError
from psrt.job.launcher import Launcher, Roles
from psrt.job.meeting import Meeting
from psrt.job.pace import Pace
from psrt.job.provenance import data_sha256
from psrt.job.result import Say
from psrt.job.resuming import CONTROL, DATA, Resumption
from psrt.job.saving import Committer, Part, Saver, reason_of
from psrt.job.setup import Setup
from psrt.partition import Span
from psrt.runtime.server import Server
from psrt.runtime.shard_server import ShardServer
from psrt.runtime.strategies.base import ReducePlan
from psrt.runtime.worker import Worker
from psrt.stats import Stats


def saver_for(
    launcher: Launcher, setup: Setup, roles: Roles, plan: ReducePlan | None, say: Say
) -> Saver | None:
    """Have the roles of this process save themselves, where the config says so.

    Args:
        launcher: of this process.
        setup: the job.
        roles: of this process, which have not begun.
        plan: how all workers sum; None if they do not.
        say: called with each line for the user, at the first process.
    """
    config = setup.config
    if config.checkpoint_every is None or config.out is None:
        return None
    if not launcher.numerics:
        raise ConfigError(
            f"--checkpoint-every {config.checkpoint_every} has nothing to save without numerics"
        )
    disk, resumption = Disk(), setup.resumption
    checkpoints = Checkpoints(disk, Path(config.out))
    attempt = 0 if resumption is None else resumption.attempt
    began = 0 if resumption is None else resumption.manifest.step
    every, meeting = config.checkpoint_every, None
    if launcher.simulated and not isinstance(every, int):
        raise ConfigError(f"--checkpoint-every {every} is not possible in virtual time")
    if not launcher.simulated:
        meeting = Meeting(
            checkpoints,
            disk,
            process=next(iter(roles)),
            processes=setup.role_map.size,
            attempt=attempt,
            step=began,
            timeout_s=config.timeout_s,
        )
    saver = Saver(
        checkpoints,
        disk,
        every=every if isinstance(every, int) else None,
        attempt=attempt,
        threaded=not launcher.simulated,
        meeting=meeting,
    )
    for rank, role in roles.items():
        for part, owner in _parts_at(setup, rank, role):
            saver.since(part.name, began)
            hook = partial(saver.at, part)
            if isinstance(owner, Worker):
                owner.at_boundary = hook
                # Elsewhere it joins the others' rounds, and is saved after each.
                if setup.role_map.servers or config.scheme.averages:
                    owner.at_end = partial(saver.ended, part)
            else:
                owner.at_version = hook
    if launcher.first:
        try:
            checkpoints.prepare()
        except (OSError, CheckpointError) as error:
            raise ConfigError(f"--checkpoint-every: {reason_of(error)}") from None
        more = {}
        if plan is not None:
            more = {"allreduce": plan.algorithm, CONTROL: plan.control_algorithm}
        if data := data_sha256(setup.problem):
            more[DATA] = data
        saver.committer = Committer(
            checkpoints,
            disk,
            names=_names(setup),
            keep=config.keep or 1,
            attempt=attempt,
            timeout_s=config.timeout_s,
            manifest=partial(_manifest, setup, attempt, more),
            say=say,
        )
        if meeting is not None:
            meeting.failed = saver.committer.unasked
            if not isinstance(every, int):
                meeting.at_look = _asking(meeting, saver.committer, config)
    return saver


def _asking(meeting: Meeting, committer: Committer, config: TrainConfig) -> Callable[[], None]:
    """Return what asks for a checkpoint whenever it is time."""
    pace = Pace(seconds_of(config.checkpoint_every), mtbf_s=config.mtbf or math.inf)

    def look() -> None:
        pace.cost_s = committer.took_s
        if pace.is_due():
            meeting.ask()

    return look


def give_back(setup: Setup, roles: Roles) -> None:
    """Give the roles of this process what they had when the checkpoint was made.

    Raises:
        ConfigError: if a part is not there, cannot be read here, or is of another run.
    """
    it = setup.resumption
    if it is None:
        return
    old = {entry.name: entry.spans for entry in it.manifest.parts if _is_shard(entry.name)}
    for rank, role in roles.items():
        for part, owner in _parts_at(setup, rank, role):
            try:
                if isinstance(owner, Worker) or old.get(part.name) == part.spans:
                    owner.restore(it.part(part.name)["role"])
                else:
                    owner.restore(_cut_anew(it, list(old), owner, part.spans[0]))
            except CheckpointError as error:
                raise ConfigError(f"--resume {it.path}: {error}") from error


def _cut_anew(it: Resumption, names: Sequence[str], owner: ShardServer, span: Span) -> Tree:
    """Return the tree of a shard of a run whose shards were others.

    Arrays by element are cut by where they are in the whole vector. All else is the same in all
    shards at the end of a round, but for what they counted, which the first one takes over.
    """
    spans = [entry.spans for entry in it.manifest.parts if entry.name in names]
    trees = [it.part(name)["role"] for name in names]
    tree: Tree = trees[0]
    for path in paths_by_element(owner):
        pieces = [(of, _within(one, path)) for of, one in zip(spans, trees, strict=True)]
        *above, last = path.split("/")
        _within(tree, "/".join(above))[last] = assemble(pieces, span, it.manifest.n)
    none = Stats(staleness=[{} for _ in tree["shard"]["stats"]["staleness"]])
    counted = [restore(deepcopy(none), one["shard"]["stats"]) for one in trees]
    stats = Stats.merged(counted) if owner.number == 0 else none
    tree["shard"]["stats"] = state_of(stats)
    totals = [sum(pair) for pair in zip(*(one["bytes"] for one in trees), strict=True)]
    tree["bytes"] = totals if owner.number == 0 else [0, 0]
    return tree


def _within(tree: Tree, path: str) -> Any:
    found: Tree = tree
    for name in filter(None, path.split("/")):
        found = found[name]
    return found


def _parts_at(
    setup: Setup, rank: int, role: Server | Worker
) -> Iterator[tuple[Part, Worker | ShardServer]]:
    """Yield the parts of the role at a rank, and who has each."""
    role_map = setup.role_map
    if isinstance(role, Worker):
        number = role_map.worker_of(rank)
        assert number is not None, "it is a worker"
        # Where there are no servers, the first worker's vector is everybody's, or nobody's but its
        # own: then each has its own in its tree.
        carries = number == 0 and not role_map.servers and role.strategy.whole
        spans = (Span(0, role_map.n),) if carries else ()
        yield Part(_worker(number, setup), partial(_tree_of_worker, role, bool(spans)), spans), role
        return
    for it in role.shards:
        span = role_map.spans[it.number]
        yield Part(_shard(it.number, setup), partial(_tree_of_shard, it), (span,)), it


def _tree_of_worker(worker: Worker, has_theta: bool) -> dict[str, Any]:
    tree = {"role": worker.state()}
    return tree | {"theta": worker.theta} if has_theta else tree


def _tree_of_shard(it: ShardServer) -> dict[str, Any]:
    return {"role": it.state(), "theta": it.shard.theta}


def _names(setup: Setup) -> list[str]:
    """Return the names of all parts."""
    role_map = setup.role_map
    workers = [_worker(number, setup) for number in range(len(role_map.workers))]
    shards = range(len(role_map.spans)) if role_map.servers else ()
    return workers + [_shard(number, setup) for number in shards]


def _worker(number: int, setup: Setup) -> str:
    return f"worker-{number}-of-{len(setup.role_map.workers)}"


def _shard(number: int, setup: Setup) -> str:
    return f"shard-{number}-of-{len(setup.role_map.spans)}"


def _is_shard(name: str) -> bool:
    return name.startswith("shard-")


def _manifest(
    setup: Setup,
    attempt: int,
    more: dict[str, str],
    step: int,
    parts: Sequence[PartEntry],
) -> Manifest:
    text = to_toml(setup.config)
    resumption = setup.resumption
    return Manifest(
        step=step,
        n=setup.role_map.n,
        workers=len(setup.role_map.workers),
        servers=len(set(setup.role_map.servers)),
        config=text,
        attempt=attempt,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        parent="" if resumption is None else resumption.path.name,
        parts=tuple(parts),
        more=more,
    )
