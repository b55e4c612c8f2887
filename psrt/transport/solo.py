"""The port of a job with one rank, without MPI or peers; and ``drive``, which runs a role."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from functools import partial
from types import coroutine
from typing import Any, NoReturn, TypeVar

import numpy as np

from psrt.collective.analysis.pick import Coding
from psrt.core.arrays import Bytes, Vector
from psrt.core.errors import ProtocolError
from psrt.core.messages import Leave, Message
from psrt.core.partition import Span, block_spans
from psrt.core.sharding import Sharing
from psrt.core.stats import Sent
from psrt.optim import BLOCK
from psrt.transport.coded_sum import SumCodec
from psrt.transport.gathered_sum import GatheredSum
from psrt.transport.port import (
    AS_ASKED,
    CONTROL,
    NO_PAYLOAD,
    Held,
    Reduction,
    RoleMap,
    Take,
    ThetaMemory,
)

T = TypeVar("T")


def drive(role: Coroutine[Any, Any, T]) -> T:
    """Run a role, or a whole job, to its end over a port on which no await ever suspends.

    Returns:
        The result of the role.
    """
    try:
        role.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("a role suspended on a port that completes every await immediately")


@coroutine
def quietly(role: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Run a role without numpy's floating-point warnings: a diverging run fails by its loss.

    While the role is suspended, in the user's own loop, the user's settings apply.
    """
    resume: Callable[[], Any] = partial(role.send, None)
    while True:
        try:
            with np.errstate(all="ignore"):
                asked = resume()
        except StopIteration as stop:
            result: T = stop.value
            return result
        try:
            resume = partial(role.send, (yield asked))
        except BaseException as error:  # an error in that loop is raised inside the role
            resume = partial(role.throw, error)


