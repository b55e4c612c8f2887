"""The price of every all-reduce as a formula in p and n. Pure, and cheap enough to ask per call.

`cost.price` runs a schedule on clocks, which takes as long as the schedule is; here the same
number is a line of arithmetic. lg is to base 2, q = 2**⌊lg p⌋, and n counts bytes:

=================  ==============================================================================
naive              (p − 1)(α + nβ + nγ)
root               2(p − 1)(α + nβ) + (p − 1)nγ
ring               2(p − 1)α + 2(p − 1)/p·nβ + (p − 1)/p·nγ
segmented-ring     (p − 1)S·(α + mβ + max(α + mβ, mγ)), for S = 1 the ring
tree               2⌈lg p⌉(α + nβ) + ⌈lg p⌉nγ
double-tree        at most (2(k − 1) + U)·max(α + mβ, mγ) + mγ + (2(k − 1) + D)(α + mβ)
butterfly          lg q·(α + nβ + nγ) + F
halving-doubling   2 lg q·α + 2(q − 1)/q·nβ + (q − 1)/q·nγ + F
binary blocks      a recursion over the ones of p in binary, below
=================  ==============================================================================

Each is what a chain of steps takes that all ranks have or wait for, where p (q) divides n:

- *naive* and *root*: one message after another at every rank, or at the root; each brings n bytes,
  which are combined before the next one, or after them all. What the root sends is not combined.
- *ring*: 2(p − 1) hops of n/p bytes on every rank alike, the first half of them combined.
- *segmented ring*: S segments to a chunk, of m = n/(pS) bytes. Let a = α + mβ and g = mγ. With an
  executor that folds beside the next step the first step takes a, and each of the next (p − 1)S,
  among them the first one of the all-gather, takes max(a, g), as the fold of the step before runs
  beside it. The (p − 1)S − 1 that are left have no fold beside them and take a.
- *tree*: the root has ⌈lg p⌉ children, each with a message of n bytes up and one down. Child i is
  the root of a smaller tree, by the same argument ready in time, so nobody makes the root wait.
- *double tree*: k blocks of m = n/(2k) bytes to each half. The first ones take U rounds up and D
  rounds down, the last ones follow 2(k − 1) rounds later both ways. ``two_trees`` counts them; U is
  rounded up to be even, as the plan does. On the way up a round is as long as the longer of a
  message and the fold beside it, a last fold may be left over, and down nothing is folded. By
  induction no step ends later than its round. It is a bound, since ranks do not wait for a round
  to end, and are mostly through a little earlier. Two ranks need not take turns on their one edge:
  k rounds up and k down.
- *butterfly*: lg q exchanges of n bytes. *Halving-doubling*: exchanges of n/2, n/4, … n/q bytes,
  (q − 1)/q·n in all, and the same back. Where p > q, r = p − q ranks fold into a neighbour before
  and copy from it after: F = 2(α + nβ) + nγ, else 0.

**Binary blocks.** Let p be the sum of powers of two u > w > … > v, and halving in a block of w take
H(w) = lg w·α + (w − 1)/w·n(β + γ), doubling G(w) = lg w·α + (w − 1)/w·nβ. Upwards a rank of block w
sends K = u/w messages to K ranks of the next larger block u, each of which takes c = α + n/u·β and
is combined in g = n/u·γ. If the rank is ready at time R, it begins at b = max(R, H(u)), and its
i-th receiver is ready to go on at b + ic + g, i = 1 … K. A later sender makes later receivers, so
the latest of block u comes from the latest of block w by i = K: this gives the latest, R*(w), of
every block, beginning with R*(v) = H(v).

Downwards let D(w, R) be when a rank of block w that was ready at R has its sums; D(q, R) = R, for
the largest block has them then. It has sent its last message at b + Kc, and takes those of its K
receivers in turn. The i-th of them is ready i − 1 messages later than the first, and no more than
that later with its sums, as waiting only ever evens out: so whoever waits waits for the first.

    D(w, R) = max(b + Kc, D(u, b + c + g)) + Kc

A block doubles when all its ranks have their sums and have handed them down, the last of which is
when the last rank of the next smaller block, w, has its own; and doubling ends for all ranks at
G(u) after the last has begun, as each round takes the same everywhere. So

    T = max over blocks u of  D(w, R*(w)) + G(u),  and D(v, R*(v)) + G(v) for the smallest
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from psrt.collective.analysis.cost import Costs
from psrt.collective.schedules.double_tree import default_blocks
from psrt.collective.schedules.segmented_ring import default_segments
from psrt.collective.schedules.two_trees import two_trees
from psrt.errors import ConfigError

#: ``(p, nbytes, itemsize, costs)`` → seconds; p ≥ 2.
Form = Callable[[int, float, int, Costs], float]


def closed_form(name: str, size: int, nbytes: float, costs: Costs, *, itemsize: int = 4) -> float:
    """Return what the all-reduce ``name`` takes, in seconds.

    Args:
        name: a key of ``CLOSED_FORMS``.
        size: ranks, p ≥ 1.
        nbytes: bytes of the vector; none take no time, since empty messages are left out.
        costs: of the machine.
        itemsize: bytes of an element, which the number of segments and blocks depends on.

    Raises:
        ConfigError: if there is no such schedule.

    >>> closed_form("ring", 4, 1000, Costs(alpha=1.0, beta=0.01, gamma=0.002))
    22.5
    """
    form = CLOSED_FORMS.get(name)
    if form is None:
        raise ConfigError(f"no closed form of {name!r}, expected one of {', '.join(CLOSED_FORMS)}")
    if size == 1 or nbytes == 0:
        return 0.0
    return form(size, nbytes, itemsize, costs)


def _sum(costs: Costs, messages: float, sent: float, combined: float) -> float:
    return messages * costs.alpha + sent * costs.beta + combined * costs.gamma


def _naive(p: int, n: float, itemsize: int, costs: Costs) -> float:
    return _sum(costs, p - 1, (p - 1) * n, (p - 1) * n)


def _root(p: int, n: float, itemsize: int, costs: Costs) -> float:
    return _sum(costs, 2 * (p - 1), 2 * (p - 1) * n, (p - 1) * n)


def _ring(p: int, n: float, itemsize: int, costs: Costs) -> float:
    return _sum(costs, 2 * (p - 1), 2 * (p - 1) / p * n, (p - 1) / p * n)


def _segmented_ring(p: int, n: float, itemsize: int, costs: Costs) -> float:
    segments = default_segments(p, int(n / itemsize))
    if segments == 1:
        return _ring(p, n, itemsize, costs)
    m, steps = n / (p * segments), (p - 1) * segments
    message = costs.alpha + m * costs.beta
    return steps * (message + max(message, m * costs.gamma))


def _tree(p: int, n: float, itemsize: int, costs: Costs) -> float:
    height = _lg_ceil(p)
    return _sum(costs, 2 * height, 2 * height * n, height * n)


def _double_tree(p: int, n: float, itemsize: int, costs: Costs) -> float:
    blocks = default_blocks(p, int(n / itemsize))
    m, trees = n / (2 * blocks), two_trees(p)
    up = down = blocks
    if p > 2:
        up = 2 * (blocks - 1) + trees.up + trees.up % 2
        down = 2 * (blocks - 1) + trees.down
    message, fold = costs.alpha + m * costs.beta, m * costs.gamma
    return up * max(message, fold) + fold + down * message


def _butterfly(p: int, n: float, itemsize: int, costs: Costs) -> float:
    rounds = _lg_floor(p)
    return _sum(costs, rounds, rounds * n, rounds * n) + _fold(p, n, costs)


def _halving_doubling(p: int, n: float, itemsize: int, costs: Costs) -> float:
    q = 1 << _lg_floor(p)
    share = (q - 1) / q * n
    return _sum(costs, 2 * _lg_floor(p), 2 * share, share) + _fold(p, n, costs)


def _binary_blocks(p: int, n: float, itemsize: int, costs: Costs) -> float:
    widths = [1 << bit for bit in range(p.bit_length()) if p & 1 << bit]  # the smallest first
    latest = [_halving(widths[0], n, costs)]
    for w, u in pairwise(widths):
        message, fold = _between_blocks(u, n, costs)
        begin = max(latest[-1], _halving(u, n, costs))
        latest.append(begin + u // w * message + fold)
    ends = [_descended(widths[i:], ready, n, costs) for i, ready in enumerate(latest)]
    served = [ends[0], *ends[:-1]]
    return max(end + _doubling(u, n, costs) for u, end in zip(widths, served, strict=True))


def _descended(widths: Sequence[int], ready: float, n: float, costs: Costs) -> float:
    """Return when a rank of the smallest of ``widths``, ``ready`` to send up, has its sums: D."""
    if len(widths) == 1:
        return ready
    w, u = widths[:2]
    message, fold = _between_blocks(u, n, costs)
    begin = max(ready, _halving(u, n, costs))
    first = _descended(widths[1:], begin + message + fold, n, costs)
    all_up = begin + u // w * message
    return max(all_up, first) + u // w * message


def _between_blocks(u: int, n: float, costs: Costs) -> tuple[float, float]:
    """Return what a message to or from a block of ``u`` takes, and to combine it."""
    return costs.alpha + n / u * costs.beta, n / u * costs.gamma


def _halving(w: int, n: float, costs: Costs) -> float:
    share = (w - 1) / w * n
    return _sum(costs, _lg_floor(w), share, share)


def _doubling(w: int, n: float, costs: Costs) -> float:
    return _sum(costs, _lg_floor(w), (w - 1) / w * n, 0)


def _fold(p: int, n: float, costs: Costs) -> float:
    """Return what it takes to fold r ranks into the others and to tell them the sum."""
    return _sum(costs, 2, 2 * n, n) if p & (p - 1) else 0.0


def _lg_ceil(p: int) -> int:
    return (p - 1).bit_length()


def _lg_floor(p: int) -> int:
    return p.bit_length() - 1


#: By the name of the schedule. Where two take the same time, the first one is preferred.
CLOSED_FORMS: dict[str, Form] = {
    "butterfly": _butterfly,
    "halving-doubling": _halving_doubling,
    "ring": _ring,
    "segmented-ring": _segmented_ring,
    "tree": _tree,
    "double-tree": _double_tree,
    "halving-doubling-blocks": _binary_blocks,
    "naive": _naive,
    "root": _root,
}
