"""The set-up of a job: everything is checked and agreed on before anything is made or written."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from psrt.arrays import Vector
from psrt.codec import Matrix
from psrt.collective.analysis.machine import MachineCosts
from psrt.config import TrainConfig, from_toml, to_toml
from psrt.config.checks import check_matrices
from psrt.data import Deal
from psrt.errors import ConfigError
from psrt.files import keep_apart
from psrt.job.build import fragments_for, held_by_workers, role_map_for
from psrt.job.cells import in_order
from psrt.job.codecs import JobCodec, job_codec
from psrt.job.cut import Cut, CutPlan, cut_of, cut_plan
from psrt.job.gossip import role_map_with_peers, topology_for
from psrt.job.launcher import Launcher
from psrt.job.problems import arrays_of, check_arrays, machine_costs
from psrt.job.provenance import data_sha256
from psrt.job.replay import Replay
from psrt.job.resuming import Resumption, found, pinned
from psrt.job.roles import resolved, who_is_who
from psrt.job.shards import ShardChoice, served_job, shards_for
from psrt.mpirun import launch_line
from psrt.partition import Span
from psrt.report.files import OutputFolder
from psrt.runtime.problem import Problem, gradient_spans, matrices_of
from psrt.topology import Topology
from psrt.topology.registry import edges_of
from psrt.transport.port import RoleMap


@dataclass(frozen=True, slots=True)
class Setup:
    """A job that is ready to start; the same in all processes unless a field says otherwise."""

    #: Resolved.
    config: TrainConfig
    #: The model and data to train; None in a process of servers only, except the first.
    problem: Problem | None
    #: (n,) float32, the initial parameters, at the first process; empty without numerics.
    initial: Vector
    #: The ranks of workers and servers; those of a cell have one of their own, in ``cut``.
    role_map: RoleMap
    #: Number of the host of each rank.
    hosts: tuple[int, ...]
    #: The costs by which ``auto`` picks an all-reduce; read at the first process only.
    machine: MachineCosts
    #: The number of shards that each server owns, and the reason; None without servers.
    shards: ShardChoice | None
    #: Of what is pushed to servers, or summed; None where numbers are sent as they are.
    codec: JobCodec | None
    #: The same for each part of a model that is cut; otherwise empty.
    cell_codecs: tuple[JobCodec, ...]
    #: The samples of each worker, where there is a problem; None in ``--partition iid``.
    deal: Deal | None
    #: Whom workers mix with; None where they do not.
    topology: Topology | None
    #: Of a model that is cut: who has which part of it; empty where each worker has all of it.
    cut: Cut | None
    #: The recorded run to repeat, already checked, at the first process; None without one.
    replay: Replay | None
    #: The checkpoint to go on from; None begins at the beginning.
    resumption: Resumption | None
    #: Of a run that goes on, at the first process: where it writes, which no other run may use.
    folder: OutputFolder | None
    #: The time of day at the first process when the job was set up, in seconds; 0 in virtual time.
    began: float

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
        ConfigError: on every rank, if the job is impossible.
    """
    config, replay, folder = _same_config(launcher, config)
    resumption = _resumption(launcher, config)
    shards: ShardChoice | None = None
    hosts = tuple(launcher.hosts(config))
    with launcher.agree():
        servers, workers = who_is_who(config, hosts, launcher.started_as)
        if config.parallel is not None:
            workers = in_order(workers, hosts, config.axes)
    copies = config.axes.data or len(workers)
    initial, shared = np.zeros(0, np.float32), ""
    deal: Deal | None = None
    edges: str | None = None
    plan: CutPlan | None = None
    with launcher.agree():
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
            matrices = matrices_of(problem, n)
            check_matrices(config, [(it.rows, it.columns) for it in matrices])
            machine = machine_costs(config)
            if config.topology is not None:
                # Of a recorded run they are in its history: its file may be gone, or another one.
                edges = (replay and replay.header.edges) or edges_of(config.topology)
            layers: Sequence[Span] = ()
            if servers:
                # A process of servers only has no problem that could say its layers.
                layers = gradient_spans(problem, n)
                roles = [[hosts[rank] for rank in ranks] for ranks in (servers, workers)]
                codec = job_codec(config, matrices)
                job = served_job(config, n, layers, *roles, costs=machine, codec=codec)
                shards = shards_for(config, launcher.priced(job))
            plan = cut_plan(config, problem, n)
            dealt = "" if deal is None else deal.sha256()
            began = 0.0 if launcher.simulated else time.time()
            chosen, arrays = shards and [*shards], arrays_of(problem)
            shared = json.dumps(
                [n, layers, chosen, machine.to_json(), matrices, dealt, edges, plan, began, arrays]
            )
    n, layers, chosen, costs, matrices, dealt, edges, plan, began, arrays = json.loads(
        launcher.share(shared)
    )
    if chosen is not None:
        shards = ShardChoice(*chosen)
        config = replace(config, shards_per_server=shards.shards)
    codec = job_codec(config, [Matrix(*it) for it in matrices])
    with launcher.agree():
        check_arrays(problem, launcher.here(len(hosts))[0], arrays)
        # Copies of a model that is cut mix part by part: all parts have the same neighbours.
        nodes = workers if plan is None else workers[:: config.axes.cells]
        topology = topology_for(config, [hosts[rank] for rank in nodes], edges=edges)
        role_map = role_map_for(
            n,
            servers,
            workers,
            shards_per_server=1 if shards is None else shards.shards,
            layers=[Span(*layer) for layer in layers],
            controls=config.fragments or 1,
        )
        if topology is not None and plan is None:
            role_map = role_map_with_peers(config, n, workers, topology)
        if problem is not None and plan is None:
            role_map = held_by_workers(config, problem, role_map)
        cut = None if plan is None else cut_of(config, plan, servers, workers, shards, topology)
        if cut is not None:
            config = replace(config, stages=",".join(map(str, cut.counts)))
        if deal is not None and deal.sha256() != dealt:
            raise ConfigError(
                f"--partition {config.partition}: the samples are not dealt out here as at rank 0: "
                "the data differs, or the version of numpy"
            )
        if config.streams and problem is not None:
            fragments_for(config, problem, n)
        if config.overlap and problem is not None:
            gradient_spans(problem, n)
        if replay is not None:
            replay.check(
                config,
                role_map,
                initial=initial,
                problem=problem,
                hosts=hosts,
                deal=deal,
                topology=topology,
            )
    if config.replay is not None:
        config = launcher.fit(config)
    machine = MachineCosts.from_json(costs)
    return Setup(
        config,
        problem,
        initial,
        role_map,
        hosts,
        machine,
        shards,
        codec,
        ()
        if cut is None or codec is None
        else tuple(codec.of_part(it.part, i) for i, it in enumerate(cut.cells)),
        deal,
        topology,
        cut,
        replay,
        resumption,
        folder,
        began,
    )


