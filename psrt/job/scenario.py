"""A simulated job as the command line describes it, with the files and output of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from psrt.codec import Matrix
from psrt.collective.costs import LinkCosts
from psrt.config import TrainConfig
from psrt.files import keep_apart
from psrt.job.launcher import Roles
from psrt.job.result import Say, silent
from psrt.job.session import run_job
from psrt.job.setup import Setup
from psrt.job.shards import ServedJob
from psrt.job.virtual import SimulatedRun, VirtualLauncher
from psrt.partition import Span
from psrt.report import Summary
from psrt.report.files import SIMULATION
from psrt.report.simulation import Load, Simulation, simulation_text
from psrt.simulation.cost_flags import VirtualCosts
from psrt.transport.port import Port


@dataclass(frozen=True, slots=True)
class Scenario:
    """The settings of a simulated job, beside its training config."""

    #: Ranks that compute gradients, W.
    workers: int
    #: The time of computing, sending and updating.
    costs: VirtualCosts = field(default_factory=VirtualCosts)
    #: (worker, seconds) each: when the worker crashes.
    crashes: tuple[tuple[int, float], ...] = ()
    #: Whether to compute.
    numerics: bool = True
    #: n, without numerics; None takes that of the config's model.
    parameters: int | None = None
    #: Size of the training set, without numerics and together with n; None takes the config's.
    samples: int | None = None
    #: The gradient's spans in the order in which they are ready, without numerics and together with
    #: n; without any, it comes as a whole.
    parts: tuple[Span, ...] = ()
    #: The matrices among the parameters, without numerics and together with n.
    matrices: tuple[Matrix, ...] = ()
    #: By worker, the number of its samples and that of their labels, without numerics and together
    #: with n; without any, the config's data is dealt out.
    deal: tuple[tuple[int, int], ...] = ()
    #: The number of ranks of each host; empty for one host.
    hosts: tuple[int, ...] = ()


def run_in_virtual_time(
    config: TrainConfig, scenario: Scenario, *, say: Say = silent
) -> SimulatedRun:
    """Simulate a job, with the files and lines of a real run.

    The config's seed decides the training and the order of events, so the same config and
    scenario write the same files, bit for bit.

    Args:
        config: need not be resolved.
        scenario: the rest of the job.
        say: called with each line meant for the user.

    Raises:
        ConfigError: if the job is impossible.
        DivergedError: if the loss is nan or infinite.
        OutputError: if a file could not be written at the end.
        TransportError: if all roles wait for a worker that has crashed.
    """
    launcher = _ScenarioLauncher(config.seed, scenario, say)
    run = run_job(launcher, config, say=say)
    assert run is not None
    return launcher.result(run)


class _ScenarioLauncher(VirtualLauncher):
    """A simulation whose costs have names, so that ``simulation.json`` can hold them."""

    def __init__(self, seed: int, scenario: Scenario, say: Say) -> None:
        super().__init__(
            scenario.workers,
            seed=seed,
            costs=lambda role_map: scenario.costs.at(role_map, say=say),
            numerics=scenario.numerics,
            parameters=scenario.parameters,
            samples=scenario.samples,
            parts=scenario.parts,
            matrices=scenario.matrices,
            deal=scenario.deal,
            crashes=scenario.crashes,
            hosts=scenario.hosts,
        )
        self._scenario = scenario
        #: Wall-clock time of the simulation itself, in seconds.
        self._wall_seconds = 0.0

    def ranks_of(self, config: TrainConfig) -> int:
        """Return the number of ranks of the job.

        Raises:
            ConfigError: if it is impossible, or its ``--out`` is the run whose costs it replays.
        """
        for flag, run in self._scenario.costs.runs():
            if config.out is not None:
                keep_apart(config.out, flag, run)
        return super().ranks_of(config)

    def priced(self, job: ServedJob) -> ServedJob:
        """Return a job with the scenario's costs, as far as they are not those of a run."""
        job, costs = super().priced(job), self._scenario.costs
        machine = job.costs
        if (link := costs.link_numbers()) is not None:
            latency, bandwidth = link
            between = LinkCosts(latency, 1 / bandwidth, machine.between.gamma)
            machine = replace(machine, between=between)
        if (rate := costs.apply_rate()) is not None:
            machine = replace(machine, node=replace(machine.node, byte_s=1 / rate))
        seconds = costs.compute_mean()
        return replace(job, costs=machine, compute_s=job.compute_s if seconds is None else seconds)

    def ports(self, setup: Setup) -> Mapping[int, Port]:
        """Make the scheduler."""
        self._setup = setup
        return super().ports(setup)

    def run(self, roles: Roles, finished: Callable[[], bool]) -> None:
        """Run all roles, and measure the wall-clock time."""
        began = time.perf_counter()
        super().run(roles, finished)
        self._wall_seconds = time.perf_counter() - began

    def files(self) -> Mapping[str, str]:
        """Return ``simulation.json``: the settings that the config lacks, and their outcome."""
        return {SIMULATION: self._simulation().to_json()}

    def remarks(self, summary: Summary) -> Sequence[str]:
        """Return the lines about what only a simulation measures."""
        return [simulation_text(self._simulation(), summary, self._wall_seconds)]

    def _simulation(self) -> Simulation:
        scenario, world, config = self._scenario, self.world, self._setup.config
        return Simulation(
            workers=scenario.workers,
            compute=scenario.costs.compute,
            link=scenario.costs.link,
            server_apply=scenario.costs.server_apply,
            codec_speed=scenario.costs.codec_speed,
            crash=scenario.crashes,
            hosts=scenario.hosts,
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
            servers=tuple(map(self._load, world.role_map.server_ranks)),
            stage_costs=scenario.costs.stage_costs,
            small_products=scenario.costs.small_products,
            pass_overhead=scenario.costs.pass_overhead,
            worker_apply=scenario.costs.worker_apply,
            stages=self.busy_stages(),
        )

    def _load(self, rank: int) -> Load:
        """Return the shares of the virtual time that a server and its link were busy."""
        world, whole = self.world, self.world.time or 1.0
        port, bandwidth = world.ports[rank], world.costs.bandwidth
        return Load(
            apply=world.busy[rank] / whole,
            link_in=port.bytes_received / bandwidth / whole,
            link_out=port.bytes_sent / bandwidth / whole,
        )
