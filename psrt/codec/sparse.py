"""Some elements are sent as they are; the others are decoded as 0."""

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

_MAGNITUDE = np.uint32(0x7FFFFFFF)
#: Elements that are searched together: they stay in the cache, and calls cost little.
_BLOCK = 1 << 17
#: For guessing a threshold: the fewest elements of a sample, and the factor on the wanted share, so
#: that enough elements lie above the guess.
_SAMPLE, _MARGIN = 4096, 1.5


def kept(n: int, density: float) -> int:
    """Return the number of n elements that a density keeps, rounded up: at least 1 if n > 0."""
    return min(n, math.ceil(density * n))


def longest_payload(n: int, k: int) -> int:
    """Return the most bytes of k of n elements: 4 per value, and the shortest form of indices.

    >>> longest_payload(1000, 10), longest_payload(1000, 1000)
    (80, 4000)
    """
    return min(4 * n, 4 * k + min(4 * k, -(-n // 8)))


def shortest_payload(n: int, k: int) -> int:
    """Return the fewest bytes of k of n elements.

    Indices take at least a byte per gap, or a bit for each element.

    >>> shortest_payload(1000, 10), shortest_payload(1000, 1000)
    (50, 4000)
    """
    return min(4 * n, 4 * k + min(k, -(-n // 8)))


class Chosen(Codec):
    """Values, then indices, of the elements that a subclass chooses; or all of a vector."""

    def __init__(self, n: int, most: int) -> None:
        super().__init__(n, longest_payload(n, most))
        #: Indices in the last frame, ascending.
        self.chosen: Indices = np.zeros(0, np.int64)
        self._search = Search(n)

    @property
    def nbytes(self) -> None:
        """None: the length depends on the shortest form of the indices."""

    def _encode(
        self, vector: Vector, payload: Bytes, rng: np.random.Generator
    ) -> tuple[int, int, int]:
        chosen = self.chosen = self._choose(vector)
        k = chosen.size
        form, nbytes = pack_indices(chosen, self.n, payload[4 * k :])
        if form == DENSE:
            values = payload[: 4 * self.n].view("<f4")
            values.fill(0)
            values[chosen] = vector[chosen]
            return form, self.n, 4 * self.n
        np.take(vector, chosen, out=payload[: 4 * k].view("<f4"), mode="clip")
        return form, k, 4 * k + nbytes

    def _decode(self, header: Header, payload: Bytes, out: Vector) -> None:
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
        """Return the indices of the elements to send, ascending."""
        raise NotImplementedError


class Search:
    """Searches vectors of one length for large elements, with reusable memory."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._magnitudes = np.empty(min(n, _BLOCK), np.float32)
        self._below = np.empty(min(n, _BLOCK), np.bool_)

    def at_least(self, vector: Vector, threshold: np.float32) -> Indices:
        """Return the indices of magnitudes that reach a threshold, ascending, including NaN.

        A NaN is so sent, and ends the run.
        """
        found = [np.zeros(0, np.int64)]
        with np.errstate(invalid="ignore"):
            for at in range(0, self._n, _BLOCK):
                block = vector[at : at + _BLOCK]
                below = self._below[: block.size]
                magnitudes = np.abs(block, out=self._magnitudes[: block.size])
                np.less(magnitudes, threshold, out=below)
                found.append(_nonzero(np.logical_not(below, out=below), at))
        return np.concatenate(found)

    def largest(self, vector: Vector, k: int) -> Indices:
        """Return the indices of the k largest magnitudes, ascending; of equal ones the first.

        NaN is larger than infinity.
        """
        if k == self._n:
            return np.arange(k)
        among = self._candidates(vector, k)
        # As whole numbers, the bits of magnitudes are in the same order.
        magnitudes = np.take(vector, among, mode="clip").view(np.uint32) & _MAGNITUDE
        least = np.partition(magnitudes, magnitudes.size - k)[magnitudes.size - k]
        wanted = magnitudes >= least
        if surplus := int(np.count_nonzero(wanted)) - k:
            wanted[np.flatnonzero(magnitudes == least)[-surplus:]] = False
        return np.compress(wanted, among)

    def _candidates(self, vector: Vector, k: int) -> Indices:
        """Return indices that include the k largest; few, if a guessed threshold succeeds."""
        n, stride = self._n, max(1, self._n // _SAMPLE)
        sample = vector[::stride].view(np.uint32) & _MAGNITUDE
        rank = math.ceil(_MARGIN * k * sample.size / n) + 8
        if stride > 1 and rank < sample.size:
            guess = np.partition(sample, sample.size - rank)[sample.size - rank]
            found = self.at_least(vector, guess.view(np.float32))
            if found.size >= k:
                return found
        return np.arange(n)


def _nonzero(mask: npt.NDArray[np.bool_], start: int) -> Indices:
    """Return where a mask is set, counted from ``start``.

    It is faster than numpy if one in ten to a hundred is set. Below a tenth numpy looks at elements
    one by one. Here bytes of eight elements are found first, of which more are set.
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
    """The largest elements by magnitude; of equal ones the first.

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
    """The elements whose magnitude is at least a threshold: any number of them, even none."""

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
    """The elements that are not zero, bit for bit, so that nothing is lost.

    The mean of sparse vectors has the elements that any of them had. Source: Renggli et al.,
    "SparCML", SC 2019, arXiv:1802.08021, whose sums stay sparse as long as that is shorter.

    >>> codec, out = Nonzero(9), np.empty(9, np.float32)
    >>> frame = codec.encode(np.array([0, 0, -5, 0, 0, 0, 0.1, 0, 0], np.float32), None)
    >>> codec.decode(frame, out)
    >>> frame.size, out.tolist()[2]
    (30, -5.0)
    """

    row = CODECS["nonzero"]

    def __init__(self, n: int) -> None:
        super().__init__(n, n)
        #: Returns an upper bound of the bytes of a payload.
        self.bound: Callable[[], int] = lambda: self.most

    @property
    def longest(self) -> int:
        """Bytes of the longest frame of this epoch."""
        return HEADER_BYTES + min(self.most, self.bound())

    def _choose(self, vector: Vector) -> Indices:
        # -0 has a bit set, and so is kept.
        return _nonzero(vector.view(np.uint32) != 0, 0)


def sum_of(senders: Encoder, count: int, mean: Encoder) -> None:
    """Note that a sum is encoded: a sum of sparse vectors is no longer than all of them together.

    Args:
        senders: an encoder like those of the vectors.
        count: of the vectors.
        mean: the encoder of their sum, or of their mean.
    """
    if not isinstance(mean, Nonzero) or mean is senders:
        return
    codec = codec_of(senders)
    if isinstance(codec, RandomK):  # whose indices are not sent
        each = longest_payload(codec.n, codec.k)
        mean.bound = lambda: count * each
    elif isinstance(codec, Chosen):
        mean.bound = lambda: count * (senders.longest - HEADER_BYTES)


def drawn(seed: int, n: int, k: int) -> Indices:
    """Return k of n indices by a seed, ascending: each set of k is equally likely.

    They are the first k different ones of a sequence or, if k is more than half, the others. Only
    the bits of PCG64 are used, which are the same in every version of numpy: both ends may differ.

    >>> drawn(1, 10, 3)
    array([1, 5, 9])
    """
    if 2 * k > n:
        left = np.ones(n, np.bool_)
        left[drawn(seed, n, n - k)] = False
        return np.flatnonzero(left)
    bits, taken = np.random.PCG64(seed), np.zeros(n, np.bool_)
    missing = k
    while missing:  # never draws more at a time than are missing, so their order does not matter
        places = (bits.random_raw(missing) >> np.uint64(32)) * np.uint64(n) >> np.uint64(32)
        taken[places.astype(np.int64)] = True
        missing = k - int(np.count_nonzero(taken))
    return np.flatnonzero(taken)


class RandomK(Codec):
    """Elements drawn at random; the seed is sent, from which the indices follow.

    Scaled by n/k, the mean of what is decoded is the vector. With error feedback it must not be
    scaled: the scaled sum of the sent and the kept part would grow from step to step.

    Source: Stich, Cordonnier & Jaggi, "Sparsified SGD with Memory", NeurIPS 2018, arXiv:1809.07599.
    """

    row = CODECS["random-k"]

    def __init__(self, n: int, *, density: float, scaled: bool) -> None:
        """Set up.

        Args:
            n: elements of a vector.
            density: the share of them that is sent, in (0, 1].
            scaled: whether sent elements are multiplied by n/k.

        Raises:
            ConfigError: if that is not a density.
        """
        self.k = kept(n, density)
        super().__init__(n, 8 + 4 * self.k)
        self.parameter = int(scaled)
        self.parts, self.dtype = (self.k,), np.dtype(np.float32)
        #: Indices that all workers send for a sum.
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
        """Draw the indices that all workers send."""
        self._together = drawn(int(rng.bit_generator.random_raw()), self.n, self.k)

    def project(self, part: int, vector: Vector, out: AnyVector) -> None:
        """Write the values at these indices."""
        self._take(vector, self._together, out)

    def agree(self, part: int, mean: Vector) -> None:
        """Do nothing: there is one part."""

    def expand(self, parts: Sequence[Vector], out: Vector) -> None:
        """Put values at these indices."""
        out.fill(0)
        out[self._together] = parts[0]
