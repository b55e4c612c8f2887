"""The protocol between a role and its transport.

A role is a coroutine and talks only to its ``Port``. The MPI port completes every await
immediately; the virtual port suspends the coroutine until its virtual time. A role cannot see the
difference.

**Payload regions.** Messages are small; numbers travel by region. Every pair of a worker and a
shard has two: the worker's gradient span, and the shard's span of parameters in one of
several buffers. ``send(to, message, region)`` makes the region's contents reach the peer:
a worker that receives ``Params`` finds them in its ``theta``; a server that receives ``Push``
finds the gradient in ``payload(shard, worker)``. Where both ranks are on one host these are the
same memory, and only the message, a doorbell, is sent. A region may even be the worker's ``theta``
itself, its *landing*: a version that a server makes there is read where it is made.

**Frames.** In place of a region a message may carry the frame of a codec, whose length differs from
message to message: ``send_framed``. A server finds it in ``frame(shard, worker)``.

**Neighbours.** In gossip modes each pair of neighbours talks as a worker and a shard do. Each of
the two has regions, ``offers``, that the other may read, but neither has to answer the other.

**Shards.** A server rank owns one shard or more, and every message names its shard. Each worker
talks with each shard separately, one message at a time each way, as if each shard had its own rank.
Messages of different shards have no order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol, TypeVar

from psrt.collective.analysis.pick import Coding
from psrt.core.arrays import Bytes, Vector
from psrt.core.messages import Leave, Message
from psrt.core.partition import Span
from psrt.core.sharding import Sharing
from psrt.core.stats import Sent
from psrt.transport.coded_sum import SumCodec

T = TypeVar("T")

#: The region number of a message without payload.
NO_PAYLOAD = -1
#: The region number of a message that carries the frame of a codec.
FRAMED = -2
#: The only region of a worker: its gradient.
GRADIENT = 0
#: Buffers for versions of a server's span: the newest, one in flight, one to write next.
VERSIONS = 3
#: The most of them, where others continue while a worker has a version to read.
MOST_VERSIONS = 16
#: The elements of a set of control values. They lie behind a worker's gradient and are summed with
#: it; only ``runtime.strategies.controls`` knows their meaning.
CONTROL = 3
#: The reason for an all-reduce that the user named.
AS_ASKED = "as asked"


class ThetaMemory(Enum):
    """What the ``theta`` of a worker is if servers are on its host."""

    #: Its own memory, which it may write to; parameters are copied there.
    OWN = "own"
    #: A landing: servers write versions there between its push and their reply.
    LANDING = "landing"
    #: One landing for all workers: no worker still reads a version of a shard when the next one
    #: is made.
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class RoleMap:
    """Which rank owns which span and which ranks compute gradients.

    Servers and workers are listed in the order of shard and worker number.
    """

    #: Parameters of the model.
    n: int
    #: Rank of each worker; worker i is ``workers[i]``.
    workers: tuple[int, ...]
    #: Rank that owns each shard; one rank may own several. Empty in modes without servers.
    servers: tuple[int, ...] = ()
    #: The span of each shard.
    spans: tuple[Span, ...] = ()
    #: Sets of control values: the number of sums over all workers that may be in flight at a time.
    controls: int = 1
    #: The elements of the gradient, and of the parameters, that a worker holds at a time; None:
    #: all.
    held_gradient: int | None = None
    held_theta: int | None = None
    #: By worker, its neighbours, with which it exchanges vectors, ascending; empty in modes without
    #: neighbours. With neighbours, ``spans`` has one span: the whole exchanged vector.
    peers: tuple[tuple[int, ...], ...] = ()
    #: By worker, the number of regions that its neighbours may read; see ``Port.offers``.
    offers: tuple[int, ...] = ()
    #: By shard, the one that decides for it, whose server sends to its server, too; empty if each
    #: decides for itself.
    deciders: tuple[int, ...] = ()
    #: Buffers for versions of a shard.
    versions: int = VERSIONS
    #: R: that many workers, by number, take each step together; servers know the first of them.
    learner_ranks: int = 1
    #: If these are only some of the ranks of a job: the number of each rank and worker in the job.
    job_ranks: tuple[int, ...] = ()
    job_workers: tuple[int, ...] = ()
    #: Rank → the number of its worker, and the numbers of its shards.
    _workers: Mapping[int, int] = field(init=False, repr=False, compare=False)
    _shards: Mapping[int, tuple[int, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        workers = {rank: number for number, rank in enumerate(self.workers)}
        shards: dict[int, tuple[int, ...]] = {}
        for number, rank in enumerate(self.servers):
            shards[rank] = (*shards.get(rank, ()), number)
        object.__setattr__(self, "_workers", workers)
        object.__setattr__(self, "_shards", shards)

    @property
    def gradient_size(self) -> int:
        """Elements of a worker's gradient, without the control values behind it."""
        return self.n if self.held_gradient is None else self.held_gradient

    @property
    def theta_size(self) -> int:
        """Elements of a worker's ``theta``."""
        return self.n if self.held_theta is None else self.held_theta

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.workers) + len(self._shards)

    @property
    def server_ranks(self) -> tuple[int, ...]:
        """The ranks that own shards, each once, in the order of their first shards."""
        return tuple(self._shards)

    def learner_of(self, worker: int) -> range:
        """Return the workers that take each step together with one."""
        first = worker - worker % self.learner_ranks
        return range(first, first + self.learner_ranks)

    def team_of(self, worker: int) -> RoleMap:
        """Return the role map of these workers among themselves, who have no servers."""
        team = self.learner_of(worker)
        return RoleMap(
            self.n,
            workers=tuple(range(len(team))),
            controls=2,  # those of a step, and those of what their first one has learned
            job_ranks=tuple(self.workers[it] for it in team),
            job_workers=tuple(team),
        )

    @property
    def most_shards(self) -> int:
        """The largest number of shards that one rank owns."""
        return max(map(len, self._shards.values()), default=0)

    @property
    def most_at_once(self) -> int:
        """Elements of the largest part that servers update by itself; 0 without servers."""
        firsts = sorted(set(self.deciders)) or [0] * bool(self.spans)
        return max((sum(it.size for it in self.beside(first)) for first in firsts), default=0)

    def beside(self, shard: int) -> tuple[Span, ...]:
        """Return the spans of all shards that the same one decides for; of all if each decides."""
        deciders = self.deciders or (0,) * len(self.spans)
        both = zip(self.spans, deciders, strict=True)
        return tuple(span for span, of in both if of == deciders[shard])

    def rank_name(self, rank: int) -> int:
        """Return the number of a rank in the job, for messages."""
        return self.job_ranks[rank] if self.job_ranks else rank

    def worker_name(self, worker: int) -> str:
        """Return the name of a worker in messages, as in ``3 (rank 5)``."""
        number = self.job_workers[worker] if self.job_workers else worker
        return f"{number} (rank {self.rank_name(self.workers[worker])})"

    def worker_of(self, rank: int) -> int | None:
        """Return the worker number of ``rank``, None for a server."""
        return self._workers.get(rank)

    def shards_of(self, rank: int) -> tuple[int, ...]:
        """Return the numbers of the shards that ``rank`` owns, in order; none for a worker."""
        return self._shards.get(rank, ())


