"""Parts of a flat vector, and how a model is split into shards. Pure: views, never copies.

It does not import numpy, so that the command line starts without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from psrt.core.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

ScalarT = TypeVar("ScalarT", bound="np.generic")
#: Length of the longest span that ``layered_spans`` makes, in even spans.
_LONGEST = 1.25


class Span(NamedTuple):
    """Elements ``start`` (inclusive) to ``stop`` (exclusive) of a flat vector."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.stop - self.start

    def of(
        self, vector: np.ndarray[tuple[int], np.dtype[ScalarT]]
    ) -> np.ndarray[tuple[int], np.dtype[ScalarT]]:
        """Return the view of ``vector`` that this span names; nothing is copied."""
        return vector[self.start : self.stop]


class Rectangle(NamedTuple):
    """Some rows and columns of a matrix in a flat vector.

    >>> import numpy as np
    >>> matrix = np.arange(12.0, dtype=np.float32)  # 3 rows of 4
    >>> Rectangle(5, rows=2, columns=2, pitch=4).of(matrix)
    array([[ 5.,  6.],
           [ 9., 10.]], dtype=float32)
    """

    #: Its first element.
    start: int
    #: Rows, and elements of each.
    rows: int
    columns: int
    #: Elements from the beginning of a row to the beginning of the next one.
    pitch: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.rows * self.columns

    def of(
        self, vector: np.ndarray[tuple[int], np.dtype[ScalarT]]
    ) -> np.ndarray[tuple[int, int], np.dtype[ScalarT]]:
        """Return a view (rows, columns) of ``vector``; nothing is copied."""
        import numpy as np

        strides = (self.pitch * vector.itemsize, vector.itemsize)
        last = self.start + (self.rows - 1) * self.pitch + self.columns
        inside = vector[self.start : last if self.size else self.start]
        return np.lib.stride_tricks.as_strided(inside, (self.rows, self.columns), strides)


class Part(tuple[Rectangle, ...]):
    """Some elements of a vector, in any order.

    >>> import numpy as np
    >>> part = Part.of_spans([Span(6, 8), Span(0, 1)])
    >>> part.take(np.arange(9.0, dtype=np.float32))
    array([6., 7., 0.], dtype=float32)
    """

    __slots__ = ()

    @classmethod
    def of_spans(cls, spans: Iterable[Span]) -> Part:
        """Return the part that has these spans, one after another."""
        return cls(Rectangle(span.start, 1, span.size, span.size) for span in spans)

    @property
    def size(self) -> int:
        """Number of elements."""
        return sum(it.size for it in self)

    def take(
        self, whole: np.ndarray[tuple[int], np.dtype[ScalarT]]
    ) -> np.ndarray[tuple[int], np.dtype[ScalarT]]:
        """Return a copy of these elements of ``whole``."""
        import numpy as np

        mine = np.empty(self.size, whole.dtype)
        for place, it in self._places():
            mine[place] = it.of(whole).reshape(-1)
        return mine

    def put(
        self,
        mine: np.ndarray[tuple[int], np.dtype[ScalarT]],
        whole: np.ndarray[tuple[int], np.dtype[ScalarT]],
    ) -> None:
        """Write the result of ``take`` back into the whole vector."""
        for place, it in self._places():
            it.of(whole)[...] = mine[place].reshape(it.rows, it.columns)

    def spans(self, of: Span) -> tuple[Span, ...]:
        """Return where some of its elements are in the whole vector, in the part's order.

        >>> Part([Rectangle(5, rows=2, columns=2, pitch=4)]).spans(Span(1, 4))
        (Span(start=6, stop=7), Span(start=9, stop=11))
        """
        found: list[Span] = []
        at = 0
        for it in self:
            for i in range(it.rows):
                start = it.start + i * it.pitch
                row = Span(max(of.start - at, 0), min(of.stop - at, it.columns))
                if row.start < row.stop:
                    if found and found[-1].stop == start + row.start:
                        row = Span(found.pop().start - start, row.stop)
                    found.append(Span(start + row.start, start + row.stop))
                at += it.columns
        return tuple(found)

    def _places(self) -> Iterator[tuple[slice, Rectangle]]:
        at = 0
        for it in self:
            yield slice(at, at + it.size), it
            at += it.size


def even_spans(n: int, parts: int) -> tuple[Span, ...]:
    """Split ``n`` elements into ``parts`` contiguous spans whose sizes differ by at most one.

    The larger spans come first; with fewer elements than parts the last spans are empty.

    >>> even_spans(7, 3)
    (Span(start=0, stop=3), Span(start=3, stop=5), Span(start=5, stop=7))
    """
    size, larger = divmod(n, parts)
    bounds = [i * size + min(i, larger) for i in range(parts + 1)]
    return tuple(Span(a, b) for a, b in pairwise(bounds))


