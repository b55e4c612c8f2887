"""A job in virtual time as a command line tells it, with the files and lines of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from psrt.config import TrainConfig
from psrt.files import keep_apart
from psrt.job.launcher import Roles
from psrt.job.result import Say, silent
from psrt.job.session import run_job
from psrt.job.setup import Setup
from psrt.job.virtual import SimulatedRun, VirtualLauncher
from psrt.report import Summary
from psrt.report.files import SIMULATION
from psrt.report.simulation import Load, Simulation, simulation_text
from psrt.simulation.cost_flags import VirtualCosts
from psrt.transport.port import Port


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


def run_in_virtual_time(
    config: TrainConfig, scenario: Scenario, *, say: Say = silent
) -> SimulatedRun:
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
        OutputError: if a file could not be written at the end.
        TransportError: if everybody waits for a worker that has crashed.
    """
    launcher = _ScenarioLauncher(config.seed, scenario, say)
    run = run_job(launcher, config, say=say)
    assert run is not None
    return launcher.result(run)


class _ScenarioLauncher(VirtualLauncher):
    """Virtual time whose costs have names, so that they can be kept and told."""

    def __init__(self, seed: int, scenario: Scenario, say: Say) -> None:
        super().__init__(
            scenario.workers,
            seed=seed,
            costs=lambda role_map: scenario.costs.at(role_map, say=say),
            numerics=scenario.numerics,
            parameters=scenario.parameters,
            samples=scenario.samples,
            crashes=scenario.crashes,
        )
        self._scenario = scenario
        #: That the simulation itself took.
        self._wall_seconds = 0.0

    def ranks_of(self, config: TrainConfig) -> int:
        """Return how many ranks the job has.

        Raises:
            ConfigError: if it cannot be, or would be written over the run that it imitates.
        """
        for flag, run in self._scenario.costs.runs():
            if config.out is not None:
                keep_apart(config.out, flag, run)
        return super().ranks_of(config)

    def ports(self, setup: Setup) -> Mapping[int, Port]:
        """Make the scheduler."""
        self._setup = setup
        return super().ports(setup)

    def run(self, roles: Roles, finished: Callable[[], bool]) -> None:
        """Run all roles, and take the time."""
        began = time.perf_counter()
        super().run(roles, finished)
        self._wall_seconds = time.perf_counter() - began

    def files(self) -> Mapping[str, str]:
        """Return what the config does not say of the job, and what became of it."""
        return {SIMULATION: self._simulation().to_json()}

    def remarks(self, summary: Summary) -> Sequence[str]:
        """Return what only virtual time can tell of a run."""
        return [simulation_text(self._simulation(), summary, self._wall_seconds)]

    def _simulation(self) -> Simulation:
        scenario, world, config = self._scenario, self.world, self._setup.config
        return Simulation(
            workers=scenario.workers,
            compute=scenario.costs.compute,
            link=scenario.costs.link,
            server_apply=scenario.costs.server_apply,
            crash=scenario.crashes,
            numerics=scenario.numerics,
            parameters=world.role_map.n,
            seed=config.seed,
            events=world.events,
            seconds=world.time,
            crashed=tuple(
                worker
                for worker, rank in enumerate(world.role_map.workers)
                if rank in world.crashed
            ),
            servers=tuple(map(self._load, world.role_map.servers)),
        )

    def _load(self, rank: int) -> Load:
        """Return how busy a server was."""
        world, whole = self.world, self.world.time or 1.0
        port, bandwidth = world.ports[rank], world.costs.bandwidth
        return Load(
            apply=world.busy[rank] / whole,
            link_in=port.bytes_received / bandwidth / whole,
            link_out=port.bytes_sent / bandwidth / whole,
        )
