"""A sum whose messages are frames of a codec, of any length up to the longest one.

``transport.sums_in_frames`` decides what is sent when, and what is done with it; this file carries
the frames. Both ends split a frame in the same way, where a link is faster with pieces
(``links.pieces``). A receiver posts a receive for the first piece before it arrives and learns the
length of the frame from it. Where that differs from frame to frame, it posts the other pieces then.
Frames between two ranks are received one after another, so each piece matches its counterpart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from psrt.codec.frame import HEADER_BYTES, read_length
from psrt.core.arrays import Bytes, Vector
from psrt.core.errors import CodecError
from psrt.core.partition import Span
from psrt.mpi.collectives.plans.plan import CollectiveContext, Plan, Run, name_ranks
from psrt.mpi.collectives.plans.scheduled import Team
from psrt.mpi.links.pieces import pieces
from psrt.transport.coded_sum import SumCodec
from psrt.transport.sums_in_frames import sum_in_frames


class _Incoming:
    """Receives the frames of one rank, one after another."""

    def __init__(self, comm: MPI.Comm, rank: int, tag: int, lengths: Sequence[int], most: int):
        """Allocate.

        Args:
            comm: the communicator of both ranks.
            rank: the sender.
            tag: of the messages.
            lengths: the most bytes of each frame of a round.
            most: the most bytes of a piece.
        """
        self._comm, self._rank, self._tag, self._most = comm, rank, tag, most
        self._buffers = [np.empty(nbytes, np.uint8) for nbytes in lengths]
        self._status = MPI.Status()
        #: Frames of this round that have arrived and have not been taken.
        self._here: deque[Bytes] = deque()
        #: The generator that receives the current round.
        self._rest: Iterator[bool] = iter(())

    def begin(self) -> None:
        """Start to receive the frames of a round."""
        self._rest = self._receive()
        self.progress()

    def progress(self) -> None:
        """Receive what has arrived.

        Raises:
            CodecError: if a frame claims an impossible length.
        """
        next(self._rest, None)

    def take(self) -> Bytes | None:
        """Return the next frame, valid for the rest of the round, if all of it has arrived."""
        return self._here.popleft() if self._here else None

    def _receive(self) -> Iterator[bool]:
        """Receive the frames of a round; yield while nothing more has arrived."""
        post, status = self._post, self._status
        for buffer in self._buffers:
            # Posted for the longest piece: a shorter one may arrive, and MPI reports its length.
            first = post(buffer[: self._most])
            while not first.Test(status):
                yield False
            length = self._checked(buffer, status.Get_count(MPI.BYTE))
            # All posted at once, so that they arrive while this rank does something else.
            requests = [post(it) for it in pieces(buffer[:length], self._most)[1:]]
            for request in requests:
                while not request.Test():
                    yield False
            self._here.append(buffer[:length])

    def _post(self, piece: npt.NDArray[Any]) -> MPI.Request:
        return self._comm.Irecv([piece, MPI.BYTE], self._rank, self._tag)

    def _checked(self, buffer: Bytes, here: int) -> int:
        """Return the bytes of the frame whose first piece is in a buffer."""
        # A frame's header, which is always within the first piece, has the frame's length.
        length = read_length(buffer[:here])
        if length > buffer.size or here != min(length, self._most):
            raise CodecError(
                f"rank {self._rank} sent {here} bytes of a frame that claims to have {length}, "
                f"expected at most {buffer.size}"
            )
        return length


@dataclass(eq=False, slots=True)
class FrameLinks:
    """Carries the frames of one rank's part in a sum; see ``coded_sum.FrameLink``."""

    #: The ranks.
    comm: MPI.Comm
    #: The tag of the messages.
    tag: int
    #: Number in the sum → rank.
    ranks: Sequence[int]
    #: By rank of ``comm``, the most bytes of one message to it.
    most: Sequence[int]
    _incoming: dict[int, _Incoming] = field(default_factory=dict, init=False)
    _sends: list[MPI.Request] = field(default_factory=list, init=False)
    #: Bytes of this round.
    bytes_sent: int = field(default=0, init=False)
    bytes_received: int = field(default=0, init=False)

    def expect(self, source: int, lengths: Sequence[int]) -> None:
        """Prepare for the frames that a rank sends in each round, given their largest lengths."""
        rank = self.ranks[source]
        most = max(HEADER_BYTES, self.most[rank])
        self._incoming[source] = _Incoming(self.comm, rank, self.tag, lengths, most)

    def begin(self) -> None:
        """Start to receive the first frames of a round."""
        self.bytes_sent = self.bytes_received = 0
        for it in self._incoming.values():
            it.begin()

    def post(self, to: int, key: int, frame: Bytes | None, nbytes: int) -> None:
        """Send a frame."""
        assert frame is not None, "sums over MPI always have numbers"
        rank = self.ranks[to]
        self.bytes_sent += nbytes
        for piece in pieces(frame, max(HEADER_BYTES, self.most[rank])):
            self._sends.append(self.comm.Isend([piece, MPI.BYTE], rank, self.tag))

    def take_span(self, source: int, key: int) -> Sequence[Bytes]:
        """Return the next frame of a rank, if it has arrived."""
        # Poll all ranks, not only this one: receives from a rank are posted one after another, and
        # a piece that arrives before its receive is posted is copied twice.
        for it in self._incoming.values():
            it.progress()
        frame = self._incoming[source].take()
        if frame is None:
            return ()
        self.bytes_received += frame.size
        return (frame,)

    def encodes(self, n: int, way: int) -> None:
        """Do nothing: real time passes by itself."""

    decodes = encodes

    def flushed(self) -> bool:
        """Return whether all sent frames may be overwritten."""
        # In order, and only up to the first that has not left.
        while self._sends:
            if not self._sends[0].Test():
                return False
            self._sends.pop(0)
        return True


