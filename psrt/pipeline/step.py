"""One step of a pipeline schedule. Pure: no arrays, no MPI.

A model that is a chain of layers is split into stages, one per rank of a pipeline, and a batch into
micro-batches, which follow one another through the stages: forward from the first stage to the
last, backward from the last to the first. A schedule gives the order in which a stage does this. It
is a generator of ``PipelineStep``, as a collective is one of ``Step``, and has several readers:
the executor computes and sends, the prover (``proof.py``) shows that every micro-batch passes every
stage once in each direction, the cost model (``cost.py``) prices it, and ``psrt explain pipeline``
draws it.

Nomenclature, in all modules of this package:

=============  =====================================================================
P              number of stages, ``stages`` in the code; s is one of them, from 0
M              number of micro-batches; m is one of them, from 0
V              chunks of a stage: pieces of the model that do not follow each other
virtual stage  chunk·P + s, the position of a chunk in the model, from 0 to V·P − 1
f, b, w        seconds of one micro-batch in one stage: forward; backward to the
               gradient of its input; backward to the gradient of its weights
alive          activations of a micro-batch are, in a chunk, from the moment when
               they are received, or computed, until its weights' gradient is added
bubble         share of the time in which stages are idle
=============  =====================================================================

A schedule is a pure function of (stage, P, M, V), so no stage has to ask another for the next step.
Every schedule in ``registry.py`` guarantees:

1. *Once.* Each micro-batch goes forward once and backward once through every virtual stage, and
   its gradient is computed from the activations of its own forward pass.
2. *Same bits.* In every chunk backward passes are in ascending order of micro-batches, and so are
   the gradients of weights. So all schedules sum gradients in one order, and the sum is
   bit-identical to that of one process that accumulates the same micro-batches. (Weights deferred
   into one product are the same sum in another order.)
3. *No deadlock*, even where a send returns only once it is received (rendezvous) and all sends and
   receives of a stage are made in the order of its steps.
4. *Memory.* No more activations are alive in a stage than its row promises.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


class Kind(Enum):
    """The action of a step."""

    # Members are singletons. Enum's own hash is Python code, and kinds are looked up at every step.
    __hash__ = object.__hash__

    #: Compute the chunk's output of a micro-batch, and keep what its backward pass needs.
    FORWARD = "forward"
    #: Compute the gradients of input and weights at once, where no stage waits for the former.
    BACKWARD = "backward"
    #: Compute only the gradient of the input, which the previous stage waits for: it is sent next.
    BACKWARD_INPUT = "backward-input"
    #: Compute the gradient of the weights from what ``BACKWARD_INPUT`` left; no stage waits for it.
    BACKWARD_WEIGHT = "backward-weight"
    #: Send the chunk's output to the stage that has the next virtual stage.
    SEND_ACTIVATION = "send activation"
    #: Receive the chunk's input.
    RECEIVE_ACTIVATION = "receive activation"
    #: Send the gradient of the chunk's input to the stage that has the virtual stage before it.
    SEND_GRADIENT = "send gradient"
    #: Receive the gradient of the chunk's output.
    RECEIVE_GRADIENT = "receive gradient"


#: Kinds that compute; all others send or receive.
COMPUTING: Final = frozenset(
    {Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT}
)
#: Kinds that send.
SENDING: Final = frozenset({Kind.SEND_ACTIVATION, Kind.SEND_GRADIENT})
#: Kinds after which a micro-batch's gradient of the input is computed.
BACKWARD_PASSES: Final = frozenset({Kind.BACKWARD, Kind.BACKWARD_INPUT})
#: Kinds after which its gradient of the weights is computed.
WEIGHT_PASSES: Final = frozenset({Kind.BACKWARD, Kind.BACKWARD_WEIGHT})
#: ``micro_batch`` of a ``BACKWARD_WEIGHT`` of all micro-batches, in one product.
ALL: Final = -1


class PipelineStep(NamedTuple):
    """One action of a stage on one micro-batch."""

    kind: Kind
    #: From 0 to M − 1, or ``ALL``.
    micro_batch: int
    #: Chunk of this stage that the step belongs to, whether it computes, sends or receives.
    chunk: int = 0
    #: Stage that is sent to or received from; −1 where the step computes.
    peer: int = -1

    def __str__(self) -> str:
        """Return the step in words.

        >>> str(PipelineStep(Kind.SEND_ACTIVATION, 3, 0, 1)), str(PipelineStep(Kind.FORWARD, 3, 1))
        ('send activation of 3 to 1', 'forward of 3 in chunk 1')
        """
        what = "all" if self.micro_batch == ALL else self.micro_batch
        chunk = f" in chunk {self.chunk}" if self.chunk else ""
        if self.kind in COMPUTING:
            return f"{self.kind.value} of {what}{chunk}"
        way = "to" if self.kind in SENDING else "from"
        return f"{self.kind.value} of {what}{chunk} {way} {self.peer}"
