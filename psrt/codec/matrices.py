"""Where the matrices of a model lie in its flat vector, and in a span of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from psrt.core.arrays import FloatArray, Vector
from psrt.core.errors import ConfigError
from psrt.core.partition import Part, Span


class Matrix(NamedTuple):
    """A matrix within a flat vector: its first element, and its shape."""

    start: int
    rows: int
    columns: int

    @property
    def stop(self) -> int:
        """The element after its last one."""
        return self.start + self.rows * self.columns

    def of(self, vector: Vector) -> FloatArray:
        """Return a view (rows, columns) of it."""
        found: FloatArray = vector[self.start : self.stop]
        return found.reshape(self.rows, self.columns)


def matrices_within(matrices: Iterable[Matrix], span: Span) -> tuple[Matrix, ...]:
    """Return the matrices within a span, relative to its start; of a partial one, its whole rows.

    >>> matrices_within([Matrix(0, 4, 10), Matrix(50, 2, 3)], Span(15, 53))
    (Matrix(start=5, rows=2, columns=10), Matrix(start=35, rows=1, columns=3))
    """
    found = []
    for start, rows, columns in matrices:
        first = max(0, -((start - span.start) // columns))
        last = min(rows, (span.stop - start) // columns)
        if first < last:
            found.append(Matrix(start + first * columns - span.start, last - first, columns))
    return tuple(found)


def matrices_side_by_side(
    matrices: Iterable[Matrix], spans: Iterable[Span], first: int = 0
) -> tuple[Matrix, ...]:
    """Return the matrices of a vector that is a concatenation of spans of another vector.

    Args:
        matrices: of the other vector.
        spans: of the other vector.
        first: where the first span begins in this vector.

    >>> matrices_side_by_side([Matrix(0, 2, 5), Matrix(30, 2, 3)], [Span(20, 40), Span(0, 12)])
    (Matrix(start=10, rows=2, columns=3), Matrix(start=20, rows=2, columns=5))
    """
    found, given = list[Matrix](), tuple(matrices)
    for span in spans:
        found += [it._replace(start=first + it.start) for it in matrices_within(given, span)]
        first += span.size
    return tuple(found)


def matrices_of_part(matrices: Iterable[Matrix], part: Part) -> tuple[Matrix, ...]:
    """Return the matrices, whole or partial, of a vector that is a part of another vector.

    >>> from psrt.core.partition import Rectangle
    >>> part = Part([Rectangle(20, 1, 6, 6), Rectangle(2, rows=3, columns=2, pitch=4)])
    >>> matrices_of_part([Matrix(0, 3, 4), Matrix(20, 2, 3)], part)
    (Matrix(start=0, rows=2, columns=3), Matrix(start=6, rows=3, columns=2))
    """
    found, first, given = list[Matrix](), 0, tuple(matrices)
    for it in part:
        if it.rows == 1:
            found += matrices_side_by_side(given, [Span(it.start, it.start + it.columns)], first)
        elif any(of.start <= it.start < of.stop and of.columns == it.pitch for of in given):
            found.append(Matrix(first, it.rows, it.columns))
        first += it.size
    return tuple(found)


def between(matrices: Sequence[Matrix], n: int) -> list[Span]:
    """Return the spans before, between and after matrices.

    Args:
        matrices: in the order of their starts, disjoint.
        n: elements of the vector.

    Raises:
        ConfigError: if matrices overlap, are out of order, or exceed the vector.
    """
    found, at = [], 0
    for it in matrices:
        if it.start < at or it.stop > n or it.rows < 1 or it.columns < 1:
            raise ConfigError(
                f"a matrix of {it.rows} × {it.columns} at element {it.start}, expected it in "
                f"[{at}, {n})"
            )
        found.append(Span(at, it.start))
        at = it.stop
    found.append(Span(at, n))
    return [span for span in found if span.size]
