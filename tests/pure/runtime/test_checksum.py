"""The checksum that finds parameters that are not what they are elsewhere."""

from __future__ import annotations

import numpy as np

from psrt.runtime.checksum import checksum
from support.cases import each

VECTOR = np.linspace(-1, 1, 1000).astype(np.float32)


def test_equal_bits_have_equal_sums_of_63_bits():
    assert checksum(VECTOR) == checksum(VECTOR.copy())
    sums = [checksum(VECTOR[: i + 1]) for i in range(200)]
    assert all(0 <= number < 2**63 for number in sums)
    assert max(sums) > 2**62  # all of them are used
    assert checksum(VECTOR[:0]) >= 0


@each("bit", range(32))
@each("place", [0, 499, 999])
def test_a_flipped_bit_shows(place, bit):
    other = VECTOR.copy()
    other.view(np.uint32)[place] ^= np.uint32(1 << bit)
    assert checksum(other) != checksum(VECTOR)


def test_an_exchange_shows():
    other = VECTOR.copy()
    other[[3, 700]] = other[[700, 3]]
    assert checksum(other) != checksum(VECTOR)
