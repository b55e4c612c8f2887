"""A job in virtual time that leaves behind what a run does: files, lines, a summary."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass, field

from psrt.config import TrainConfig
from psrt.history import EventLog
from psrt.history.folder import EVENTS, write_header
from psrt.job.build import output_folder
from psrt.job.provenance import history_header
from psrt.job.result import Run, Say, conclude, say_plan, silent
from psrt.job.simulation import SimulatedRun, play
from psrt.job.stage import set_up
from psrt.messages import Report
from psrt.report.recorder import Recorder
from psrt.report.simulation import Load, Simulation, simulation_text
from psrt.runtime.account import Account, ShardAccount, WorkerAccount
from psrt.runtime.chronicle import ShardChronicle, WorkerChronicle
from psrt.runtime.tally import Tally
from psrt.runtime.worker import Worker
from psrt.simulation import VirtualWorld
from psrt.simulation.cost_flags import VirtualCosts
from psrt.transport import Wiring


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a job in virtual time is like, beside its training."""

    #: Ranks that compute gradients, W.
    workers: int
    #: What computing, sending and updating take.
    costs: VirtualCosts = field(default_factory=VirtualCosts)
    #: (worker, seconds) each: when it dies.
    crashes: tuple[tuple[int, float], ...] = ()
    #: Whether to compute.
    numerics: bool = True
    #: n, without numerics; None is that of the config's model.
    parameters: int | None = None
    #: Of the training data, without numerics and beside n; None is that of the config's.
    samples: int | None = None


def run_in_virtual_time(config: TrainConfig, scenario: Scenario, *, say: Say = silent) -> Run:
    """Train in virtual time, and write and say what a run does.

    The seed of the config is that of the training and of the order of events, so that the same
    config and scenario write the same files, bit for bit.

    Args:
        config: need not be resolved.
        scenario: the rest of the job.
        say: takes each line meant for the user.

    Raises:
        ConfigError: if the job cannot be.
        DivergedError: if the loss is no number any more.
        TransportError: if everybody waits for a worker that has crashed.
    """
    return _Job(config, scenario, say).run()


class _Job:
    """One job in virtual time, from its checks to its files."""

    def __init__(self, config: TrainConfig, scenario: Scenario, say: Say) -> None:
        self._scenario, self._say = scenario, say
        self._stage = stage = set_up(
            config,
            workers=scenario.workers,
            numerics=scenario.numerics,
            parameters=scenario.parameters,
            samples=scenario.samples,
            crashes=scenario.crashes,
        )
        self._config = config = stage.config
        if stage.replay is not None:
            say(stage.replay.plan())
        self._costs = scenario.costs.at(stage.wiring, say=say)
        if config.allreduce is not None:  # told before anything is written
            alone = VirtualWorld(Wiring(1, workers=(0,)), seed=0, costs=self._costs)
            alone.ports[0].choice(config.allreduce, 1)
        self._folder = output_folder(config)
        workers = scenario.workers
        self._recorder = Recorder(workers, log_every=config.log_every, folder=self._folder, say=say)
        self._log: EventLog | None = None
        if self._folder is not None and config.record:
            self._log = EventLog(self._folder.history / EVENTS)

    def run(self) -> Run:
        """Simulate and conclude."""
        seed, costs = self._config.seed, self._costs
        began = time.perf_counter()
        with contextlib.closing(self._recorder), self._log or contextlib.nullcontext():
            found = play(self._stage, seed=seed, costs=costs, log=self._log, prepared=self._prepare)
            self._checkpoint(found)
        wall_seconds = time.perf_counter() - began
        simulation = self._describe(found)
        if self._folder is not None:
            self._folder.write_simulation(simulation.to_json())
        result = self._conclude(found)
        self._say(simulation_text(simulation, result.summary, wall_seconds))
        if self._stage.replay is not None:
            self._say(self._stage.replay.verdict(found.theta))
        return result

    def _prepare(self, world: VirtualWorld, workers: list[Worker]) -> None:
        """Listen to the reports, and write down what the history is of."""
        plan = workers[0].strategy.plan
        say_plan(plan, self._say)
        world.on_report = self._heard
        world.on_crash = lambda rank: self._lost(world.wiring.worker_of(rank))
        if self._log is not None:
            assert self._folder is not None
            header = history_header(
                self._config,
                world.wiring,
                initial=self._stage.initial,
                problem=self._stage.problem,
                files=(EVENTS,),
                plan=plan,
                hosts=(0,) * world.wiring.size,
                simulated=True,
                numerics=self._scenario.numerics,
            )
            write_header(self._folder.history, header)

    def _heard(self, report: Report) -> None:
        if not self._scenario.numerics:
            report = report._replace(loss=math.nan)  # nobody has computed one
        self._recorder.add(report)

    def _lost(self, worker: int | None) -> None:
        if worker is not None:
            self._recorder.gone(worker)

    def _checkpoint(self, found: SimulatedRun) -> None:
        """End the history with the versions that are kept."""
        if self._log is None:
            return
        for shard, server in enumerate(found.servers):
            ShardChronicle(self._log, shard).saved(server.shard.version, found.seconds)
        if not found.servers:
            updates = found.workers[0].strategy.updates
            WorkerChronicle(self._log, 0).saved(updates, found.seconds)

    def _conclude(self, found: SimulatedRun) -> Run:
        """Do what a run does at its end, with what each rank would have sent."""
        wiring, ports, crashed = found.world.wiring, found.world.ports, found.world.crashed
        tallies: list[Tally] = []
        accounts: list[Account] = []
        for port in ports:
            shard, worker = wiring.shard_of(port.rank), wiring.worker_of(port.rank)
            if shard is not None:
                server = found.servers[shard]
                tallies.append(Tally.of_server(port, server))
                accounts.append(ShardAccount.of(shard, server.shard))
            elif worker is not None:
                role = found.workers[worker]
                role.seconds = crashed.get(port.rank, role.seconds)
                tallies.append(Tally.of_worker(port, role))
                accounts.append(WorkerAccount.of(worker, role.meter, role.seconds))
        return conclude(
            self._config,
            self._stage.problem,
            found.theta,
            parameters=self._stage.wiring.n,
            tallies=tallies,
            accounts=accounts,
            died=len(crashed),
            recorder=self._recorder,
            folder=self._folder,
            say=self._say,
            plan=found.workers[0].strategy.plan,
        )

    def _describe(self, found: SimulatedRun) -> Simulation:
        """Return what the config does not say of the job, and what became of it."""
        scenario, world = self._scenario, found.world
        return Simulation(
            workers=scenario.workers,
            compute=scenario.costs.compute,
            link=scenario.costs.link,
            server_apply=scenario.costs.server_apply,
            crash=scenario.crashes,
            numerics=scenario.numerics,
            parameters=self._stage.wiring.n,
            seed=self._config.seed,
            events=found.events,
            seconds=found.seconds,
            crashed=tuple(
                worker for worker, rank in enumerate(world.wiring.workers) if rank in world.crashed
            ),
            servers=tuple(self._load(found, rank) for rank in world.wiring.servers),
        )

    def _load(self, found: SimulatedRun, rank: int) -> Load:
        """Return how busy a server was."""
        world, whole = found.world, found.seconds or 1.0
        port, bandwidth = world.ports[rank], world.costs.bandwidth
        return Load(
            apply=world.busy[rank] / whole,
            link_in=port.bytes_received / bandwidth / whole,
            link_out=port.bytes_sent / bandwidth / whole,
        )
