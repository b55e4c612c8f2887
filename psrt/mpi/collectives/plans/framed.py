"""A sum whose messages are frames of a codec, of any length up to the longest one.

What is sent when, and what becomes of it, ``transport.sums_in_frames`` knows; here is how frames
travel. Both ends cut a frame alike, where a link goes faster in pieces (``links.pieces``). A
receiver posts the first piece before it comes and learns the length from it; where that may differ
from frame to frame, it posts the rest then. Frames between two ranks are received one after the
other, so each piece meets its like.
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
    """The frames of one rank, one after the other."""

    def __init__(self, comm: MPI.Comm, rank: int, tag: int, lengths: Sequence[int], most: int):
        """Allocate.

        Args:
            comm: what both ranks are of.
            rank: of the sender.
            tag: of the messages.
            lengths: bytes of the longest frame, for each frame of a round.
            most: bytes of a piece at most.
        """
        self._comm, self._rank, self._tag, self._most = comm, rank, tag, most
        self._buffers = [np.empty(nbytes, np.uint8) for nbytes in lengths]
        self._status = MPI.Status()
        #: Those of this round that are here and have not been taken.
        self._here: deque[Bytes] = deque()
        #: What receives the present round.
        self._rest: Iterator[bool] = iter(())

    def begin(self) -> None:
        """Await the frames of a round."""
        self._rest = self._receive()
        self.progress()

    def progress(self) -> None:
        """Receive what has come.

        Raises:
            CodecError: if a frame cannot be as long as it says.
        """
        next(self._rest, None)

    def take(self) -> Bytes | None:
        """Return the next frame, valid for the rest of the round, if all of it is here."""
        return self._here.popleft() if self._here else None

    def _receive(self) -> Iterator[bool]:
        """Receive the frames of a round; yield where nothing more has come."""
        post, status = self._post, self._status
        for buffer in self._buffers:
            # Room for the longest: a shorter piece may come, and MPI says how long it was.
            first = post(buffer[: self._most])
            while not first.Test(status):
                yield False
            length = self._checked(buffer, status.Get_count(MPI.BYTE))
            # Posted together: they may come while this rank does something else.
            requests = [post(it) for it in pieces(buffer[:length], self._most)[1:]]
            for request in requests:
                while not request.Test():
                    yield False
            self._here.append(buffer[:length])

    def _post(self, piece: npt.NDArray[Any]) -> MPI.Request:
        return self._comm.Irecv([piece, MPI.BYTE], self._rank, self._tag)

    def _checked(self, buffer: Bytes, here: int) -> int:
        """Return the bytes of the frame whose first piece is in a buffer."""
        # A frame says its length in its header, which the first piece always has in it.
        length = read_length(buffer[:here])
        if length > buffer.size or here != min(length, self._most):
            raise CodecError(
                f"rank {self._rank} sent {here} bytes of a frame that says it has {length}, "
                f"expected at most {buffer.size}"
            )
        return length


@dataclass(eq=False, slots=True)
class FrameLinks:
    """Carries the frames of one rank's part in a sum; see ``coded_sum.FrameLink``."""

    #: The ranks.
    comm: MPI.Comm
    #: Of the messages.
    tag: int
    #: By number in the sum, the rank.
    ranks: Sequence[int]
    #: By rank of ``comm``, the bytes of one message to it at most.
    most: Sequence[int]
    _incoming: dict[int, _Incoming] = field(default_factory=dict, init=False)
    _sends: list[MPI.Request] = field(default_factory=list, init=False)
    #: Bytes of this round.
    bytes_sent: int = field(default=0, init=False)
    bytes_received: int = field(default=0, init=False)

    def expect(self, source: int, lengths: Sequence[int]) -> None:
        """Prepare for the frames that a rank sends in each round, by their longest lengths."""
        rank = self.ranks[source]
        most = max(HEADER_BYTES, self.most[rank])
        self._incoming[source] = _Incoming(self.comm, rank, self.tag, lengths, most)

    def begin(self) -> None:
        """Await the first frames of a round."""
        self.bytes_sent = self.bytes_received = 0
        for it in self._incoming.values():
            it.begin()

    def post(self, to: int, key: int, frame: Bytes | None, nbytes: int) -> None:
        """Send a frame."""
        assert frame is not None, "over MPI there are numbers"
        rank = self.ranks[to]
        self.bytes_sent += nbytes
        for piece in pieces(frame, max(HEADER_BYTES, self.most[rank])):
            self._sends.append(self.comm.Isend([piece, MPI.BYTE], rank, self.tag))

    def take_span(self, source: int, key: int) -> Sequence[Bytes]:
        """Return the next frame of a rank, if it is here."""
        # Those of all ranks, not only of the one that is asked for: they are posted one after the
        # other, and what comes before its receive is copied twice.
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
        """Return whether all that was sent may be overwritten."""
        # In order: behind the first that has not left none need be asked.
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
            comm: what the ranks of the team are of.
            context: of the collective.
            algorithm: whose messages they are.
            team: who takes part.
            codec: makes the frames.
            span: of the parameters, which ``vector`` is summed for.
            vector: (span,), this rank's.
            most: by rank of ``comm``, the bytes of one message to it at most.
        """
        self._team, self._vector = team, vector
        self._links = links = FrameLinks(comm, context.tag, team.ranks, most)
        # Among all ranks, a rank is a worker.
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
        # Receives first: the other ranks may be ahead.
        self._links.begin()
        advance: Callable[[], bool] = self._sum.advance
        if not self._sum.begin(self._vector):
            yield advance
        # Frames lie in the codecs' own buffers, which the next round overwrites.
        if not self._links.flushed():
            yield self._links.flushed
        self.bytes_sent, self.bytes_received = self._links.bytes_sent, self._links.bytes_received

    def waiting_for(self) -> str:
        """Name the ranks whose frames have not come; at the end, those that take this rank's."""
        awaited = self._sum.awaited or list(range(len(self._team.ranks)))
        ranks = [self._team.ranks[r] for r in awaited if r != self._team.rank]
        return name_ranks(ranks)