class SoloPort:
    """The port of a worker without peers."""

    #: In real time, applying has no modelled cost.
    apply_s: Callable[[int, int], float] | None = None

    def __init__(self, n: int, *, role_map: RoleMap | None = None) -> None:
        """Allocate (n,) parameters and (n + CONTROL · controls,) gradient.

        Args:
            n: number of parameters.
            role_map: of this one worker, with its offers to neighbours; None for one set of
                control values and no offers.
        """
        self.rank = 0
        self.role_map = role_map or RoleMap(n, workers=(0,))
        self.bytes_sent = 0
        self.bytes_received = 0
        self.waiting_for: Callable[[], str] = lambda: "nobody"
        self.leave_of: Callable[[int, int], Leave | None] = lambda shard, worker: None
        #: Called with every report.
        self.on_report: Callable[[Sent], None] = lambda _: None
        behind = CONTROL * self.role_map.controls
        self.gradient: Vector = np.zeros(self.role_map.gradient_size + behind, np.float32)
        self.theta: Vector = np.zeros(self.role_map.theta_size, np.float32)
        self.versions: dict[int, list[Vector]] = {}
        # A mode may write a step there before sending it; here it is sent to nobody.
        self.offers: list[Vector] = [
            np.zeros(self.role_map.spans[0].size, np.float32)
            for _ in range(sum(self.role_map.offers))
        ]
        self.landings: Mapping[int, int] = {}
        self.theta_memory = ThetaMemory.OWN

    def bytes_of(self, shard: int) -> tuple[int, int]:
        """Nothing, without servers."""
        return 0, 0

    def now(self) -> float:
        """Return the time in seconds; only differences are meaningful."""
        return time.perf_counter()

    async def compute(self, work: Callable[..., T], *args: object) -> T:
        """Run ``work(*args)``."""
        return work(*args)

    async def compute_part(self, share: float, work: Callable[[], T], *, first: bool) -> T:
        """Run ``work()``."""
        return work()

    def amid(self, share: float, action: Callable[[], object]) -> None:
        """Run ``action()``."""
        action()

    async def aside(self, work: Callable[..., T], *args: object) -> T:
        """Run ``work(*args)``."""
        return work(*args)

    async def catch_up(self) -> None:
        """Do nothing: real time has passed."""

    async def pause(self, seconds: float, *, works: bool = False) -> None:
        """Sleep."""
        time.sleep(seconds)

    async def until(self, done: Callable[[], bool], waiting_for: Callable[[], str]) -> None:
        """Raise unless ``done()``: without peers, waiting changes nothing."""
        if not done():
            _nobody()

    def report(self, report: Sent) -> None:
        """Pass ``report`` to the reader."""
        self.on_report(report)

    def land_apart(self, theta: Vector | None = None) -> Vector:
        """Refuse."""
        _nobody()

    def payload(self, shard: int, worker: int) -> Vector:
        """Refuse."""
        _nobody()

    def frame(self, shard: int, worker: int) -> Bytes:
        """Refuse."""
        _nobody()

    def send_framed(self, to: int, message: Message, frame: Bytes) -> None:
        """Refuse."""
        _nobody()

    def in_flight(self, to: int, shard: int) -> bool:
        """Refuse."""
        _nobody()

    def send(self, to: int, message: Message, region: int = NO_PAYLOAD) -> None:
        """Refuse."""
        _nobody()

    async def receive(self) -> Message:
        """Refuse."""
        _nobody()

    async def receive_by(self, by: float) -> Message | None:
        """Refuse."""
        _nobody()

    async def poll(self) -> Message | None:
        """Return nothing: no peer sends."""
        return None

    def choice(
        self,
        algorithm: str,
        n: int,
        *,
        coded: Coding | None = None,
        sharded: Sharing | None = None,
    ) -> tuple[str, str]:
        """Return any named all-reduce unchanged: with one rank, all of them do nothing."""
        if algorithm == "auto":
            return "node", "a single rank needs no sum"
        return algorithm, AS_ASKED

    def owned(self, span: Span, algorithm: str) -> Span:
        """Return the whole span: no other worker owns any of it."""
        return span

    def reduction(
        self,
        span: Span,
        algorithm: str,
        take: Take | None,
        codec: SumCodec | None = None,
        *,
        held: Held | None = None,
    ) -> Reduction:
        """Make a plan whose sums are just this worker's numbers."""
        coded = None if codec is None else GatheredSum(_NoLink(), codec, span, rank=0, size=1)
        at = span.start if held is None else held.at
        numbers = self.gradient[at : at + span.size]
        return _OwnNumbers(numbers, span, take, coded)

    def gather(self, span: Span, algorithm: str, at: int) -> Reduction:
        """Make a plan that does nothing."""
        return _OwnNumbers(self.theta[at : at + span.size], span, None, None)

    def share_theta(self, algorithm: str) -> None:
        """Do nothing: there are no other workers."""

    async def differing(self, number: int) -> list[int]:
        """Return an empty list: one worker agrees with itself."""
        return []


class _OwnNumbers:
    """The sum over one worker."""

    def __init__(
        self, numbers: Vector, span: Span, take: Take | None, coded: GatheredSum | None
    ) -> None:
        self._take, self._coded, self._numbers = take, coded, numbers
        self._blocks = [
            (Span(span.start + block.start, span.start + block.stop), block.of(numbers))
            for block in block_spans(span.size, BLOCK)
        ]
        self._over = True

    def begin(self) -> None:
        if self._coded is not None:
            self._coded.begin(self._numbers)
        self._over = False

    def poll(self) -> bool:
        """Pass the numbers to ``take``, once a round."""
        if not self._over:
            self._over = True
            if self._take is not None:
                for block, numbers in self._blocks:
                    self._take(block, numbers)
        return True

    async def finish(self) -> None:
        self.poll()


class _NoLink:
    """A link for frames of a single rank, which go nowhere."""

    def post(self, to: int, key: int, frame: Bytes | None, nbytes: int) -> None:
        _nobody()

    def take_span(self, source: int, key: int) -> Sequence[Bytes]:
        _nobody()

    def encodes(self, n: int, way: int) -> None:
        """Do nothing: real time passes by itself."""

    decodes = encodes


def _nobody() -> NoReturn:
    raise ProtocolError("a job of one rank has no peer to send to or receive from")
