"""The protocol between neighbouring stages: activations go forward, gradients back.

The stages of a pipeline are joined by *channels*. Between two stages in the order of the layers
there are two: activations go forward, gradients with respect to them go back. A channel is a matrix
with one writer and one reader. Its rows belong to the micro-batches in flight, and a message says
that some of the rows are ready. Messages of a channel arrive in the order in which they were sent.

On one host the matrix is the writer's memory and the reader reads it there; between hosts the
reader has a matrix of the same shape. Messages do not name their rows: both sides know them from
the schedule. The reader must *release* rows before they are written again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from psrt.core.arrays import ITEMSIZE, FloatArray, Vector
from psrt.core.partition import Span
from psrt.pipeline.step import PipelineStep

#: Bytes of the number that travels with a message.
NUMBER_BYTES = 8


class Channel(NamedTuple):
    """One direction between two neighbouring stages."""

    #: Its place: behind chunk ``edge // stages`` of stage ``edge % stages``.
    edge: int
    #: Whether it carries gradients back.
    back: bool
    #: The stages that write and read it; the same if there is one stage with several chunks.
    writer: int
    reader: int
    #: Elements of a row.
    width: int
    #: Rows of the matrix.
    rows: int
    #: Messages that may be in flight: sent, and their rows not released.
    messages: int
    #: The most rows of a micro-batch, if micro-batches take turns in the matrix; 0 if all of a
    #: batch lie side by side.
    turn: int

    def place(self, m: int, rows: Span) -> slice:
        """Return the rows of a micro-batch in the matrix.

        Args:
            m: the number of the micro-batch.
            rows: its rows in the batch.
        """
        if not self.turn:
            return slice(*rows)
        start = m % (self.rows // self.turn) * self.turn
        return slice(start, start + rows.size)

    def nbytes(self, rows: int) -> int:
        """Return the bytes of a message of that many rows, with the number that travels along."""
        return rows * self.width * ITEMSIZE + NUMBER_BYTES


def channels_of(
    stages: int, widths: Sequence[int], alive: Sequence[int], *, rows: int, micro_batches: int
) -> tuple[Channel, ...]:
    """Return all channels of a pipeline.

    A writer waits while the rows of its next message are not released. If a channel has room for
    as many messages as micro-batches can be alive in either of its two stages, no two stages wait
    for each other: every micro-batch in flight is alive at the reader or at the writer. One more
    than the reader keeps alive lets the writer compute the next while those are read; where weight
    gradients are computed late, the reader keeps micro-batches that are no longer alive at the
    writer.

    Args:
        stages: P.
        widths: of the activations behind each chunk except the last, in the order of the layers.
        alive: by stage, the most micro-batches that are alive in it.
        rows: the most rows of a batch.
        micro_batches: M.

    >>> [(it.width, it.rows) for it in channels_of(2, [5], [2, 1], rows=32, micro_batches=4)]
    [(5, 16), (5, 16)]
    >>> [it.messages for it in channels_of(2, [5], [2, 2], rows=32, micro_batches=4)]
    [3, 3]
    """
    found = []
    for edge, width in enumerate(widths):
        here, there = edge % stages, (edge + 1) % stages
        messages = min(micro_batches, max(alive[here], alive[there] + 1))
        turn = -(-rows // micro_batches)
        # If all micro-batches fit side by side, the channel is one plain matrix of the batch.
        size = (width, rows, messages, 0)
        if messages * turn < rows:
            size = (width, messages * turn, messages, turn)
        found.append(Channel(edge, False, here, there, *size))
        found.append(Channel(edge, True, there, here, *size))
    return tuple(found)


def touches(rows: slice, others: Iterable[slice]) -> bool:
    """Return whether rows of a matrix overlap others.

    The turns of micro-batches start again with each batch: its first one always goes to the same
    rows, which may be those of the last ones of the batch before. So a bound on the number of
    messages in flight is not enough.

    >>> touches(slice(0, 4), [slice(4, 8)]), touches(slice(0, 4), [slice(4, 8), slice(0, 3)])
    (False, True)
    """
    return any(it.start < rows.stop and rows.start < it.stop for it in others)


class StageLinks(Protocol):
    """One stage's end of its channels and of the sums over the slices of its layers."""

    @property
    def matrices(self) -> Mapping[Channel, FloatArray]:
        """The channels that it writes or reads, each with its matrix (rows, width) as seen here."""

    @property
    def shares_batches(self) -> bool:
        """Whether workers share their batch buffers, so that each must keep its own copy."""

    @property
    def bytes_sent(self) -> int:
        """Bytes sent to other stages and slices so far, by MPI or through shared memory."""

    @property
    def bytes_received(self) -> int:
        """Bytes received from other stages and slices so far."""

    def begin(self, rows: Mapping[Channel, Sequence[slice]]) -> None:
        """Announce a step: the rows of each message that this stage will receive."""

    async def free(self, channel: Channel, rows: slice) -> None:
        """Wait until the rows of the next message may be written."""

    def send(self, channel: Channel, rows: slice, number: float = 0.0) -> None:
        """Send rows that have been written, with a number; never waits."""

    async def receive(self, channel: Channel) -> float:
        """Wait for the next message, until its rows are in the matrix; return its number."""

    def release(self, channel: Channel) -> None:
        """Release the rows of the oldest message that is not released yet."""

    def empty(self, rows: int, width: int) -> FloatArray:
        """Return a new array in memory where sums over slices copy the least; collective."""

    async def sum(self, array: FloatArray) -> None:
        """Sum an array over all slices, in place; every slice ends with the same bits."""

    async def max(self, array: FloatArray) -> None:
        """Replace each number by the largest one of all slices."""

    async def total(self, number: float) -> float:
        """Return the sum of a number over all parts of this copy, rounded once, equal on all."""

    async def passed(self, step: PipelineStep, rows: int, share: float = 1.0) -> None:
        """Make progress on messages, after a share of a pass; virtual time passes here."""

    async def gather(self, mine: Vector, out: Vector | None = None) -> Vector | None:
        """Return the parameters of all parts on the first part, None on the others.

        Args:
            mine: the parameters of this part.
            out: receives them; None makes a new vector.
        """

    async def scatter(
        self, whole: Vector | None, mine: Vector, numbers: Sequence[int]
    ) -> Sequence[int]:
        """Give each part its parameters, and return the numbers of the first part on all.

        Counts the bytes of the ``gather`` that brought them, too.

        Args:
            whole: the parameters of all parts, at the first part; None at the others.
            mine: receives those of this part.
            numbers: of the first part; as many at the others.
        """


