"""A job over MPI: who is who, the same config everywhere, and one result at rank 0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from mpi4py import MPI

from psrt.build import (
    initial_parameters,
    machine_costs,
    output_folder,
    server_role,
    supervised_problem,
    wiring_for,
    worker_role,
)
from psrt.collective.machine import MachineCosts
from psrt.config import TrainConfig, from_toml, resolve, to_toml
from psrt.errors import ConfigError
from psrt.report.files import OutputFolder
from psrt.report.recorder import Recorder
from psrt.result import Run, Say, conclude, say_plan, silent
from psrt.runtime.problem import Problem, gradient_spans
from psrt.runtime.roles import assign_roles
from psrt.runtime.server import Server
from psrt.runtime.strategy import ReducePlan
from psrt.runtime.tally import Tally
from psrt.runtime.worker import Worker
from psrt.transport import drive
from psrt.transport.agreement import AbortGuard, send_text, together
from psrt.transport.hosts import split_hosts
from psrt.transport.mpi import MpiPort
from psrt.transport.port import Vector

#: What a rank was started as: anything, or one of the two (MPMD).
ANY, SERVER, WORKER = 0, 1, 2
ROLES = {None: ANY, "server": SERVER, "worker": WORKER}


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
        hosts = _hosts(comm)
        given = np.empty(comm.size, np.int64)
        comm.Allgather(np.array([ROLES[role]], np.int64), given)
        with together(comm):
            text = _resolved(config, comm.size, given) if comm.rank == 0 else ""
        self._config = config = from_toml(send_text(comm, text), source="rank 0")
        with together(comm):
            servers, workers = _who(config, hosts, given)
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
        self._role = self._make_role(initial)

    def _make_role(self, initial: Vector) -> Server | Worker:
        """Spread the initial parameters and make this rank's role."""
        port, config = self._port, self._config
        if self._comm.rank != 0:
            initial = np.empty(self._wiring.n, np.float32) if self._is_server else port.theta
        self._comm.Bcast(initial)
        if self._is_server:
            span = self._wiring.spans[self._wiring.servers.index(port.rank)]
            return server_role(port, config, span.of(initial))
        np.copyto(port.theta, initial)
        assert self._problem is not None
        return worker_role(port, config, self._problem)

    def run(self, say: Say) -> Run | None:
        """Play this rank's role to its end; rank 0 then concludes."""
        port, config = self._port, self._config
        recorder: Recorder | None = None
        if port.rank == 0:
            workers = len(self._wiring.workers)
            recorder = Recorder(workers, log_every=config.log_every, folder=self._folder, say=say)
            port.on_report = recorder.add
            say_plan(self._plan, say)
        port.meet()
        drive(self._role.run())
        port.finish_reports(lambda: recorder is None or recorder.finished)
        result = self._conclude(recorder, say)
        port.close()
        return result

    def _conclude(self, recorder: Recorder | None, say: Say) -> Run | None:
        port, role = self._port, self._role
        histogram: list[int] = []
        if isinstance(role, Server):
            tally, histogram = Tally.of_server(port, role), role.shard.histogram
        else:
            tally = Tally.of_worker(port, role)
        length = np.array([len(histogram)], np.int64)
        self._comm.Allreduce(MPI.IN_PLACE, length, MPI.MAX)
        rows = port.gather([*tally, *histogram, *[0] * (int(length[0]) - len(histogram))])
        theta = self._final_theta()
        if rows is None:
            return None
        assert recorder is not None
        assert theta is not None
        assert self._problem is not None
        counters = len(Tally._fields)
        return conclude(
            self._config,
            self._problem,
            theta,
            tallies=[Tally(*map(int, row[:counters])) for row in rows],
            histogram=rows[:, counters:].sum(axis=0).tolist(),
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


def _hosts(comm: MPI.Comm) -> list[int]:
    """Return, for each rank, the lowest rank of its host; collective."""
    node, layout = split_hosts(comm)
    node.Free()
    lowest = {rank: ranks[0] for ranks in layout.hosts for rank in ranks}
    return [lowest[rank] for rank in range(comm.size)]


def _resolved(
    config: TrainConfig | Callable[[], TrainConfig], ranks: int, given: np.ndarray
) -> str:
    """Return the resolved config as TOML; at rank 0."""
    config = config() if callable(config) else config
    if given.any():
        if not given.all():
            raise ConfigError("some ranks were started as server or worker, others were not")
        servers = int((given == SERVER).sum())
        if config.servers not in (None, servers):
            raise ConfigError(
                f"--servers {config.servers}, but {servers} ranks were started as servers"
            )
        config = replace(config, servers=servers)
    return to_toml(resolve(config, ranks=ranks))


def _who(
    config: TrainConfig, hosts: list[int], given: np.ndarray
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ranks of the servers and of the workers."""
    if given.any():
        servers = tuple(int(rank) for rank in np.flatnonzero(given == SERVER))
        workers = tuple(int(rank) for rank in np.flatnonzero(given == WORKER))
    else:
        servers, workers = assign_roles(hosts, config.servers or 0, config.placement or "first")
    for rank, seconds in config.straggler:
        if rank in servers:
            raise ConfigError(
                f"--straggler {rank}:{seconds:g} names a server; the workers are ranks "
                + ", ".join(map(str, workers))
            )
    return servers, workers


def library_name() -> str:
    """Return name and version of the MPI library, in a few words."""
    first = MPI.Get_library_version().splitlines()[0].split(",")[0]
    return " ".join(first.replace("Version:", " ").strip("\0").split())
