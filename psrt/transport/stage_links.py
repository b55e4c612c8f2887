"""The protocol between a stage and its neighbours: what goes from one to the next, and back.

The stages of a pipeline are joined by *channels*. Between two stages in the order of the layers
there are two: activations go forward, gradients with respect to them go back. A channel is a matrix
with one writer and one reader; its rows are those of the micro-batches under way, and a message is
that some of its rows are ready. Messages of a channel come in the order in which they were sent.

On one host the matrix is the writer's own and the reader looks at it there; between hosts the
reader has one like it. Both sides agree, message by message, on which rows it is of: they follow
from the schedule. Rows must be *released* by the reader before they are written again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from psrt.core.arrays import ITEMSIZE, FloatArray, Vector
from psrt.core.partition import Span
from psrt.pipeline.step import PipelineStep

#: Bytes of the number that goes along with a message.
NUMBER_BYTES = 8


class Channel(NamedTuple):
    """One way from a stage to another."""

    #: Between which two: behind chunk ``edge // stages`` of stage ``edge % stages``.
    edge: int
    #: Whether it is the way back, of gradients.
    back: bool
    #: The stages that write and read it; the same if there is one stage with several chunks.
    writer: int
    reader: int
    #: Numbers of a row.
    width: int
    #: Rows of the matrix.
    rows: int
    #: Messages that may be under way: sent, and their rows not released.
    messages: int
    #: Rows of a micro-batch at most, where micro-batches take turns in the matrix; 0 where all of a
    #: batch lie side by side.
    turn: int

    def place(self, m: int, rows: Span) -> slice:
        """Return where the rows of a micro-batch lie in the matrix.

        Args:
            m: its number.
            rows: of the batch.
        """
        if not self.turn:
            return slice(*rows)
        start = m % (self.rows // self.turn) * self.turn
        return slice(start, start + rows.size)

    def nbytes(self, rows: int) -> int:
        """Return the bytes of a message of so many rows, with the number that goes along."""
        return rows * self.width * ITEMSIZE + NUMBER_BYTES


def channels_of(
    stages: int, widths: Sequence[int], alive: Sequence[int], *, rows: int, micro_batches: int
) -> tuple[Channel, ...]:
    """Return all channels of a pipeline.

    A writer waits for rows that are not released. With as many messages as micro-batches may be
    alive in either of the two stages no stage waits for another that waits for it: all that are
    under way are alive at the reader, or at the writer. One more than the reader keeps alive, so
    that the writer computes the next while those are read: where weights are taken late, the reader
    keeps what is no longer alive at the writer.

    Args:
        stages: P.
        widths: of the activations behind each chunk but the last one, in the order of the layers.
        alive: by stage, the micro-batches that are alive in it at most.
        rows: of a batch at most.
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
        # Where all fit side by side they lie so: they are one matrix.
        size = (width, rows, messages, 0)
        if messages * turn < rows:
            size = (width, messages * turn, messages, turn)
        found.append(Channel(edge, False, here, there, *size))
        found.append(Channel(edge, True, there, here, *size))
    return tuple(found)


def touches(rows: slice, others: Iterable[slice]) -> bool:
    """Return whether rows of a matrix are among others.

    Micro-batches take turns in a matrix batch by batch: the first of a batch goes where it always
    goes, however near that is to the last ones of the batch before. So it is not enough that few
    messages are under way.

    >>> touches(slice(0, 4), [slice(4, 8)]), touches(slice(0, 4), [slice(4, 8), slice(0, 3)])
    (False, True)
    """
    return any(it.start < rows.stop and rows.start < it.stop for it in others)


class StageLinks(Protocol):
    """One stage's end of its channels, and of its sums with the other slices of its layers."""

    @property
    def matrices(self) -> Mapping[Channel, FloatArray]:
        """Those that it writes or reads, each with its matrix (rows, width) as seen from here."""

    @property
    def shares_batches(self) -> bool:
        """Whether workers share the buffers of their batches, so that each keeps its own copy."""

    @property
    def bytes_sent(self) -> int:
        """Bytes sent to other stages and slices so far, by MPI or through shared memory."""

    @property
    def bytes_received(self) -> int:
        """Bytes received from other stages and slices so far."""

    def begin(self, rows: Mapping[Channel, Sequence[slice]]) -> None:
        """Announce a step: the rows of each message that this stage is going to receive."""

    async def free(self, channel: Channel, rows: slice) -> None:
        """Wait until rows may be written, those of the next message."""

    def send(self, channel: Channel, rows: slice, number: float = 0.0) -> None:
        """Send rows that have been written, and a number along; never waits."""

    async def receive(self, channel: Channel) -> float:
        """Wait for the next message: its rows are in the matrix. Return the number sent along."""

    def release(self, channel: Channel) -> None:
        """Give up the rows of the oldest message that has not been released."""

    def empty(self, rows: int, width: int) -> FloatArray:
        """Return a new array whose sums over the slices copy the least; collective over them."""

    async def sum(self, array: FloatArray) -> None:
        """Sum an array over all slices, in place; every slice ends with the same bits."""

    async def max(self, array: FloatArray) -> None:
        """Replace each number by the largest one of all slices."""

    async def total(self, number: float) -> float:
        """Return the sum of a number over all parts of this copy, rounded once: the same at all."""

    async def passed(self, step: PipelineStep, rows: int, share: float = 1.0) -> None:
        """See to what is on its way, after a share of a pass; virtual time passes here."""

    async def gather(self, mine: Vector) -> Vector | None:
        """Return the parameters of all parts at the first of them, None at the others.

        Args:
            mine: those of this one's part.
        """


class SoloStageLinks:
    """The links of a model that is in one stage and one slice: to nobody."""

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
        """Leave the only slice's numbers as they are."""

    async def max(self, array: FloatArray) -> None:
        """Leave the only slice's numbers as they are."""

    async def total(self, number: float) -> float:
        """Return the number of the only part."""
        return number

    async def passed(self, step: PipelineStep, rows: int, share: float = 1.0) -> None:
        """Do nothing: real time passes by itself."""

    async def gather(self, mine: Vector) -> Vector | None:
        """Return the only part."""
        return mine
