"""The parts of a run's checkpoints: what each role saves, under which name, and when."""

from __future__ import annotations

import json
import math
import weakref
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from psrt.checkpoint import (
    Checkpoints,
    Manifest,
    PartEntry,
    Tree,
)
from psrt.config import to_toml
from psrt.config.checks import flag
from psrt.config.regroup import bound_to_workers
from psrt.core.errors import CheckpointError, ConfigError
from psrt.core.partition import Span
from psrt.core.units import numbered
from psrt.history import EventLog
from psrt.history.log import Owner
from psrt.job.boundaries import Boundaries
from psrt.job.committing import Committer, reason_of
from psrt.job.launcher import Launcher, Roles
from psrt.job.pace import Pace
from psrt.job.provenance import data_sha256
from psrt.job.result import Say
from psrt.job.resuming import CONTROL, DATA, HOSTS, TUNED
from psrt.job.saving import Part, Saver
from psrt.job.setup import Setup
from psrt.pipeline.registry import PIPELINES
from psrt.rows.values import seconds_of
from psrt.runtime.length import EpochEnds
from psrt.runtime.server import Server
from psrt.runtime.shard_server import ShardServer
from psrt.runtime.strategies.base import ReducePlan
from psrt.runtime.worker import Worker
from psrt.sync.cut import Cuts

#: Why there are no more checkpoints with a worker, in modes in which each has state that no other
#: has; and with a shard whose events are recorded.
_ALONE = "continues without a worker"
_UNRECORDED = f"{_ALONE}, and --record cannot join its history with that of a replacement"


def saver_for(
    launcher: Launcher,
    setup: Setup,
    roles: Roles,
    plan: ReducePlan | None,
    say: Say,
    log_of: Callable[[int], EventLog | None],
) -> Saver | None:
    """Make the roles of this process save themselves, if the config says so.

    Args:
        launcher: of this process.
        setup: the job.
        roles: of this process, which have not started.
        plan: how all workers sum; None if they do not.
        say: called with each line for the user, at the first process.
        log_of: returns the event log of a rank; None if nothing is recorded.
    """
    config = setup.config
    if config.checkpoint_every is None or config.out is None:
        return None
    every = config.checkpoint_every if isinstance(config.checkpoint_every, int) else None
    checkpoints = Checkpoints(launcher.disk, Path(config.out).absolute())
    committer: Committer | None = None
    if launcher.first:
        committer = _committer(launcher, setup, checkpoints, plan, say)
    boundaries = _boundaries(launcher, setup, next(iter(roles)), every, committer)
    saver = Saver(
        checkpoints=checkpoints,
        disk=launcher.disk,
        boundaries=boundaries,
        every=every,
        parks=config.scheme.parks,
        attempt=_attempt(setup),
        threaded=not launcher.simulated,
        committer=committer,
    )
    for rank, role in roles.items():
        for part, owner in parts_at(setup, rank, role, log_of(rank), launcher.gone):
            saver.since(part.name, _began(setup))
            saver.warm(part)
            _hook(saver, part, owner, setup)
    return saver


def _attempt(setup: Setup) -> int:
    return 0 if setup.resumption is None else setup.resumption.attempt


def _began(setup: Setup) -> int:
    """Return the step at which the run starts."""
    return 0 if setup.resumption is None else setup.resumption.manifest.step


def _boundaries(
    launcher: Launcher, setup: Setup, process: int, every: int | None, committer: Committer | None
) -> Boundaries:
    """Return the object that decides when the roles of this process are saved.

    If workers park and there are servers, the server of the first shard decides, which all
    workers push to; otherwise the first process does.
    """
    config, servers, are_parked = setup.config, setup.role_map.servers, setup.config.scheme.parks
    several = launcher.several
    decider = 0
    if not several:
        decider = process
    elif are_parked and servers:
        decider = servers[0]
    pace: Pace | None = None
    if every is None and committer is not None:
        interval_s, mtbf_s = seconds_of(config.checkpoint_every), config.mtbf or math.inf
        pace = Pace(interval_s, mtbf_s=mtbf_s, cost_s=lambda: committer.took_s)
    cuts = Cuts(
        process,
        processes=setup.role_map.size if several else 1,
        decider=decider,
        parks=are_parked,
        sees_all=bool(servers),
        every=every,
        step=_began(setup),
    )
    found = Boundaries(
        cuts,
        launcher.line,
        pace=pace,
        timeout_s=config.timeout_s,
        gone=launcher.gone if several else tuple,
    )
    if committer is not None:
        found.failed = committer.failed
        if launcher.unheard and not are_parked:
            who = numbered("rank", launcher.unheard)
            found.trouble = f"{who} cannot be reached, so no step can be agreed on"
    return found


