"""A sum in frames in two phases, by owners of chunks: one rank's part in it. Pure.

The messages are those of ``collective.schedules.all_pairs``:

.. code-block:: text

    forth   encode chunk j of this rank's numbers and send it to rank j, for every j; decode the
            p frames of the own chunk, this rank's own among them, and add them in rank order
    mean    divide by the total of the weights
    back    encode the mean of the own chunk and send it to all; decode the p frames of means

All ranks decode the same frames, and the owner decodes its own, too, so all end with the same bits.
Each rank keeps what its frames have lost as a residual, chunk by chunk, and the owner of a chunk
also what its means have lost.

With ``--codec-reply`` means have another codec. With ``nonzero`` they are sent without loss: of
sparse contributions, the elements that any of them had, or all elements where that is shorter.

Source: Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014, section 3.3, for both
phases with error feedback in each; Tang et al., "1-bit Adam", ICML 2021, arXiv:2102.02888; Renggli
et al., "SparCML", SC 2019, arXiv:1802.08021, whose split all-gather is this with ``nonzero``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from psrt.codec import Encoder
from psrt.codec.frame import HEADER_BYTES
from psrt.codec.randomness import BACK, FORTH
from psrt.codec.sparse import sum_of
from psrt.core.arrays import Bytes
from psrt.core.partition import Span, even_spans
from psrt.core.ways import Way
from psrt.transport.coded_sum import CodedSum


class TwoPhaseSum(CodedSum):
    """One rank's part in the sums of one span, of which it owns a chunk; see ``CodedSum``."""

    saved = ("_back",)
    way = Way.TWO_PHASES

    def __post_init__(self, workers: Sequence[int]) -> None:
        """Make the codecs."""
        super().__post_init__(workers)
        codec, span, rank = self.codec, self.span, self.rank
        chunks = even_spans(span.size, self.size)
        self._chunks = chunks
        #: Chunks in the whole vector, whose first elements identify sums and chunks.
        self._places = [Span(span.start + it.start, span.start + it.stop) for it in chunks]
        # A chunk without elements has no frames.
        self._there = [rank for rank, chunk in enumerate(chunks) if chunk.size]
        self._forth = {j: codec.encoder(self._places[j], FORTH) for j in self._there}
        self._senders = list(self._forth.values())
        own = chunks[rank]
        self._back = codec.encoder(self._places[rank], BACK) if own.size else None
        if self._back is not None:
            sum_of(self._forth[rank], self.size, self._back)
        #: By owner, the decoder of its means.
        self._decoders: Mapping[int, Encoder] = self._forth
        if codec.means is not None:
            self._decoders = {j: codec.means(self._places[j]) for j in self._there}
        self._sum = np.empty(own.size if self.numerics else 0, np.float32)
        self._scratch = np.empty_like(self._sum)
        #: Owners whose means have not arrived.
        self._due: list[int] = []

    @property
    def frame_bytes(self) -> int | None:
        """Bytes of the frames that this rank sends in a round; None if they depend on numbers."""
        back = 0 if self._back is None else self._back.nbytes
        sizes = [self._forth[j].nbytes for j in self._there if j != self.rank]
        fixed = [it for it in sizes if it is not None]
        if back is None or len(fixed) < len(sizes):
            return None
        return sum(fixed) + back * (self.size - 1)

    @property
    def most_bytes(self) -> int:
        """The most bytes of frames that this rank sends in a round of this epoch."""
        others = [self._forth[j].longest for j in self._there if j != self.rank]
        return sum(others) + (self.size - 1) * (self._back.longest if self._back else 0)

    @property
    def framed_bytes(self) -> int:
        """Bytes of the numbers that the frames of a round represent."""
        own = self._chunks[self.rank].size
        return 4 * (self.span.size - own + own * (self.size - 1))

    def lengths(self, source: int) -> list[int]:
        """Return the bytes of a contribution to the own chunk, and of the mean of the sender's."""
        pairs = ((self._forth, self.rank), (self._decoders, source))
        return [HEADER_BYTES + codecs[j].most for codecs, j in pairs if j in codecs]

    @property
    def awaited(self) -> list[int]:
        """The ranks whose frames are waited for."""
        return sorted({*super().awaited, *self._due})

    def rescale(self, factor: float) -> None:
        """Multiply what contributions and means have lost."""
        super().rescale(factor)
        if self._back is not None:
            self._back.rescale(factor)

    def _send(self) -> None:
        rank = self.rank
        for j in self._others:
            if j in self._forth:
                self._post(j, self._forth[j], self._encoded(j))
        if self._back is not None:
            self._mine = self._encoded(rank)
        self._added = 0 if self._back is not None else self.size
        self._due = [j for j in self._others if j in self._forth]

    def advance(self) -> bool:
        """Take the frames that have arrived; return whether the round is over."""
        rank = self.rank
        if self._added < self.size:
            if not self._add(self._forth[rank], self._places[rank], self._sum, self._scratch):
                return False
            self._send_mean()
        # Only now: a rank's mean has the same key as its contribution and arrives behind it, so the
        # contribution must have been taken first.
        self._due = [j for j in self._due if not self._take_mean(j)]
        return not self._due

    def _encoded(self, chunk: int) -> Bytes | None:
        """Return the frame of a chunk of this rank's numbers."""
        numbers = None if self._vector is None else self._chunks[chunk].of(self._vector)
        place, owner = self._places[chunk], self._workers[chunk]
        return self._encode(self._forth[chunk], place, owner, numbers)

    def _send_mean(self) -> None:
        """Send the mean of the own chunk to all, and keep for itself what they will decode."""
        back, rank = self._back, self.rank
        assert back is not None, "the chunk has elements"
        mean = self._sum if self.numerics else None
        frame = self._encode(back, self._places[rank], self._workers[rank], mean, BACK)
        # The owner, too, continues with what its frame decodes to, not with its exact mean:
        # otherwise its bits would differ from those of all others.
        for to in self._others:
            self._post(to, back, frame)
        self._place(rank, frame)

    def _take_mean(self, owner: int) -> bool:
        """Put an owner's mean in its place; return whether it has arrived."""
        arrived = self.link.take_span(owner, self.key)
        if not arrived:
            return False
        [frame] = arrived
        self._place(owner, frame)
        return True

    def _place(self, chunk: int, frame: Bytes | None) -> None:
        self.link.decodes(self._chunks[chunk].size, BACK)
        if frame is not None and self._vector is not None:
            out = self._chunks[chunk].of(self._vector)
            self._decode(self._decoders[chunk], self._places[chunk], chunk, BACK, frame, out)
