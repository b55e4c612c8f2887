"""All-reduce algorithms as data: generators of steps, one file each. Pure: no buffers, no MPI.

``ALGORITHMS[name](rank, size, n)`` yields what ``rank`` does, in order, to all-reduce ``n``
elements among ``size`` ranks. Which one to take (the derivations are in the modules):

=========  ==============  ==============================  =====================
name       rounds          elements sent by a rank         best for
=========  ==============  ==============================  =====================
ring       2(p − 1)        2n(p − 1)/p, which is the least  long vectors, any p
tree       2⌈lg p⌉         at most n⌈lg p⌉, at the root     short vectors, any p
butterfly  lg p            n lg p                          short vectors, p = 2^k
=========  ==============  ==============================  =====================

A new algorithm is one file with one such generator and one row here; the tests under
``tests/pure/collective`` then run it for every p and n, and show that each contribution counts
exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from psrt.collective.butterfly import butterfly_steps
from psrt.collective.ring import ring_steps
from psrt.collective.step import NOTHING, Step
from psrt.collective.tree import tree_steps

ALGORITHMS: dict[str, Callable[[int, int, int], Iterator[Step]]] = {
    "ring": ring_steps,
    "tree": tree_steps,
    "butterfly": butterfly_steps,
}

__all__ = ["ALGORITHMS", "NOTHING", "Step", "butterfly_steps", "ring_steps", "tree_steps"]