def even_span(n: int, parts: int, part: int) -> Span:
    """Return one of ``even_spans``, without the others.

    >>> even_span(7, 3, 1)
    Span(start=3, stop=5)
    """
    size, larger = divmod(n, parts)
    start = part * size + min(part, larger)
    return Span(start, start + size + (part < larger))


def block_spans(n: int, block: int) -> tuple[Span, ...]:
    """Split ``n`` elements into spans of ``block``; the last one holds the rest.

    >>> block_spans(5, 2)
    (Span(start=0, stop=2), Span(start=2, stop=4), Span(start=4, stop=5))
    """
    return tuple(Span(a, min(n, a + block)) for a in range(0, n, block))


def layered_spans(n: int, parts: int, layers: Iterable[Span]) -> tuple[Span, ...]:
    """Split ``n`` elements into ``parts`` spans, between layers wherever that is balanced.

    Boundaries between layers are tried in order of their distance from a cut of an even split. That
    cut moves to the boundary if no span becomes longer than ``_LONGEST`` times an even one. Between
    moved cuts, spans are even.

    Args:
        n: the number of elements.
        parts: the number of spans.
        layers: spans that tile ``[0, n)``, in any order; a single one gives an even split.

    >>> [(start, stop) for start, stop in layered_spans(20, 4, [Span(11, 20), Span(0, 11)])]
    [(0, 6), (6, 11), (11, 16), (16, 20)]
    """
    cuts = {0: 0, parts: n}
    inner = {layer.start for layer in layers} - {0}
    by_distance = sorted((abs(at * parts - round(at * parts / n) * n), at) for at in inner)
    for _, at in by_distance:
        moved = {round(at * parts / n): at, **cuts}  # never one that is already there
        # An even split rounds lengths up.
        if max(span.size for span in _between(moved)) <= max(_LONGEST * n / parts, -(-n // parts)):
            cuts = moved
    return _between(cuts)


def _between(cuts: Mapping[int, int]) -> tuple[Span, ...]:
    """Return spans with a cut before the i-th one at ``cuts[i]``, and even spans elsewhere."""
    found: list[Span] = []
    for (first, start), (last, stop) in pairwise(sorted(cuts.items())):
        found += [Span(start + a, start + b) for a, b in even_spans(stop - start, last - first)]
    return tuple(found)


def fragments_of(
    layers: Iterable[Span], count: int, *, strided: bool = True
) -> tuple[tuple[Span, ...], ...]:
    """Assign layers to fragments, which are averaged one at a time.

    Args:
        layers: their spans, in any order.
        count: F, the number of fragments, at least 1.
        strided: whether fragment f has the layers f, f + F, f + 2F, …; otherwise each has
            consecutive layers.

    Returns:
        The spans of each fragment, from the first layer on; adjacent layers form one span.

    Raises:
        ConfigError: if a fragment would have no layer.

    >>> layers = [Span(9, 10), Span(4, 9), Span(0, 4)]
    >>> fragments_of(layers, 2)
    ((Span(start=0, stop=4), Span(start=9, stop=10)), (Span(start=4, stop=9),))
    >>> fragments_of(layers, 2, strided=False)
    ((Span(start=0, stop=9),), (Span(start=9, stop=10),))
    """
    ordered = sorted(layers)
    if count > len(ordered):
        raise ConfigError(
            f"{count} fragments are more than the number of layers, {len(ordered)}: each fragment "
            "needs at least one layer"
        )
    if strided:
        return tuple(_joined(ordered[f::count]) for f in range(count))
    return tuple(_joined(ordered[a:b]) for a, b in even_spans(len(ordered), count))


def _joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return ascending spans, with adjacent ones joined."""
    found: list[Span] = []
    for span in spans:
        if found and found[-1].stop == span.start:
            found[-1] = Span(found[-1].start, span.stop)
        else:
            found.append(span)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Which shard owns which span of the ``n`` parameters."""

    #: Parameters of the whole model.
    n: int
    #: Span of shard ``i``; together they tile ``[0, n)`` in order.
    spans: tuple[Span, ...]

    @classmethod
    def even(cls, n: int, shards: int) -> ShardPlan:
        """Split ``n`` parameters evenly.

        Raises:
            ConfigError: if a shard would own nothing.
        """
        _check_shards(n, shards)
        return cls(n, even_spans(n, shards))

    @classmethod
    def layered(cls, n: int, shards: int, layers: Iterable[Span]) -> ShardPlan:
        """Split ``n`` parameters between layers; see ``layered_spans``.

        Args:
            n: parameters, at least ``shards``.
            shards: their number.
            layers: the span of each layer, from the first parameter to the last.

        Raises:
            ConfigError: if a shard would own nothing.
        """
        _check_shards(n, shards)
        return cls(n, layered_spans(n, shards, layers))


def _check_shards(n: int, shards: int) -> None:
    if shards > n:
        raise ConfigError(f"{shards} shards of {n} parameters: each must own at least one")
