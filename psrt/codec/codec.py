"""The interface of codecs: a vector to a frame and back. Pure: arrays and a random generator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Protocol

import numpy as np

from psrt.codec.fields import Field, FieldReader
from psrt.codec.frame import HEADER_BYTES, MOST, Header, read_header, write_header
from psrt.codec.table import CodecRow
from psrt.core.arrays import Bytes, Vector
from psrt.core.errors import CodecError, ConfigError

#: Elements encoded at a time: 64 KiB of float32, which stay in the cache between passes.
BLOCK = 1 << 14


class Encoder(Protocol):
    """The sending side: a codec by itself, or with error feedback."""

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
        """(n,) float32, what frames have left out so far; None if later frames never have it."""

    def begin_epoch(self, epoch: int) -> None:
        """Note that an epoch of training begins, counted from 0."""

    def rescale(self, factor: float) -> None:
        """Multiply the residual, since vectors from now on are scaled by ``factor``."""

    def encode(self, vector: Vector, rng: np.random.Generator) -> Bytes:
        """Return the frame of a vector, valid until the next call; see ``Codec.encode``."""

    def decode(self, frame: Bytes, out: Vector) -> None:
        """Write the vector of a frame of this codec to ``out``; see ``Codec.decode``."""


class Codec:
    """Encodes vectors of one length into a buffer of its own, which the next call overwrites.

    A subclass sets ``row`` and defines ``_encode`` and ``_decode``.
    """

    #: Its row of the table.
    row: ClassVar[CodecRow]
    #: Attributes that a checkpoint saves, see ``psrt.checkpoint.state``. Decoding uses no state.
    saved: ClassVar[tuple[str, ...]] = ()
    by_element: ClassVar[tuple[str, ...]] = ()
    #: Parameter that both ends must agree on, in ``[0, 2**16)``.
    parameter: int = 0
    #: (n,) float32, what frames have left out so far; None if nothing is kept for later frames.
    residual: Vector | None = None

    def __init__(self, n: int, most: int) -> None:
        """Allocate the buffer for frames.

        Args:
            n: elements of a vector.
            most: bytes of the longest payload.

        Raises:
            ConfigError: if n is more than a frame's header can hold.
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
        """Note that an epoch of training begins, counted from 0; most codecs ignore it."""

    def rescale(self, factor: float) -> None:
        """Multiply the residual, since vectors from now on are scaled by ``factor``."""
        if self.residual is not None:
            np.multiply(self.residual, np.float32(factor), out=self.residual)

    def encode(self, vector: Vector, rng: np.random.Generator) -> Bytes:
        """Return the frame of a vector: a view, valid until the next call.

        Args:
            vector: (n,) float32; only read.
            rng: source of all randomness; the same state gives the same frame.
        """
        assert vector.shape == (self.n,), "a codec is for vectors of one length"
        payload = self._frame[HEADER_BYTES:]
        form, sent, nbytes = self._encode(vector, payload, rng)
        write_header(self._frame, Header(self.row.code, form, self.parameter, self.n, sent, nbytes))
        return self._frame[: HEADER_BYTES + nbytes]

    def decode(self, frame: Bytes, out: Vector) -> None:
        """Write the vector of a frame to ``out`` (n,).

        Raises:
            CodecError: if the frame is damaged, or of another codec, parameter or length of
                vectors.
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
        """Yield the fields of a frame of this codec, for display.

        Args:
            frame: encoded by this codec.
            decoded: (n,) the vector that the frame decodes to.
        """
        reader = FieldReader(frame)
        yield from reader.header()
        yield from self._fields(reader, read_header(frame), decoded)

    def _fields(self, reader: FieldReader, header: Header, decoded: Vector) -> Iterator[Field]:
        """Yield the fields of a payload: its bytes, unless a subclass describes its format."""
        for at in range(header.nbytes):
            yield reader.whole(1, f"byte {at} of the payload")

    def _encode(
        self, vector: Vector, payload: Bytes, rng: np.random.Generator
    ) -> tuple[int, int, int]:
        """Write the payload; return its form, the number of elements sent, and its bytes."""
        raise NotImplementedError

    def _decode(self, header: Header, payload: Bytes, out: Vector) -> None:
        """Write the vector of a payload whose header agrees with its length; check all else."""
        raise NotImplementedError


class DenseCodec(Codec):
    """A codec that sends every element, in payloads of one length."""

    #: Bits of an element's sign, exponent and mantissa, if it is sent as a number of its own.
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
        """Write all of the vector. Any bytes of this length must decode to something."""
        raise NotImplementedError
