"""The buckets in which a gradient is summed: its layers' spans, gathered by size. Pure.

Every sum has a fixed cost, so tiny layers are better summed together; and a sum begins only when
its whole bucket is ready, so a single bucket would overlap nothing. The best size in between
depends on the machine: ``bucket_bytes``.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training",
VLDB 2020, section 3.2, for buckets in the order in which a backward pass fills them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from psrt.core.arrays import ITEMSIZE
from psrt.core.partition import Span


class Bucket(NamedTuple):
    """Consecutive spans of a gradient, summed as one."""

    #: The elements of all of them.
    span: Span
    #: Index of the given span that becomes ready last.
    last: int


def buckets_of(spans: Sequence[Span], bucket_bytes: int) -> tuple[Bucket, ...]:
    """Gather spans into buckets of at least ``bucket_bytes``; the last may be smaller.

    The rest is a bucket of its own and is not added to the one before: no computing is left to
    hide its sum, so it had better be short.

    Args:
        spans: tile the vector from its end to its beginning, in the order in which they become
            ready; each begins where the next one ends.
        bucket_bytes: at 0 or 1 each span that is not empty is a bucket.

    >>> buckets_of([Span(90, 100), Span(80, 90), Span(0, 80)], 60)
    (Bucket(span=Span(start=80, stop=100), last=1), Bucket(span=Span(start=0, stop=80), last=2))
    """
    buckets: list[Bucket] = []
    stop = spans[0].stop if spans else 0
    for i, span in enumerate(spans):
        gathered = Span(span.start, stop)
        full = ITEMSIZE * gathered.size >= max(bucket_bytes, 1)
        if full or (i == len(spans) - 1 and gathered.size):
            buckets.append(Bucket(gathered, i))
            stop = span.start
    return tuple(buckets)
