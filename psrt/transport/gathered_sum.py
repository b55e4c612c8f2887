"""A sum in frames that every rank gathers and adds itself: one rank's part in it. Pure.

The messages are those of ``collective.schedules.naive``. Each rank encodes its numbers and sends
the frame to all. Each decodes the p frames, including its own, adds them in the order of the ranks,
and divides by the total of the weights. So all end with the same bits. The only loss is that of
each contribution, which its rank keeps as a residual: the mean is not encoded again.

With frames of f bytes a rank sends (p − 1)·f bytes here, and 2·(p − 1)·f/p in two phases. With two
ranks that is equal, in half the messages. With more ranks it is p/2 times as much. It suits vectors
so short that the number of messages costs more than their bytes, and jobs that want no second loss.

Source: Renggli et al., "SparCML: High-Performance Sparse Communication for Machine Learning",
SC 2019, arXiv:1802.08021, for sums of sparse vectors by all-gather; Peng et al., "DeMo:
Decoupled Momentum Optimization", 2024, arXiv:2411.19870, whose ranks gather in this way.
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
        """The most bytes of frames that this rank sends in a round of this epoch."""
        return self._sender.longest * (self.size - 1) if self.span.size else 0

    @property
    def framed_bytes(self) -> int:
        """Bytes of the numbers that the frames of a round represent."""
        return 4 * self.span.size * (self.size - 1)

    def lengths(self, source: int) -> list[int]:
        """Return the most bytes of a rank's frame."""
        return [HEADER_BYTES + self._sender.most] if self.span.size else []

    def _send(self) -> None:
        if self.span.size:
            self._mine = self._encode(self._sender, self.span, -1, self._vector)
            for to in self._others:
                self._post(to, self._sender, self._mine)
        self._added = 0 if self.span.size else self.size

    def advance(self) -> bool:
        """Take the frames that have arrived; return whether the round is over."""
        if self._added == self.size:
            return True
        # This rank's numbers have been encoded, so the sum may overwrite their memory.
        into = self._nothing if self._vector is None else self._vector
        return self._add(self._sender, self.span, into, self._scratch)
