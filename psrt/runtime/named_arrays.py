"""The arrays that a flat vector of parameters consists of: their names, shapes and spans."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from operator import index
from typing import Any

from psrt.codec.matrices import Matrix
from psrt.core.arrays import AnyArray, Vector
from psrt.core.errors import ConfigError
from psrt.core.partition import Span

#: What an array of the parameters is called, and its shape.
NamedShape = tuple[str, tuple[int, ...]]
#: The optional method or attribute of a problem that has them.
_SAID_BY = "names_and_shapes"


class NamedArrays:
    """Arrays that lie one after another in a vector."""

    def __init__(self, arrays: Sequence[NamedShape]) -> None:
        """Set up, in the order of the vector."""
        #: By array: its name, shape and span.
        self.names = [name for name, _ in arrays]
        self.shapes = [shape for _, shape in arrays]
        stops = list(itertools.accumulate(map(math.prod, self.shapes), initial=0))
        self.spans = [Span(a, b) for a, b in itertools.pairwise(stops)]
        #: Elements of the vector.
        self.n: int = stops[-1]

    def arrays(self) -> list[NamedShape]:
        """Return the name and shape of each array."""
        return list(zip(self.names, self.shapes, strict=True))

    def views(self, vector: Vector) -> Sequence[AnyArray]:
        """Return the arrays as views of a vector (n,)."""
        return [
            span.of(vector).reshape(shape)
            for span, shape in zip(self.spans, self.shapes, strict=True)
        ]

    def named(self, vector: Vector) -> dict[str, AnyArray]:
        """Return the arrays by name, as views of a vector (n,)."""
        return dict(zip(self.names, self.views(vector), strict=True))

    def matrices(self) -> list[Matrix]:
        """Return the arrays with two or more axes as matrices, all axes but the last together.

        So a convolution kernel in JAX's order (height, width, in, out) is a matrix with a column
        for each output channel, as is a dense layer's (in, out).

        >>> NamedArrays([("b", (5,)), ("w", (2, 3, 4))]).matrices()
        [Matrix(start=5, rows=6, columns=4)]
        """
        found = []
        for span, shape in zip(self.spans, self.shapes, strict=True):
            if len(shape) > 1 and min(shape[-1], span.size // max(1, shape[-1])) > 1:
                found.append(Matrix(span.start, span.size // shape[-1], shape[-1]))
        return found


def named_arrays(problem: object, n: int) -> NamedArrays | None:
    """Return the arrays that a problem names by ``names_and_shapes``; None if it names none.

    Args:
        problem: has it as a method, or as an attribute.
        n: the number of its parameters.

    Raises:
        ConfigError: unless these are pairs of different names and shapes that cover [0, n).
    """
    asked = getattr(problem, _SAID_BY, None)
    if asked is None:
        return None
    given = asked() if callable(asked) else asked
    try:
        found = NamedArrays([(name, _shape(shape)) for name, shape in given])
    except (TypeError, ValueError):
        raise ConfigError(
            f"{_SAID_BY} gives {_short(given)}, expected a pair of name and shape for each array"
        ) from None
    _check_names(found.names)
    for (name, shape), span in zip(found.arrays(), found.spans, strict=True):
        if span.stop > n:
            raise ConfigError(
                f"{_SAID_BY}: {name} of shape {shape} ends at element {span.stop}, expected at "
                f"most {n}, the number of parameters"
            )
    if found.n != n:
        raise ConfigError(
            f"{_SAID_BY} end with {found.names[-1] if found.names else 'nothing'} at element "
            f"{found.n}, expected {n}: the last {n - found.n} parameters have no name"
        )
    return found


def tensors_of(problem: object) -> Callable[[Vector], Mapping[str, AnyArray]] | None:
    """Return what names the arrays of a vector (n,) of parameters: ``tensors`` of the problem.

    Returns:
        Views by name, and what else a problem's own ``tensors`` adds; None if nothing is named.
    """
    own: Callable[[Vector], Mapping[str, AnyArray]] | None = getattr(problem, "tensors", None)
    if callable(own):
        return own
    if getattr(problem, _SAID_BY, None) is None:
        return None

    def tensors(theta: Vector) -> Mapping[str, AnyArray]:
        found = named_arrays(problem, theta.size)
        assert found is not None, "it has names"
        return found.named(theta)

    return tensors


def _shape(given: Any) -> tuple[int, ...]:
    shape = tuple(map(index, given if isinstance(given, Sequence) else [given]))
    if any(length < 1 for length in shape):
        raise ValueError(shape)
    return shape


def _check_names(names: Sequence[Any]) -> None:
    for at, name in enumerate(names):
        if not isinstance(name, str) or not name or name == "__metadata__":
            raise ConfigError(f"{_SAID_BY}: {name!r} is no name of an array, expected a text")
        if name in names[:at]:
            raise ConfigError(f"{_SAID_BY}: {name} is there twice, expected different names")


def _short(given: object) -> str:
    text = repr(given)
    return text if len(text) <= 40 else f"{text[:40]}…"
