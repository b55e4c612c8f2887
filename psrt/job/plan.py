"""What the first process decides before roles exist, and the roles that follow from it. Pure.

All other processes get the plan, as JSON, and derive the same from it. It holds what only the first
process knows: it has the whole problem, reads the files that a config names, and knows the costs by
which ``auto`` chooses.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from psrt.codec import Matrix
from psrt.collective.analysis.machine import MachineCosts
from psrt.config import TrainConfig
from psrt.config.checks import check_matrices
from psrt.config.names import SEQUENTIAL
from psrt.core.arrays import ITEMSIZE
from psrt.core.partition import Span, fragments_of
from psrt.job.build import held_by_workers, role_map_for
from psrt.job.cut import Cut, CutPlan, cut_of, cut_plan
from psrt.job.gossip import role_map_with_peers, topology_for
from psrt.job.problems import arrays_of
from psrt.job.shards import (
    ServedJob,
    ShardChoice,
    exchange_seconds,
    served_job,
    shards_for,
    shards_to_try,
)
from psrt.runtime.job_codec import job_codec
from psrt.runtime.named_arrays import NamedShape
from psrt.runtime.problem import Problem, gradient_spans, matrices_of
from psrt.runtime.strategies.buckets import buckets_of
from psrt.sync.tuning import PERIOD, buckets_to_try
from psrt.topology import Topology
from psrt.transport.port import RoleMap


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The decisions and findings of the first process."""

    #: Number of parameters.
    n: int
    #: The matrices among them.
    matrices: tuple[Matrix, ...]
    #: The gradient's spans in the order in which they are ready; none without servers.
    layers: tuple[Span, ...]
    #: The number of shards that each server owns, and the reason; None without servers.
    shards: ShardChoice | None
    #: The values of the knob to tune, the usual one first; empty without ``--tune``.
    tries: tuple[int, ...]
    #: Seconds of a push and its answer, as predicted; 0 without servers.
    sync_s: float
    #: How a model is split; None if each worker has all of it.
    cut: CutPlan | None
    #: The costs by which ``auto`` picks an all-reduce.
    machine: MachineCosts
    #: The text of the file with the topology; None if it has a name, or there is none.
    edges: str | None
    #: The digest of the assignment of samples; empty without one.
    dealt: str
    #: The arrays of the parameters; None if they have no names.
    arrays: list[NamedShape] | None
    #: The time of day when the job was set up, in seconds; 0 in virtual time.
    began: float

    def to_json(self) -> str:
        """Return it as text, for the other processes."""
        values = {it.name: getattr(self, it.name) for it in fields(self)}
        return json.dumps(values | {"machine": self.machine.to_json()})

    @classmethod
    def from_json(cls, text: str) -> JobPlan:
        """Return the plan of ``to_json``."""
        values = json.loads(text)
        shards, cut = values["shards"], values["cut"]
        known = {
            "matrices": tuple(Matrix(*it) for it in values["matrices"]),
            "layers": tuple(Span(*it) for it in values["layers"]),
            "tries": tuple(values["tries"]),
            "shards": None if shards is None else ShardChoice(*shards),
            "cut": None if cut is None else CutPlan(*cut),
            "machine": MachineCosts.from_json(values["machine"]),
        }
        return cls(**values | known)


