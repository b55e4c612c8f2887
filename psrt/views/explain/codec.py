"""A codec at work on a small vector: its input, what it sends, its output, and what it keeps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from psrt.codec import CodecRow, Matrix, draws
from psrt.codec.fields import Field
from psrt.core.arrays import Vector

#: A vector with numbers of all sizes, a zero, and a largest one.
EXAMPLE = (0.3, -1.7, 2.25, 0.0, -0.1, 3.1, -4.0, 0.8)
#: A matrix of four rows and columns; a tenth of it is not of rank 1.
MATRIX = (1.0, 2.0, 3.0, 4.0, 2.0, 4.0, 6.1, 8.0, -1.0, -2.0, -3.0, -4.2, 0.5, 1.0, 1.5, 2.0)


@dataclass(frozen=True, slots=True)
class Step:
    """One vector, encoded and decoded."""

    #: (n,) each: the vector, the encoded one, and the decoded one.
    given: Vector
    encoded: Vector
    decoded: Vector
    #: (n,) what is kept back afterwards; None if nothing is.
    residual: Vector | None
    #: Fields of the frame, in order.
    fields: tuple[Field, ...]
    #: Bytes of the frame.
    nbytes: int


@dataclass(frozen=True, slots=True)
class CodedVectors:
    """The same vector, encoded again and again by one worker."""

    row: CodecRow
    error_feedback: bool
    steps: tuple[Step, ...]


def example_of(row: CodecRow) -> tuple[float, ...]:
    """Return the vector that is shown if none is given."""
    return MATRIX if "rank" in row.knobs else EXAMPLE


def run(
    row: CodecRow,
    values: Sequence[float],
    *,
    error_feedback: bool,
    steps: int = 1,
    seed: int = 0,
) -> CodedVectors:
    """Encode a vector a few times.

    Args:
        row: the codec.
        values: the vector; a codec of matrices uses the largest square at its beginning as one.
        error_feedback: whether the error is added to the next vector.
        steps: how often it is encoded.
        seed: seed of random draws.

    Raises:
        ConfigError: if the codec does not allow this.
    """
    vector = np.array(values, np.float32)
    side = math.isqrt(vector.size)
    matrices = [Matrix(0, side, side)] if side > 1 and "rank" in row.knobs else []
    sender = row.encoder(vector.size, error_feedback=error_feedback, matrices=matrices)
    receiver = row.codec(vector.size, matrices=matrices)
    found = []
    for clock in range(steps):
        kept = sender.residual
        encoded = vector + kept if error_feedback and kept is not None else vector.copy()
        frame = sender.encode(vector, draws(seed, 0, clock, 0)).copy()
        decoded = np.empty_like(vector)
        receiver.decode(frame, decoded)
        residual = None if sender.residual is None else sender.residual.copy()
        parts = tuple(receiver.fields(frame, decoded))
        found.append(Step(vector, encoded, decoded, residual, parts, frame.size))
    return CodedVectors(row, error_feedback, tuple(found))