class Framed(Plan):
    """The plan of one rank."""

    polls = True

    def __init__(
        self,
        comm: MPI.Comm,
        context: CollectiveContext,
        algorithm: str,
        team: Team,
        codec: SumCodec,
        span: Span,
        vector: Vector,
        *,
        most: Sequence[int],
    ) -> None:
        """Compile.

        Args:
            comm: the communicator of the team.
            context: of the collective.
            algorithm: the all-reduce whose messages these are.
            team: the ranks that take part.
            codec: makes the frames.
            span: of the parameters that ``vector`` belongs to.
            vector: (span,), this rank's numbers.
            most: by rank of ``comm``, the most bytes of one message to it.
        """
        self._team, self._vector = team, vector
        self._links = links = FrameLinks(comm, context.tag, team.ranks, most)
        # In a sum over all ranks, rank and worker numbers are equal.
        size = len(team.ranks)
        self._sum = sum_in_frames(
            algorithm, links, codec, span, rank=team.rank, size=size, workers=team.ranks
        )
        for source in range(size):
            lengths = self._sum.lengths(source)
            if source != team.rank and lengths:
                links.expect(source, lengths)
        self.bytes_sent = self.bytes_received = 0

    def run(self) -> Run:
        """Run it."""
        # Receives first: other ranks may be ahead, and their frames on the way.
        self._links.begin()
        advance: Callable[[], bool] = self._sum.advance
        if not self._sum.begin(self._vector):
            yield advance
        # Frames lie in the codecs' own buffers, which the next round overwrites.
        if not self._links.flushed():
            yield self._links.flushed
        self.bytes_sent, self.bytes_received = self._links.bytes_sent, self._links.bytes_received

    def waiting_for(self) -> str:
        """Name the ranks whose frames are missing; at the end, the receivers of this rank's."""
        awaited = self._sum.awaited or list(range(len(self._team.ranks)))
        ranks = [self._team.ranks[r] for r in awaited if r != self._team.rank]
        return name_ranks(ranks)
