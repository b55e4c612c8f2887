"""A simulated job: all roles in one process and in virtual time, over the ports of a scheduler.

Without numerics the roles are the same, but gradients and parameters are empty, a batch is the
number of its samples, and bytes are counted as if the vectors were there. Waiting and staleness
never depend on the numbers, so times, staleness and histories are those of a run with numerics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from psrt.codec import Matrix
from psrt.collective.registry import NODE, by_hosts
from psrt.config import TrainConfig, resolve
from psrt.config.faults import OPERATION, Elapsed, Fault, crash_of
from psrt.config.names import BY_HOST
from psrt.config.resolve import mode_of, servers_of
from psrt.core.arrays import Vector
from psrt.core.errors import ConfigError, CrashError, TransportError
from psrt.core.partition import Span
from psrt.core.stats import Report, Sent
from psrt.data import Deal
from psrt.history import EventLog
from psrt.history.folder import rank_file
from psrt.job.cut import Cut
from psrt.job.hooks import Epoch, Hooks
from psrt.job.launcher import Launcher, Roles, shard_servers
from psrt.job.problems import timing_problem
from psrt.job.recorded import recorded_header
from psrt.job.result import Run, Say
from psrt.job.session import run_job
from psrt.job.setup import Setup
from psrt.job.shards import ServedJob
from psrt.model.chain import chain_layers
from psrt.runtime.problem import Problem
from psrt.runtime.problem_rules import check_config
from psrt.runtime.server import Server
from psrt.runtime.shard_server import ShardServer
from psrt.runtime.timing_only import TimingOnlyProblem
from psrt.runtime.worker import Worker
from psrt.simulation import SimulationCosts, Simulator
from psrt.simulation.cell import SimulatedCell
from psrt.simulation.faulty_disk import FaultyDisk
from psrt.simulation.injection import Injector
from psrt.simulation.pass_costs import PassCosts, shares_of
from psrt.simulation.port import VirtualPort
from psrt.simulation.stage_links import VirtualStageLinks, stage_links
from psrt.transport import RoleMap
from psrt.transport.port import Port
from psrt.transport.stage_links import StageLinks

#: A limit that refuses a mistyped number before it fills the memory.
_MOST_SERVERS = 1_000_000
#: (worker, seconds) each: when the worker crashes, without notice.
Crashes = Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class SimulatedRun(Run):
    """The result of a run, with its roles and its simulator for inspection."""

    #: The servers, by shard.
    servers: list[ShardServer]
    #: By worker number.
    workers: list[Worker]
    #: Virtual time at the end, in seconds.
    seconds: float
    #: Scheduler events.
    events: int
    #: The simulator, with the ports by rank and the busy time of each server.
    world: Simulator
    #: In order of arrival at rank 0.
    reports: list[Report]


def simulate(
    config: TrainConfig,
    problem: Problem | None = None,
    *,
    workers: int,
    seed: int = 0,
    costs: SimulationCosts | Callable[[RoleMap], SimulationCosts] | None = None,
    world: type[Simulator] = Simulator,
    numerics: bool = True,
    parameters: int | None = None,
    crashes: Crashes = (),
    faults: Sequence[Fault] = (),
    hosts: Sequence[int] = (),
    log: EventLog | None = None,
    say: Say | None = None,
    on_record: Callable[[dict[str, Any]], object] | None = None,
    on_epoch: Callable[[Epoch], object] | None = None,
) -> SimulatedRun:
    """Train in virtual time.

    Args:
        config: need not be resolved; its ``servers`` come on top of ``workers``.
        problem: the model and data, shared by all workers; None takes the config's own.
        workers: W, at least 1.
        seed: of the delays and so of the order of events; training's own seed is the config's.
        costs: the time of computing and sending, or a function from the role map to it.
        world: the class of the simulator; a test may bring its own.
        numerics: whether to compute; if not, ``problem`` is a ``TimingOnlyProblem``, or None.
        parameters: n, only without numerics; None takes that of the config's model.
        crashes: (worker, seconds) each: when the worker crashes, without notice.
        faults: further faults, see ``psrt.config.faults``.
        hosts: the number of ranks of each host, in gossip modes or with a split model; empty for
            one host, in which each rank has its own link. With hosts, bandwidth must be finite
            and is that of hosts; messages inside a host take no time.
        log: records the events of all ranks instead of a file of the run; the caller closes it.
        say: called with each line meant for the user.
        on_record: as in ``psrt.run``.
        on_epoch: as in ``psrt.run``; it takes no virtual time.

    Raises:
        ConfigError: as for a real run.
        CrashError: if a rank crashes without which the others cannot continue.
        TransportError: if the roles deadlock.
        ReplayError: if a replay ends with parameters other than the recorded ones.
    """
    check_config(config)
    hooks = Hooks(on_record, on_epoch)
    launcher = VirtualLauncher(
        workers, seed=seed, costs=costs, world=world, numerics=numerics,
        parameters=parameters, crashes=crashes, faults=faults, hosts=hosts,
    )  # fmt: skip
    run = run_job(launcher, config, problem, say=say, log=log, hooks=hooks)
    assert run is not None
    hooks.ended(run)
    return launcher.result(run)


async def _to_the_end(role: Server | Worker, port: VirtualPort, world: Simulator) -> None:
    """Run a role, and charge the time of its last frames."""
    await role.run()
    if isinstance(role, Worker) and role.is_fenced:
        world.fenced(port.rank)
    await port.catch_up()


class VirtualLauncher(Launcher):
    """One process with all ranks of a job, in virtual time."""

    simulated = True

    def __init__(
        self,
        workers: int,
        *,
        seed: int,
        costs: SimulationCosts | Callable[[RoleMap], SimulationCosts] | None = None,
        world: type[Simulator] = Simulator,
        numerics: bool = True,
        parameters: int | None = None,
        samples: int | None = None,
        parts: Sequence[Span] = (),
        matrices: Sequence[Matrix] = (),
        deal: Sequence[tuple[int, int]] = (),
        crashes: Crashes = (),
        faults: Sequence[Fault] = (),
        elapsed: Elapsed = Elapsed(),  # noqa: B008 - a tuple
        hosts: Sequence[int] = (),
    ) -> None:
        """Set up; see ``simulate``.

        Args:
            workers: their number, W.
            seed: of the delays and the order of events.
            costs: the time of computing and sending, or a function from the role map to it.
            world: the class of the simulator.
            numerics: whether to compute.
            parameters: n, only without numerics.
            samples: of the data set, only without numerics; None takes those of the config's.
            parts: the gradient's spans as they become ready, together with ``parameters``.
            matrices: among the parameters, together with ``parameters``.
            deal: by worker, the number of its samples and that of their labels, if only these are
                known; only without numerics.
            crashes: (worker, seconds) each.
            faults: further faults.
            elapsed: time and steps of earlier attempts, over which faults are counted.
            hosts: the number of ranks of each host; empty for one.
        """
        self.numerics = numerics
        self._workers, self._seed, self._costs = workers, seed, costs
        self._make_world = world
        self._parameters, self._samples = parameters, samples
        self._parts, self._matrices, self._deal = parts, matrices, deal
        #: The faults that have not struck yet.
        self.faults = [*(crash_of(*it) for it in crashes), *faults]
        self.disturbed = bool(self.faults)
        self._crashes = tuple(crashes)
        self._elapsed = elapsed
        of_disk = [it for it in self.faults if it.unit == OPERATION]
        self._of_disk = {int(elapsed.since(it).at): it for it in of_disk}
        if of_disk:
            hows = {at: it.how for at, it in self._of_disk.items()}
            self.disk = FaultyDisk(hows, lambda at: self._note(self._of_disk[at]))
        self._hosts = [host for host, ranks in enumerate(hosts) for _ in range(ranks)]
        self._reports: list[Report] = []
        #: Workers declared dead.
        self._missed: set[int] = set()
        self.left_out: dict[int, frozenset[int]] = {}

    def ranks_of(self, config: TrainConfig) -> int:
        """Return the number of workers plus that of the servers that the config asks for.

        Raises:
            ConfigError: if such a job cannot be simulated.
        """
        workers = self._workers
        if workers < 1:
            raise ConfigError(f"a job needs at least 1 worker, got {workers}")
        if (config.servers or 0) > _MOST_SERVERS:
            raise ConfigError(
                f"--servers {config.servers}: at most {_MOST_SERVERS:,} are simulated"
            )
        for worker, seconds in self._crashes:
            if not 0 <= seconds < math.inf:
                raise ConfigError(
                    f"worker {worker} cannot crash at {seconds} s, expected finite seconds, 0 or "
                    "more"
                )
            if not 0 <= worker < workers:
                raise ConfigError(
                    f"crash names worker {worker}, which does not exist; the last is {workers - 1}"
                )
        if config.replay is not None and not self.numerics:
            raise ConfigError(
                "--timing-only cannot be combined with --replay, which is about the numbers"
            )
        if config.replay is not None and self.faults:
            flag = "crash" if self._crashes else "fault"
            raise ConfigError(f"--{flag} cannot be combined with --replay: nobody died in that run")
        if config.parallel is not None:
            self._check_cut(config)
            extra = servers_of(mode_of(config, workers), config.axes, workers)
            extra = extra if config.servers is None else config.servers
            return workers + (resolve(config, ranks=workers + extra).servers or 0)
        extra = 0 if config.mode and config.scheme.single else config.servers or 1
        return workers + (resolve(config, ranks=workers + extra).servers or 0)

    def _check_cut(self, config: TrainConfig) -> None:
        """Check that a split model can be simulated like that.

        Raises:
            ConfigError: if not.
        """
        if self._parameters is not None:
            raise ConfigError(
                f"--parameters {self._parameters} is not possible in virtual time with "
                f"--parallel {config.parallel}"
            )

    def hosts(self, config: TrainConfig) -> Sequence[int]:
        """Return the given hosts; a replay uses those of the run, if they matter.

        They matter if ranks average by host, and if they decide which rank has which part of a
        model.

        Raises:
            ConfigError: if they do not fit the mode or the ranks.
        """
        ranks, hosts = self._workers + (config.servers or 0), self._hosts
        is_cut = config.parallel is not None or config.scheme.has_teams
        by_host = config.scheme.variant == BY_HOST
        if config.replay is not None and (by_host or (is_cut and not hosts)):
            header = recorded_header(config.replay)
            sums_apart = config.scheme.has_teams or not by_hosts(header.algorithm)
            if by_host or (len(header.hosts) == ranks and sums_apart):
                return header.hosts
        if hosts and not (config.scheme.mixes or is_cut):
            raise ConfigError(
                f"--hosts has no effect with --mode {config.scheme.name} without --parallel"
            )
        if hosts and len(hosts) != ranks:
            raise ConfigError(f"--hosts has {len(hosts)} ranks in all, the job {ranks}")
        return hosts or (0,) * ranks

    def priced(self, job: ServedJob) -> ServedJob:
        """Return a job in which each rank is a host with its own link, as simulated."""
        workers = len(job.workers)
        ranks = range(workers + len(job.servers))
        return replace(job, workers=ranks[:workers], servers=ranks[workers:])

    def problem(self, config: TrainConfig, workers: int) -> Problem:
        """Return the config's problem, or its stand-in without numerics."""
        if self.numerics:
            return super().problem(config, workers)
        return timing_problem(
            config,
            workers=workers,
            parameters=self._parameters,
            samples=self._samples,
            parts=self._parts,
            matrices=self._matrices,
            dealt=bool(self._deal),
        )

    def deal(self, config: TrainConfig, problem: Problem, workers: int) -> Deal | None:
        """Return the samples of each worker: the known ones, or by the config's partition."""
        if self._deal:
            return Deal.sized(self._deal, config.batch_size)
        return super().deal(config, problem, workers)

    def start_of(self, problem: Problem) -> tuple[Vector, int]:
        """Return the initial parameters, empty without numerics, and n."""
        if self.numerics:
            return super().start_of(problem)
        assert isinstance(problem, TimingOnlyProblem), "without numerics the problem is a stand-in"
        return problem.initial(), problem.n

    def fit(self, config: TrainConfig) -> TrainConfig:
        """Replace ``node+NAME`` by ``node`` on a single host.

        So did the recorded run, or its check would have refused it: nothing went between hosts.
        """
        on_one = len(set(self._hosts)) < 2
        return replace(config, allreduce=NODE) if by_hosts(config.allreduce) and on_one else config

    def ports(self, setup: Setup) -> Mapping[int, Port]:
        """Make the simulator, which has a port for every rank."""
        config, role_map, costs = setup.config, setup.role_map, self._costs
        self._cut = setup.cut
        # Only if they have an effect: a test's own class need not know them.
        more: dict[str, Any] = {} if self.numerics else {"numerics": False}
        if setup.cut is not None:
            groups = reversed(setup.cut.groups)  # the port of a rank is that in its cell
            more["cells"] = [(it.role_map, it.ranks) for it in groups]
        costs = costs(role_map) if callable(costs) else costs
        if self._hosts and costs is not None:
            costs = replace(costs, hosts=self._hosts)
        self.world = world = self._make_world(
            role_map,
            seed=self._seed,
            costs=costs,
            shared_memory=config.shared_memory,
            machine=setup.plan.machine,
            **more,
        )
        made = world.costs
        self._timeout_s = config.timeout_s
        faults = [] if self.rehearses else self.faults
        job = role_map.workers, role_map.servers, setup.hosts
        self._stricken = [(it, it.ranks(*job)) for it in faults if it.unit != OPERATION]
        struck = {rank for _, ranks in self._stricken for rank in ranks}
        if any(it.kind == "cut" and 0 in ranks for it, ranks in self._stricken):
            struck = {*range(role_map.size)}  # ranks that are cut off from the first one
        workers = (role_map.worker_of(rank) for rank in struck)
        lost = (role_map.learner_of(it) for it in workers if it is not None)
        self.crashes = tuple(sorted({it for team in lost for it in team}))
        if setup.codec is not None and not made.framed:
            world.frames = setup.codec.times(made.codecs, made.codec_speed)
        return {rank: world.ports[rank] for rank in (*role_map.server_ranks, *role_map.workers)}

    def spread(self, port: Port, initial: Vector, cut: Cut | None) -> Vector:
        """Return the initial parameters of a port's rank."""
        if cut is None or not self.numerics:
            return initial
        assert isinstance(port, VirtualPort), "this launcher made the ports"
        return cut.cell_of((port.world.ranks or ())[port.rank]).part.take(initial)

    def teams(self, setup: Setup) -> Mapping[int, Port]:
        """Make ports among the ranks of each learner, or return those with the servers."""
        role_map, found = setup.role_map, dict[int, Port]()
        if setup.cut is not None and setup.cut.served is not None:
            served = self.world.ports[role_map.servers[0]].world.ports
            for rank, port in zip(setup.cut.served.ranks, served, strict=True):
                if role_map.worker_of(rank) is not None:
                    np.copyto(port.theta, setup.initial)
                    found[rank] = port
            return found
        for first in range(0, len(role_map.workers), role_map.learner_ranks):
            ranks = [role_map.workers[it] for it in role_map.learner_of(first)]
            team = SimulatedCell(self.world, role_map.team_of(first), ranks)
            found |= zip(ranks, team.ports, strict=True)
        return found

    def log_files(self, setup: Setup) -> tuple[str, ...]:
        """Return by rank the name of its file of events: one per cell, and one of other servers."""
        if setup.cut is None:
            return super().log_files(setup)
        files = dict.fromkeys(setup.role_map.servers, min(setup.role_map.servers, default=0))
        files |= {rank: cell.ranks[0] for cell in setup.cut.cells for rank in cell.ranks}
        return tuple(rank_file(files[rank]) for rank in range(len(files)))

    def links(self, setup: Setup, cut: Cut) -> Mapping[int, StageLinks]:
        """Make the channels of all stages of all copies of the model."""
        assert setup.problem is not None, "the only process has the problem"
        world, axes, config = self.world, cut.axes, setup.config
        layers = chain_layers(setup.problem, cut.parameters)
        bounds = [0, *accumulate(cut.counts)]
        sizes = [[it.n for it in layers[a:b]] for a, b in pairwise(bounds)]
        shares = shares_of(world.costs.stages, sizes, slices=axes.tensor)
        costs = [
            PassCosts(
                shares[stage :: axes.pipeline],
                config.batch_size,
                world.costs.slowdown,
                bool(config.recompute),
                world.costs.pass_s,
            )
            for stage in range(axes.pipeline)
        ]
        channels = [cut.channels(slice_) for slice_ in range(axes.tensor)]
        links: dict[int, VirtualStageLinks] = {}
        for replica in range(axes.data):
            first = replica * axes.cells
            ranks = [
                cut.workers[first + stage * axes.tensor :][: axes.tensor]
                for stage in range(axes.pipeline)
            ]
            parts = [cell.part for cell in cut.cells]
            links |= stage_links(world, ranks, channels, parts, costs)
        world.links = links
        return links

    async def run(self, roles: Roles, finished: Callable[[], bool]) -> None:
        """Run all roles, interleaved as the costs and the seed decide."""
        world = self.world
        self._roles, self._reports = roles, []  # and none of a rehearsal
        world.on_report, world.on_crash, world.on_missed = self._hear, self._lose, self._miss
        injector = Injector(world, timeout_s=self._timeout_s)
        for fault, ranks in self._stricken:
            injector.add(self._elapsed.since(fault), ranks, partial(self._note, fault))
        try:
            ports = world.ports
            world.run({at: _to_the_end(it, ports[at], world) for at, it in roles.items()})
        finally:
            events, seconds, operations = self._elapsed
            if not self.rehearses:
                self._elapsed = Elapsed(events + world.events, seconds + world.time, operations)
        for rank in world.crashed:  # if all others were done before the crash was known
            self._miss(rank)
        self.died = len(world.crashed)
        for rank, seconds in world.crashed.items():
            role = roles[rank]
            if isinstance(role, Worker):
                role.seconds = seconds

    def _note(self, struck: Fault) -> None:
        self.faults = [it for it in self.faults if it is not struck]

    def _hear(self, report: Sent) -> None:
        if not isinstance(report, Report):
            self.on_report(report)
            return
        self._reports.append(report)
        # Without numerics there is no loss; 0.0 would look like one.
        self.on_report(report if self.numerics else report._replace(loss=math.nan))

    def _lose(self, rank: int) -> None:
        world = self.world
        worker = world.role_map.worker_of(rank)
        if worker is None:
            return
        self.on_crash(worker)
        # The other ranks of its learner can do nothing without it.
        for other in world.role_map.learner_of(worker):
            if (needs := world.role_map.workers[other]) not in world.crashed:
                world.crash(needs)

    def _miss(self, rank: int) -> None:
        """End the job, as in a real run, if the others cannot continue without a rank.

        Raises:
            CrashError: if so, and it has crashed.
            TransportError: if so, and it was declared dead.
        """
        world, role_map, role = self.world, self.world.role_map, self._roles[rank]
        # Each part of a copy needs the others in every step, and the first rank writes the files.
        # Only in gossip do the others continue, as in a real run, without one that stops
        # responding.
        left = any(it not in world.crashed for it in role_map.workers)
        missable = left and bool(role_map.peers or (role_map.servers and rank))
        if self._cut is None and isinstance(role, Worker) and missable:
            self._missed.add(role.number)
            return
        who, clock = world.name(rank), ""
        if self._cut is not None and isinstance(role, Worker):
            place = self._cut.place_of(rank).words(self._cut.axes)
            who = who.replace(" (", f", {place} (")
        if isinstance(role, Worker):
            clock = f", at clock {role.clock}"
        if rank in world.suspected:
            raise TransportError(
                f"{who} is declared dead at {world.time:g} s of virtual time{clock}"
            )
        raise CrashError(f"{who} crashed at {world.crashed[rank]:g} s of virtual time{clock}")

    @property
    def elapsed(self) -> Elapsed:
        """The time and steps of this attempt and those before."""
        events, seconds, before = self._elapsed
        made = self.disk.operations if isinstance(self.disk, FaultyDisk) else 0
        return Elapsed(events, seconds, before + made)

    def gone(self) -> Sequence[int]:
        """Return the ranks that the others continue without."""
        return [self.world.role_map.workers[worker] for worker in self._missed]

    async def members(self, epoch: int) -> Sequence[int]:
        """Return the workers that share the samples of an epoch."""
        gone = self.left_out.setdefault(epoch, frozenset(self._missed))
        return [worker for worker in range(self._workers) if worker not in gone]

    def now(self) -> float:
        """Return the virtual time."""
        return self.world.time

    def is_there(self, rank: int) -> bool:
        """Whether a rank has not crashed, so that its state is available."""
        return rank not in self.world.crashed

    def busy_stages(self) -> tuple[float, ...]:
        """Return by stage the share of the time in which it computed; empty without stages."""
        if self._cut is None:
            return ()
        axes, whole = self._cut.axes, self.world.time or 1.0
        busy = np.array([self.world.links[rank].busy_s for rank in self._cut.workers])
        shares = busy.reshape(axes.data, axes.pipeline, axes.tensor).mean((0, 2)) / whole
        return tuple(shares.tolist())

    def result(self, run: Run) -> SimulatedRun:
        """Return the result of the run just made, with its roles and simulator."""
        role_map, roles = self.world.role_map, self._roles
        servers = shard_servers(roles.values())
        by_rank = {rank: role for rank, role in roles.items() if isinstance(role, Worker)}
        workers = [by_rank[rank] for rank in role_map.workers]
        return SimulatedRun(
            run.summary,
            run.theta,
            run.records,
            servers=servers,
            workers=workers,
            seconds=self.world.time,
            events=self.world.events,
            world=self.world,
            reports=self._reports,
        )