def _hook(saver: Saver, part: Part, owner: Worker | ShardServer, setup: Setup) -> None:
    """Make a role save itself at a cut."""
    mode, servers = setup.config.scheme, setup.role_map.servers
    hook, call = partial(saver.at, part), saver.boundaries.call
    if isinstance(owner, ShardServer):
        if not mode.parks:
            owner.at_version = hook
            if setup.cut is not None and PIPELINES[setup.cut.schedule.name].asynchronous:
                # Such a worker is at a cut when no batch is in flight.
                ends = EpochEnds(_began(setup))
                owner.at_version = partial(_at_ends, weakref.proxy(owner), ends, hook)
            return
        owner.at_cut = hook
        if owner.number == 0:
            owner.call = call
        return
    owner.at_boundary = hook
    if mode.parks:
        owner.meter.keep_reports()
        if not servers:
            owner.strategy.call = call
    # Otherwise it takes part in the others' rounds, and is saved after each.
    if servers or mode.averages or mode.mixes:
        owner.at_end = partial(saver.ended, part, stays=mode.parks)


async def _at_ends(
    owner: ShardServer, ends: EpochEnds, hook: Callable[[int], Awaitable[object]], clock: int
) -> None:
    if ends.after(clock, owner.progress):
        await hook(clock)


def _committer(
    launcher: Launcher,
    setup: Setup,
    checkpoints: Checkpoints,
    plan: ReducePlan | None,
    say: Say,
) -> Committer:
    """Make the folder, and return the object that commits checkpoints there.

    Raises:
        ConfigError: if it cannot be made, or others may write to it.
    """
    config, attempt = setup.config, _attempt(setup)
    try:
        checkpoints.prepare()
    except (OSError, CheckpointError) as error:
        raise ConfigError(f"--checkpoint-every: {reason_of(error)}") from None
    more: dict[str, str] = {}
    if plan is not None and len(setup.role_map.workers) > 1:  # a single worker has no all-reduce
        more = {"allreduce": plan.algorithm, CONTROL: plan.control_algorithm}
    if data := data_sha256(setup.problem):
        more[DATA] = data
    more[HOSTS], more[TUNED] = hosts_text(setup), json.dumps(setup.tuned)
    if setup.cut is not None:
        more["stages"] = config.stages or ""
    return Committer(
        checkpoints=checkpoints,
        disk=launcher.disk,
        names=_names(setup),
        keep=config.keep or 1,
        attempt=attempt,
        timeout_s=config.timeout_s,
        manifest=partial(_manifest, setup, attempt, more),
        say=say,
        asked=flag("checkpoint_every", config.checkpoint_every),
        gone=tuple if bound_to_workers(config) else partial(_gone, launcher, setup),
    )


def parts_at(
    setup: Setup,
    rank: int,
    role: Server | Worker,
    log: EventLog | None = None,
    gone: Callable[[], Collection[int]] = tuple,
) -> Iterator[tuple[Part, Worker | ShardServer]]:
    """Yield the parts of the role at a rank, each with the object that has it.

    Args:
        setup: the job.
        rank: of the role.
        role: the server, or the worker.
        log: its event log.
        gone: returns the ranks that the others continue without.
    """
    cell = None if setup.cut is None else setup.cut.cell_of(rank)
    role_map = setup.role_map if cell is None else cell.role_map

    def places(span: Span) -> tuple[Span, ...]:
        return (span,) if cell is None else cell.part.spans(span)

    if isinstance(role, Worker):
        number = setup.role_map.worker_of(rank)
        assert number is not None, "it is a worker"
        # Without servers, the first worker's vector is that of all workers, or else each worker has
        # its own vector in its tree.
        mixes = setup.config.scheme.mixes
        is_first = rank == (setup.role_map.workers[0] if cell is None else cell.first_worker)
        carries = is_first and not setup.role_map.servers and role.strategy.whole
        spans = places(Span(0, role_map.n)) if carries or mixes else ()
        held: Any = weakref.proxy(role)  # weak, since the role refers to this part
        tree: Callable[[], Tree] = partial(_tree_of_worker, held, carries and not mixes)
        tree = partial(_with_events, tree, log, (False, role.number))
        alone = partial(_why_alone, held, gone if mixes else tuple)
        yield Part(_worker(number, setup), tree, spans, over=alone, log=log), role
        return
    # The shards of a cell are numbered after those of the cells before it.
    before = 0
    if setup.cut is not None and cell is not None:
        before = setup.cut.served_cells.index(cell) * len(role_map.spans)
    for it in role.shards:
        spans = places(role_map.spans[it.number])
        held = weakref.proxy(it)
        tree = partial(_with_events, partial(_tree_of_shard, held), log, (True, it.number))
        name = _shard(before + it.number, setup)
        without, unrecorded = partial(_fenced, held), partial(_why_unrecorded, held, log)
        yield Part(name, tree, spans, without, unrecorded, log), it