def plan_job(
    config: TrainConfig,
    problem: Problem,
    n: int,
    *,
    hosts: Sequence[int],
    servers: Sequence[int],
    workers: Sequence[int],
    machine: MachineCosts,
    priced: Callable[[ServedJob], ServedJob],
    edges: str | None,
    dealt: str,
    began: float,
) -> JobPlan:
    """Make the plan, at the first process.

    Args:
        config: resolved.
        problem: the whole problem.
        n: the number of its parameters.
        hosts: number of the host of each rank.
        servers: their ranks.
        workers: their ranks.
        machine: the costs by which ``auto`` chooses.
        priced: returns a job with the costs that the launcher knows.
        edges: the text of the file with the topology, if any.
        dealt: the digest of the assignment of samples.
        began: the time of day.

    Raises:
        ConfigError: if the job is impossible.
    """
    matrices = matrices_of(problem, n)
    check_matrices(config, [(it.rows, it.columns) for it in matrices])
    layers: Sequence[Span] = ()
    shards: ShardChoice | None = None
    tries: tuple[int, ...] = ()
    sync_s = 0.0
    if servers:
        # A process with only servers has no problem that could give its layers.
        layers = gradient_spans(problem, n)
        learners = workers[:: config.axes.cells] if config.has_whole_servers else workers
        of_servers, of_workers = ([hosts[rank] for rank in ranks] for ranks in (servers, learners))
        codec = job_codec(config, matrices)
        job = served_job(config, n, layers, of_servers, of_workers, costs=machine, codec=codec)
        job = priced(job)
        shards = shards_for(config, job, _fragments(config, layers))
        sync_s = exchange_seconds(job) / config.scheme.fragments
        tries = shards_to_try(job, shards.shards)
    elif config.scheme.averages:
        tries = tuple(sorted({1, min(PERIOD, config.scheme.local_steps)}))
    elif config.tune:
        spans, usual = gradient_spans(problem, n), config.scheme.bucket_bytes or 0
        tries = buckets_to_try(lambda it: len(buckets_of(spans, it)), ITEMSIZE * n, usual)
    return JobPlan(
        n=n,
        matrices=tuple(matrices),
        layers=tuple(layers),
        shards=shards,
        tries=tries if config.tune else (),
        sync_s=sync_s,
        cut=cut_plan(config, problem, n),
        machine=machine,
        edges=edges,
        dealt=dealt,
        arrays=arrays_of(problem, n),
        began=began,
    )


def _fragments(config: TrainConfig, layers: Sequence[Span]) -> tuple[tuple[Span, ...], ...]:
    """Return the spans of each fragment that servers merge by itself; none if they have all."""
    mode = config.scheme
    if mode.fragments == 1:
        return ()
    return fragments_of(layers, mode.fragments, strided=mode.fragment_order != SEQUENTIAL)


class Layout(NamedTuple):
    """The roles of ranks, and their parts."""

    #: The ranks of workers and servers; each cell has its own map, in ``cut``.
    role_map: RoleMap
    #: The neighbours of workers; None without.
    topology: Topology | None
    #: With a split model: which rank has which part; None if each worker has all of it.
    cut: Cut | None


def layout_of(
    config: TrainConfig,
    plan: JobPlan,
    problem: Problem | None,
    *,
    hosts: Sequence[int],
    servers: tuple[int, ...],
    workers: tuple[int, ...],
) -> Layout:
    """Return the roles and parts of a planned job; the same in all processes.

    Args:
        config: resolved.
        plan: of the job.
        problem: None in a process with only servers.
        hosts: number of the host of each rank.
        servers: their ranks.
        workers: their ranks, by number.

    Raises:
        ConfigError: if there is no such topology, or a server would own nothing.
    """
    # Copies of a split model mix part by part: all parts have the same neighbours.
    nodes = workers if plan.cut is None else workers[:: config.axes.cells]
    topology = topology_for(config, [hosts[rank] for rank in nodes], edges=plan.edges)
    role_map = role_map_for(
        plan.n,
        servers,
        workers,
        shards_per_server=1 if plan.shards is None else plan.shards.shards,
        layers=plan.layers,
        controls=config.scheme.fragments,
        fragments=_fragments(config, plan.layers) if servers else (),
        relays=config.scheme.quorum is not None,
        reads_late=config.scheme.streams or config.scheme.quorum is not None,
    )
    if config.scheme.has_teams:
        role_map = replace(role_map, learner_ranks=int(config.scheme.learner_ranks))
    if plan.cut is not None:
        whole = role_map if config.has_whole_servers else None
        cut = cut_of(config, plan.cut, servers, workers, plan.shards, topology, whole)
        return Layout(role_map, topology, cut)
    if topology is not None:
        role_map = role_map_with_peers(config, plan.n, workers, topology)
    if problem is not None:
        role_map = held_by_workers(config, problem, role_map)
    return Layout(role_map, topology, None)


def chosen(config: TrainConfig, plan: JobPlan) -> TrainConfig:
    """Return a config with the plan's decisions on its knobs."""
    if plan.shards is not None:
        config = replace(config, shards_per_server=plan.shards.shards)
    if plan.cut is not None:
        config = replace(config, stages=",".join(map(str, plan.cut.counts)))
    return config
