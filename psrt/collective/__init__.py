"""Collectives as data: generators of steps, one file each. Pure: no buffers, no MPI.

``ALGORITHMS[name](rank, size, n)`` yields what ``rank`` does, in order, to all-reduce ``n``
elements among ``size`` ranks; ``PHASES[name](rank, size, n, root)`` does so for the collectives
that are parts of one. The nomenclature is in ``step.py``, the derivations are in the modules, and
``lg`` is the logarithm to base 2; q = 2**⌊lg p⌋. With p a divisor of n, and p = q in the last two
rows:

=======================  =============  ==================  =====================================
name                     rounds         elements sent by    best for
                                        the busiest rank
=======================  =============  ==================  =====================================
naive                    p − 1          n(p − 1)            2 or 3 ranks; the yardstick
root                     2(p − 1)       n(p − 1)            nothing; a server in disguise
ring                     2(p − 1)       2n(p − 1)/p, least  long vectors, any p
segmented-ring           2(p − 1)S      2n(p − 1)/p, least  longer ones: folds while it sends
tree                     2⌈lg p⌉        n⌈lg p⌉             short vectors, any p
double-tree              4k + O(lg p)   at most 2n          long vectors, many ranks, any p
butterfly                lg p, least    n lg p              short vectors; any p for 2 rounds more
halving-doubling         2 lg p         2n(p − 1)/p, least  medium and long vectors, p = q
halving-doubling-blocks  2 lg p         2n(p − 1)/p, least  the same; any even p at up to 2n
=======================  =============  ==================  =====================================

A new algorithm is one file with one such generator and one row in ``algorithm.py``; the tests
under ``tests/pure/collective`` then run it for every p and n, the prover (``proof.py``) shows that
each contribution counts exactly once, and broken copies of it show that the prover would see it.
"""

from __future__ import annotations

from psrt.collective.algorithm import ALGORITHMS, Algorithm
from psrt.collective.ops import OPS, Operation
from psrt.collective.phase import PHASES, Phase
from psrt.collective.schedules.ring import ring_steps
from psrt.collective.step import NOTHING, Step
from psrt.collective.task import Owed, Task

__all__ = [
    "ALGORITHMS",
    "NOTHING",
    "OPS",
    "PHASES",
    "Algorithm",
    "Operation",
    "Owed",
    "Phase",
    "Step",
    "Task",
    "ring_steps",
]