def _fenced(it: ShardServer) -> Sequence[int]:
    return sorted(it.policy.fenced)


def _why_unrecorded(it: ShardServer, log: EventLog | None) -> str:
    """Return why there are no more checkpoints with a shard: its log knows no other worker."""
    return _UNRECORDED if log is not None and it.policy.fenced else ""


def _why_alone(worker: Worker, gone: Callable[[], Collection[int]]) -> str:
    """Return why there are no more checkpoints with a worker: the state of a dead one is lost.

    Its neighbours learn of the death first.
    """
    return _ALONE if worker.strategy.has_lost or gone() else ""


def _gone(launcher: Launcher, setup: Setup) -> set[int]:
    """Return the numbers of the workers that the others continue without."""
    numbers = (setup.role_map.worker_of(rank) for rank in launcher.gone())
    return {it for it in numbers if it is not None}


def _tree_of_worker(worker: Worker, has_theta: bool) -> dict[str, Any]:
    tree: dict[str, Any] = {"role": worker.state()}
    if (owned := worker.strategy.owned) is not None:
        tree["owned"] = [end for span in owned for end in span]
    return tree | {"theta": worker.theta} if has_theta else tree


def _with_events(tree: Callable[[], Tree], log: EventLog | None, owner: Owner) -> Tree:
    """Return a tree with the number of its owner's events, if they are recorded."""
    found = tree()
    if log is not None:
        log.flush()  # the events must be on disk before this part
        found["events"] = log.counts[owner]
    return found


def _tree_of_shard(it: ShardServer) -> dict[str, Any]:
    return {"role": it.state(), "theta": it.shard.theta}


def _names(setup: Setup) -> list[str]:
    """Return the names of all parts."""
    role_map = setup.role_map
    workers = [_worker(number, setup) for number in range(len(role_map.workers))]
    shards = range(_shards(setup)) if role_map.servers else ()
    return workers + [_shard(number, setup) for number in shards]


def _shards(setup: Setup) -> int:
    """Return the number of shards of all servers."""
    if setup.cut is None:
        return len(setup.role_map.spans)
    return sum(len(cell.role_map.spans) for cell in setup.cut.served_cells)


def _worker(number: int, setup: Setup) -> str:
    return f"worker-{number}-of-{len(setup.role_map.workers)}"


def _shard(number: int, setup: Setup) -> str:
    return f"shard-{number}-of-{_shards(setup)}"


def hosts_text(setup: Setup) -> str:
    """Return the host of each rank, with hosts numbered in order of appearance."""
    numbers = {host: number for number, host in enumerate(dict.fromkeys(setup.hosts))}
    return ",".join(str(numbers[host]) for host in setup.hosts)


def _manifest(
    setup: Setup,
    attempt: int,
    more: dict[str, str],
    step: int,
    parts: Sequence[PartEntry],
) -> Manifest:
    text = to_toml(setup.config)
    resumption, there = setup.resumption, {it.name for it in parts}
    workers = range(len(setup.role_map.workers))
    return Manifest(
        step=step,
        n=setup.role_map.n,
        workers=len(workers),
        absent=tuple(it for it in workers if _worker(it, setup) not in there),
        servers=len(set(setup.role_map.servers)),
        config=text,
        attempt=attempt,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        parent="" if resumption is None else resumption.path.name,
        parts=tuple(parts),
        more=more,
    )
