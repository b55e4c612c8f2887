"""Random numbers for codecs: the same whenever and wherever a vector is encoded again."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence

#: What is encoded: a vector to be summed, a result on its way back, or a part that a schedule sums,
#: for which all workers draw the same numbers.
FORTH, BACK, TOGETHER = 0, 1, 2
#: Makes these numbers differ from all others that are drawn with the same seed.
_NAME = b"psrt codec"


class _Hashed(ISeedSequence):
    """Seeds a generator with the hash of a key, in a tenth of the time of a SeedSequence."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        size = n_words * np.dtype(dtype).itemsize
        digest = hashlib.blake2b(self._key, digest_size=size, person=_NAME).digest()
        return np.frombuffer(digest, dtype)


def seed_of_part(seed: int, part: int) -> int:
    """Return the seed for one part of a model, so that parts do not share their rounding errors.

    Args:
        seed: of the run; also that of the first part.
        part: its number.

    >>> seed_of_part(7, 0) == 7, seed_of_part(7, 1) == seed_of_part(7, 2)
    (True, False)
    """
    if not part:
        return seed
    return int(_Hashed(struct.pack("<2Q", seed, part)).generate_state(1, np.uint64)[0])


def draws(
    seed: int, worker: int, clock: int, shard: int, *, way: int = FORTH
) -> np.random.Generator:
    """Return a generator that depends on what is encoded alone: a replay draws the same numbers.

    >>> [draws(0, 1, 2, 3).random() == draws(0, 1, 2, clock).random() for clock in (3, 4)]
    [True, False]

    Args:
        seed: of the run.
        worker: the sender, or the receiver of a result; 0 for numbers that all workers share.
        clock: of the worker.
        shard: of the parameters; in an all-reduce, the chunk.
        way: ``FORTH``, ``BACK`` or ``TOGETHER``.
    """
    key = struct.pack("<5Q", seed, worker, clock, shard, way)
    # numpy's annotations omit that a bit generator takes any ISeedSequence.
    return np.random.Generator(np.random.PCG64(_Hashed(key)))  # type: ignore[arg-type]
