"""A job over MPI: every rank is a process; rank 0 reads, writes and prints."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from mpi4py import MPI

from psrt.config import TrainConfig
from psrt.core.arrays import Vector
from psrt.core.errors import ConfigError, MissingWorkersError, OutputError, PsrtError
from psrt.core.stats import Stats
from psrt.faults.roster import names
from psrt.faults.vitals import HERE
from psrt.history.folder import rank_file
from psrt.history.replay import COLUMNS
from psrt.job.build import theta_memory
from psrt.job.cells import number_of, place_of
from psrt.job.cut import Cut
from psrt.job.hooks import Hooks
from psrt.job.launcher import HandedOut, Launcher, Roles
from psrt.job.replay import Replay
from psrt.job.result import Run, Say
from psrt.job.roles import ANY, SERVER, WORKER
from psrt.job.session import job
from psrt.job.setup import Setup
from psrt.launch.library import short_version
from psrt.mpi.agreement import bcast_text, gather_texts, print_once, raise_on_all
from psrt.mpi.clocks import clocks_of_hosts
from psrt.mpi.cores import kept_on
from psrt.mpi.files import receive_file, send_file
from psrt.mpi.hosts import split_hosts
from psrt.mpi.links.pieces import pieces
from psrt.mpi.lost import Living, survives
from psrt.mpi.monitor import Monitor, warn, watched
from psrt.mpi.port import MpiPort
from psrt.mpi.stage_links import MpiStageLinks
from psrt.mpi.tags import FETCH
from psrt.runtime.problem import Problem
from psrt.runtime.server import Server
from psrt.runtime.worker import Worker
from psrt.transport import drive, quietly
from psrt.transport.port import Port, RoleMap
from psrt.transport.stage_links import StageLinks

_STARTED_AS = {None: ANY, "server": SERVER, "worker": WORKER}
_TAG_SCRIPT = 5
#: Messages of a script that are sent at once.
_CHUNK = 1 << 20


def run_over_mpi(
    comm: MPI.Comm,
    config: TrainConfig | Callable[[], TrainConfig],
    problem: Problem | None = None,
    *,
    role: str | None = None,
    say: Say | None = None,
) -> Run | None:
    """Train on the ranks of ``comm`` to the end, as ``job_over_mpi`` says."""
    return drive(job_over_mpi(comm, config, problem, role=role, say=say))


async def job_over_mpi(
    comm: MPI.Comm,
    config: TrainConfig | Callable[[], TrainConfig],
    problem: Problem | None = None,
    *,
    role: str | None = None,
    say: Say | None = None,
    hooks: Hooks | None = None,
) -> Run | None:
    """Train on the ranks of ``comm``, at least two; collective.

    Args:
        comm: the ranks of the job.
        config: need not be resolved; a function that makes it is called at rank 0 only.
        problem: the model and data to train; None takes the config's own MLP and data set.
        role: ``server`` or ``worker`` if the launcher assigns roles (MPMD), else None.
        say: called with each line meant for the user, at rank 0.
        hooks: see the run, at rank 0.

    Returns:
        The result at rank 0, None elsewhere.

    Raises:
        PsrtError: the same on every rank, if the job is impossible.
    """
    known = {} if callable(config) else {"timeout_s": config.timeout_s}
    with watched(comm, **known) as monitor:
        try:
            launcher = MpiLauncher(comm, role, monitor)
            return await job(launcher, config, problem, say=say, hooks=hooks)
        except PsrtError as error:
            print_once(error)
            raise
        finally:
            HERE.reset("runs code after psrt.run")  # keeps nothing of the job alive


class MpiLauncher(Launcher):
    """One rank of a job over MPI."""

    several = True
    #: With a split model: this rank's links to other stages.
    _links: MpiStageLinks | None = None
    #: Among the ranks of its learner, if that has several.
    _team: MpiPort | None = None
    #: Workers without which the others can train; at least one must stay.
    _spare: tuple[int, ...] = ()
    #: Whether they may die.
    _survives = False
    #: Whether the roles have ended and the port is open: some ranks may be gone.
    _may_be_fewer = False

    def __init__(self, comm: MPI.Comm, role: str | None, monitor: Monitor) -> None:
        """Find the hosts, and exchange the started roles of all ranks; collective.

        Args:
            comm: the ranks of the job.
            role: the role that this rank was started in, None for any.
            monitor: of the same ranks.
        """
        self._comm = comm
        self._monitor = monitor
        self.line, self.unheard = monitor.watcher, monitor.unwatched
        HERE.reset("sets up")
        self.first = comm.rank == 0
        #: Parts of ``comm`` that were made of it.
        self._parts: list[MPI.Intracomm] = []
        self.ranks = comm.size
        self.library = library_name()
        with HERE.blocked("the other ranks to start"):
            node, layout = split_hosts(comm)
            node.Free()
            given = np.empty(comm.size, np.int64)
            comm.Allgather(np.array([_STARTED_AS[role]], np.int64), given)
        lowest = {rank: ranks[0] for ranks in layout.hosts for rank in ranks}
        self._hosts = [lowest[rank] for rank in range(comm.size)]
        self._started_as = given.tolist()

    def ranks_of(self, config: TrainConfig) -> int:
        """Return the number of ranks."""
        return self._comm.size

    @property
    def started_as(self) -> Sequence[int]:
        """The role that each rank was started in."""
        return self._started_as

    def hosts(self, config: TrainConfig) -> Sequence[int]:
        """Return, for each rank, the lowest rank of its host."""
        return self._hosts

    def here(self, ranks: int) -> Sequence[int]:
        """Return this rank."""
        return (self._comm.rank,)

    def check(self, config: TrainConfig) -> None:
        """Check that MPI continues when a rank dies, if that was requested."""
        if config.survive and not survives():
            raise ConfigError(
                f"--survive needs Open MPI under mpirun --with-ft ulfm, as psrt launch starts it; "
                f"{self.library} was not started so. Without it a worker that dies ends the job; "
                "start it again with --resume auto, as psrt launch --restarts train does"
            )

    @property
    def left_out(self) -> Mapping[int, Collection[int]]:  # type: ignore[override]
        """By epoch, the workers that got none of its samples; at rank 0."""
        return {
            epoch: [worker for worker, rank in enumerate(self._role_map.workers) if rank in gone]
            for epoch, gone in self._monitor.left_out_so_far.items()
        }

    def gone(self) -> Collection[int]:
        """Return the ranks that the others continue without."""
        return HERE.gone

    async def members(self, epoch: int) -> Sequence[int]:
        """Return the workers that share the samples of an epoch."""
        found = self._monitor.left_out(epoch)
        await self._port.until(lambda: found() is not None, lambda: "rank 0 to list live workers")
        gone = found() or ()
        workers = self._role_map.workers
        return [worker for worker, rank in enumerate(workers) if rank not in gone]

    def warn(self, text: str) -> None:
        """Print a line on stderr, and wait until it has been read."""
        warn(text)

    def roster(self) -> str:
        """Return the text of ``roster.json``."""
        return self._monitor.roster.to_text()

    def agree(self) -> AbstractContextManager[None]:
        """Raise the error of any rank on all of them; after training, on those that are alive."""
        return self._port.star.raise_on_all() if self._may_be_fewer else raise_on_all(self._comm)

    @contextmanager
    def concluding(self) -> Iterator[None]:
        """Let rank 0 evaluate and write while the others wait without burning a core."""
        HERE.doing = "concludes"
        with self._port.star.raise_on_all(self._last):
            yield

    def _last(self) -> PsrtError | None:
        """From here on MPI needs all ranks to end: return the error if some are gone."""
        gone = self._monitor.spare(()) - HERE.dead
        if not gone:
            return None
        who = names(self._monitor.roster, gone)
        return MissingWorkersError(f"the run continued without {who}, which stopped responding")

    def share(self, text: str) -> str:
        """Return the text of rank 0."""
        return bcast_text(self._comm, text)

    def tell_first(self, text: str) -> Sequence[str]:
        """Return the text of every rank at rank 0."""
        if self._may_be_fewer:
            return list(self._port.star.collect(text).values())
        return gather_texts(self._comm, text)

    def spread(self, port: Port, initial: Vector, cut: Cut | None) -> Vector:
        """Broadcast the initial parameters, at a worker straight into its ``theta``."""
        if cut is not None:
            return self._spread_parts(initial, cut)
        if not self.first:
            is_worker = port.role_map.worker_of(port.rank) is not None
            has_all = is_worker and port.role_map.held_theta is None
            initial = port.theta if has_all else np.empty(port.role_map.n, np.float32)
        self._comm.Bcast(initial)
        return initial

    def _spread_parts(self, initial: Vector, cut: Cut) -> Vector:
        """Send each rank its part of the initial parameters."""
        comm, mine = self._comm, list[Vector]()
        for cell in cut.groups:
            if self.first:
                part = cell.part.take(initial)
                for rank in cell.ranks:
                    for piece in pieces(part) if rank else ():
                        comm.Send(piece, rank, FETCH)
            elif comm.rank in cell.ranks:
                part = np.empty(cell.part.size, np.float32)
                for piece in pieces(part):
                    comm.Recv(piece, 0, FETCH)
            if comm.rank in cell.ranks:
                mine.append(part)
        if self._team is not None:
            np.copyto(self._team.theta, mine[-1])
        return mine[0]

    def hand_out(
        self, replay: Replay | None, role_map: RoleMap, cut: Cut | None
    ) -> Mapping[int, HandedOut]:
        """Send each its script; only rank 0 needs to see the recorded run's folder."""
        comm, mine = self._comm, {}
        text = (
            ""
            if replay is None
            else json.dumps([[*it[:2], len(it.scripts)] for it in replay.cells])
        )
        told = json.loads(bcast_text(comm, text))
        own = 0 if cut is None else cut.numbered_cell_of(comm.rank)[0]
        for number, (_, _, scripts) in enumerate(told):
            places = role_map.servers or role_map.workers
            if cut is not None:
                cell = cut.groups[number]
                of_cell = cell.role_map.servers or cell.role_map.workers
                places = tuple(cell.ranks[rank] for rank in of_cell)
            for i, rank in enumerate(places[:scripts]):
                if comm.rank == 0:
                    assert replay is not None
                    rows = replay.cells[number].scripts[i].rows
                    if rank == 0:
                        mine[i] = rows
                    else:
                        _send(comm, rows, rank)
                elif comm.rank == rank:
                    mine[i] = _receive(comm)
        algorithm, control_algorithm, _ = told[own]
        return {own: HandedOut(algorithm, control_algorithm, mine)}

    def gather(self, stats: Sequence[Stats]) -> Sequence[Stats] | None:
        """Gather the stats of the ranks at rank 0, after their roles have ended."""
        texts = self._port.star.collect("\n".join(one.to_text() for one in stats))
        if not self.first:
            return None
        workers = self._role_map.workers
        self.missing = {
            worker: self._monitor.member(rank)
            for worker, rank in enumerate(workers)
            if rank not in texts
        }
        found = [Stats.from_text(line) for text in texts.values() for line in text.split("\n")]
        return found + [Stats(worker=worker) for worker in self.missing]

    def ports(self, setup: Setup) -> Mapping[int, Port]:
        """Make the windows and connections of this rank."""
        config, rank, role_map = setup.config, self._comm.rank, setup.role_map
        codec = setup.codec_at(rank)
        reply = codec and codec.reply
        self._monitor.job(
            role_map.server_ranks,
            role_map.workers,
            timeout_s=config.timeout_s,
            busy_s=config.busy_timeout_s,
            places=() if setup.cut is None else setup.cut.places,
        )

        def made(comm: MPI.Comm, role_map: RoleMap, **more: Any) -> MpiPort:
            return MpiPort(
                comm,
                role_map,
                timeout_s=config.timeout_s,
                host=None if config.shared_memory else rank,
                costs=setup.plan.machine,
                busy_until=self._monitor.busy_until,
                # A quorum's shards answer when the first one has decided, which is pushed last.
                windows=config.replay is None and config.scheme.quorum is None,
                theta_memory=theta_memory(config),
                frame_bytes=codec.frame_bytes(role_map.spans) if codec else (),
                reply_bytes=reply.frame_bytes(role_map.spans) if reply else (),
                **more,
            )

        with HERE.blocked("the other ranks to set up"):
            if setup.cut is None:
                self._port = port = made(self._comm, role_map)
            else:
                number, cell = setup.cut.numbered_cell_of(rank)
                comm, job = self._split(number, rank), self._split(0, rank)
                served = setup.cut.served
                if served is not None:
                    is_served = rank in served.ranks
                    among = self._split(int(is_served), rank)
                    comm = among if cell is served else comm
                self._port = port = made(comm, cell.role_map, job=job)
                if served is not None and is_served and cell is not served:
                    self._team = made(among, served.role_map, within=port)
        self._binds_cores = config.bind_cores
        HERE.pulse = partial(_bytes_of, port, *([] if self._team is None else [self._team]))
        self._survives = bool(config.survive)
        goes_on = config.scheme.is_stale or config.scheme.mixes or self._survives
        # With a split model, the other workers of a copy need each one.
        if goes_on and config.replay is None and setup.cut is None:
            self._spare = role_map.workers
        self._role_map, self._cut = setup.role_map, setup.cut
        return {rank: port}

    def _split(self, color: int, key: int) -> MPI.Intracomm:
        """Return the ranks of this colour, in the order of their keys; freed by ``close``."""
        comm = self._comm.Split(color, key)
        assert isinstance(comm, MPI.Intracomm), "a split of an intracommunicator is one"
        self._parts.append(comm)
        return comm

    def links(self, setup: Setup, cut: Cut) -> Mapping[int, StageLinks]:
        """Make the channels of this rank's stage, if it is a worker."""
        config, rank = setup.config, self._comm.rank
        worker = setup.role_map.worker_of(rank)
        with HERE.blocked("the other ranks to set up"):
            if worker is None:
                for _ in range(3):
                    self._comm.Split(MPI.UNDEFINED, rank)
                return {}
            place = place_of(worker, cut.axes)
            replica = self._split(place.replica, place.stage * cut.axes.tensor + place.slice)
            stages = self._split(place.replica * cut.axes.tensor + place.slice, place.stage)
            slices = self._split(place.replica * cut.axes.pipeline + place.stage, place.slice)
            first = place.replica * cut.axes.cells
            copy = cut.workers[first : first + cut.axes.cells]
            self._links = MpiStageLinks(
                replica,
                stages,
                slices,
                cut.channels(place.slice),
                parts=[cell.part for cell in cut.cells],
                names=[
                    cut.workers[number_of(place._replace(stage=stage), cut.axes)]
                    for stage in range(cut.axes.pipeline)
                ],
                slices=[
                    cut.workers[number_of(place._replace(slice=slice_), cut.axes)]
                    for slice_ in range(cut.axes.tensor)
                ],
                totals=[] if config.clip_norm is None else copy,
                host=None if config.shared_memory else rank,
                timeout_s=config.timeout_s,
                while_idle=self._port.take_reports,
                busy_until=self._monitor.busy_until,
            )
        return {rank: self._links}

    def teams(self, setup: Setup) -> Mapping[int, Port]:
        """Make the connections among the ranks of this rank's learner, if it is a worker."""
        config, rank = setup.config, self._comm.rank
        if setup.cut is not None:
            return {} if self._team is None else {rank: self._team}
        worker = setup.role_map.worker_of(rank)
        with HERE.blocked("the other ranks to set up"):
            if worker is None:
                self._comm.Split(MPI.UNDEFINED, rank)
                return {}
            team = setup.role_map.team_of(worker)
            self._team = MpiPort(
                self._split(team.job_workers[0], worker),
                team,
                timeout_s=config.timeout_s,
                host=None if config.shared_memory else rank,
                costs=setup.plan.machine,
                busy_until=self._monitor.busy_until,
                within=self._port,
            )
        HERE.pulse = partial(_bytes_of, self._port, self._team)
        return {rank: self._team}

    def log_files(self, setup: Setup) -> tuple[str, ...]:
        """Return the names of all ranks' files of events."""
        return tuple(map(rank_file, range(len(setup.hosts))))

    async def run(self, roles: Roles, finished: Callable[[], bool]) -> None:
        """Run this rank's role; then wait until all reports have reached rank 0."""
        port = self._port
        port.on_report, port.on_gone = self.on_report, self._lose
        for it in (port, self._team):
            if it is not None:
                it.meet()
        if self._survives:
            port.star.collect("")  # after this no rank is in a collective, which a death would end
        if self.first:
            role_map = self._role_map
            together = {
                rank: [role_map.workers[it] for it in role_map.learner_of(worker)]
                for worker, rank in enumerate(role_map.workers)
            }
            self._monitor.spare(self._spare, survives=self._survives, together=together)
        for role in roles.values():
            HERE.doing, HERE.where = "trains", partial(_position, role)
            with kept_on(port.cores if self._binds_cores else None):
                await quietly(role.run())
        port.finish_reports(finished)
        self._may_be_fewer = True

    def _lose(self, rank: int) -> None:
        worker = self._role_map.worker_of(rank)
        if worker is not None:
            self.on_crash(worker)

    def carry(self, mine: BinaryIO | None, wanted: Mapping[int, Path]) -> Sequence[OutputError]:
        """Bring files of other ranks to rank 0, in pieces, one file after the other."""
        if mine is not None:
            send_file(self._comm, mine, 0, self._wait)
        failed = []
        if wanted:
            HERE.doing = "takes the history of other ranks"
        for rank, path in wanted.items():
            with suppress(_GoneError):
                try:
                    receive_file(self._comm, rank, path, partial(_work_until, rank))
                except OutputError as error:
                    failed.append(error)
        return failed

    def _wait(self, done: Callable[[], bool], waiting_for: Callable[[], str]) -> None:
        drive(self._port.until(done, waiting_for))

    def clocks(self) -> Mapping[int, tuple[float, float]]:
        """Compare the clocks of all hosts; one rank of each exchanges messages with rank 0."""
        if len(set(self._hosts)) == 1:
            return {}
        if self._port.star.tell("gone" if HERE.gone else ""):  # it takes all of them
            return {}
        messages, before = [0], HERE.pulse

        def progress() -> None:
            messages[0] += 1

        HERE.pulse = lambda: messages[0]
        try:
            with HERE.blocked("the other hosts to compare clocks"):
                return clocks_of_hosts(self._comm, self._hosts, self.now, progress)
        finally:
            HERE.pulse = before

    def now(self) -> float:
        """Return the time on this rank's clock."""
        return self._port.now()

    def bring(self, rank: int, mine: Vector | None, out: Vector | None) -> bool:
        """Send a vector to rank 0, in pieces; others than the two do nothing."""
        if self._comm.rank not in (0, rank):
            return False
        came = self._port.fetch(rank, mine, out)
        worker = self._role_map.worker_of(rank)
        if self.first and not came and worker is not None:
            self.missing = {**self.missing, worker: self._monitor.member(rank)}
        return came

    def everywhere(self, theta: Vector | None, n: int, text: str) -> tuple[Vector | None, str]:
        """Broadcast the final parameters and a text; if workers have died, only rank 0 has them."""
        if self._port.star.tell("some are gone" if HERE.gone else ""):
            return theta, text
        whole = np.empty(n, np.float32) if theta is None else theta
        with HERE.blocked("the other ranks to finish"):
            self._comm.Bcast(whole)
        return whole, bcast_text(self._comm, text)

    def close(self) -> None:
        """Free the windows and connections; if workers have died, the end of the process does."""
        # By rank 0's knowledge: a rank that has not heard of a death yet would wait for dead ranks.
        if self._survives and self._port.star.tell("they leave" if HERE.dead else ""):
            self._wait(lambda: bool(HERE.dead), lambda: "rank 0 to say who has died")
            return
        with HERE.blocked("the other ranks to finish"):
            if self._links is not None:
                self._links.close()
            if self._team is not None:
                self._team.close()
            self._port.close()
            while self._parts:
                self._parts.pop().Free()
        self._may_be_fewer = False


