"""Record when each worker computes, and when it waits for which other, in virtual time.

Nothing here depends on the mode: `psrt.job` trains with the same coroutines as on a cluster, and
the ports of a `RecordingWorld` record the calls.

- A worker *computes* while its port lets computing time pass.
- Between two steps it *waits*: in a mode with servers from its push until the last reply. A server
  replies as soon as the policy allows. Until the push that triggered the reply was sent, the worker
  waited for that push's sender; for the rest of the time messages were in flight.
- Without servers all workers wait in a sum for the last one to join it, and then for messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from psrt.messages import Message, Params, Report
from psrt.simulation import Simulator
from psrt.simulation.port import VirtualPort
from psrt.transport import RoleMap
from psrt.transport.port import NO_PAYLOAD

T = TypeVar("T")
#: The activities of a worker.
COMPUTE, WAIT, MESSAGE = "compute", "wait", "message"


@dataclass(frozen=True, slots=True)
class Stretch:
    """An interval of one worker's virtual time, in seconds."""

    start: float
    stop: float
    #: ``COMPUTE``, ``WAIT`` for ``waiting_for``, or ``MESSAGE``: waiting for the network alone.
    what: str
    #: The worker that is waited for; of ``COMPUTE`` the step, from 0 on; of ``MESSAGE`` itself.
    waiting_for: int

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.stop - self.start


@dataclass(slots=True)
class Log:
    """The calls at the port of one worker."""

    #: Start and stop of each step's computing, in order.
    busy: list[tuple[float, float]] = field(default_factory=list)
    #: Time of each reply, the worker whose push triggered it, and the time that push was sent.
    answers: list[tuple[float, int, float]] = field(default_factory=list)
    #: Time at which the worker finished.
    done: float = 0.0


class RecordingWorld(Simulator):
    """A simulator whose ports record their calls."""

    def __init__(self, role_map: RoleMap, **rest: Any) -> None:
        super().__init__(role_map, **rest)
        #: By worker number.
        self.logs = [Log() for _ in role_map.workers]
        #: By worker and server, the times at which messages were sent that are not handled yet.
        self.sent: dict[tuple[int, int], deque[float]] = {}
        #: By rank of the server and of the worker, for each reply in flight: the worker whose
        #: message triggered it, and the time that was sent.
        self.causes: dict[tuple[int, int], deque[tuple[int, float]]] = {}
        self.ports = [RecordingPort(self, rank) for rank in range(role_map.size)]


class RecordingPort(VirtualPort):
    """A port that records its calls in its simulator."""

    def __init__(self, world: RecordingWorld, rank: int) -> None:
        super().__init__(world, rank)
        self._records = world
        worker = self.role_map.worker_of(rank)
        #: None at a server.
        self._log = None if worker is None else world.logs[worker]
        #: At a server: the worker whose message is being handled, and the time it was sent.
        self._cause = 0, 0.0

    async def compute(self, work: Callable[..., T], *args: object) -> T:
        """Record the start of a step."""
        if self._log is not None:
            self._log.busy.append((self.now(), self.now()))
        return await super().compute(work, *args)

    async def pause(self, seconds: float) -> None:
        """Extend the step; a straggler's delay is part of it."""
        if self._log is not None and self._log.busy:
            self._log.busy[-1] = self._log.busy[-1][0], self.now() + seconds
        await super().pause(seconds)

    def send(self, to: int, message: Message, region: int = NO_PAYLOAD) -> None:
        """Record the time of a worker's message, and the cause of a server's reply."""
        if type(message) is Params:
            self._records.causes.setdefault((self.rank, to), deque()).append(self._cause)
        else:
            self._records.sent.setdefault((self.rank, to), deque()).append(self.now())
        super().send(to, message, region)

    async def receive(self) -> Message:
        """Record a reply, or the cause of the replies to come."""
        message = await super().receive()
        if isinstance(message, Params):
            server = self.role_map.servers[message.shard]
            cause = self._records.causes[server, self.rank].popleft()
            if self._log is not None:
                self._log.answers.append((self.now(), *cause))
        else:
            sender = self.role_map.workers[message.worker]
            self._cause = message.worker, self._records.sent[sender, self.rank].popleft()
        return message

    def report(self, report: Report) -> None:
        """Record the end of a worker at its last report."""
        if report.last and self._log is not None:
            self._log.done = self.now()
        super().report(report)


def stretches(logs: Sequence[Log], *, served: bool) -> list[list[Stretch]]:
    """Return each worker's stretches, from the start until it finished.

    Args:
        logs: the calls at the ports, by worker.
        served: whether there are servers.
    """
    return [_line(logs, worker, served) for worker in range(len(logs))]


def _line(logs: Sequence[Log], worker: int, served: bool) -> list[Stretch]:
    log = logs[worker]
    line: list[Stretch] = []
    starts = [start for start, _ in log.busy[1:]] + [log.done]
    for step, ((start, stop), resumed) in enumerate(zip(log.busy, starts, strict=True)):
        line.append(Stretch(start, stop, COMPUTE, step))
        if resumed > stop:
            waiting_for, until = _cause(logs, worker, step, resumed, served)
            until = min(max(until, stop), resumed)
            if waiting_for != worker and until > stop:
                line.append(Stretch(stop, until, WAIT, waiting_for))
                stop = until
            if resumed > stop:
                line.append(Stretch(stop, resumed, MESSAGE, worker))
    return line


def _cause(
    logs: Sequence[Log], worker: int, step: int, resumed: float, served: bool
) -> tuple[int, float]:
    """Return the worker that a worker waited for after a step, and the end of that wait."""
    if served:
        answers = [a for a in logs[worker].answers if logs[worker].busy[step][1] < a[0] <= resumed]
        return (answers[-1][1], answers[-1][2]) if answers else (worker, 0.0)
    there = [i for i, log in enumerate(logs) if len(log.busy) > step]
    last = max(there, key=lambda i: logs[i].busy[step][1])
    return last, logs[last].busy[step][1]
