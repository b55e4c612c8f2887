"""The channels of a stage over MPI: in shared memory inside a host, by messages between hosts.

Inside a host a channel lies in its writer's memory, and nothing is copied:

==========  ==============  ======================================================
part        written by      meaning
==========  ==============  ======================================================
line 0      writer          messages sent so far: the doorbell
numbers     writer          the number that travels with each message in flight
matrix      writer          the rows
==========  ==============  ======================================================

and in its reader's memory there is a line with the messages released so far. As in
``shared_memory``, each word has one writer, and counters only grow.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
from mpi4py import MPI

from psrt.core.arrays import FloatArray, Vector
from psrt.core.partition import Part
from psrt.mpi.communicator import Communicator
from psrt.mpi.fabric import Fabric
from psrt.mpi.links.pieces import pieces
from psrt.mpi.links.shared_memory import Waker
from psrt.mpi.tags import FETCH, FIRST_STEP
from psrt.pipeline.step import PipelineStep
from psrt.transport.backoff import Backoff
from psrt.transport.stage_links import NUMBER_BYTES, Channel, touches

#: float32 numbers of a cache line.
_LINE = 16


class MpiStageLinks:
    """One stage's links. Collective to make and to close, over the ranks of one copy of a model."""

    shares_batches = False

    def __init__(
        self,
        replica: MPI.Intracomm,
        pipeline: MPI.Intracomm,
        tensor: MPI.Intracomm,
        channels: Sequence[Channel],
        *,
        parts: Sequence[Part],
        names: Sequence[int],
        slices: Sequence[int],
        totals: Sequence[int] = (),
        host: int | None = None,
        timeout_s: float = 60.0,
        while_idle: Callable[[], None] = lambda: None,
        busy_until: Callable[[], float] = lambda: -math.inf,
    ) -> None:
        """Allocate the channels.

        Args:
            replica: all ranks of this copy of the model, in the order of their parts.
            pipeline: the ranks of the stages, in order; duplicated.
            tensor: the ranks of the slices of this stage's layers, in order; duplicated.
            channels: of all stages.
            parts: of the parameters, by rank in ``replica``.
            names: the rank of each stage in the job, for messages.
            slices: the rank of each slice in the job, for messages.
            totals: the rank of each part of this copy in the job, if there are totals over them;
                else empty.
            host: see ``MpiPort``.
            timeout_s: the deadline of every wait.
            while_idle: called now and then during a long wait.
            busy_until: see ``Backoff``.
        """
        self._replica, self._parts = replica, parts
        self._stage = pipeline.rank
        self._names = names
        #: Bytes that were gathered for averages and scattered, each way.
        self._scattered = 0
        #: Time spent waiting for other stages, in seconds.
        self.waited = 0.0
        sizes = _Sizes(channels)
        self._fabric = fabric = Fabric(pipeline, host, floats=sizes.floats_of(self._stage))
        waits = {"while_idle": while_idle, "busy_until": busy_until, "knob": "--timeout-s"}
        self._backoff = fabric.backoff(timeout_s=timeout_s, **waits)
        #: Channels whose writer and reader are on one host, and all others.
        self._local: dict[Channel, _Local] = {}
        self._remote: dict[Channel, _Remote] = {}
        self.matrices: dict[Channel, FloatArray] = {}
        for number, channel in enumerate(channels):
            if self._stage in (channel.writer, channel.reader):
                self._join(number, channel, sizes)
        #: Sums over slices; None if there is only one.
        self._slices: Communicator | None = None
        #: Totals over all parts, with the number of each; None if there are none.
        self._copy: Communicator | None = None
        self._numbers = np.zeros(replica.size)
        more: dict[str, Any] = {"timeout_s": timeout_s, "host": host, "waits": waits}
        if tensor.size > 1:
            self._slices = Communicator(tensor, names=slices, **more)
        if totals and replica.size > 1:
            self._copy = Communicator(replica, names=totals, **more)

    def _join(self, number: int, channel: Channel, sizes: _Sizes) -> None:
        fabric, local = self._fabric, self._fabric.local
        peer = channel.reader if self._stage == channel.writer else channel.writer
        if peer in local:
            written = sizes.written(channel, fabric.numbers_of(channel.writer))
            released = sizes.released(channel, fabric.numbers_of(channel.reader))
            waker = fabric.wakeup.waker(local[peer])
            fence = fabric.memory.fence_if_needed()
            link = _Local(*written, released, waker, fence)
            self._local[channel], self.matrices[channel] = link, link.matrix
        else:
            matrix = np.zeros((channel.rows, channel.width), np.float32)
            remote = _Remote(
                fabric.comm,
                peer,
                FIRST_STEP + number,
                matrix,
                messages=channel.messages,
                most=fabric.unannounced_bytes[peer],
            )
            self._remote[channel], self.matrices[channel] = remote, matrix

    def empty(self, rows: int, width: int) -> FloatArray:
        """Return a new array in memory where sums over slices copy the least; collective."""
        if self._slices is None:
            return np.zeros((rows, width), np.float32)
        return self._slices.empty((rows, width))

    @property
    def bytes_sent(self) -> int:
        """Bytes sent to other stages and slices so far, by MPI or through shared memory."""
        sums = sum(it.bytes_sent for it in (self._slices, self._copy) if it is not None)
        return self._scattered + sums + sum(link.bytes_sent for link in self._links())

    @property
    def bytes_received(self) -> int:
        """Bytes received from other stages and slices so far."""
        sums = sum(it.bytes_received for it in (self._slices, self._copy) if it is not None)
        return self._scattered + sums + sum(link.bytes_received for link in self._links())

    def _links(self) -> Iterator[_Local | _Remote]:
        yield from self._local.values()
        yield from self._remote.values()

    def begin(self, rows: Mapping[Channel, Sequence[slice]]) -> None:
        """Announce a step: the rows of each message that this stage will receive."""
        for channel, slices in rows.items():
            link = self._local.get(channel) or self._remote[channel]
            link.expect(slices)

    async def free(self, channel: Channel, rows: slice) -> None:
        """Wait until the rows of the next message may be written."""
        link = self._local.get(channel) or self._remote[channel]
        if not link.is_free(rows):
            self._wait(
                lambda: link.is_free(rows),
                lambda: f"{self._who(channel.reader)} to take earlier messages",
            )

    def send(self, channel: Channel, rows: slice, number: float = 0.0) -> None:
        """Send rows that have been written, with a number; never waits."""
        (self._local.get(channel) or self._remote[channel]).send(rows, number)

    async def receive(self, channel: Channel) -> float:
        """Wait for the next message, until its rows are in the matrix; return its number."""
        link = self._local.get(channel) or self._remote[channel]
        if not link.has_come():
            what = "gradients" if channel.back else "activations"
            self._wait(link.has_come, lambda: f"the {what} of {self._who(channel.writer)}")
        return link.take()

    def _wait(self, done: Callable[[], bool], waiting_for: Callable[[], str]) -> None:
        start = time.perf_counter()
        self._backoff.wait(done, waiting_for)
        self.waited += time.perf_counter() - start

    def release(self, channel: Channel) -> None:
        """Release the rows of the oldest message that is not released yet."""
        (self._local.get(channel) or self._remote[channel]).release()

    async def passed(self, step: PipelineStep, rows: int, share: float = 1.0) -> None:
        """Make progress on messages between hosts, which nothing else does during computation."""
        for link in self._remote.values():
            link.poll()

    async def sum(self, array: FloatArray) -> None:
        """Sum an array over all slices, in place; every slice ends with the same bits."""
        if self._slices is not None:
            self._slices.all_reduce(array)

    async def max(self, array: FloatArray) -> None:
        """Replace each number by the largest one of all slices."""
        if self._slices is not None:
            self._slices.all_reduce(array, "max")

    async def total(self, number: float) -> float:
        """Return the sum of a number over all parts of this copy, rounded once, equal on all."""
        if self._copy is None:
            return number
        # All numbers are gathered, and each part rounds their exact sum once (fsum). A reduction
        # would round at each step, and its last bit would depend on the order.
        numbers = self._numbers
        numbers[self._copy.rank] = number
        self._copy.all_gather(numbers)
        return math.fsum(numbers.tolist())

    async def gather(self, mine: Vector, out: Vector | None = None) -> Vector | None:
        """Return the parameters of all parts on the first part, None on the others."""
        comm, parts = self._replica, self._parts
        if comm.rank:
            sent = [comm.Isend(it, 0, FETCH) for it in pieces(mine)]
            self._through(sent, "the first part to take the parameters")
            return None
        whole = np.empty(sum(part.size for part in parts), np.float32) if out is None else out
        parts[0].put(mine, whole)
        # One after another: memory is needed for the whole and only one part.
        for source, part in enumerate(parts[1:], 1):
            theirs = np.empty(part.size, np.float32)
            requests = [comm.Irecv(it, source, FETCH) for it in pieces(theirs)]
            self._through(requests, f"part {source} of the parameters")
            part.put(theirs, whole)
        return whole

    async def scatter(
        self, whole: Vector | None, mine: Vector, numbers: Sequence[int]
    ) -> Sequence[int]:
        """Give each part its parameters, and return the numbers of the first part on all."""
        comm, along = self._replica, np.array(numbers, np.int64)
        if whole is None:
            requests = [comm.Irecv(it, 0, FETCH) for it in (along, *pieces(mine))]
            self._through(requests, "the first part to average")
            self._scattered += mine.nbytes
            return tuple(along.tolist())
        for to, part in enumerate(self._parts[1:], 1):
            theirs = part.take(whole)
            requests = [comm.Isend(it, to, FETCH) for it in (along, *pieces(theirs))]
            self._through(requests, f"part {to} to take its parameters")
            self._scattered += theirs.nbytes
        np.copyto(mine, self._parts[0].take(whole))
        return numbers

    def _through(self, requests: list[MPI.Request], what: str) -> None:
        self._backoff.wait(lambda: MPI.Request.Testall(requests), lambda: what)

    def _who(self, stage: int) -> str:
        return f"stage {stage} (rank {self._names[stage]})"

    def close(self) -> None:
        """Free all resources; collective."""
        # Wait for all sends before anything is freed: MPI still reads the matrices.
        for link in self._remote.values():
            link.close(self._backoff)
        self._local.clear()
        self._remote.clear()
        self.matrices.clear()
        for sums in (self._slices, self._copy):
            if sums is not None:
                sums.close()
        self._fabric.close()


