"""Measures, on a sample of the reads, how far the parameters have moved away from what was read."""

from __future__ import annotations

import math
import random

import numpy as np

from psrt.arrays import Vector

#: One read in so many is followed on average, and of a span no more than so many elements, evenly
#: spread: then neither the time nor the memory of it shows beside the updates.
_ONE_IN, _ELEMENTS = 8, 4096


class GapMeter:
    """Follows one read at a time: ‖θ_now − θ_read‖/√n when its gradient is about to be used.

    Staleness counts versions; the gap says what they amount to. Which reads are followed is drawn,
    always in the same way, so that no worker's turn coincides with it. Of a span of more than
    4,096 elements every k-th counts, so that there it is an estimate.

    Source: the gap as a measure of staleness, Barkai, Hakimi & Schuster, ICLR 2020 (1909.10802).
    """

    def __init__(self, n: int) -> None:
        """Set up for a span of n elements."""
        self._stride = max(1, -(-n // _ELEMENTS))
        size = len(range(0, n, self._stride))
        self._root = math.sqrt(size) or 1.0
        self._read, self._moved = np.empty(size, np.float32), np.empty(size, np.float32)
        #: Worker whose read is followed, and the version that it read; −1 for none.
        self._worker = self._version = -1
        self._draw = random.Random(n)
        self._skip = 0

    def read_by(self, worker: int, version: int, theta: Vector) -> None:
        """Note that a worker is sent this version; perhaps keep it."""
        if self._worker not in (-1, worker):
            return
        self._worker = -1
        if self._skip:
            self._skip -= 1
            return
        self._skip = self._draw.randrange(2 * _ONE_IN - 1)
        np.copyto(self._read, theta[:: self._stride])
        self._worker, self._version = worker, version

    def forget(self, worker: int) -> None:
        """Follow a worker no longer that has left."""
        if self._worker == worker:
            self._worker = -1

    def measure(self, worker: int, version: int, theta: Vector) -> float:
        """Return the gap of a gradient that was computed on ``version``; −1 if not followed."""
        if worker != self._worker or version != self._version:
            return -1.0
        self._worker = -1
        moved = np.subtract(theta[:: self._stride], self._read, out=self._moved)
        return math.sqrt(float(np.dot(moved, moved))) / self._root