#: Makes the next parameters of one block: ``take(block, sums)`` writes ``theta[block]``. ``block``
#: is a span of the whole vector of at most ``optim.BLOCK`` elements, and ``sums`` the finished sums
#: there, which may be scratch memory and may be overwritten. Blocks come in any order and cover
#: each element that this worker owns once a round. Called only inside ``Reduction.poll`` and
#: ``finish``.
Take = Callable[[Span, Vector], None]


class Held(NamedTuple):
    """Where a reduction that gives sums only to their owners reads its numbers and writes θ."""

    #: The element of ``gradient`` at which the span's numbers start.
    at: int
    #: Whether the ``theta[span]`` that the owners write reaches all workers; else it stays local.
    spreads: bool = True


class Reduction(Protocol):
    """The sum of one span of ``gradient`` over all workers, by one plan that is run many times.

    A round is ``begin``, any number of ``poll``, then ``finish``; then the next may begin. Several
    reductions may be in flight; all workers begin and finish them in the same order. From ``begin``
    to ``finish`` the span belongs to the reduction, in ``gradient`` and, with a ``take``, also in
    ``theta``: nothing else may read or write it. Afterwards it is the caller's again, and no other
    worker reads it any more.
    """

    def begin(self) -> None:
        """Start the sum: this worker's numbers of the span are final. Never waits."""

    def poll(self) -> bool:
        """Progress as far as possible without waiting; return whether the round is over.

        Only after ``begin``. Once True, it stays True until the next ``begin``.
        """

    async def finish(self) -> None:
        """Wait until the round is over; returns at once where ``poll`` returned True.

        Raises:
            TransportError: if a worker does not take part within the deadline.
        """