@dataclass(eq=False, slots=True)
class _Sizes:
    """The layout of channels in the memory of their writers and readers; the same on all ranks."""

    channels: Sequence[Channel]

    def _mine(self, stage: int) -> list[tuple[Channel, bool, int]]:
        """Return the contents of a stage's memory: channel, whether it writes it, and size."""
        found = []
        for channel in self.channels:
            if channel.writer == stage:
                size = _LINE + _along(channel) + _to_line(channel.rows * channel.width)
                found.append((channel, True, size))
            if channel.reader == stage:
                found.append((channel, False, _LINE))
        return found

    def floats_of(self, stage: int) -> int:
        """Return the total of float32 numbers that a stage needs."""
        return sum(size for _, _, size in self._mine(stage))

    def _start(self, channel: Channel, *, writes: bool) -> int:
        mine = self._mine(channel.writer if writes else channel.reader)
        starts = accumulate((size for _, _, size in mine), initial=0)
        return next(
            start
            for (it, is_writer, _), start in zip(mine, starts, strict=False)
            if it == channel and is_writer == writes
        )

    def written(
        self, channel: Channel, numbers: Vector
    ) -> tuple[memoryview, np.ndarray, FloatArray]:
        """Return the count, the messages' numbers and the matrix in the writer's memory."""
        mine = numbers[self._start(channel, writes=True) :]
        along = mine[_LINE : _LINE + 2 * channel.messages].view(np.float64)
        matrix = mine[_LINE + _along(channel) :][: channel.rows * channel.width]
        shaped = matrix.reshape(channel.rows, channel.width)
        return mine[:2].view(np.int64).data, along, shaped

    def released(self, channel: Channel, numbers: Vector) -> memoryview:
        """Return the count in the reader's memory."""
        return numbers[self._start(channel, writes=False) :][:2].view(np.int64).data


