"""What is sharded over the workers instead of being kept by each, and the memory that this needs.

In data parallelism each of W workers has the n parameters, their gradient, and the k vectors of its
optimizer. They are the same on all workers, so each part may be kept by one worker, its *owner*:

==============  =====================================  ==========================================
``shard=``      bytes of a worker                      of it
==============  =====================================  ==========================================
none            4n + 4n + 4kn                          parameters, gradient, optimizer
``optimizer``   4n + 4n + 4kn/W                        an update is made by the owner
``gradients``   4n + 8b + 4kn/W                        a bucket of b elements goes to its owners
                                                       while the next one is computed
``parameters``  4n/W + 8b + 8b + 4kn/W                 a bucket's are gathered before it is used,
                                                       one ahead
==============  =====================================  ==========================================

In the paper's half precision the first row is 2n + 2n + Kn, and sharded gradients take 2n/W, since
its update comes after all of them. Here an owner updates each bucket at once, so no sum is kept,
and the last rows have two buckets of gradient, where the paper counts none. Pure.

Source: Rajbhandari, Rasley, Ruwase, He, "ZeRO: Memory Optimizations Toward Training Trillion
Parameter Models", SC 2020 (1910.02054), section 5 and figure 1: P_os, P_os+g and P_os+g+p.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from psrt.core.units import size_text

#: Bytes of an element; same as in ``psrt.core.arrays``, which imports numpy.
ITEMSIZE = 4
#: Buckets that a worker holds at a time: one in use, and one in flight.
BUCKETS = 2


class Sharing(Enum):
    """What is sharded over the workers; each row includes the one before."""

    #: The state of the optimizer.
    OPTIMIZER = "optimizer"
    #: Also the gradient.
    GRADIENTS = "gradients"
    #: Also the parameters.
    PARAMETERS = "parameters"


@dataclass(frozen=True, slots=True)
class Memory:
    """The bytes of a worker's vectors."""

    #: Parameters that it keeps from step to step.
    parameters: float
    #: Gradient.
    gradients: float
    #: State of the optimizer.
    optimizer: float
    #: Parameters that it gathers to compute with.
    gathered: float = 0.0
    #: Activations and their gradients, with model parallelism.
    activations: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        vectors = self.parameters + self.gradients + self.optimizer
        return vectors + self.gathered + self.activations

    def __str__(self) -> str:
        """Return it for the user.

        >>> print(Memory(4096, 4096, 1024, 512))
        9.5 KiB: 4 KiB parameters, 4 KiB gradient, 1 KiB optimizer, 512 B gathered
        """
        parts = [
            f"{size_text(nbytes)} {name}"
            for name, nbytes in (
                ("parameters", self.parameters),
                ("gradient", self.gradients),
                ("optimizer", self.optimizer),
                ("gathered", self.gathered),
                ("activations", self.activations),
            )
            if nbytes
        ]
        return f"{size_text(self.total)}: {', '.join(parts)}"


def memory(
    shard: Sharing | None, n: int, *, workers: int, vectors: int, buckets: Sequence[int] = ()
) -> Memory:
    """Return the memory of a worker by the formula, in bytes.

    Args:
        shard: what is sharded; None: nothing.
        n: parameters.
        workers: W.
        vectors: k, vectors that the optimizer keeps: 0 in SGD, 1 with momentum, 2 in Adam.
        buckets: elements of each bucket that gradients are summed in.

    >>> [memory(shard, 1000, workers=4, vectors=2, buckets=[100] * 10).total / 4000
    ...  for shard in (None, *Sharing)]
    [4.0, 2.5, 1.7, 1.15]
    """
    whole, part = float(ITEMSIZE * n), ITEMSIZE * n / workers
    some = float(ITEMSIZE * sum(sorted(buckets)[-1:] * min(BUCKETS, len(buckets))))
    if shard is None:
        return Memory(whole, whole, vectors * whole)
    if shard is Sharing.OPTIMIZER:
        return Memory(whole, whole, vectors * part)
    if shard is Sharing.GRADIENTS:
        return Memory(whole, some, vectors * part)
    return Memory(part, some, vectors * part, some)
