"""Spans of a flat vector and how a model is cut into shards. Pure: views, never copies."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from psrt.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

ScalarT = TypeVar("ScalarT", bound="np.generic")


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


def even_spans(n: int, parts: int) -> tuple[Span, ...]:
    """Cut ``n`` elements into ``parts`` contiguous spans whose sizes differ by at most one.

    The larger spans come first; with fewer elements than parts the last spans are empty.

    >>> even_spans(7, 3)
    (Span(start=0, stop=3), Span(start=3, stop=5), Span(start=5, stop=7))
    """
    size, larger = divmod(n, parts)
    bounds = [i * size + min(i, larger) for i in range(parts + 1)]
    return tuple(Span(a, b) for a, b in pairwise(bounds))


def block_spans(n: int, block: int) -> tuple[Span, ...]:
    """Cut ``n`` elements into spans of ``block``; the last one holds the rest.

    >>> block_spans(5, 2)
    (Span(start=0, stop=2), Span(start=2, stop=4), Span(start=4, stop=5))
    """
    return tuple(Span(a, min(n, a + block)) for a in range(0, n, block))


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Which shard owns which span of the ``n`` parameters."""

    #: Parameters of the whole model.
    n: int
    #: Span of shard ``i``; together they tile ``[0, n)`` in order.
    spans: tuple[Span, ...]

    @classmethod
    def even(cls, n: int, shards: int) -> ShardPlan:
        """Cut ``n`` parameters evenly.

        Raises:
            ConfigError: if a shard would own nothing.
        """
        if shards > n:
            raise ConfigError(f"{shards} shards of {n} parameters: each must own at least one")
        return cls(n, even_spans(n, shards))