class SoloStageLinks:
    """The links of a model with one stage and one slice, which has no neighbours."""

    bytes_sent = bytes_received = 0
    shares_batches = False

    def __init__(self) -> None:
        self.matrices: Mapping[Channel, FloatArray] = {}

    def begin(self, rows: Mapping[Channel, Sequence[slice]]) -> None:
        """Do nothing: no message will come."""

    async def free(self, channel: Channel, rows: slice) -> None:
        """Do nothing."""

    def send(self, channel: Channel, rows: slice, number: float = 0.0) -> None:
        """Do nothing."""

    async def receive(self, channel: Channel) -> float:
        """Do nothing."""
        return 0.0

    def release(self, channel: Channel) -> None:
        """Do nothing."""

    def empty(self, rows: int, width: int) -> FloatArray:
        """Return a new array."""
        return np.zeros((rows, width), np.float32)

    async def sum(self, array: FloatArray) -> None:
        """Leave the numbers of the only slice unchanged."""

    async def max(self, array: FloatArray) -> None:
        """Leave the numbers of the only slice unchanged."""

    async def total(self, number: float) -> float:
        """Return the number of the only part."""
        return number

    async def passed(self, step: PipelineStep, rows: int, share: float = 1.0) -> None:
        """Do nothing: real time passes by itself."""

    async def gather(self, mine: Vector, out: Vector | None = None) -> Vector | None:
        """Return the only part."""
        return mine

    async def scatter(
        self, whole: Vector | None, mine: Vector, numbers: Sequence[int]
    ) -> Sequence[int]:
        """Refuse: only several ranks have servers."""
        raise AssertionError("a rank that is alone has no servers")
