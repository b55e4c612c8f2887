"""A job over MPI: who is who, the same config everywhere, and one result at rank 0."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from psrt.collective.analysis.machine import MachineCosts
from psrt.config import TrainConfig, from_toml
from psrt.history.replay import Sequencer
from psrt.job.build import (
    initial_parameters,
    machine_costs,
    output_folder,
    server_role,
    supervised_problem,
    wiring_for,
    worker_role,
)
from psrt.job.mpi_history import close_log, open_log, write_head
from psrt.job.mpi_replay import hand_out, replay_of
from psrt.job.mpi_roles import hosts_of, resolved, started_as, who_is_who
from psrt.job.replay import Replay
from psrt.job.result import Run, Say, conclude, say_plan, silent
from psrt.mpi.agreement import AbortGuard, gather_texts, send_text, together
from psrt.mpi.port import MpiPort
from psrt.report.files import OutputFolder
from psrt.report.recorder import Recorder
from psrt.runtime.account import Account, ShardAccount, WorkerAccount, from_text, to_text
from psrt.runtime.problem import Problem, gradient_spans
from psrt.runtime.server import Server
from psrt.runtime.strategies.base import ReducePlan
from psrt.runtime.tally import Tally
from psrt.runtime.worker import Worker
from psrt.transport import drive
from psrt.transport.port import Vector


def run_over_mpi(
    comm: MPI.Comm,
    config: TrainConfig | Callable[[], TrainConfig],
    problem: Problem | None = None,
    *,
    role: str | None = None,
    say: Say | None = None,
) -> Run | None:
    """Train among the ranks of ``comm``, more than one; collective.

    Args:
        comm: the ranks of the job.
        config: need not be resolved; or what makes it, called at rank 0 only.
        problem: what is trained; None makes the config's own MLP and data.
        role: ``server`` or ``worker`` if the launcher says which rank is which, None otherwise.
        say: takes each line meant for the user, at rank 0.

    Returns:
        The result at rank 0, None elsewhere.

    Raises:
        PsrtError: the same on every rank, if they agreed that the job cannot be.
    """
    guard = AbortGuard(comm)
    with guard.watch():
        job = _Job(comm, config, problem, role)
        result = job.run(say or silent)
    guard.close()
    return result


class _Job:
    """One rank's part in setting up, running and concluding a job."""

    def __init__(
        self,
        comm: MPI.Comm,
        config: TrainConfig | Callable[[], TrainConfig],
        problem: Problem | None,
        role: str | None,
    ) -> None:
        self._comm = comm
        hosts, given = hosts_of(comm), started_as(comm, role)
        #: The run that is to be repeated; at rank 0.
        self._replay: Replay | None = None
        text = ""
        with together(comm):
            if comm.rank == 0:
                config = config() if callable(config) else config
                self._replay = replay_of(config, comm.size, named=bool(given.any()))
                if self._replay is not None:
                    config = self._replay.pinned(config)
                text = resolved(config, comm.size, given)
        self._config = config = from_toml(send_text(comm, text), source="rank 0")
        with together(comm):
            servers, workers = who_is_who(config, hosts, given)
        self._is_server = comm.rank in servers
        self._problem = problem
        self._hosts = len(set(hosts))
        initial, costs = np.zeros(0, np.float32), ""
        with together(comm):
            if problem is None and (comm.rank == 0 or not self._is_server):
                self._problem = supervised_problem(config, workers=len(workers))
            if comm.rank == 0:
                assert self._problem is not None
                initial = initial_parameters(self._problem)
                costs = machine_costs(config).to_json()
        #: What ``auto`` picks an all-reduce by; the file of the config is read at rank 0 only.
        self._costs = MachineCosts.from_json(send_text(comm, costs))
        n = np.array([initial.size], np.int64)
        comm.Bcast(n)
        with together(comm):
            self._wiring = wiring_for(int(n[0]), servers, workers)
            if config.overlap and self._problem is not None:
                gradient_spans(self._problem, int(n[0]))
            if self._replay is not None:
                self._replay.check(
                    config,
                    self._wiring,
                    initial=initial,
                    problem=self._problem,
                    hosts=tuple(hosts),
                )
        self._folder: OutputFolder | None = None
        with together(comm):
            if comm.rank == 0:
                self._folder = output_folder(config)
        self._port = MpiPort(
            comm,
            self._wiring,
            timeout_s=config.timeout_s,
            host=None if config.shared_memory else comm.rank,
            costs=self._costs,
        )
        with together(comm):  # what cannot be summed is told before the plans are made
            if config.allreduce is not None:
                self._port.choice(config.allreduce, self._wiring.n)
        self._log = open_log(comm, self._port, config)
        self._extras: str | None = None
        self._sequencer: Sequencer | None = None
        if config.replay is not None:
            self._extras, script = hand_out(comm, self._replay, servers)
            if script is not None:
                self._sequencer = Sequencer(self._port.receive, script)
        self._role = self._make_role(initial)
        if config.record and self._folder is not None:
            write_head(
                self._folder.history,
                config,
                self._port,
                initial=initial,
                problem=self._problem,
                plan=self._plan,
                hosts=hosts,
            )

    def _make_role(self, initial: Vector) -> Server | Worker:
        """Spread the initial parameters and make this rank's role."""
        port, config = self._port, self._config
        if self._comm.rank != 0:
            initial = np.empty(self._wiring.n, np.float32) if self._is_server else port.theta
        self._comm.Bcast(initial)
        if self._is_server:
            span = self._wiring.spans[self._wiring.servers.index(port.rank)]
            replayed = self._sequencer
            receive = None if replayed is None else replayed.receive
            server = server_role(port, config, span.of(initial), log=self._log, receive=receive)
            if replayed is not None:
                port.whom = replayed.whom
            return server
        np.copyto(port.theta, initial)
        assert self._problem is not None
        return worker_role(port, config, self._problem, log=self._log, extras=self._extras)

    def run(self, say: Say) -> Run | None:
        """Play this rank's role to its end; rank 0 then concludes."""
        port, config = self._port, self._config
        recorder: Recorder | None = None
        if port.rank == 0:
            workers = len(self._wiring.workers)
            recorder = Recorder(workers, log_every=config.log_every, folder=self._folder, say=say)
            port.on_report = recorder.add
            if self._replay is not None:
                say(self._replay.plan())
            say_plan(self._plan, say)
        port.meet()
        try:
            drive(self._role.run())
            if self._sequencer is not None:
                self._sequencer.finish()
        except BaseException:
            if self._log is not None:
                self._log.abandon()
            raise
        port.finish_reports(lambda: recorder is None or recorder.finished)
        result = self._conclude(recorder, say)
        port.close()
        if config.replay is not None:
            with together(self._comm):
                if result is not None and self._replay is not None:
                    say(self._replay.verdict(result.theta))
        return result

    def _conclude(self, recorder: Recorder | None, say: Say) -> Run | None:
        port, role = self._port, self._role
        if self._log is not None:
            close_log(self._log, port, role)
        account: Account
        if isinstance(role, Server):
            tally = Tally.of_server(port, role)
            account = ShardAccount.of(self._wiring.servers.index(port.rank), role.shard)
        else:
            tally = Tally.of_worker(port, role)
            worker = self._wiring.workers.index(port.rank)
            account = WorkerAccount.of(worker, role.meter, role.seconds)
        rows = port.gather(tally)
        texts = gather_texts(self._comm, to_text(account))
        theta = self._final_theta()
        if rows is None:
            return None
        assert recorder is not None
        assert theta is not None
        assert self._problem is not None
        with port.busy():  # the others wait to close: evaluating and writing may take long
            return conclude(
                self._config,
                self._problem,
                theta,
                tallies=[Tally(*map(int, row)) for row in rows],
                accounts=list(map(from_text, texts)),
                recorder=recorder,
                folder=self._folder,
                say=say,
                hosts=self._hosts,
                mpi=library_name(),
                plan=self._plan,
            )

    @property
    def _plan(self) -> ReducePlan | None:
        """How all ranks sum; None at a server, and in modes with servers."""
        return self._role.strategy.plan if isinstance(self._role, Worker) else None

    def _final_theta(self) -> Vector | None:
        """Bring the servers' spans, or worker 0's vector, to rank 0; collective."""
        port, wiring = self._port, self._wiring
        first = port.rank == 0
        if not wiring.servers:
            return port.theta if first else None
        whole = np.empty(wiring.n, np.float32) if first else None
        mine = self._role.shard.theta if isinstance(self._role, Server) else None
        for rank, span in zip(wiring.servers, wiring.spans, strict=True):
            if port.rank in (0, rank):
                port.fetch(rank, mine, span.of(whole) if whole is not None else None)
        return whole


def library_name() -> str:
    """Return name and version of the MPI library, in a few words."""
    first = MPI.Get_library_version().splitlines()[0].split(",")[0]
    return " ".join(first.replace("Version:", " ").strip("\0").split())
