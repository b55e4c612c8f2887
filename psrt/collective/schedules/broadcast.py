"""Broadcast from a root along a binomial tree, as a schedule. Pure: ranks and spans, no buffers.

A reduction (``reduce.py``) run backwards: each rank takes the vector from its parent, then hands
it to its children, the largest subtree first, since that has the longest way to go. See
``binomial.py`` for the tree and why ⌈lg p⌉ rounds are the minimum:

    T = ⌈lg p⌉(α + nβ)

All p − 1 messages are the whole vector and each is needed, but the root alone sends ⌈lg p⌉ of
them. Long vectors are better served by a scatter and an all-gather (van de Geijn), or by the two
trees of ``double_tree.py``.

**No deadlock.** A rank waits for its parent only; by induction over the depth every rank is served.
"""

from __future__ import annotations

from collections.abc import Iterator

from psrt.collective.schedules.binomial import Binomial
from psrt.collective.step import Step
from psrt.core.partition import Span


def broadcast_steps(rank: int, size: int, n: int, root: int = 0) -> Iterator[Step]:
    """Yield this rank's steps of a binomial broadcast from ``root``.

    Args:
        rank: this rank, in ``[0, size)``.
        size: ranks in the tree, p ≥ 1.
        n: elements in the vector, ≥ 0.
        root: rank whose vector it is.

    Yields:
        One step per edge of the tree at this rank, sending at most ``n * ceil(lg p)`` elements.

    >>> [(s.send_to, s.receive_from) for s in broadcast_steps(2, 6, 10)]
    [(None, 0), (3, None)]
    """
    place, whole = Binomial(rank, size, root), Span(0, n)
    if place.parent is not None:
        yield Step.receiving(place.parent, whole, combine=False)
    for child in reversed(place.children):
        yield Step.sending(child, whole)
