"""Sparse codecs: some elements are sent uncompressed, all others decode to 0.

A payload holds the k values as float32, in the order of their indices, then the indices in one of
the forms of ``indices.py``; in the dense form, all n values and no indices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from psrt.codec.codec import Codec, Encoder
from psrt.codec.feedback import codec_of
from psrt.codec.fields import FLOAT32, Field, FieldReader
from psrt.codec.frame import HEADER_BYTES, Header
from psrt.codec.indices import DENSE, Indices, index_fields, pack_indices, unpack_indices
from psrt.codec.table import CODECS
from psrt.core.arrays import AnyVector, Bytes, Vector
from psrt.core.errors import CodecError

#: All bits of a float32 but its sign. As integers, the bits of magnitudes are in the order of the
#: magnitudes, with NaN above infinity: comparing integers gives a total order.
_MAGNITUDE = np.uint32(0x7FFFFFFF)
#: Elements searched at a time: few enough for the cache, enough to make call overheads negligible.
_BLOCK = 1 << 17
#: A threshold is estimated from a sample of at least that many elements, and set so low that about
#: 1.5 · k elements are expected to reach it: falling below k would cost a second search.
_SAMPLE, _MARGIN = 4096, 1.5


def kept(n: int, density: float) -> int:
    """Return ⌈density · n⌉, at most n: at least one element of a vector that has any."""
    return min(n, math.ceil(density * n))


def longest_payload(n: int, k: int) -> int:
    """Return the most bytes that k of n elements take: 4 per value, and the indices.

    Whatever the indices are, uint32 takes 4·k bytes and a bitmap ⌈n/8⌉, so their shortest form
    takes no more than the lesser of the two; and the dense form, no more than 4·n in all.

    >>> longest_payload(1000, 10), longest_payload(1000, 1000)
    (80, 4000)
    """
    return min(4 * n, 4 * k + min(4 * k, -(-n // 8)))


def shortest_payload(n: int, k: int) -> int:
    """Return the fewest bytes that k of n elements take.

    Indices take at least a byte per gap, or a bit per element.

    >>> shortest_payload(1000, 10), shortest_payload(1000, 1000)
    (50, 4000)
    """
    return min(4 * n, 4 * k + min(k, -(-n // 8)))


class Chosen(Codec):
    """Values and indices of the elements that a subclass chooses, or a dense vector if shorter."""

    def __init__(self, n: int, most: int) -> None:
        super().__init__(n, longest_payload(n, most))
        #: Ascending indices of the last frame.
        self.chosen: Indices = np.zeros(0, np.int64)
        self._search = Search(n)

    @property
    def nbytes(self) -> None:
        """None: the length depends on which form of the indices is the shortest."""

    def _encode(
        self, vector: Vector, payload: Bytes, rng: np.random.Generator
    ) -> tuple[int, int, int]:
        chosen = self.chosen = self._choose(vector)
        k = chosen.size
        # Indices first: their form decides whether the values are sparse at all.
        form, nbytes = pack_indices(chosen, self.n, payload[4 * k :])
        if form == DENSE:
            values = payload[: 4 * self.n].view("<f4")
            values.fill(0)
            values[chosen] = vector[chosen]
            return form, self.n, 4 * self.n
        np.take(vector, chosen, out=payload[: 4 * k].view("<f4"), mode="clip")
        return form, k, 4 * k + nbytes

    def _decode(self, header: Header, payload: Bytes, out: Vector) -> None:
        # The header is only known to be consistent with the frame's length: a payload may still be
        # too short for the values that it should hold.
        at = 4 * header.sent
        if payload.size < at:
            raise CodecError(f"a payload of {payload.size} bytes, expected {at} of values")
        if header.form == DENSE and header.sent == self.n and payload.size == at:
            np.copyto(out, payload.view("<f4"))
            return
        chosen = unpack_indices(header.form, payload[at:], header.sent, self.n)
        out.fill(0)
        out[chosen] = payload[:at].view("<f4")

    def _fields(self, reader: FieldReader, header: Header, decoded: Vector) -> Iterator[Field]:
        if header.form == DENSE:
            for i in range(self.n):
                yield reader.float32(f"[{i}]")
            return
        start = reader.at // 8 + 4 * header.sent
        packed = np.frombuffer(reader.data[start:], np.uint8)
        indices = unpack_indices(header.form, packed, header.sent, self.n).tolist()
        for i in indices:
            yield reader.float32(f"value of [{i}]:")
        yield from index_fields(reader, header.form, indices, self.n)

    def _choose(self, vector: Vector) -> Indices:
        """Return the ascending indices of the elements to send."""
        raise NotImplementedError


class Search:
    """Finds the largest elements of vectors of one length, with preallocated scratch memory."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._magnitudes = np.empty(min(n, _BLOCK), np.float32)
        self._below = np.empty(min(n, _BLOCK), np.bool_)

    def at_least(self, vector: Vector, threshold: np.float32) -> Indices:
        """Return the ascending indices of magnitudes that reach a threshold, those of NaN included.

        So a NaN is always sent, and the receiver sees that the run diverged.
        """
        found = [np.zeros(0, np.int64)]
        with np.errstate(invalid="ignore"):
            for at in range(0, self._n, _BLOCK):
                block = vector[at : at + _BLOCK]
                below = self._below[: block.size]
                magnitudes = np.abs(block, out=self._magnitudes[: block.size])
                # Not "at least" but "not below": every comparison with NaN is false.
                np.less(magnitudes, threshold, out=below)
                found.append(_nonzero(np.logical_not(below, out=below), at))
        return np.concatenate(found)

    def largest(self, vector: Vector, k: int) -> Indices:
        """Return the ascending indices of the k largest magnitudes; among equal ones, the first.

        NaN is larger than infinity.
        """
        if k == self._n:
            return np.arange(k)
        among = self._candidates(vector, k)
        # The k-th largest by integer bits; no float comparison, which NaN would break.
        magnitudes = np.take(vector, among, mode="clip").view(np.uint32) & _MAGNITUDE
        least = np.partition(magnitudes, magnitudes.size - k)[magnitudes.size - k]
        wanted = magnitudes >= least
        # Ties may make it more than k: the last of them are dropped, so that the choice depends on
        # the vector alone and a replay makes the same one.
        if surplus := int(np.count_nonzero(wanted)) - k:
            wanted[np.flatnonzero(magnitudes == least)[-surplus:]] = False
        return np.compress(wanted, among)

    def _candidates(self, vector: Vector, k: int) -> Indices:
        """Return indices that include the k largest: those above an estimated threshold, or all."""
        n, stride = self._n, max(1, self._n // _SAMPLE)
        sample = vector[::stride].view(np.uint32) & _MAGNITUDE
        rank = math.ceil(_MARGIN * k * sample.size / n) + 8
        if stride > 1 and rank < sample.size:
            guess = np.partition(sample, sample.size - rank)[sample.size - rank]
            found = self.at_least(vector, guess.view(np.float32))
            # A threshold that at least k elements reach excludes none of the k largest: the
            # sample decides how long the search takes, never what it finds.
            if found.size >= k:
                return found
        return np.arange(n)


def _nonzero(mask: npt.NDArray[np.bool_], start: int) -> Indices:
    """Return the positions at which a mask is set, plus ``start``.

        Faster than ``numpy.nonzero`` for masks of which a tenth to a hundredth is set: there numpy
    visits one set element after another. Here eight elements are packed into a byte, and only bytes
        that are not 0 are searched.
    """
    packed = np.packbits(mask)
    some = (packed != 0).nonzero()[0]
    if 3 * some.size > packed.size:
        return mask.nonzero()[0] + start
    at = np.unpackbits(packed[some]).view(np.bool_).nonzero()[0]
    found: Indices = np.take((some << 3) + start, at >> 3, mode="clip")
    at &= 7
    found += at
    return found


class TopK(Chosen):
    """The k elements of the largest magnitude; among equal ones, the first.

    Source: Aji & Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017,
    arXiv:1704.05021.

    >>> codec, out = TopK(5, density=0.4), np.empty(5, np.float32)
    >>> codec.decode(codec.encode(np.array([1, -5, 2, 3, 0], np.float32), None), out)
    >>> out.tolist()
    [0.0, -5.0, 0.0, 3.0, 0.0]
    """

    row = CODECS["top-k"]

    def __init__(self, n: int, *, density: float) -> None:
        self.k = kept(n, density)
        super().__init__(n, self.k)

    @property
    def shortest(self) -> int:
        """Bytes of the shortest frame of this epoch."""
        return HEADER_BYTES + shortest_payload(self.n, self.k)

    def _choose(self, vector: Vector) -> Indices:
        return self._search.largest(vector, self.k)


class Threshold(Chosen):
    """The elements whose magnitude is at least a threshold: any number of them, possibly none."""

    row = CODECS["threshold"]

    def __init__(self, n: int, *, threshold: float) -> None:
        """Set up.

        Args:
            n: elements of a vector.
            threshold: more than 0.
        """
        super().__init__(n, n)
        self._threshold = np.float32(threshold)

    def _choose(self, vector: Vector) -> Indices:
        return self._search.at_least(vector, self._threshold)


class Nonzero(Chosen):
    """The elements whose bits are not all 0: lossless.

    For means of sparse vectors, whose elements are those that any of the vectors has. Source:
    Renggli et al., "SparCML", SC 2019, arXiv:1802.08021, whose sums stay sparse while that is
    shorter.

    >>> codec, out = Nonzero(9), np.empty(9, np.float32)
    >>> frame = codec.encode(np.array([0, 0, -5, 0, 0, 0, 0.1, 0, 0], np.float32), None)
    >>> codec.decode(frame, out)
    >>> frame.size, out.tolist()[2]
    (30, -5.0)
    """

    row = CODECS["nonzero"]

    def __init__(self, n: int) -> None:
        super().__init__(n, n)
        #: Returns an upper bound on the bytes of a payload; see ``sum_of``.
        self.bound: Callable[[], int] = lambda: self.most

    @property
    def longest(self) -> int:
        """Bytes of the longest frame of this epoch."""
        return HEADER_BYTES + min(self.most, self.bound())

    def _choose(self, vector: Vector) -> Indices:
        # By bits, not by value: -0.0 equals 0, but must come back as -0.0.
        return _nonzero(vector.view(np.uint32) != 0, 0)


def sum_of(senders: Encoder, count: int, mean: Encoder) -> None:
    """Bound the frames of ``mean``, which encodes sums of ``count`` sparse vectors.

    A sum has at most as many elements as all vectors together, and ``longest_payload`` grows no
    faster than k.

    Args:
        senders: an encoder like those of the vectors.
        count: number of vectors.
        mean: encodes their sum or mean; no bound is set unless it is ``Nonzero``.
    """
    if not isinstance(mean, Nonzero) or mean is senders:
        return
    codec = codec_of(senders)
    if isinstance(codec, RandomK):  # sends a seed, but the sum has indices
        each = longest_payload(codec.n, codec.k)
        mean.bound = lambda: count * each
    elif isinstance(codec, Chosen):
        # Called at each use: with a warm-up, the longest frame differs between epochs.
        mean.bound = lambda: count * (senders.longest - HEADER_BYTES)


def drawn(seed: int, n: int, k: int) -> Indices:
    """Return k ascending indices below n, drawn by a seed: all sets of k are equally likely.

    They are the first k distinct values of a sequence; above n/2, the indices that n − k such
    values leave over. Only raw output of PCG64 is used, which is the same in every version of
    numpy, so both ends draw the same indices even with different versions.

    >>> drawn(1, 10, 3)
    array([1, 5, 9])
    """
    if 2 * k > n:
        left = np.ones(n, np.bool_)
        left[drawn(seed, n, n - k)] = False
        return np.flatnonzero(left)
    bits, taken = np.random.PCG64(seed), np.zeros(n, np.bool_)
    missing = k
    # Each round draws exactly as many values as are missing: all of them are taken, so their order
    # within a round does not matter, and duplicates only make another round.
    while missing:
        # 32 random bits times n, over 2**32: uniform below n, with a bias of at most n / 2**32. As
        # n is below 2**32, the product fits into 64 bits.
        places = (bits.random_raw(missing) >> np.uint64(32)) * np.uint64(n) >> np.uint64(32)
        taken[places.astype(np.int64)] = True
        missing = k - int(np.count_nonzero(taken))
    return np.flatnonzero(taken)


class RandomK(Codec):
    """Elements drawn at random: a seed is sent instead of their indices.

    Scaled by n/k it is unbiased. With error feedback it must not be scaled: a residual r would be
    sent as r·n/k and leave −r·(n/k − 1), which grows from step to step if k < n/2.

    Source: Stich, Cordonnier & Jaggi, "Sparsified SGD with Memory", NeurIPS 2018, arXiv:1809.07599.
    """

    row = CODECS["random-k"]

    def __init__(self, n: int, *, density: float, scaled: bool) -> None:
        """Set up.

        Args:
            n: elements of a vector.
            density: fraction of the elements that is sent, in (0, 1].
            scaled: whether sent values are multiplied by n/k.

        Raises:
            ConfigError: if a frame cannot hold n elements.
        """
        self.k = kept(n, density)
        super().__init__(n, 8 + 4 * self.k)
        self.parameter = int(scaled)
        self.parts, self.dtype = (self.k,), np.dtype(np.float32)
        #: Indices of the current round, the same on all workers.
        self._together: Indices = np.zeros(0, np.int64)
        self._factor = np.float32(n / self.k if scaled and self.k else 1.0)

    def _encode(
        self, vector: Vector, payload: Bytes, rng: np.random.Generator
    ) -> tuple[int, int, int]:
        seed = int(rng.bit_generator.random_raw())
        payload[:8].view("<u8")[0] = seed
        self._take(vector, drawn(seed, self.n, self.k), payload[8:].view("<f4"))
        return 0, self.k, self.most

    def _take(self, vector: Vector, chosen: Indices, values: Vector) -> None:
        np.take(vector, chosen, out=values, mode="clip")
        with np.errstate(over="ignore"):
            np.multiply(values, self._factor, out=values)

    def _fields(self, reader: FieldReader, header: Header, decoded: Vector) -> Iterator[Field]:
        seed = reader.peek(64)
        yield reader.whole(8, "seed, from which the indices follow")
        for i in drawn(seed, self.n, self.k).tolist():
            yield reader.take(FLOAT32, f"[{i}] {decoded[i]:g}")

    def _decode(self, header: Header, payload: Bytes, out: Vector) -> None:
        if (header.form, header.sent, header.nbytes) != (0, self.k, self.most):
            raise CodecError(
                f"a payload of form {header.form} with {header.sent} elements in {header.nbytes} "
                f"bytes, expected form 0 with {self.k} in {self.most}"
            )
        out.fill(0)
        seed = int(payload[:8].view("<u8")[0])
        out[drawn(seed, self.n, self.k)] = payload[8:].view("<f4")

    def begin(self, rng: np.random.Generator) -> None:
        """Draw the indices that all workers send in this round."""
        self._together = drawn(int(rng.bit_generator.random_raw()), self.n, self.k)

    def project(self, part: int, vector: Vector, out: AnyVector) -> None:
        """Write the values at the indices of this round."""
        self._take(vector, self._together, out)

    def agree(self, part: int, mean: Vector) -> None:
        """Do nothing: there is one part."""

    def expand(self, parts: Sequence[Vector], out: Vector) -> None:
        """Write the values to the indices of this round, and 0 elsewhere."""
        out.fill(0)
        out[self._together] = parts[0]
