"""The course of a run, however its ranks are started: set up, record, run, conclude.

    set_up      config, roles, problem, initial parameters, replay     checked; nothing is made yet
    ports       windows, connections, or a scheduler                   made
    Recording   folder, event files, metrics                           opened; the header written
    run         every role, to its end
    conclude    stats and θ, at the first process                      summary, model, last lines

The order is the same in all processes. After each step that can fail in one of them, all agree on
whether it did (``Launcher.agree``): a rank that exits alone would leave the others waiting.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import proxy

import numpy as np

from psrt.checkpoint import from_text, to_text
from psrt.collective.registry import ANYWHERE, AUTO
from psrt.config import TrainConfig
from psrt.core.arrays import Vector
from psrt.core.errors import MissingWorkersError, OutputError, line_of
from psrt.core.partition import Span
from psrt.core.progress import PROGRESS
from psrt.core.sharding import Sharing
from psrt.core.stats import Stats
from psrt.history import EventLog
from psrt.history.log import Owner
from psrt.history.pair_replay import PairScript, PairSequencer
from psrt.history.replay import Script, Sequencer
from psrt.job.amount import Training
from psrt.job.build import server_role, worker_role
from psrt.job.checkpoints import saver_for
from psrt.job.cut import Cut, cut_problem, say_cut
from psrt.job.final import final_theta
from psrt.job.giving_back import give_back
from psrt.job.gossip import say_hosts
from psrt.job.hooks import Hooks, Stops
from psrt.job.launcher import HandedOut, Launcher, Roles
from psrt.job.problems import data_hint, deal_text, loss_hint
from psrt.job.recording import Recording
from psrt.job.rehearsal import rehearsed
from psrt.job.result import (
    Run,
    Say,
    keep,
    keep_model,
    say_plan,
    say_shards,
    say_topology,
    say_tuned,
    silent,
    summarize,
    table_of,
)
from psrt.job.resuming import CONTROL
from psrt.job.saving import Saver
from psrt.job.setup import Setup, set_up
from psrt.report.environment import ended, environment
from psrt.report.files import MODEL
from psrt.runtime.event_recorder import WorkerEventRecorder
from psrt.runtime.job_codec import say_codec
from psrt.runtime.own_loop import OwnLoop
from psrt.runtime.problem import Problem
from psrt.runtime.problem_rules import evaluate, nothing_trained
from psrt.runtime.server import Server
from psrt.runtime.strategies.base import ReducePlan
from psrt.runtime.weakly import weakly
from psrt.runtime.worker import Worker
from psrt.transport import drive
from psrt.transport.port import CONTROL as CONTROL_VALUES
from psrt.transport.port import Port

#: What may stop a run early, as its summary says.
ON_EPOCH = "on_epoch"


def run_job(
    launcher: Launcher,
    config: TrainConfig | Callable[[], TrainConfig],
    problem: Problem | None = None,
    *,
    say: Say | None = None,
    log: EventLog | None = None,
    hooks: Hooks | None = None,
) -> Run | None:
    """Train to the end, as ``job``."""
    return drive(job(launcher, config, problem, say=say, log=log, hooks=hooks))


async def job(
    launcher: Launcher,
    config: TrainConfig | Callable[[], TrainConfig],
    problem: Problem | None = None,
    *,
    say: Say | None = None,
    log: EventLog | None = None,
    hooks: Hooks | None = None,
) -> Run | None:
    """Train; every process of the job calls this.

    It suspends only if the problem is an ``OwnLoop``, to wait for the next batch.

    Args:
        launcher: of this process.
        config: need not be resolved; a function that makes it is called at the first process only.
        problem: the model and data to train; None takes the config's own.
        say: called with each line meant for the user, at the first process.
        log: records the events instead of files of the run; the caller closes it.
        hooks: see the run, at the first process.

    Returns:
        The result at the first process, None elsewhere.

    Raises:
        PsrtError: the same on every rank, if the job cannot be run.
    """
    setup = set_up(launcher, config, problem)
    if setup.plan.tries:
        setup = await rehearsed(
            launcher, setup, lambda it: _Session(launcher, it, silent, None, Hooks()).rehearse()
        )
    return await _Session(launcher, setup, say or silent, log, hooks or Hooks()).run()


class _Session:
    """One process's part in a job."""

    def __init__(
        self, launcher: Launcher, setup: Setup, say: Say, log: EventLog | None, hooks: Hooks
    ) -> None:
        self._launcher, self._setup, self._say, self._log = launcher, setup, say, log
        self._hooks = hooks
        #: Whether they see what is evaluated; and what ends this process's workers when they ask.
        self._watches = False
        self._stops: Stops | None = None
        #: What has stopped the run early, as in the summary, at the first process.
        self._stopped = ""
        self._sequencers: list[Sequencer | PairSequencer] = []
        #: By rank, the second ports of workers, see ``Launcher.teams``.
        self._teams: Mapping[int, Port] = {}
        #: The first error here after training; raised when the result is safe.
        self._failure: Exception | None = None
        #: Whether the result is complete.
        self._is_whole = True
        self._environment = environment(launcher.library) if launcher.first else {}

    async def rehearse(self) -> list[float]:
        """Run every role to its end, and keep nothing; return the seconds of each worker's step."""
        launcher = self._launcher
        roles = self._roles(self._ports(), None)
        workers = [it for it in roles.values() if isinstance(it, Worker)]
        for worker in workers:
            worker.evaluates = False
        # Workers may have problems of their own, or share one.
        problems: dict[int, Any] = {id(it.problem): it.problem for it in workers}
        stateful = [it for it in problems.values() if callable(getattr(it, "state", None))]
        states = [to_text(it.state()) for it in stateful]
        await launcher.run(roles, lambda: True)
        launcher.close()
        for problem, state in zip(stateful, states, strict=True):
            problem.load_state(from_text(state))
        return [it.seconds / it.clock for it in workers if it.clock]

    async def run(self) -> Run | None:
        """Record, run, conclude."""
        launcher, setup = self._launcher, self._setup
        ports = self._ports()
        recording = Recording(launcher, setup, self._say, self._hooks)
        try:
            return await self._recorded(ports, recording)
        except BaseException as error:
            recording.ended_by(error)
            raise
        finally:
            recording.release()

    def _ports(self) -> Mapping[int, Port]:
        """Make the ports of this process, and check that they can sum; collective."""
        launcher, setup = self._launcher, self._setup
        ports = launcher.ports(setup)
        if setup.config.scheme.has_teams or setup.config.has_whole_servers:
            self._teams = launcher.teams(setup)
        self._check_sums(self._teams or ports)
        return ports

    async def _recorded(self, ports: Mapping[int, Port], recording: Recording) -> Run | None:
        """Run every role to its end, and conclude."""
        launcher, setup = self._launcher, self._setup
        with recording:
            roles = self._roles(ports, recording)
            plan = _plan(roles)
            if self._setup.config.scheme.has_teams:
                plan = self._plan_of_teams(plan)
            recorded: dict[int, dict[Owner, int]] = {}
            recorded_step = -1
            if setup.resumption is not None:
                recorded_step = int(launcher.share(str(recording.recorded_step)))
            with launcher.agree():
                recorded = give_back(setup, roles, recorded_step)
            recording.go_on(recorded)
            recording.begin(plan, roles)
            if launcher.first:
                self._announce(plan)
            recorder = recording.recorder
            if recorder is not None:
                launcher.on_report, launcher.on_crash = recorder.add, recorder.gone
            with launcher.agree():
                saver = saver_for(launcher, setup, roles, plan, self._say, recording.log_of)
            with launcher.agree():  # the first process has made the folder
                if saver is not None:
                    saver.check()
            was_stopped = False
            self._watch(roles, saver)
            if saver is not None:
                saver.begin()
            training = Training(setup.config, launcher, roles, recorder)
            with PROGRESS.doing("training" if launcher.numerics else "simulating", training):
                await launcher.run(roles, lambda: recorder is None or recorder.finished)
            for role in roles.values():
                if isinstance(role, Worker) and role.late_error is not None:
                    self._failure = self._failure or role.late_error
            if saver is not None:
                with self._late(spoils=False):
                    saver.finish()
                # If one process decides when workers park, only it knows of a stop.
                was_stopped = any(launcher.tell_first("stops" if saver.stops else ""))
                with launcher.agree():  # all have finished
                    saver.close()
            self._note_stop(roles)
            was_stopped &= not self._hooks.asked  # whose stop is no interruption
            for sequencer in self._sequencers:
                with self._late():
                    sequencer.finish()
            recording.end(roles, is_whole=not was_stopped)
        with PROGRESS.doing("finishing"), recording.concluding():
            result = self._conclude(roles, recording, plan)
        if saver is not None:
            with launcher.agree():
                if was_stopped and launcher.first:
                    raise saver.stopped(result)
            saver.give_back_signal()
        launcher.close()
        self._judge(result)
        return result

    def _watch(self, roles: Roles, saver: Saver | None) -> None:
        """Show the hooks at the first process what is evaluated, and let them stop; collective."""
        hooks = self._hooks
        self._watches = hooks.begin(self._launcher)
        if not self._watches:
            return
        workers = [it for it in roles.values() if isinstance(it, Worker)]
        for worker in workers:
            worker.show_evaluated()
        if self._setup.config.replay is not None:
            return  # it ends where the recorded run did
        if saver is not None:
            hooks.may_stop(partial(saver.boundaries.ask, stop=True))
            return
        self._stops = Stops(self._launcher, self._setup, next(iter(roles)))
        hooks.may_stop(partial(self._stops.boundaries.ask, stop=True))
        for worker in workers:
            worker.ends = partial(self._stops.are_over, proxy(worker))

    def _note_stop(self, roles: Roles) -> None:
        """Find out whether a hook has stopped the run early; collective, after training."""
        launcher, replay = self._launcher, self._setup.replay
        is_early = replay is not None and bool(replay.header.stopped)
        if self._watches:
            mine = any(isinstance(it, Worker) and it.has_stopped for it in roles.values())
            told = any(launcher.tell_first("early" if mine else ""))
            is_early |= self._hooks.asked and told
        if self._stops is not None:
            with launcher.agree():
                pass  # until all have finished, each answers the others
            self._stops.boundaries.close()
        self._stopped = ON_EPOCH if is_early else ""

    def _check_sums(self, ports: Mapping[int, Port]) -> None:
        """Check, before anything is written, that the workers can sum as configured."""
        algorithm = self._setup.config.allreduce
        with self._launcher.agree():
            rank = next(iter(ports))
            role_map = ports[rank].role_map
            if algorithm is not None and not role_map.servers:
                codec = None if self._teams else self._setup.codec_at(rank)
                if codec is not None and not codec.of_optimizer and len(role_map.workers) == 1:
                    codec = None
                coded = None if codec is None else codec.coding(Span(0, role_map.n))
                shard = self._setup.config.scheme.shard
                sharded = None if shard is None else Sharing(shard)
                ports[rank].choice(algorithm, role_map.n, coded=coded, sharded=sharded)

    def _algorithm_of_teams(self) -> str | None:
        """Return the all-reduce of all learners if ``auto`` would choose several; collective."""
        sizes, launcher = (self._setup.plan.n, CONTROL_VALUES), self._launcher
        mine = {",".join(it.choice(AUTO, n)[0] for n in sizes) for it in self._teams.values()}
        found = {one for it in launcher.tell_first(" ".join(mine)) for one in it.split()}
        return launcher.share(ANYWHERE if len(found) > 1 else "") or None

    def _plan_of_teams(self, plan: ReducePlan | None) -> ReducePlan | None:
        """Return at the first process, which may have a server, how the learners sum; collective.

        All sum in the same way, see ``_algorithm_of_teams``.
        """
        mine = "" if plan is None else json.dumps(plan)
        found = next(filter(None, self._launcher.tell_first(mine)), None)
        return plan if found is None else ReducePlan(*json.loads(found))

    def _roles(self, ports: Mapping[int, Port], recording: Recording | None) -> Roles:
        """Broadcast the initial parameters and build the roles of this process."""
        launcher, setup = self._launcher, self._setup
        config = setup.config
        if isinstance(setup.problem, OwnLoop) and (held := setup.problem.held) is not None:
            begun = launcher.share(to_text(held.state()))
            with launcher.agree():
                held.load_state(from_text(begun))
        handed: Mapping[int, HandedOut] = {}
        stopped: Sequence[int] = ()
        if config.replay is not None:
            replay = setup.replay
            stopped = json.loads(launcher.share(json.dumps(replay and replay.header.stopped)))
            handed = launcher.hand_out(setup.replay, setup.role_map, setup.cut)
        links = {} if setup.cut is None else launcher.links(setup, setup.cut)
        of_teams: str | None = None
        if config.scheme.has_teams and config.allreduce == AUTO:
            of_teams = self._algorithm_of_teams()
        roles: dict[int, Server | Worker] = {}
        for rank, port in ports.items():
            role_map = port.role_map
            number = 0 if setup.cut is None else setup.cut.numbered_cell_of(rank)[0]
            algorithm, control_algorithm, scripts = handed.get(number, HandedOut())
            if setup.resumption is not None:
                control_algorithm = setup.resumption.manifest.more.get(CONTROL)
            if (algorithm := algorithm or of_teams) is not None:
                config = replace(setup.config, allreduce=algorithm)
            initial = launcher.spread(port, setup.initial, setup.cut)
            shards = role_map.shards_of(port.rank)
            log = self._log
            if recording is not None:
                log = recording.log_of(rank) or log or recording.ring
            if not shards:
                if role_map.held_theta is None:
                    np.copyto(port.theta, initial)
                problem = setup.problem
                assert problem is not None
                worker, whole = role_map.worker_of(port.rank), setup.role_map.worker_of(rank)
                if setup.cut is not None:
                    problem = cut_problem(
                        config,
                        problem,
                        setup.cut,
                        rank,
                        links[rank],
                        now=port.now,
                        events=None if log is None else WorkerEventRecorder(log, worker or 0),
                    )
                turns: PairSequencer | None = None
                if role_map.peers and worker is not None and worker in scripts:
                    turns = PairSequencer(port.receive, PairScript(worker, scripts[worker]))
                    self._sequencers.append(turns)
                roles[rank] = trainer = worker_role(
                    port,
                    config,
                    problem,
                    number=whole,
                    log=log,
                    control_algorithm=control_algorithm,
                    codec=setup.codec_at(rank),
                    deal=setup.deal,
                    topology=setup.topology,
                    turns=turns,
                    members=launcher.members if config.survive else None,
                    team=self._teams.get(rank),
                    steps=stopped[whole or 0] if stopped else None,
                )
                if role_map.held_theta is not None:
                    trainer.strategy.load(initial)
                if turns is not None:
                    port.waiting_for = weakly(turns.waiting_for)
                continue
            roles[rank] = server = server_role(
                port,
                config,
                initial,
                log=log,
                codec=setup.codec_at(rank),
                matrices=setup.plan.matrices,
                sync_s=setup.plan.sync_s,
                problem=setup.problem,
            )
            if scripts:
                replayed = Sequencer(
                    server.receive, [Script(shard, scripts[shard]) for shard in shards]
                )
                self._sequencers.append(replayed)
                server.receive, server.keeps_time = replayed.receive, False
                port.waiting_for = weakly(replayed.waiting_for)
        return roles

    def _announce(self, plan: ReducePlan | None) -> None:
        """Print what the run repeats, and its all-reduce, shards or split."""
        if self._setup.replay is not None:
            self._say(self._setup.replay.plan())
            for phrase in self._setup.replay.elsewhere(self._environment):
                self._say(f"environment: {phrase}")
        if self._setup.resumption is not None:
            for line in self._setup.resumption.plan():
                self._say(line)
        say_plan(plan, self._say)
        say_shards(self._setup.plan.shards, self._say)
        say_tuned(self._setup.config, self._setup.tuned, self._say)
        say_cut(self._setup.cut, self._setup.hosts, self._say)
        say_hosts(self._setup.topology, self._say)
        say_topology(self._setup.config, self._setup.topology, self._setup.role_map.n, self._say)
        if (deal := self._setup.deal) is not None:
            self._say(f"partition: {self._setup.config.partition}, {deal_text(deal)}")
        if hint := data_hint(self._setup.problem):
            self._say(hint)
        setup = self._setup
        cut = setup.cut
        spans = setup.role_map.spans if cut is None else cut.served_cells[0].role_map.spans
        codec = setup.cell_codecs[0] if setup.cell_codecs else setup.codec
        part = " of the first part" if len(setup.cell_codecs) > 1 else ""
        say_codec(setup.config, codec, spans, plan, self._say, part)

    @contextlib.contextmanager
    def _late(self, *, spoils: bool = True) -> Iterator[None]:
        """Keep the first error after training; see the top of the file.

        Args:
            spoils: whether the result is incomplete without the block.
        """
        try:
            yield
        except Exception as error:
            self._failure = self._failure or error
            self._is_whole &= not spoils

    def _conclude(
        self,
        roles: Roles,
        recording: Recording,
        plan: ReducePlan | None,
    ) -> Run | None:
        """Gather stats and θ at the first process, which makes the result.

        Raises:
            Exception: the first error since the end of training, now that the result is safe.
        """
        launcher, problem, cut = self._launcher, self._setup.problem, self._setup.cut
        own = problem if isinstance(problem, OwnLoop) else None
        self._hand_over_states(roles)
        mine = [one for rank in sorted(roles) for one in _stats(roles[rank], rank, cut)]
        stats = launcher.gather(mine)
        theta = final_theta(launcher, self._setup, roles)
        if own is not None and theta is not None:
            own.final = theta.copy()  # shared memory is freed before this is used
        result: Run | None = None
        try:
            with launcher.concluding():
                if stats is not None and theta is not None:
                    result = self._result(stats, theta, recording, plan)
                elif recording.failed:
                    self._failure = self._failure or recording.failed[0]
        except MissingWorkersError as error:
            error.run = result
            if self._failure is not None:
                launcher.warn(f"psrt: {line_of(self._failure) or repr(self._failure)}")
            raise
        if own is not None:
            text = "" if own.held is None else to_text(own.held.state())
            own.final, text = launcher.everywhere(own.final, self._setup.role_map.n, text)
            if own.held is not None and not launcher.first:
                with self._late():
                    own.held.load_state(from_text(text))
        with launcher.agree():
            if self._failure is not None:
                with contextlib.suppress(AttributeError):  # an exception without attributes
                    self._failure.run = result  # type: ignore[attr-defined]
                raise self._failure
        return result

    def _hand_over_states(self, roles: Roles) -> None:
        """Tell a problem that training is over and, at the first process, each worker's state."""
        problem: Any = self._setup.problem
        if isinstance(problem, OwnLoop):
            problem = problem.held
        conclude = getattr(problem, "conclude", None)
        if not callable(conclude):
            return
        text = to_text({})
        with self._late():
            workers = [it for it in roles.values() if isinstance(it, Worker)]
            whose = {it.number: getattr(it.problem, "held", it.problem) for it in workers}
            asked = {str(it): getattr(own, "state", None) for it, own in whose.items()}
            text = to_text({number: state and state() for number, state in asked.items()})
        came = [from_text(it) for it in self._launcher.tell_first(text)]
        with self._late():
            conclude({int(number): it for states in came for number, it in states.items()})

    def _result(
        self,
        stats: Sequence[Stats],
        theta: Vector,
        recording: Recording,
        plan: ReducePlan | None,
    ) -> Run | None:
        """Write the model, evaluate it, sum up the run, and write the rest; at the first process.

        Returns:
            The result; None if an error prevented it.
        """
        setup, launcher, recorder = self._setup, self._launcher, recording.recorder
        folder, failed = recording.folder, recording.failed
        assert setup.problem is not None
        assert recorder is not None
        missing = launcher.missing
        stats = [recorder.reported(it.worker) if it.worker in missing else it for it in stats]
        if not (any(one.steps for one in stats) or launcher.died or missing):
            self._failure = self._failure or nothing_trained(setup.problem)
            return None
        if folder is not None and theta.size:
            with self._late():
                keep_model(theta, setup.problem, folder, failed)
        figures: dict[str, float] = {}
        with self._late():
            figures = evaluate(setup.problem, theta)
        result: Run | None = None
        with self._late():
            summary = summarize(
                setup.config,
                stats,
                theta=theta,
                figures=figures,
                records=recorder.records,
                plan=plan,
                shards=setup.plan.shards,
                topology=setup.topology,
                mean=launcher.mean,
                cut=None if setup.cut is None else setup.cut.figures(),
                parameters=setup.role_map.n,
                largest=setup.role_map.most_at_once,
                hosts=len(set(setup.hosts)),
                library=launcher.library,
                died=launcher.died,
                missing=missing,
                tuned=setup.tuned,
            )
            summary = replace(summary, stopped=self._stopped, environment=ended(self._environment))
            result = Run(summary, theta.copy(), tuple(recorder.records))
        if result is not None and self._is_whole:
            with self._late(spoils=False):
                if self._stopped:
                    recording.stopped_at(stats, failed)
                self._publish(result, recording, failed)
        elif folder is not None and (folder.path / MODEL).exists():
            self._say(f"the parameters at the end are in {folder.given / MODEL}")
        return result

    def _publish(self, result: Run, recording: Recording, failed: list[OutputError]) -> None:
        """Write the other files of a finished run, and print its table.

        Args:
            result: of the run.
            recording: of it.
            failed: the errors of files that could not be written so far.

        Raises:
            OutputError: if a file could not be written; raised after writing all the others but the
                summary.
        """
        launcher, folder = self._launcher, recording.folder
        if folder is not None:
            failed += recording.leave_out([it.rank for it in result.summary.missing])
            keep(result, folder, launcher.files(), failed)
        self._say("")
        if self._stopped:
            self._say(f"stopped by {self._stopped}, after {result.summary.steps} steps")
        self._say(table_of(result.summary, self._setup.config, folder))
        for line in launcher.remarks(result.summary):
            self._say(line)
        if hint := loss_hint(self._setup.problem, result.summary.test_loss):
            self._say(hint)
        if failed:
            raise OutputError("; ".join(map(str, failed)), result)

    def _judge(self, result: Run | None) -> None:
        """Compare the final parameters of a replay with the recorded ones."""
        replay = self._setup.replay
        if self._setup.config.replay is None:
            return
        with self._launcher.agree():
            if result is not None and replay is not None:
                self._say(replay.verdict(result.theta))


def _stats(role: Server | Worker, rank: int, cut: Cut | None) -> Sequence[Stats]:
    """Return the counters of a role: of a worker, or of each shard of a server."""
    stats = role.stats if isinstance(role, Server) else [role.stats]
    if cut is None:
        return stats
    number, cell = cut.numbered_cell_of(rank)
    if cell is cut.served:  # which knows copies by their first workers
        number = 0
    shards = len(cell.role_map.servers)
    return [one.of_cell(number, len(cut.cells), shards) for one in stats]


def _plan(roles: Roles) -> ReducePlan | None:
    """Return how all workers sum; None at a process of servers, and in modes with servers."""
    workers = (role for role in roles.values() if isinstance(role, Worker))
    return next((worker.strategy.plan for worker in workers), None)