class _GoneError(Exception):
    """The awaited rank has stopped responding."""


def _work_until(rank: int, done: Callable[[], bool], waiting_for: Callable[[], str]) -> None:
    """Wait for a rank and count as busy meanwhile: others that wait for this rank must not fail."""
    peer = Living()
    while not peer.finds(done):
        if HERE.over is not None:
            raise HERE.over
        if rank in HERE.gone:
            raise _GoneError
        time.sleep(1e-4)


def _bytes_of(*ports: MpiPort) -> tuple[int, ...]:
    return tuple(it for port in ports for it in (port.bytes_sent, port.bytes_received))


def _position(role: Server | Worker) -> str:
    """Return a role's position, for messages."""
    if isinstance(role, Server):
        return f"version {max(it.shard.version for it in role.shards)}"
    return f"clock {role.clock}"


def library_name() -> str:
    """Return name and version of the MPI library, in a few words."""
    return short_version(MPI.Get_library_version())


def _send(comm: MPI.Comm, rows: np.ndarray, rank: int) -> None:
    comm.Send(np.array([len(rows)], np.int64), rank, _TAG_SCRIPT)
    for at in range(0, len(rows), _CHUNK):
        comm.Send(rows[at : at + _CHUNK], rank, _TAG_SCRIPT)


def _receive(comm: MPI.Comm) -> np.ndarray:
    length = np.empty(1, np.int64)
    comm.Recv(length, 0, _TAG_SCRIPT)
    rows = np.empty((int(length[0]), len(COLUMNS)), np.int64)
    for at in range(0, len(rows), _CHUNK):
        comm.Recv(rows[at : at + _CHUNK], 0, _TAG_SCRIPT)
    return rows