def _along(channel: Channel) -> int:
    """Return the size of the messages' numbers, float64, in float32 numbers."""
    return _to_line(2 * channel.messages)


def _to_line(floats: int) -> int:
    return -(-floats // _LINE) * _LINE


@dataclass(eq=False)
class _Local:
    """One end of a channel inside a host."""

    #: In the writer's memory: the count, the messages' numbers (messages,) float64, and the matrix
    #: (rows, width).
    sent: memoryview
    along: np.ndarray
    matrix: FloatArray
    #: In the reader's memory: the count.
    released: memoryview
    #: The waker of the other end.
    waker: InitVar[Waker]
    #: The memory fence; None if the processor shows stores in order.
    fence: Callable[[], None] | None
    _count: int = field(default=0, init=False)
    _taken: int = field(default=0, init=False)
    _expected: deque[slice] = field(default_factory=deque, init=False)
    #: Rows of the messages that were sent and, at the last check, not released.
    _held: deque[slice] = field(default_factory=deque, init=False)
    bytes_sent: int = field(default=0, init=False)
    bytes_received: int = field(default=0, init=False)

    def __post_init__(self, waker: Waker) -> None:
        self._asleep, self._wake = waker
        self._row_bytes = 4 * self.matrix.shape[1]

    def expect(self, slices: Sequence[slice]) -> None:
        self._expected.extend(slices)

    def is_free(self, rows: slice) -> bool:
        # The reader's count only grows, so rows that are seen to be free stay free until this end
        # sends them. No acquire is needed: the stores to the rows depend on this load by a branch,
        # and no processor makes a store visible before the branches that lead to it are decided.
        held, left = self._held, self._count - self.released[0]
        while len(held) > left:
            held.popleft()
        return left < len(self.along) and not touches(rows, held)

    def send(self, rows: slice, number: float) -> None:
        # There are as many places for numbers as messages that may be in flight, used in turn. So
        # the last message with this place has been released (``is_free``).
        self.along[self._count % len(self.along)] = number
        self._count += 1
        self._held.append(rows)
        # Release: the stores to rows and number come before the store of the count, so a reader
        # that sees the count finds both complete; see ``LocalLink.send``.
        if self.fence is not None:
            self.fence()
        self.sent[0] = self._count
        # The flag may be missed here, as in ``slots.Barrier.arrive``; the sleep is short then.
        if self._asleep[0]:
            self._wake()
        self.bytes_sent += (rows.stop - rows.start) * self._row_bytes + NUMBER_BYTES

    def has_come(self) -> bool:
        # Not equal plus one: the writer may be several messages ahead.
        return bool(self.sent[0] > self._taken)

    def take(self) -> float:
        if self.fence is not None:
            self.fence()  # acquire: loads of number and rows come after the load of the count
        rows = self._expected.popleft()
        number = float(self.along[self._taken % len(self.along)])
        self._taken += 1
        self.bytes_received += (rows.stop - rows.start) * self._row_bytes + NUMBER_BYTES
        return number

    def release(self) -> None:
        if self.fence is not None:
            self.fence()  # release: the last loads of the rows come before the writer may overwrite
        self.released[0] += 1
        if self._asleep[0]:
            self._wake()


@dataclass(eq=False, slots=True)
class _Remote:
    """One end of a channel between hosts. A message is its number, then its rows."""

    comm: MPI.Comm
    #: The other end, in ``comm``, and the tag of this channel's messages.
    peer: int
    tag: int
    #: (rows, width), written at one end and received at the other.
    matrix: FloatArray
    _: KW_ONLY
    #: The most messages in flight.
    messages: int
    #: The most bytes of one MPI message; the same at both ends.
    most: int
    #: Rows of expected messages without a posted receive.
    _expected: deque[slice] = field(default_factory=deque, init=False)
    #: Rows of messages with a posted receive that are not released.
    _posted: deque[slice] = field(default_factory=deque, init=False)
    #: The requests of each message in flight, oldest first.
    _sending: deque[tuple[slice, list[MPI.Request]]] = field(default_factory=deque, init=False)
    _receiving: deque[tuple[list[MPI.Request], np.ndarray, int]] = field(
        default_factory=deque, init=False
    )
    bytes_sent: int = field(default=0, init=False)
    bytes_received: int = field(default=0, init=False)

    def expect(self, slices: Sequence[slice]) -> None:
        self._expected.extend(slices)
        self._post()

    def _post(self) -> None:
        """Post receives as soon as the rows may be written.

        An unexpected message is copied twice, or must wait for its receiver's answer.
        """
        posted = self._posted
        while self._expected and len(posted) < self.messages:
            if touches(self._expected[0], posted):
                break
            rows = self._expected.popleft()
            posted.append(rows)
            # All messages of a channel have one tag. MPI matches them in the order of sends and of
            # posted receives, and both follow the schedule, so each message meets its rows.
            number, data = np.empty(1), self.matrix[rows].reshape(-1)
            requests = [self.comm.Irecv(number, self.peer, self.tag)]
            requests += [self.comm.Irecv(it, self.peer, self.tag) for it in pieces(data, self.most)]
            self._receiving.append((requests, number, data.nbytes))

    def is_free(self, rows: slice) -> bool:
        self.poll()
        under_way = (it for it, _ in self._sending)
        return len(self._sending) < self.messages and not touches(rows, under_way)

    def has_left(self) -> bool:
        """Return whether all sent messages have left."""
        self.poll()
        return not self._sending

    def send(self, rows: slice, number: float) -> None:
        # mpi4py's request keeps the number alive; the rows are not written again before they have
        # left, see ``is_free``.
        data = self.matrix[rows].reshape(-1)
        requests = [self.comm.Isend(np.array([number], np.float64), self.peer, self.tag)]
        requests += [self.comm.Isend(it, self.peer, self.tag) for it in pieces(data, self.most)]
        self._sending.append((rows, requests))
        self.bytes_sent += data.nbytes + NUMBER_BYTES

    def poll(self) -> None:
        while self._sending and MPI.Request.Testall(self._sending[0][1]):
            self._sending.popleft()
        for requests, _, _ in self._receiving:
            MPI.Request.Testall(requests)

    def has_come(self) -> bool:
        return bool(MPI.Request.Testall(self._receiving[0][0]))

    def take(self) -> float:
        _, number, nbytes = self._receiving.popleft()
        self.bytes_received += nbytes + NUMBER_BYTES
        return float(number[0])

    def release(self) -> None:
        self._posted.popleft()
        self._post()

    def close(self, backoff: Backoff) -> None:
        for requests, _, _ in self._receiving:  # empty, unless there was an error
            for request in requests:
                with contextlib.suppress(MPI.Exception):
                    request.Cancel()
        backoff.wait(self.has_left, lambda: "the last messages between stages to leave")