def _same_config(
    launcher: Launcher, config: TrainConfig | Callable[[], TrainConfig]
) -> tuple[TrainConfig, Replay | None, OutputFolder | None]:
    """Return the first process's config, resolved, and two things at that process only.

    They are the run that is repeated, and the folder of one that goes on.
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
            if (every := config.checkpoint_every) is not None:
                if not launcher.numerics:
                    raise ConfigError(
                        f"--checkpoint-every {every} has nothing to save without numerics"
                    )
                if launcher.simulated and not isinstance(every, int):
                    raise ConfigError(f"--checkpoint-every {every} is not possible in virtual time")
            if config.out is not None and config.machine_costs is not None:
                keep_apart(config.out, "--machine-costs", config.machine_costs)
            asked = config.codec_everywhere
            config = resolved(config, launcher.ranks_of(config), launcher.started_as)
            brings = config.optimizer.codec is not None  # it cannot do without its codec
            if config.codec is not None and replay is None and not brings:
                there = launcher.has_network(launcher.hosts(config), asked)
                config = replace(config, codec_everywhere=there or asked is True)
            launcher.check(config)
            text = to_toml(config)
    return from_toml(launcher.share(text), source="rank 0"), replay, folder


def _resumption(launcher: Launcher, config: TrainConfig) -> Resumption | None:
    """Return the checkpoint to go on from, the same in all processes; collective.

    Raises:
        ConfigError: on every rank, if there is none, or it is of another number of ranks.
    """
    if config.resume is None:
        return None
    text = ""
    with launcher.agree():
        if launcher.first:
            it = found(config.resume)
            it.check(config, ranks=launcher.ranks_of(config))
            text = it.to_json()
    return Resumption.from_json(launcher.share(text))


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
