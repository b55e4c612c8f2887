"""Measures how far the parameters move between a read and its update, on a sample of the reads."""

from __future__ import annotations

import math
import random

import numpy as np

from psrt.core.arrays import Vector

#: One read in 8 is followed on average, and at most 4,096 elements of a span, evenly spaced: so
#: time and memory are negligible compared with the updates.
_ONE_IN, _ELEMENTS = 8, 4096


class GapMeter:
    """Follows one read at a time: ‖θ_now − θ_read‖/√n when its gradient is about to be used.

    Staleness counts versions; the gap measures their effect on θ. The reads to follow are drawn at
    random, with a fixed seed, so that they do not coincide with a worker's period. In a span of
    more than 4,096 elements only every k-th is used, and the gap is an estimate.

    Source: the gap as a measure of staleness, Barkai, Hakimi & Schuster, ICLR 2020 (1909.10802).
    """

    saved = ("_read", "_worker", "_version", "_draw", "_skip")

    def __init__(self, n: int) -> None:
        """Set up for a span of n elements."""
        self._stride = max(1, -(-n // _ELEMENTS))
        size = len(range(0, n, self._stride))
        self._root = math.sqrt(size) or 1.0
        self._read, self._moved = np.zeros(size, np.float32), np.empty(size, np.float32)
        #: Worker whose read is followed, and the version that it read; −1 for none.
        self._worker = self._version = -1
        self._draw = random.Random(n)
        self._skip = 0

    def read_by(self, worker: int, version: int, theta: Vector) -> None:
        """Note that a worker reads this version; copy it if the read is followed.

        Args:
            worker: its number.
            version: of the shard.
            theta: (n,) the parameters of that version.
        """
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
        """Stop following a worker that has left."""
        if self._worker == worker:
            self._worker = -1

    def measure(self, worker: int, version: int, theta: Vector) -> float:
        """Return the gap of a gradient about to be applied; −1 if its read was not followed.

        Args:
            worker: the worker that computed it.
            version: that it was computed on.
            theta: (n,) the parameters right before the update.
        """
        if worker != self._worker or version != self._version:
            return -1.0
        self._worker = -1
        moved = np.subtract(theta[:: self._stride], self._read, out=self._moved)
        return math.sqrt(float(np.dot(moved, moved))) / self._root
