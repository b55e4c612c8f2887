"""The set-up of a job: everything is checked and agreed on before anything is made or written."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from psrt.config import TrainConfig, from_toml, to_toml
from psrt.config.axes import Axes
from psrt.core.arrays import Vector
from psrt.core.errors import ConfigError
from psrt.core.files import keep_apart
from psrt.data import Deal
from psrt.history.header import Tried
from psrt.job.cells import in_order
from psrt.job.cut import Cut
from psrt.job.launcher import Launcher
from psrt.job.plan import JobPlan, chosen, layout_of, plan_job
from psrt.job.problems import (
    check_arrays,
    check_optimizer,
    machine_costs,
    with_own_optimizer,
)
from psrt.job.provenance import data_sha256
from psrt.job.replay import Replay
from psrt.job.resuming import Resumption, found, pinned
from psrt.job.roles import resolved_on, who_is_who
from psrt.launch import launch_line
from psrt.report.files import OutputFolder
from psrt.runtime.job_codec import JobCodec, job_codec
from psrt.runtime.problem import Problem, gradient_spans
from psrt.runtime.strategies.builders import fragments_for
from psrt.topology import Topology
from psrt.topology.registry import edges_of
from psrt.transport.port import RoleMap


@dataclass(frozen=True, slots=True)
class Setup:
    """A job that is ready to start; the same in all processes unless a field says otherwise."""

    #: Resolved.
    config: TrainConfig
    #: The decisions of the first process.
    plan: JobPlan
    #: The ranks of workers and servers; each cell has its own map, in ``cut``.
    role_map: RoleMap
    #: The neighbours of workers; None without.
    topology: Topology | None
    #: With a split model: which rank has which part; None if each worker has all of it.
    cut: Cut | None
    #: The model and data to train; None in a process of servers only, except the first.
    problem: Problem | None
    #: (n,) float32, the initial parameters, at the first process; empty without numerics.
    initial: Vector
    #: Number of the host of each rank.
    hosts: tuple[int, ...]
    #: The samples of each worker, if there is a problem; None with ``--partition iid``.
    deal: Deal | None
    #: The recorded run to repeat, already checked, at the first process; None without one.
    replay: Replay | None
    #: The checkpoint to resume from; None starts from the beginning.
    resumption: Resumption | None
    #: With a resumed run, at the first process: its locked folder, which no other run may use.
    folder: OutputFolder | None
    #: What was tried of a knob before the run, or the one that it repeats or resumes, as in its
    #: ``Header``; at the first process.
    tuned: tuple[Tried, ...] = ()
    #: The codec of pushes or sums; None if numbers are sent uncompressed.
    codec: JobCodec | None = field(init=False)
    #: The codec of each part of a split model that is sent by itself; empty otherwise.
    cell_codecs: tuple[JobCodec, ...] = field(init=False)

    def __post_init__(self) -> None:
        codec = job_codec(self.config, self.plan.matrices)
        cells = () if self.cut is None or self.cut.served is not None else self.cut.cells
        parts = tuple(codec.of_part(it.part, i) for i, it in enumerate(cells)) if codec else ()
        object.__setattr__(self, "codec", codec)
        object.__setattr__(self, "cell_codecs", parts)

    def codec_at(self, rank: int) -> JobCodec | None:
        """Return the codec of what a rank sends or receives: of its part of the parameters."""
        if self.cut is None or not self.cell_codecs:
            return self.codec
        return self.cell_codecs[self.cut.numbered_cell_of(rank)[0]]


def set_up(
    launcher: Launcher,
    config: TrainConfig | Callable[[], TrainConfig],
    problem: Problem | None = None,
) -> Setup:
    """Check a job and resolve what it leaves open; collective.

    After each step that may fail, all processes agree on whether it did. So an error on any rank
    is raised on all of them, and none waits for a rank that has exited.

    Args:
        launcher: of this process.
        config: need not be resolved; a function that makes it is called at the first process only.
        problem: the model and data to train; None takes the config's own.

    Raises:
        ConfigError: on every rank, if the job cannot be run.
    """
    config, resumption, replay, folder = _asked(launcher, config, problem)
    hosts = tuple(launcher.hosts(config))
    with launcher.agree():
        servers, workers = who_is_who(config, hosts, launcher.started_as)
        if config.parallel is not None:
            workers = in_order(workers, hosts, config.axes)
        if config.scheme.has_teams:
            ranks = int(config.scheme.learner_ranks)
            workers = in_order(workers, hosts, Axes(len(workers) // ranks, 1, ranks))
    initial, shared = np.zeros(0, np.float32), ""
    deal: Deal | None = None
    with launcher.agree():
        copies = config.axes.data or len(workers)
        trains = any(rank in workers for rank in launcher.here(len(hosts)))
        if problem is None and (launcher.first or trains):
            problem = launcher.problem(config, copies)
        if launcher.first:
            assert problem is not None
            initial, n = launcher.start_of(problem)
            if resumption is not None:
                initial = resumption.start(initial, data_sha256(problem))
        if problem is not None:
            deal = launcher.deal(config, problem, copies)
        if launcher.first:
            assert problem is not None
            shared = plan_job(
                config,
                problem,
                n,
                hosts=hosts,
                servers=servers,
                workers=workers,
                machine=machine_costs(config),
                priced=launcher.priced,
                edges=_edges(config, replay),
                dealt="" if deal is None else deal.sha256(),
                began=0.0 if launcher.simulated else time.time(),
            ).to_json()
    plan = JobPlan.from_json(launcher.share(shared))
    with launcher.agree():
        check_arrays(problem, plan.n, launcher.here(len(hosts))[0], plan.arrays)
        if launcher.numerics:
            check_optimizer(problem, launcher.here(len(hosts))[0], config)
        layout = layout_of(config, plan, problem, hosts=hosts, servers=servers, workers=workers)
        config = chosen(config, plan)
        _check_here(config, plan, problem, deal)
        if replay is not None:
            replay.check(
                config,
                layout.role_map,
                initial=initial,
                problem=problem,
                hosts=hosts,
                deal=deal,
                topology=layout.topology,
            )
    if config.replay is not None:
        config = launcher.fit(config)
    tuned = () if resumption is None else resumption.tuned
    if replay is not None:
        tuned = replay.header.tuned
    return Setup(
        config, plan, *layout, problem, initial, hosts, deal, replay, resumption, folder, tuned
    )


def _edges(config: TrainConfig, replay: Replay | None) -> str | None:
    """Return the text of the file with the topology; None without one.

    For a replay it comes from the history: the file may be gone, or have changed.
    """
    topology = config.scheme.topology
    if topology is None:
        return None
    return (replay and replay.header.edges) or edges_of(topology)


def _check_here(
    config: TrainConfig, plan: JobPlan, problem: Problem | None, deal: Deal | None
) -> None:
    """Check what each process has on its own.

    Raises:
        ConfigError: if the data is partitioned differently here, or the model has no such parts.
    """
    if deal is not None and deal.sha256() != plan.dealt:
        raise ConfigError(
            f"--partition {config.partition}: rank 0 partitions the samples differently: "
            "the data differs, or the version of numpy"
        )
    if problem is not None and config.scheme.streams:
        fragments_for(config.scheme, problem, plan.n)
    if problem is not None and config.scheme.overlap:
        gradient_spans(problem, plan.n)


class _Asked(NamedTuple):
    """What a job was asked to do."""

    #: Resolved.
    config: TrainConfig
    #: The checkpoint to resume from.
    resumption: Resumption | None
    #: The run to repeat, and the folder of a resumed run; at the first process.
    replay: Replay | None
    folder: OutputFolder | None


def _asked(
    launcher: Launcher, config: TrainConfig | Callable[[], TrainConfig], problem: Problem | None
) -> _Asked:
    """Return what the first process is asked for, as resolved there; collective.

    Raises:
        ConfigError: on every rank, if it is impossible.
    """
    replay: Replay | None = None
    folder: OutputFolder | None = None
    text = ""
    with launcher.agree():
        if launcher.first:
            config = config() if callable(config) else config
            replay = _replay(launcher, config)
            if replay is not None:
                config = replay.pinned(config)
            if config.resume is not None:
                if config.out is not None:
                    folder = OutputFolder(config.out)
                    folder.lock()
                config = pinned(config)
            if launcher.numerics:
                config = with_own_optimizer(config, problem)
            config = _resolved(launcher, config, is_replay=replay is not None)
            resumption: Resumption | None = None
            if config.resume is not None:
                resumption = found(config.resume)
                resumption.check(config, ranks=launcher.ranks_of(config))
            text = json.dumps([to_toml(config), resumption and resumption.to_json()])
    asked, resumed = json.loads(launcher.share(text))
    return _Asked(
        from_toml(asked, source="rank 0"),
        None if resumed is None else Resumption.from_json(resumed),
        replay,
        folder,
    )


def _resolved(launcher: Launcher, config: TrainConfig, *, is_replay: bool) -> TrainConfig:
    """Return a config resolved for the ranks that there are, and checked.

    Raises:
        ConfigError: if it is impossible there.
    """
    if (every := config.checkpoint_every) is not None:
        if not launcher.numerics:
            raise ConfigError(f"--checkpoint-every {every} has nothing to save without numerics")
        if launcher.simulated and not isinstance(every, int):
            raise ConfigError(f"--checkpoint-every {every} is not possible in virtual time")
    if config.out is not None and config.machine_costs is not None:
        keep_apart(config.out, "--machine-costs", config.machine_costs)
    asked = config.codec_everywhere
    ranks = launcher.ranks_of(config)
    config = resolved_on(launcher.hosts, config, ranks, launcher.started_as)
    brings = config.optimizer.codec is not None  # it needs its codec
    if config.codec is not None and not is_replay and not brings:
        there = launcher.has_network(launcher.hosts(config), asked)
        config = replace(config, codec_everywhere=there or asked is True)
    launcher.check(config)
    return config


def _replay(launcher: Launcher, config: TrainConfig) -> Replay | None:
    """Return the run that a config is to repeat, None without one.

    Raises:
        ConfigError: if that run cannot be repeated, or not on this number of ranks.
    """
    if config.replay is None:
        return None
    if any(launcher.started_as):
        raise ConfigError(
            "--replay cannot be combined with psrt server and psrt worker, it knows who is who: "
            + launch_line(len(launcher.started_as), f"train --replay {config.replay}")
        )
    replay = Replay(config.replay)
    if launcher.ranks is not None:
        replay.check_ranks(launcher.ranks)
    return replay
