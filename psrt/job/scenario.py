"""A simulated job as the command line describes it, with the files and output of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from psrt.checkpoint.failures import FailureCosts, Lost, table_of_lost
from psrt.codec import Matrix
from psrt.collective.costs import LinkCosts
from psrt.config import TrainConfig
from psrt.config.faults import Elapsed, Fault
from psrt.core.errors import ConfigError, GaveUpError, PsrtError
from psrt.core.files import keep_apart
from psrt.core.partition import Span
from psrt.faults.watcher import End
from psrt.job.attempt import Ended
from psrt.job.launcher import Roles
from psrt.job.result import Say, silent
from psrt.job.session import run_job
from psrt.job.setup import Setup
from psrt.job.shards import ServedJob
from psrt.job.supervise import GAVE_UP, supervise
from psrt.job.virtual import SimulatedRun, VirtualLauncher
from psrt.report import Summary
from psrt.report.files import SIMULATION
from psrt.report.simulation import Load, Simulation, simulation_text
from psrt.runtime.problem import Problem
from psrt.runtime.worker import Worker
from psrt.simulation.cost_flags import VirtualCosts
from psrt.transport.port import Port


@dataclass(frozen=True, slots=True)
class Scenario:
    """The settings of a simulated job, besides its training config."""

    #: Ranks that compute gradients, W.
    workers: int
    #: The time of computing, sending and updating.
    costs: VirtualCosts = field(default_factory=VirtualCosts)
    #: (worker, seconds) each: when the worker crashes.
    crashes: tuple[tuple[int, float], ...] = ()
    #: The other faults.
    faults: tuple[Fault, ...] = ()
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
    #: with n; without any, the config's data is partitioned.
    deal: tuple[tuple[int, int], ...] = ()
    #: The number of ranks of each host; empty for one host.
    hosts: tuple[int, ...] = ()
    #: The number of restarts of a job that dies without a new checkpoint; 0 for none.
    restarts: int = 0
    #: What failures and checkpoints cost, to report what a long job loses; None reports nothing.
    failures: FailureCosts | None = None


def run_in_virtual_time(
    config: TrainConfig,
    scenario: Scenario,
    problem: Problem | None = None,
    *,
    say: Say = silent,
) -> SimulatedRun:
    """Simulate a job, with the files and lines of a real run.

    The config's seed decides the training and the order of events, so the same config and
    scenario write the same files, bit for bit.

    Args:
        config: need not be resolved.
        scenario: the rest of the job.
        problem: the model and data to train; None takes the config's own.
        say: called with each line meant for the user.

    Raises:
        ConfigError: if the job is impossible.
        DivergedError: if the loss is nan or infinite.
        OutputError: if a file could not be written at the end.
        CrashError: if a rank crashes without which the others cannot continue.
        GaveUpError: if that is so after all restarts.
        TransportError: if the roles deadlock.
    """
    attempts = _Attempts(config, scenario, problem, say)
    if not scenario.restarts:
        return attempts.next()
    if config.out is None or config.checkpoint_every is None or config.resume is None:
        raise ConfigError(
            f"--restarts {scenario.restarts} needs a run that can resume: --out DIR "
            "--checkpoint-every N --resume auto"
        )
    ended = supervise(
        attempts.run, Path(config.out), scenario.restarts,
        tell=say, sleep=lambda seconds: None, tidy=lambda since: 0,
    )  # fmt: skip
    if attempts.result is not None:
        return attempts.result
    assert attempts.error is not None, "an attempt ends with a result, or an error"
    if ended.status == GAVE_UP:
        raise GaveUpError(str(attempts.error)) from attempts.error
    raise attempts.error


class _Attempts:
    """The attempts of a job, one after another: faults are counted over all of them."""

    def __init__(
        self, config: TrainConfig, scenario: Scenario, problem: Problem | None, say: Say
    ) -> None:
        self._config, self._scenario, self._problem, self._say = config, scenario, problem, say
        #: The faults that have not struck yet; None before the first attempt.
        self._left: Sequence[Fault] | None = None
        self._elapsed = Elapsed()
        #: The outcome of the last attempt: one of the two is set.
        self.result: SimulatedRun | None = None
        self.error: PsrtError | None = None

    def next(self) -> SimulatedRun:
        """Make the next attempt."""
        config, say = self._config, self._say
        launcher = _ScenarioLauncher(config.seed, self._scenario, say, self._elapsed, self._left)
        try:
            run = run_job(launcher, config, self._problem, say=say)
            assert run is not None
            return launcher.result(run)
        finally:
            self._elapsed = launcher.elapsed
            self._left = launcher.faults

    def run(self) -> Ended:
        """Make the next attempt for a supervisor."""
        began, self.result, self.error = self._elapsed.seconds, None, None
        try:
            self.result = self.next()
        except PsrtError as error:
            self.error = error
            self._say(f"error: {error}")
        status = 0 if self.error is None else self.error.exit_status
        return Ended(status, None, self._elapsed.seconds - began, End(status))


class _ScenarioLauncher(VirtualLauncher):
    """A simulation whose costs have names, so that ``simulation.json`` can hold them."""

    def __init__(
        self,
        seed: int,
        scenario: Scenario,
        say: Say,
        elapsed: Elapsed,
        left: Sequence[Fault] | None,
    ) -> None:
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
            crashes=scenario.crashes if left is None else (),
            faults=scenario.faults if left is None else left,
            elapsed=elapsed,
            hosts=scenario.hosts,
        )
        self._scenario = scenario
        #: Wall-clock time of the simulation itself, in seconds.
        self._wall_seconds = 0.0
        #: By interval, what a long job of such steps loses by failures.
        self._lost: tuple[Lost, ...] = ()

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
        """Return a job with the scenario's costs, unless they are those of a run."""
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

    async def run(self, roles: Roles, finished: Callable[[], bool]) -> None:
        """Run all roles, and measure the wall-clock time."""
        began = time.perf_counter()
        await super().run(roles, finished)
        self._wall_seconds = time.perf_counter() - began
        if (costs := self._scenario.failures) is not None:
            workers = [it for it in roles.values() if isinstance(it, Worker)]
            steps, seconds = max((it.clock, it.seconds) for it in workers)
            if not seconds:
                raise ConfigError(f"--mtbf {costs.mtbf_s:g} needs steps that take time")
            self._lost = table_of_lost(seconds / steps, costs)

    def files(self) -> Mapping[str, str]:
        """Return ``simulation.json``: the settings that the config lacks, and their outcome."""
        return {SIMULATION: self._simulation().to_json()}

    def remarks(self, summary: Summary) -> Sequence[str]:
        """Return the lines about what only a simulation measures."""
        return [simulation_text(self._simulation(), summary, self._wall_seconds)]

    def _simulation(self) -> Simulation:
        scenario, world, config = self._scenario, self.world, self._setup.config
        ranks = enumerate(world.role_map.workers)
        crashed = {it: world.crashed[rank] for it, rank in ranks if rank in world.crashed}
        return Simulation(
            workers=scenario.workers,
            compute=scenario.costs.compute,
            link=scenario.costs.link,
            server_apply=scenario.costs.server_apply,
            codec_speed=scenario.costs.codec_speed,
            crash=scenario.crashes,
            faults=tuple(map(str, scenario.faults)),
            hosts=scenario.hosts,
            numerics=scenario.numerics,
            parameters=world.role_map.n,
            seed=config.seed,
            events=world.events,
            seconds=world.time,
            crashed=tuple(crashed),
            crashed_at=tuple(crashed.values()),
            servers=tuple(map(self._load, world.role_map.server_ranks)),
            stage_costs=scenario.costs.stage_costs,
            small_products=scenario.costs.small_products,
            pass_overhead=scenario.costs.pass_overhead,
            worker_apply=scenario.costs.worker_apply,
            stages=self.busy_stages(),
            failures=scenario.failures,
            lost=self._lost,
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
