"""Reassemble a vector whose parts are in several files, for another sharding. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psrt.core.errors import CheckpointError
from psrt.core.partition import Span


def assemble(pieces: Sequence[tuple[Sequence[Span], np.ndarray]], span: Span, n: int) -> np.ndarray:
    """Return one span of a vector of ``n`` elements.

    Args:
        pieces: of each file, its spans, and their elements one after the other.
        span: the wanted span.
        n: elements of the whole vector.

    Raises:
        CheckpointError: if the pieces do not have each element exactly once.

    >>> first, second = np.arange(3.0), np.arange(3.0, 5.0)
    >>> assemble([([Span(0, 3)], first), ([Span(3, 5)], second)], Span(2, 4), 5)
    array([2., 3.])
    """
    found = []
    for spans, elements in pieces:
        if elements.ndim != 1 or elements.size != sum(it.size for it in spans):
            raise CheckpointError("a part has other spans than elements")
        at = 0
        for it in spans:
            found.append((it, elements[at : at + it.size]))
            at += it.size
    found.sort(key=lambda it: it[0])
    end = 0
    for it, _ in found:
        if it.start != end or it.stop < it.start:
            raise CheckpointError(f"its parts must have element {min(end, it.start)} exactly once")
        end = it.stop
    if end != n:
        raise CheckpointError(f"its parts have {end} elements, expected {n}")
    wanted = [
        elements[max(span.start - it.start, 0) : max(span.stop - it.start, 0)]
        for it, elements in found
        if it.start < span.stop and span.start < it.stop
    ]
    return np.concatenate(wanted) if wanted else np.zeros(0, found[0][1].dtype if found else float)
