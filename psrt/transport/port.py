"""The protocol between a role and its transport.

A role is a coroutine and talks to its ``Port`` only. The MPI port completes every await on the
spot; the virtual port suspends the coroutine until its virtual time. A role cannot see the
difference.

**Payload regions.** Messages are small; numbers travel by region. Every pair of a worker and a
shard has two: the worker's gradient span, and the shard's span of parameters in one of
``VERSIONS`` buffers. ``send(to, message, region)`` makes the region's contents reach the peer:
a worker that receives ``Params`` finds them in its ``theta``; a server that receives ``Push``
finds the gradient in ``payload(shard, worker)``. Where both ranks are on one host these are the
same memory, and only the message, a doorbell, is sent. A region may even be the worker's ``theta``
itself, its *landing*: a version that a server makes there is read where it is made.

**Frames.** In place of a region a message may carry the frame of a codec, whose length differs from
message to message: ``send_framed``. A server finds it in ``frame(shard, worker)``.

**Neighbours.** In a mode whose workers mix what they have with neighbours, every two of these talk
as a worker and a shard do, each with regions, ``offers``, that the other may read, but neither has
to answer the other.

**Shards.** A server rank owns one shard or more, and every message names the one that it is of. A
worker and a shard talk by themselves, one message at a time each way, as if each shard had a rank
of its own; nothing is in order between two shards.
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
from psrt.core.stats import Report, Sketch
from psrt.transport.coded_sum import SumCodec

T = TypeVar("T")

#: The region of a message that has none.
NO_PAYLOAD = -1
#: Stands for the region of a message that carries the frame of a codec.
FRAMED = -2
#: The worker's one region: its gradient.
GRADIENT = 0
#: Buffers for versions of a server's span: the newest, one in flight, one to write next.
VERSIONS = 3
#: Elements of a set of control values, which are summed along with a vector and lie behind a
#: worker's gradient; only ``runtime.strategies.controls`` knows their meaning.
CONTROL = 3
#: The reason for an all-reduce that was named, not chosen.
AS_ASKED = "as asked"


class ThetaMemory(Enum):
    """What the ``theta`` of a worker is, where servers are on its host."""

    #: Its own, which it may write to; parameters are copied there.
    OWN = "own"
    #: A landing: servers write versions there between its push and their answer.
    LANDING = "landing"
    #: One landing for all workers: none of them reads a version of a shard any more by the time
    #: that the next one is made.
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
    #: Sets of control values: as many sums over all workers may be under way at a time.
    controls: int = 1
    #: Elements that a worker holds of the gradient, and of the parameters, at a time; None: all.
    held_gradient: int | None = None
    held_theta: int | None = None
    #: By worker, those that it exchanges vectors with, ascending; empty where workers have no
    #: neighbours. With neighbours ``spans`` has one span: that of a whole such vector.
    peers: tuple[tuple[int, ...], ...] = ()
    #: By worker, the regions that its neighbours may read; see ``Port.offers``.
    offers: tuple[int, ...] = ()
    #: Where these are some of the ranks of a job: what each rank and each worker is called there.
    job_ranks: tuple[int, ...] = ()
    job_workers: tuple[int, ...] = ()
    #: Rank → number of its worker, and numbers of its shards.
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
        """Ranks in all."""
        return len(self.workers) + len(self._shards)

    @property
    def server_ranks(self) -> tuple[int, ...]:
        """The ranks that own shards, each once, in the order of their first shards."""
        return tuple(self._shards)

    @property
    def most_shards(self) -> int:
        """The largest number of shards that one rank owns."""
        return max(map(len, self._shards.values()), default=0)

    def rank_name(self, rank: int) -> int:
        """Return the number of a rank in the job, for messages."""
        return self.job_ranks[rank] if self.job_ranks else rank

    def worker_name(self, worker: int) -> str:
        """Return what a worker is called in messages, as in ``3 (rank 5)``."""
        number = self.job_workers[worker] if self.job_workers else worker
        return f"{number} (rank {self.rank_name(self.workers[worker])})"

    def worker_of(self, rank: int) -> int | None:
        """Return the worker number of ``rank``, None for a server."""
        return self._workers.get(rank)

    def shards_of(self, rank: int) -> tuple[int, ...]:
        """Return the numbers of the shards that ``rank`` owns, in order; none for a worker."""
        return self._shards.get(rank, ())


#: Makes the next parameters of one block: ``take(block, sums)`` writes ``theta[block]``. ``block``
#: is a span of the whole vector of at most ``optim.BLOCK`` elements, ``sums`` the finished sums
#: there, which may be scratch and may be overwritten. It is called once a round for each element
#: that this worker owns, in any order, and only inside ``Reduction.poll`` and ``finish``.
Take = Callable[[Span, Vector], None]


class Held(NamedTuple):
    """Where a reduction, whose sums go to their owners only, finds its numbers and leaves θ."""

    #: Element of ``gradient`` that the span's numbers begin at.
    at: int
    #: Whether the ``theta[span]`` that the owners write reaches all; else it is nobody else's.
    spreads: bool = True


class Reduction(Protocol):
    """The sum of one span of ``gradient`` over all workers, again and again by one plan.

    A round is ``begin``, any number of ``poll``, ``finish``; then the next may begin. Several
    reductions may be under way at a time; all workers begin and finish them in the same order.
    From ``begin`` to ``finish`` the span belongs to the reduction, in ``gradient`` and, if it has
    a ``take``, in ``theta``, too: nobody else reads or writes it. Afterwards it is the caller's
    again; no other worker looks at it any more.
    """

    def begin(self) -> None:
        """Begin the sum: this worker's numbers of the span are final. Never waits."""

    def poll(self) -> bool:
        """Progress as far as possible without waiting; return whether the round is over.

        Only after ``begin``. Once True, it stays True until the next ``begin``.
        """

    async def finish(self) -> None:
        """Wait until the round is over; nothing to do where ``poll`` returned True.

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
    #: can read; or ``held_gradient`` elements of it. A virtual port without numerics has only the
    #: control values, and empty ``theta`` and ``versions``.
    gradient: Vector
    #: Worker: (n,) float32, the parameters it computes with; ``Params`` land here. Or
    #: ``held_theta`` elements, whose meaning is the strategy's.
    theta: Vector
    #: Server: by shard that it owns, (span,) float32 each, the regions of ``Params``: ``VERSIONS``
    #: of its own, then the landings.
    versions: dict[int, list[Vector]]
    #: Worker with neighbours: the regions of ``Mix``, as many as the role map says, (span,) float32
    #: each. ``theta`` may be a part of one.
    offers: list[Vector]
    #: Server: by the rank of a worker that has a landing, its region, the same for each shard.
    landings: Mapping[int, int]
    #: What the ``theta`` of each worker is.
    theta_memory: ThetaMemory
    #: Describes the peers that this rank waits for in ``receive``; set by the role, called at the
    #: deadline.
    waiting_for: Callable[[], str]
    #: Server: ``(shard, worker)``, returns the ``Leave`` that ``receive`` is to return when that
    #: worker has fallen silent; None if it has left the shard before. Set by the role.
    leave_of: Callable[[int, int], Leave | None]
    #: ``(shard, bytes)``, virtual seconds for applying that many bytes of gradient: at a server, or
    #: at a worker to parameters that it updates itself; None in real time, or if applying is free.
    apply_s: Callable[[int, int], float] | None

    @property
    def bytes_sent(self) -> int:
        """Bytes of messages, payloads and spans handed to this port, counted at the call."""

    @property
    def bytes_received(self) -> int:
        """Bytes of messages, payloads and spans received."""

    def bytes_of(self, shard: int) -> tuple[int, int]:
        """Return the bytes that a server has sent and received for one of its shards."""

    def now(self) -> float:
        """Return the time in seconds; only differences mean anything."""

    def payload(self, shard: int, worker: int) -> Vector:
        """Server: return the gradient of the worker with this number, the span of one shard.

        The contents are valid from the receipt of its push until the reply. At a neighbour of that
        worker: a copy of the vector that came with its last ``Mix``, valid until the next one of
        that worker is received.
        """

    def frame(self, shard: int, worker: int) -> Bytes:
        """Return the frame that came last between a shard and the worker with this number.

        At a server that of its push, valid until the reply; at the worker that of the reply, valid
        until its next push; at a neighbour that of its last ``Mix``, valid until its next message
        is received. Nothing of it has been checked but that it is no longer than a frame of that
        shard can be.
        """

    async def compute(self, work: Callable[..., T], *args: object) -> T:
        """Run ``work(*args)``; a virtual port charges its cost."""

    async def compute_part(self, share: float, work: Callable[[], T], *, first: bool) -> T:
        """Run ``work()``; a virtual port charges a share of the cost of a step.

        Args:
            share: in [0, 1].
            work: a part of the computing of a step.
            first: whether it is the first one of the step.
        """

    def amid(self, share: float, action: Callable[[], object]) -> None:
        """Run ``action()`` amid ``compute``, called by its work when a share of it is done.

        A virtual port, where all work is done at once, runs it when that share of the cost has
        passed.
        """

    async def aside(self, work: Callable[..., T], *args: object) -> T:
        """Run ``work(*args)`` outside of any step; a virtual port charges nothing for it.

        Like ``compute`` it may take longer than the deadline of the ranks that wait for this one.
        """

    async def pause(self, seconds: float) -> None:
        """Do nothing for ``seconds``."""

    def send(self, to: int, message: Message, region: int = NO_PAYLOAD) -> None:
        """Send ``message``, and the contents of ``region`` with it, to rank ``to``.

        There is nothing to await: a role replies before it is sent the next message of that shard,
        so there is always a free slot. The region must not be written while
        ``in_flight(to, shard)``; a worker's landing, once sent to it, not before its next push. A
        worker's ``theta`` of that shard, or what a server was pushed for it, may be written from
        now on.

        A neighbour answers nothing. A worker may be two messages ahead of it, so that what it has
        now is on its way while the neighbour computes; with a third one, ``send`` may wait until
        the first has been received.

        A worker's payload may set out only when others that it sent to the same server have been
        answered. So workers push the shards of a server in the same order, and a server answers
        for each without waiting for another one.

        Args:
            to: the rank that it goes to.
            message: a push, parameters, a leave, or what is mixed.
            region: number of the memory whose contents go with it; ``NO_PAYLOAD`` for none.
        """

    def send_framed(self, to: int, message: Message, frame: Bytes) -> None:
        """Send ``message``, and ``frame`` with it, to rank ``to``; see ``send``.

        Args:
            to: the rank that it goes to.
            message: a push, parameters, or what is mixed.
            frame: no longer than was said when the port was made. It must not change until the
                message has been answered, that of a reply until the next push. Without numerics
                only its length matters.
        """

    def in_flight(self, to: int, shard: int) -> bool:
        """Return whether a payload of a shard sent to ``to`` may still be being read."""

    async def receive(self) -> Message:
        """Return the next message in order of arrival, its payload in place.

        Raises:
            TransportError: if none comes within the deadline.
        """

    async def poll(self) -> Message | None:
        """Return the next message, as ``receive`` does, if one has come; never wait for one."""

    async def until(self, done: Callable[[], bool], waiting_for: Callable[[], str]) -> None:
        """Wait until ``done()``, while messages and payloads move on.

        Args:
            done: polled; must have no side effect that matters.
            waiting_for: describes the peers that are waited for.

        Raises:
            TransportError: if that takes longer than the deadline.
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
            coded: what a codec makes of the span; None if it is summed as it is.
            sharded: what stays with its owner; None if all workers have everything.

        Returns:
            What ``auto`` picks, the same on every worker, and the reason in words that follow
            "because"; any other name as it is, and ``AS_ASKED``.

        Raises:
            ConfigError: if this transport has no such all-reduce.
        """

    def owned(self, span: Span, algorithm: str) -> Span:
        """Return the part of a span that this worker owns in a reduction with a ``Held``.

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

        Collective: all workers make the same ones in the same order, before they begin any.

        Without ``take``, ``gradient[span]`` holds the sums on every worker at the end of a round.
        With it the sums go to ``take``, block by block, on the worker that owns the block, and
        the ``theta[span]`` that it writes reaches all the others: the update is sharded over the
        workers if the transport gives each only its own elements, and repeated by all if every
        worker holds all sums anyway. A worker owns the same elements in every round, so the
        optimizer's state of an element stays with its owner.

        Args:
            span: of ``gradient``, the control values behind the n-th element included; spans of
                different reductions do not overlap.
            algorithm: what ``choice`` returned.
            take: see ``Take``; only for spans of ``[0, n)``, which ``theta`` has, too.
            codec: makes the messages, which needs a ``coded`` choice; the result is the *mean*, by
                the total that the codec knows when the round begins.
            held: has ``take`` called for what this worker owns only, see ``owned``; that part of
                the numbers is then scratch, and the rest of no use. None leaves who owns what to
                the transport. With ``spreads`` other workers see ``theta[span]`` from the end of
                the round on; not without codec.

        Raises:
            ConfigError: if this transport has no such all-reduce.

        Source: Xu et al., "Automatic Cross-Replica Sharding of Weight Update in Data-Parallel
        Training", 2020, arXiv:2004.13336, for the sharded update.
        """

    def gather(self, span: Span, algorithm: str, at: int) -> Reduction:
        """Make the plan by which all workers get what each owns of a span, any number of times.

        Collective, as ``reduction``. In a round a worker's own part must be in place at ``begin``;
        the others' are at the end.

        Args:
            span: of the parameters; see ``owned``.
            algorithm: what ``choice`` returned, asked with ``sharded``.
            at: element of ``theta`` that the span begins at.
        """

    def share_theta(self, algorithm: str) -> None:
        """Share ``theta`` among the workers of a host; collective.

        For a mode in which θ is the same everywhere, and whose updates all go through reductions
        with a ``take``. Where ``algorithm`` hands each worker only its own elements, a large
        ``theta`` is afterwards the same memory on all workers of a host: the owner's update is
        everybody's, nothing is copied, and the caches that workers share hold θ once. ``theta``
        must hold the same numbers on all workers before.

        Args:
            algorithm: what ``choice`` returned.
        """

    async def differing(self, number: int) -> list[int]:
        """Compare one number of each worker; collective over all workers.

        Args:
            number: of this worker, in ``[0, 2**63)``.

        Returns:
            The same on every worker: the workers whose number is not the most frequent one, in
            order; see ``outliers``.

        Raises:
            TransportError: if a worker does not take part within the deadline.
        """

    def report(self, report: Report | Sketch) -> None:
        """Send ``report`` to rank 0, apart from the traffic of the training; never waits."""


def gradient_of(port: Port) -> Vector:
    """Return a worker's gradient (n,), without the control values behind it."""
    return port.gradient[: -CONTROL * port.role_map.controls]


def controls_of(port: Port) -> list[Span]:
    """Return where each set of control values lies, in ``gradient`` as it is with numerics."""
    n = port.role_map.gradient_size
    return [Span(n + CONTROL * i, n + CONTROL * (i + 1)) for i in range(port.role_map.controls)]


def control_of(port: Port, i: int = 0) -> Vector:
    """Return the i-th set of control values (CONTROL,)."""
    first = port.gradient.size - CONTROL * (port.role_map.controls - i)
    return port.gradient[first : first + CONTROL]


def outliers(numbers: Sequence[int]) -> list[int]:
    """Return the indices of the numbers that are not the most frequent one, in order.

    Ties are decided for the number that comes first, so all workers get the same result.

    >>> outliers([7, 7, 9, 7]), outliers([7, 9]), outliers([5])
    ([2], [1], [])
    """
    # Counter keeps the order of first appearance, and max returns the first of equals.
    counts = Counter(numbers)
    usual = max(counts, key=counts.__getitem__)
    return [place for place, number in enumerate(numbers) if number != usual]
