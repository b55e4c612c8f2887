"""Halving-doubling in binary blocks, for any p, as a schedule. Pure: ranks and spans.

p is written as a sum of powers of two, and the ranks are split into *blocks* of these sizes, the
largest, q, first. Each block halves by itself (``halving.py``). Then the sums climb from the
smallest block to the largest, each block folding what arrives into what it has. The largest ends
with the sum of all, and the results descend the same way before each block doubles by itself.
For p = 7 = 4 + 2 + 1, with the chunks of the largest block:

.. code-block:: text

    block of 4   rank 0: 0    rank 1: 1    rank 2: 2    rank 3: 3
                      ↑ 0          ↑ 1          ↑ 2          ↑ 3
    block of 2      rank 4: 0 1 ────┘         rank 5: 2 3 ────┘
                          ↑ 0 1                      ↑ 2 3
    block of 1                     rank 6: 0 1 2 3

A rank of a block of w with a next larger block of u sends u/w messages up, one to each owner of a
part of its chunk, and every rank of the larger block receives exactly one.

**Cost.** A rank of a block of w takes 2 lg w exchanges, 2u/w messages with the next larger block
if there is one (u), and 2 with the next smaller one if there is one. It sends

    2n(w − 1)/w   + n/w if there is a larger block   + n/w if there is a smaller one

elements, so at most 2n on every rank, and folds less than n + 1, where ``halving_doubling.py``
leaves half of the ranks beyond q idle and the others send up to 4n.

On the critical path a block has finished halving and folding what came from below at F(w) ≤
max(n(w − 1)/w, F(v)) + n/v, where v is the next smaller block: it waits for both, then v's ranks
send n/v elements each one after the other. From the smallest block, w₀ = the largest power of two
that divides p, this adds up to less than n(1 + 3/(2w₀)); so both ways

    T < 2(lg q + Σ u/w)α + 2n(1 + 3/(2w₀))β + n(1 + 3/(2w₀))γ

where the sum is over blocks that follow each other. For p = q + q/2 that is next to what a power
of two costs. Where p is odd the block of one serves a whole vector alone, and nothing is gained
over the fold; where p = q + 1 its messages are q, and each costs an α.

**In closed form.** Let p be the sum of powers of two u > w > … > v, and halving in a block of w
take H(w) = lg w·α + (w − 1)/w·n(β + γ), doubling G(w) = lg w·α + (w − 1)/w·nβ. Upwards a rank of
block w sends K = u/w messages to K ranks of the next larger block u, each of which takes c = α +
n/u·β and is combined in g = n/u·γ. If the rank is ready at time R, it begins at b = max(R, H(u)),
and its i-th receiver is ready to continue at b + ic + g, i = 1 … K. A later sender makes later
receivers, so the latest of block u comes from the latest of block w by i = K: this gives the
latest, R*(w), of every block, beginning with R*(v) = H(v).

Downwards let D(w, R) be when a rank of block w that was ready at R has its sums; D(q, R) = R, for
the largest block has them then. It has sent its last message at b + Kc, and takes those of its K
receivers in turn. The i-th of them is ready i − 1 messages later than the first, and no more than
that later with its sums, as waiting only ever evens out. So if the rank waits, it is for the first.

    D(w, R) = max(b + Kc, D(u, b + c + g)) + Kc

A block doubles when all its ranks have their sums and have handed them down, the last of which is
when the last rank of the next smaller block, w, has its own; and doubling ends for all ranks at
G(u) after the last has begun, as each round takes the same everywhere. So

    T = max over blocks u of  D(w, R*(w)) + G(u),  and D(v, R*(v)) + G(v) for the smallest

**Same bits.** Each element is summed towards one owner in the largest block and copied by the rest.

**No deadlock.** A rank first halves with its block only, then waits for the smaller block only,
then for the larger one. Upwards every send waits for a rank that, by induction from the smallest
block, is or will be receiving; downwards the same from the largest.

Source: Rabenseifner and Träff, "More efficient reduction algorithms for non-power-of-two number of
processors in message-passing parallel systems", EuroPVM/MPI 2004, LNCS 3241.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from psrt.collective.costs import LinkCosts, lg_floor
from psrt.collective.schedules.halving import Halving
from psrt.collective.step import Step
from psrt.core.partition import Span


def binary_blocks(size: int) -> list[range]:
    """Return the ranks of each block, the largest first.

    >>> binary_blocks(7)
    [range(0, 4), range(4, 6), range(6, 7)]
    """
    blocks, start = [], 0
    for bit in reversed(range(size.bit_length())):
        if size & 1 << bit:
            blocks.append(range(start, start + (1 << bit)))
            start += 1 << bit
    return blocks


def binary_block_steps(rank: int, size: int, n: int) -> Iterator[Step]:
    """Yield this rank's steps of a halving-doubling all-reduce in binary blocks.

    Args:
        rank: this rank, in ``[0, size)``.
        size: ranks that take part, p ≥ 1.
        n: elements in the vector, ≥ 0; some messages are empty where ``n < q``.

    Yields:
        In a block of w, ``2 * lg w`` exchanges, and between them the messages with the blocks
        next to it, sending at most ``2 * n`` elements in all.

    >>> [(s.send_to, s.receive_from) for s in binary_block_steps(4, 7, 8)]  # in the block of 2
    [(5, 5), (None, 6), (0, None), (1, None), (None, 0), (None, 1), (6, None), (5, 5)]
    """
    blocks = binary_blocks(size)
    index = next(i for i, block in enumerate(blocks) if rank in block)
    block, finest = blocks[index], len(blocks[0])
    mine = Halving.of(rank - block.start, block, n, finest)
    smaller = blocks[index + 1] if index + 1 < len(blocks) else None
    below = None if smaller is None else smaller[mine.number * len(smaller) // len(block)]
    above = _owners(mine, blocks[index - 1], n, finest) if index else []

    yield from mine.reduce_scatter()
    if below is not None:
        yield Step.receiving(below, mine.own, combine=True)
    for owner, part in above:
        yield Step.sending(owner, part)
    for owner, part in above:
        yield Step.receiving(owner, part, combine=False)
    if below is not None:
        yield Step.sending(below, mine.own)
    yield from mine.all_gather()


def _owners(mine: Halving, larger: range, n: int, finest: int) -> list[tuple[int, Span]]:
    """Return the owners in the ``larger`` block of the parts of the chunk of ``mine``."""
    each = len(larger) // len(mine.ranks)
    numbers = range(mine.number * each, (mine.number + 1) * each)
    cuts = Halving.of(0, larger, n, finest).cuts
    return [(larger[i], Span(cuts[i], cuts[i + 1])) for i in numbers]


def binary_blocks_seconds(p: int, nbytes: float, costs: LinkCosts, itemsize: int) -> float:
    """Return the cost in closed form, T at the top of this file.

    Args:
        p: number of ranks, ≥ 1.
        nbytes: size of the vector in bytes.
        costs: α, β and γ of a link, in seconds.
        itemsize: bytes of an element.
    """
    widths = [1 << bit for bit in range(p.bit_length()) if p & 1 << bit]  # the smallest first
    latest = [_halving(widths[0], nbytes, costs)]
    for w, u in pairwise(widths):
        message, fold = _between_blocks(u, nbytes, costs)
        begin = max(latest[-1], _halving(u, nbytes, costs))
        latest.append(begin + u // w * message + fold)
    ends = [_descended(widths[i:], ready, nbytes, costs) for i, ready in enumerate(latest)]
    served = [ends[0], *ends[:-1]]
    return max(end + _doubling(u, nbytes, costs) for u, end in zip(widths, served, strict=True))


def _descended(widths: Sequence[int], ready: float, n: float, costs: LinkCosts) -> float:
    """Return when a rank of the smallest of ``widths``, ``ready`` to send up, has its sums: D."""
    if len(widths) == 1:
        return ready
    w, u = widths[:2]
    message, fold = _between_blocks(u, n, costs)
    begin = max(ready, _halving(u, n, costs))
    first = _descended(widths[1:], begin + message + fold, n, costs)
    all_up = begin + u // w * message
    return max(all_up, first) + u // w * message


def _between_blocks(u: int, n: float, costs: LinkCosts) -> tuple[float, float]:
    """Return the time of a message to or from a block of ``u``, and the time to combine it."""
    return costs.message(n / u), n / u * costs.gamma


def _halving(w: int, n: float, costs: LinkCosts) -> float:
    share = (w - 1) / w * n
    return costs.chain(lg_floor(w), share, share)


def _doubling(w: int, n: float, costs: LinkCosts) -> float:
    return costs.chain(lg_floor(w), (w - 1) / w * n, 0.0)
