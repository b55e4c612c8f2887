"""A sum in frames that goes hop by hop around a ring: one rank's part in it. Pure.

The messages are those of ``collective.schedules.ring``:

.. code-block:: text

    forth   each chunk travels around once; a rank decodes the sum so far, adds its own numbers, and
            encodes that for the next one, with what its frames of this chunk have lost before
    mean    the last one divides by the total of the weights and encodes the mean
    back    the frames of means travel around as they are; every rank decodes all, the last one its
            own, too, so all end with the same bits

A rank sends to one other rank only, and in all as many bytes as in ``two_phase_sum``. But there a
number is encoded once on its way to the sum, here up to p − 1 times: each rank keeps back what its
frames have lost, so nothing is lost for good, but the first rank's numbers come later, and where a
codec has no error feedback errors add up. So ``auto`` does not take it, and codecs that lose more
than they are given, or have a momentum, do not have it.

Source: Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014, for error feedback
around what is summed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from psrt.arrays import Bytes
from psrt.codec import Encoder
from psrt.codec.frame import HEADER_BYTES
from psrt.codec.randomness import BACK, FORTH
from psrt.codec.sparse import sum_of
from psrt.collective.schedules.ring import Ring
from psrt.partition import Span, even_spans
from psrt.transport.coded_sum import CodedSum, FrameLink, SumCodec
from psrt.ways import Way


class RingSum(CodedSum):
    """One rank's part in the sums of one span, around a ring; see ``CodedSum``."""

    saved = ("_back",)
    way = Way.HOPS

    def __init__(self, link: FrameLink, codec: SumCodec, span: Span, **rest: Any) -> None:
        """Make the codecs; see ``CodedSum``."""
        super().__init__(link, codec, span, **rest)
        size, rank = self._size, self._rank
        self._chunks = even_spans(span.size, size)
        #: In the whole vector: their first elements tell sums and chunks apart.
        self._places = [Span(span.start + it.start, span.start + it.stop) for it in self._chunks]
        # A chunk without elements has no frames.
        there = [j for j, chunk in enumerate(self._chunks) if chunk.size]
        self._ring, self._own = Ring.of(rank, size), (rank + 1) % size
        self._forth = {j: codec.encoder(self._places[j], FORTH) for j in there}
        self._senders = [it for j, it in self._forth.items() if j != self._own]
        make = codec.means
        #: What decodes means, and encodes that of the own chunk.
        self._means: dict[int, Encoder] = dict(self._forth)
        if make is not None:
            self._means = {j: make(self._places[j]) for j in there}
        decoders: Mapping[int, Encoder] = dict(self._means)
        self._decoders = decoders
        if self._own in self._forth:
            self._means[self._own] = codec.encoder(self._places[self._own], BACK)
        #: What encodes the means of the own chunk; None where it has no elements.
        self._back = self._means.get(self._own)
        for j, mean in self._means.items():
            sum_of(self._forth[j], size, mean)
        self._scratch = np.empty(self._chunks[0].size if self._numerics else 0, np.float32)
        #: What is left of the round.
        self._rest: Iterator[None] = iter(())
        self._is_over = True

    def _sent(self) -> list[Encoder]:
        """Return what made the frames that this rank sends in a round."""
        ring, forth, means = self._ring, self._forth, self._means
        sums = [forth[j] for j, _ in ring.hops(ring.position) if j in forth]
        return sums + [means[j] for j, _ in ring.hops(ring.position + 1) if j in means]

    @property
    def frame_bytes(self) -> int | None:
        """Bytes of the frames that this rank sends in a round; None if they depend on numbers."""
        sizes = [it.nbytes for it in self._sent()]
        fixed = [it for it in sizes if it is not None]
        return sum(fixed) if len(fixed) == len(sizes) else None

    @property
    def most_bytes(self) -> int:
        """Bytes of the frames that this rank sends in a round of this epoch, at most."""
        return sum(it.longest for it in self._sent())

    @property
    def framed_bytes(self) -> int:
        """Bytes of the numbers that the frames of a round stand for."""
        return 4 * sum(it.n for it in self._sent())

    def lengths(self, source: int) -> list[int]:
        """Return the bytes of each frame that a rank sends this one in a round, at most."""
        ring = self._ring
        if source != ring.left:
            return []
        pairs = [(self._forth, j) for _, j in ring.hops(ring.position)]
        pairs += [(self._means, j) for _, j in ring.hops(ring.position + 1)]
        return [HEADER_BYTES + codecs[j].most for codecs, j in pairs if j in codecs]

    @property
    def awaited(self) -> list[int]:
        """The ranks whose frames are waited for."""
        return [] if self._is_over else [self._ring.left]

    def _send(self) -> None:
        self._is_over = False
        self._rest = self._round()

    def advance(self) -> bool:
        """Take the frames that have come; return whether the round is over."""
        if not self._is_over:
            self._is_over = next(self._rest, True) is True
        return self._is_over

    def _round(self) -> Iterator[None]:
        """Make a round; yield where nothing more has come."""
        ring, first = self._ring, self._rank
        self._pass_on(first)
        for _, chunk in ring.hops(first):
            if chunk in self._forth:
                yield from self._add_own(chunk)
                if chunk != self._own:
                    self._pass_on(chunk)
        if self._own in self._forth:
            self._end(self._own)
        for _, chunk in ring.hops(self._own):
            if chunk in self._forth:
                yield from self._take_mean(chunk, is_last=chunk == (self._own + 1) % self._size)

    def _pass_on(self, chunk: int) -> None:
        """Encode the sum so far of a chunk for the next rank."""
        if chunk == self._own or chunk not in self._forth:
            return
        sender, right = self._forth[chunk], self._ring.right
        numbers = None if self._vector is None else self._chunks[chunk].of(self._vector)
        frame = self._encode(sender, self._places[chunk], self._workers[right], numbers)
        self._post(right, sender, frame)

    def _add_own(self, chunk: int) -> Iterator[None]:
        """Add this rank's numbers to the sum so far of a chunk."""
        while not (arrived := self._link.take_span(self._ring.left, self._key)):
            yield
        [frame] = arrived
        span, place = self._chunks[chunk], self._places[chunk]
        self._link.decodes(span.size, FORTH)
        if frame is not None and self._vector is not None:
            out, mine = self._scratch[: span.size], span.of(self._vector)
            self._decode(self._forth[chunk], place, self._ring.left, FORTH, frame, out)
            np.add(out, mine, out=mine)

    def _end(self, chunk: int) -> None:
        """Divide the complete sum of a chunk, and send the mean around."""
        mean, numbers = self._means[chunk], None
        if self._vector is not None:
            numbers = self._chunks[chunk].of(self._vector)
            scale = np.float32(1.0 / self._codec.total)
            if scale != 1.0:
                np.multiply(numbers, scale, out=numbers)
        place, me = self._places[chunk], self._workers[self._rank]
        frame = self._encode(mean, place, me, numbers, BACK)
        if self._size > 1:
            self._post(self._ring.right, mean, frame)
        self._place(chunk, self._rank, frame)

    def _take_mean(self, chunk: int, *, is_last: bool) -> Iterator[None]:
        """Put a mean in its place, and pass it on."""
        while not (arrived := self._link.take_span(self._ring.left, self._key)):
            yield
        [frame] = arrived
        if not is_last:
            self._means[chunk].begin_epoch(self._codec.epoch)
            self._post(self._ring.right, self._means[chunk], frame)
        self._place(chunk, (chunk - 1) % self._size, frame)

    def _place(self, chunk: int, owner: int, frame: Bytes | None) -> None:
        span, place = self._chunks[chunk], self._places[chunk]
        self._link.decodes(span.size, BACK)
        if frame is not None and self._vector is not None:
            out = span.of(self._vector)
            self._decode(self._decoders[chunk], place, owner, BACK, frame, out)
