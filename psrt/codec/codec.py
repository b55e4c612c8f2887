"""The interface of all codecs: a vector in, a frame out, and back. Pure: arrays and a generator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Protocol

import numpy as np

from psrt.codec.fields import Field, FieldReader
from psrt.codec.frame import HEADER_BYTES, MOST, Header, read_header, write_header
from psrt.codec.table import CodecRow
from psrt.core.arrays import Bytes, Vector
from psrt.core.errors import CodecError, ConfigError

#: Elements that are encoded at a time: 64 KiB, so that they stay in the cache between passes.
BLOCK = 1 << 14


class Encoder(Protocol):
    """A sender's side: a codec, with or without error feedback."""

    @property
    def n(self) -> int:
        """Elements of a vector."""

    @property
    def most(self) -> int:
        """Bytes of the longest payload."""

    @property
    def nbytes(self) -> int | None:
        """Bytes of every frame; None where they depend on the numbers."""

    @property
    def longest(self) -> int:
        """Bytes of the longest frame of this epoch."""

    @property
    def residual(self) -> Vector | None:
        """(n,) the part kept back for later frames; None if nothing is."""

    def begin_epoch(self, epoch: int) -> None:
        """Note the start of an epoch of training, counted from 0."""

    def rescale(self, factor: float) -> None:
        """Multiply what is kept back, after the vectors that it belongs to were scaled."""

    def encode(self, vector: Vector, rng: np.random.Generator) -> Bytes:
        """Return the frame of a vector, valid until the next call; see ``Codec.encode``."""

    def decode(self, frame: Bytes, out: Vector) -> None:
        """Write the vector of a frame of this codec to ``out``; see ``Codec.decode``."""


class Codec:
    """Encodes vectors of one length into its own frame, which the next call overwrites.

    A subclass sets ``row`` and fills in ``_encode`` and ``_decode``.
    """

    #: The codec's row in the table.
    row: ClassVar[CodecRow]
    #: The state in a checkpoint, see ``psrt.checkpoint.state``: a receiver's side has none.
    saved: ClassVar[tuple[str, ...]] = ()
    by_element: ClassVar[tuple[str, ...]] = ()
    #: Parameter that both ends must agree on, in ``[0, 2**16)``.
    parameter: int = 0
    #: (n,) the part kept back for later frames; None if nothing is.
    residual: Vector | None = None

    def __init__(self, n: int, most: int) -> None:
        """Allocate the frame.

        Args:
            n: elements of a vector.
            most: bytes of the longest payload.

        Raises:
            ConfigError: if a frame cannot hold the number of elements.
        """
        if not 0 <= n <= MOST:
            raise ConfigError(f"a codec for {n} elements, expected 0 to {MOST}")
        self.n = n
        #: Bytes of the longest payload.
        self.most = most
        self._frame: Bytes = np.zeros(HEADER_BYTES + most, np.uint8)

    @property
    def nbytes(self) -> int | None:
        """Bytes of every frame; None where they depend on the numbers."""
        return HEADER_BYTES + self.most

    @property
    def longest(self) -> int:
        """Bytes of the longest frame of this epoch."""
        return HEADER_BYTES + self.most

    @property
    def shortest(self) -> int:
        """Bytes of the shortest frame of this epoch."""
        return HEADER_BYTES if self.nbytes is None else self.nbytes

    def begin_epoch(self, epoch: int) -> None:
        """Note the start of an epoch of training, counted from 0. Most codecs do nothing then."""

    def rescale(self, factor: float) -> None:
        """Multiply what is kept back, after the vectors that it belongs to were scaled."""
        if self.residual is not None:
            np.multiply(self.residual, np.float32(factor), out=self.residual)

    def encode(self, vector: Vector, rng: np.random.Generator) -> Bytes:
        """Return the frame of a vector, valid until the next call.

        Args:
            vector: (n,) float32; only read.
            rng: for all random draws; the same state gives the same frame.
        """
        assert vector.shape == (self.n,), "a codec is for vectors of one length"
        payload = self._frame[HEADER_BYTES:]
        form, sent, nbytes = self._encode(vector, payload, rng)
        write_header(self._frame, Header(self.row.code, form, self.parameter, self.n, sent, nbytes))
        return self._frame[: HEADER_BYTES + nbytes]

    def decode(self, frame: Bytes, out: Vector) -> None:
        """Write the vector of a frame to ``out`` (n,).

        Raises:
            CodecError: if the frame is not one of this codec, for vectors of this length.
        """
        header = read_header(frame)
        expected = self.row.code, self.parameter, self.n
        if (header.code, header.parameter, header.n) != expected:
            raise CodecError(
                f"a frame of codec {header.code} with parameter {header.parameter} for {header.n} "
                "elements, expected codec {} with parameter {} for {}".format(*expected)
            )
        if header.nbytes > self.most:
            raise CodecError(f"a payload of {header.nbytes} bytes, expected at most {self.most}")
        self._decode(header, frame[HEADER_BYTES:], out)

    def fields(self, frame: Bytes, decoded: Vector) -> Iterator[Field]:
        """Yield the parts of a frame of this codec, for people.

        Args:
            frame: a frame that it has encoded.
            decoded: (n,) the decoded frame.
        """
        reader = FieldReader(frame)
        yield from reader.header()
        yield from self._fields(reader, read_header(frame), decoded)

    def _fields(self, reader: FieldReader, header: Header, decoded: Vector) -> Iterator[Field]:
        """Yield the parts of a payload; a codec with a known layout describes them."""
        for at in range(header.nbytes):
            yield reader.whole(1, f"byte {at} of the payload")

    def _encode(
        self, vector: Vector, payload: Bytes, rng: np.random.Generator
    ) -> tuple[int, int, int]:
        """Write the payload; return its form, the elements sent, and its bytes."""
        raise NotImplementedError

    def _decode(self, header: Header, payload: Bytes, out: Vector) -> None:
        """Write the vector of a payload, of which only the length has been checked."""
        raise NotImplementedError


class DenseCodec(Codec):
    """A codec that sends every element, in a payload of always the same length."""

    #: Lengths of the parts of an element's bits, such as sign, exponent, mantissa; empty: no parts.
    parts_of_element: ClassVar[Sequence[int]] = ()

    def _encode(
        self, vector: Vector, payload: Bytes, rng: np.random.Generator
    ) -> tuple[int, int, int]:
        self._pack(vector, payload, rng)
        return 0, self.n, self.most

    def _decode(self, header: Header, payload: Bytes, out: Vector) -> None:
        if (header.form, header.sent, header.nbytes) != (0, self.n, self.most):
            raise CodecError(
                f"a payload of form {header.form} with {header.sent} elements in {header.nbytes} "
                f"bytes, expected form 0 with {self.n} in {self.most}"
            )
        self._unpack(payload, out)

    def _fields(self, reader: FieldReader, header: Header, decoded: Vector) -> Iterator[Field]:
        if not self.parts_of_element:
            yield from super()._fields(reader, header, decoded)
            return
        for i in range(self.n):
            yield reader.take(self.parts_of_element, f"[{i}] {decoded[i]:g}")
        yield from reader.rest()

    def _pack(self, vector: Vector, payload: Bytes, rng: np.random.Generator) -> None:
        """Write all of the payload."""
        raise NotImplementedError

    def _unpack(self, payload: Bytes, out: Vector) -> None:
        """Write all of the vector; every payload of this length is valid."""
        raise NotImplementedError
