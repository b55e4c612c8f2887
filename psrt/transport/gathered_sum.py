"""A sum in frames that every rank gathers and sums itself: one rank's part in it. Pure.

The messages are those of ``collective.schedules.naive``: each rank encodes its numbers and sends
the frame to all; all decode the p frames, each rank its own, too, add them in the order of the
ranks, and divide by the total of the weights. So all end with the same bits, and nothing is lost
but what each rank lost and keeps back: a mean is not encoded anew.

Of frames of f bytes a rank sends (p − 1)·f, in two phases 2·(p − 1)·f/p. With two ranks that is the
same, in half the messages. With more it is p/2 times as much: for vectors so short that messages
cost more by their number than by their bytes, and where a second loss is not wanted.

Source: Renggli et al., "SparCML: High-Performance Sparse Communication for Machine Learning",
SC 2019, arXiv:1802.08021, for sums of sparse vectors that all gather; Peng et al., "DeMo:
Decoupled Momentum Optimization", 2024, arXiv:2411.19870, whose ranks gather so.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psrt.codec.frame import HEADER_BYTES
from psrt.codec.randomness import FORTH
from psrt.core.ways import Way
from psrt.transport.coded_sum import CodedSum


class GatheredSum(CodedSum):
    """One rank's part in the sums of one span; see ``CodedSum``."""

    way = Way.GATHERED

    def __post_init__(self, workers: Sequence[int]) -> None:
        """Make the codec."""
        super().__post_init__(workers)
        self._sender = self.codec.encoder(self.span, FORTH)
        self._senders = [self._sender]
        self._nothing = np.zeros(0, np.float32)
        self._scratch = np.empty(self.span.size if self.numerics else 0, np.float32)

    @property
    def frame_bytes(self) -> int | None:
        """Bytes of the frames that this rank sends in a round; None if they depend on numbers."""
        nbytes = self._sender.nbytes if self.span.size else 0
        return None if nbytes is None else nbytes * (self.size - 1)

    @property
    def most_bytes(self) -> int:
        """Bytes of the frames that this rank sends in a round of this epoch, at most."""
        return self._sender.longest * (self.size - 1) if self.span.size else 0

    @property
    def framed_bytes(self) -> int:
        """Bytes of the numbers that the frames of a round stand for."""
        return 4 * self.span.size * (self.size - 1)

    def lengths(self, source: int) -> list[int]:
        """Return the bytes of the frame of a rank, at most."""
        return [HEADER_BYTES + self._sender.most] if self.span.size else []

    def _send(self) -> None:
        if self.span.size:
            self._mine = self._encode(self._sender, self.span, -1, self._vector)
            for to in self._others:
                self._post(to, self._sender, self._mine)
        self._added = 0 if self.span.size else self.size

    def advance(self) -> bool:
        """Take the frames that have come; return whether the round is over."""
        if self._added == self.size:
            return True
        # The own numbers have been encoded, so their memory is free.
        into = self._nothing if self._vector is None else self._vector
        return self._add(self._sender, self.span, into, self._scratch)