class Port(Protocol):
    """One rank's end of the transport."""

    #: This rank, in ``[0, role_map.size)``.
    rank: int
    #: The ranks of workers and servers, and the spans of the shards.
    role_map: RoleMap
    #: Worker: (n + CONTROL · controls,) float32, gradient and control values, in memory that peers
    #: can read; or only ``held_gradient`` elements. A virtual port without numerics has only the
    #: control values, and empty ``theta`` and ``versions``.
    gradient: Vector
    #: Worker: (n,) float32, the parameters it computes with; ``Params`` land here. Or
    #: ``held_theta`` elements, whose meaning is the strategy's.
    theta: Vector
    #: Server: by owned shard, the regions of ``Params``, (span,) float32 each: ``versions`` buffers
    #: of its own, then the landings.
    versions: dict[int, list[Vector]]
    #: Worker with neighbours: the regions of ``Mix``, (span,) float32 each; the role map has their
    #: number. ``theta`` may be a part of one.
    offers: list[Vector]
    #: Server: rank of a worker with a landing → the landing's region, the same for each shard.
    landings: Mapping[int, int]
    #: What the ``theta`` of each worker is.
    theta_memory: ThetaMemory
    #: Describes the peers that this rank waits for in ``receive``; set by the role, called at the
    #: deadline.
    waiting_for: Callable[[], str]
    #: Server: ``(shard, worker)`` → the ``Leave`` that ``receive`` returns if that worker stops
    #: responding; None if it has left the shard before. Set by the role.
    leave_of: Callable[[int, int], Leave | None]
    #: ``(shard, bytes)`` → virtual seconds to apply that many bytes of gradient, at a server or at
    #: a worker that updates its own parameters; None in real time, or if applying is free.
    apply_s: Callable[[int, int], float] | None

    @property
    def bytes_sent(self) -> int:
        """Bytes of messages, payloads and spans that this port was given to send."""

    @property
    def bytes_received(self) -> int:
        """Bytes of messages, payloads and spans received."""

    def bytes_of(self, shard: int) -> tuple[int, int]:
        """Return the bytes that a server has sent and received for one of its shards."""

    def now(self) -> float:
        """Return the time in seconds; only differences are meaningful."""

    def land_apart(self, theta: Vector | None = None) -> Vector:
        """Worker: let ``theta`` be its own; return (n,) where ``Params`` land from now on.

        MPI may write there from a push on until its answer is received, while the worker computes.

        Args:
            theta: becomes its own; None makes a copy.
        """

    def payload(self, shard: int, worker: int) -> Vector:
        """Server: return the gradient of worker ``worker``, the span of one shard.

        Valid from the receipt of its push until the reply. At a neighbour of that worker: a copy of
        the vector of its last ``Mix``, valid until its next one is received.
        """

    def frame(self, shard: int, worker: int) -> Bytes:
        """Return the last frame received between a shard and worker ``worker``.

        At a server: of its push, valid until the reply. At the worker: of the reply, valid until
        its next push. At a neighbour: of its last ``Mix``, valid until its next message is
        received. Only its length has been checked: it is at most that of the shard's longest frame.
        """

    async def compute(self, work: Callable[..., T], *args: object) -> T:
        """Run ``work(*args)``; a virtual port charges its cost."""

    async def compute_part(self, share: float, work: Callable[[], T], *, first: bool) -> T:
        """Run ``work()``, a part of a step; a virtual port charges a share of the step's cost.

        Args:
            share: in [0, 1].
            work: a part of the computation of a step.
            first: whether it is the first part of the step.
        """

    def amid(self, share: float, action: Callable[[], object]) -> None:
        """Run ``action()`` within ``compute``; called by its work when a share of it is done.

        A virtual port, where all work is done at once, runs it when that share of the cost has
        passed.
        """

    async def aside(self, work: Callable[..., T], *args: object) -> T:
        """Run ``work(*args)`` outside of any step; a virtual port charges nothing for it.

        Like ``compute`` it may take longer than the deadline of the ranks that wait for this one.
        """

    async def catch_up(self) -> None:
        """Let the time pass that this port has already spent; only virtual time has to be let."""

    async def pause(self, seconds: float, *, works: bool = False) -> None:
        """Do nothing for ``seconds``; in virtual time, ``works`` keeps a core busy meanwhile."""

    def send(self, to: int, message: Message, region: int = NO_PAYLOAD) -> None:
        """Send ``message``, and the contents of ``region`` with it, to rank ``to``.

        There is nothing to await: a role replies before the next message of that shard is sent to
        it, so there is always a free slot. The region must not be written while
        ``in_flight(to, shard)``; a worker's landing not before its next push. From now on peers may
        write a worker's ``theta`` of that shard, or overwrite the gradient that a server was
        pushed.

        A neighbour does not answer. A worker may be two messages ahead of it, so that its message
        travels while the neighbour computes; with a third one, ``send`` may wait until the first
        has been received.

        A worker's payload may be held back until the server has answered earlier ones. So all
        workers push the shards of a server in the same order, and a server answers for each shard
        without waiting for another one.

        Args:
            to: the receiving rank.
            message: a push, parameters, a leave, or a mix.
            region: the number of the region to send with it; ``NO_PAYLOAD`` for none.
        """

    def send_framed(self, to: int, message: Message, frame: Bytes) -> None:
        """Send ``message``, and ``frame`` with it, to rank ``to``; see ``send``.

        Args:
            to: the receiving rank.
            message: a push, parameters, or a mix.
            frame: at most as long as declared when the port was made. It must not change until the
                message has been answered; the frame of a reply, until the next push. Without
                numerics only its length matters.
        """

    def in_flight(self, to: int, shard: int) -> bool:
        """Return whether a payload of a shard sent to ``to`` may still be read."""

    async def receive(self) -> Message:
        """Return the next message in order of arrival, with its payload in place.

        Raises:
            TransportError: if none comes within the deadline.
        """

    async def receive_by(self, by: float) -> Message | None:
        """Return the next message, as ``receive`` does; None if none has come ``by`` that time."""

    async def poll(self) -> Message | None:
        """Return the next message, as ``receive`` does, if one has come; never wait for one."""

    async def until(self, done: Callable[[], bool], waiting_for: Callable[[], str]) -> None:
        """Wait until ``done()``, while messages and payloads progress.

        Args:
            done: is polled; must have no lasting side effects.
            waiting_for: describes the peers that are waited for.

        Raises:
            TransportError: if this takes longer than the deadline.
        """

    def choice(
        self,
        algorithm: str,
        n: int,
        *,
        coded: Coding | None = None,
        sharded: Sharing | None = None,
    ) -> tuple[str, str]:
        """Return the all-reduce that ``algorithm`` names for a span, and the reason.

        Args:
            algorithm: ``auto``, or the name of one.
            n: float32 elements of the span.
            coded: what a codec makes of the span; None if it is summed uncompressed.
            sharded: what stays with its owner; None if all workers hold everything.

        Returns:
            For ``auto`` its choice, the same on every worker, and the reason in words that follow
            "because"; any other name unchanged, with ``AS_ASKED``.

        Raises:
            ConfigError: if this transport has no such all-reduce.
        """

    def owned(self, span: Span, algorithm: str) -> Span:
        """Return the part of a span that this worker owns in a reduction with ``Held``.

        Args:
            span: of ``[0, n)``.
            algorithm: what ``choice`` returned, asked with ``sharded``.
        """

    def reduction(
        self,
        span: Span,
        algorithm: str,
        take: Take | None,
        codec: SumCodec | None = None,
        *,
        held: Held | None = None,
    ) -> Reduction:
        """Make the plan that sums ``gradient[span]`` over all workers, any number of times.

        Collective: all workers make the same plans in the same order, before they begin any.

        Without ``take``, ``gradient[span]`` holds the sums on every worker at the end of a round.
        With ``take``, the sums go to it, block by block, on the worker that owns the block, and the
        ``theta[span]`` that it writes reaches all others. The update is sharded over the workers if
        the transport gives each only its own elements, and repeated by all if every worker gets all
        sums anyway. A worker owns the same elements in every round, so the optimizer's state of an
        element stays with its owner.

        Args:
            span: of ``gradient``, the control values behind the n-th element included; spans of
                different reductions do not overlap.
            algorithm: what ``choice`` returned.
            take: see ``Take``; only for spans of ``[0, n)``, which ``theta`` has, too.
            codec: makes the messages, which needs a ``coded`` choice; the result is the *mean*, by
                the total that the codec knows when the round begins.
            held: calls ``take`` only for what this worker owns, see ``owned``; that part of the
                numbers is then scratch, and the rest undefined. None leaves the owners to the
                transport. With ``spreads``, other workers see ``theta[span]`` from the end of the
                round on; it needs a codec.

        Raises:
            ConfigError: if this transport has no such all-reduce.

        Source: Xu et al., "Automatic Cross-Replica Sharding of Weight Update in Data-Parallel
        Training", 2020, arXiv:2004.13336, for the sharded update.
        """

    def gather(self, span: Span, algorithm: str, at: int) -> Reduction:
        """Make the plan that gathers the owned parts of a span on all workers, any number of times.

        Collective, as ``reduction``. A worker's own part must be in place when a round begins; the
        parts of the others are in place at its end.

        Args:
            span: of the parameters; see ``owned``.
            algorithm: what ``choice`` returned, asked with ``sharded``.
            at: the element of ``theta`` at which the span starts.
        """

    def share_theta(self, algorithm: str) -> None:
        """Share ``theta`` among the workers of a host; collective.

        For modes in which θ is the same everywhere and all updates go through reductions with a
        ``take``. If ``algorithm`` gives each worker only its own elements, a large ``theta``
        becomes the same memory on all workers of a host. The owner's update is then visible to all
        without a copy, and shared caches hold θ once. ``theta`` must hold the same numbers on all
        workers before.

        Args:
            algorithm: what ``choice`` returned.
        """

    async def differing(self, number: int) -> list[int]:
        """Compare one number of each worker; collective over all workers.

        Args:
            number: of this worker, in ``[0, 2**63)``.

        Returns:
            The workers whose number is not the most frequent one, in order; the same on every
            worker. See ``outliers``.

        Raises:
            TransportError: if a worker does not take part within the deadline.
        """

    def report(self, report: Sent) -> None:
        """Send ``report`` to rank 0, outside of the training traffic; never waits."""


def gradient_of(port: Port) -> Vector:
    """Return a worker's gradient (n,), without the control values behind it."""
    return port.gradient[: -CONTROL * port.role_map.controls]


def controls_of(port: Port) -> list[Span]:
    """Return the span of each set of control values in ``gradient``, as laid out with numerics."""
    n = port.role_map.gradient_size
    return [Span(n + CONTROL * i, n + CONTROL * (i + 1)) for i in range(port.role_map.controls)]


def control_of(port: Port, i: int = 0) -> Vector:
    """Return the i-th set of control values (CONTROL,)."""
    first = port.gradient.size - CONTROL * (port.role_map.controls - i)
    return port.gradient[first : first + CONTROL]


def outliers(numbers: Sequence[int]) -> list[int]:
    """Return the indices of the numbers that are not the most frequent one, in order.

    Ties go to the number that comes first, so all workers get the same result.

    >>> outliers([7, 7, 9, 7]), outliers([7, 9]), outliers([5])
    ([2], [1], [])
    """
    # Counter keeps the order of first appearance, and max returns the first of equals.
    counts = Counter(numbers)
    usual = max(counts, key=counts.__getitem__)
    return [place for place, number in enumerate(numbers) if number != usual]
