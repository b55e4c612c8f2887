"""The messages that roles exchange.

They are named tuples: as immutable as frozen dataclasses, but created in a fraction of the time,
which matters in a round trip of a few microseconds. A message is small and of fixed size; a
gradient or parameters are sent as its *payload*, in a region of the port (see
``psrt.transport.port``).
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class Push(NamedTuple):
    """Worker → server: one worker's contribution for one clock; its payload is the gradient span.

    A push without samples has no payload: it only advances the clock. If its clock is later than
    its version, it asks for the version of that clock, because backups overtook this shard.
    """

    #: The worker that pushes, in ``[0, W)``.
    worker: int
    #: Gradient steps the worker had finished before this one, c.
    clock: int
    #: Version of this shard that the gradient was computed on.
    version: int
    #: m: samples in the mean gradient.
    samples: int
    #: The worker's progress in epochs, for learning-rate schedules.
    progress: float
    #: The shard that receives it.
    shard: int = 0
    #: c: gradient steps in it; more than one where a push has what local steps have changed.
    steps: int = 1
    #: s: of them the steps a second, while the worker computed; 0 where nobody needs it.
    pace: float = 0.0


class Params(NamedTuple):
    """Server → worker: the answer to a push; its payload is the shard's span of parameters."""

    #: The shard that answers.
    shard: int
    #: Version of the span in the payload.
    version: int
    #: The clock of the worker's next step; more than one ahead only if backups overtook it.
    clock: int
    #: τ of the answered push: the version it met minus the one it was computed on; −1 if no update
    #: takes it.
    staleness: int
    #: Seconds from the receipt of the push to this reply.
    held: float = 0.0
    #: The worker whose message triggered this reply; ``OWN`` if the answered push itself did, and
    #: ``NOBODY`` if a ``Tick`` did.
    awaited: int = -1
    #: ‖θ_now − θ_read‖/√n when the push was applied; −1 if not measured.
    gap: float = -1.0
    #: The step of a checkpoint for which the worker must ``Park`` before it does anything else;
    #: negative if the run ends with it, 0 for none.
    cut: int = 0
    #: H: the local steps before the worker's next push; 0 leaves it to the worker.
    steps: int = 0


#: See ``Params.awaited``.
OWN, NOBODY = -1, -2


class Mix(NamedTuple):
    """Worker → worker: what one averages with its neighbours; its payload is the vector.

    Without a payload it says that this worker will take part in a round.
    """

    #: The worker that sends.
    worker: int
    #: The round that it is for; without rounds, the gradient steps that the worker has finished.
    clock: int
    #: Without rounds, the number of the offer that it makes or answers, counted by its maker.
    version: int = 0
    #: w: the result of mixing a 1 with the vectors; 1 if only vectors are mixed, 0 without one.
    weight: float = 1.0
    #: The vector is sent as a whole.
    shard: int = 0


class Leave(NamedTuple):
    """Worker → server or neighbour: the last message; nothing waits for this worker any more.

    If it is ``missed``, the code that watches the ranks has made the message. A server also sends
    it to a worker that turns out to be alive, in answer to anything that it still receives from it.
    """

    #: The worker that departs.
    worker: int
    #: Gradient steps that it finished.
    clock: int
    #: The shard that it leaves; a worker sends one message to each.
    shard: int = 0
    #: Whether other ranks declared the worker dead.
    missed: bool = False


class Park(NamedTuple):
    """Worker → server: it has saved itself, and takes no step before all others have done so.

    It is answered like a push. Worker → neighbour, if they average in pairs: it has no open offer,
    saves itself next, and takes no step before its neighbours have sent the same message.
    """

    #: The worker that parks.
    worker: int
    #: Gradient steps that it has finished, whose pushes have been answered.
    clock: int
    #: ``Params.cut``, as the server sent it.
    cut: int
    #: The shard at which it parks; a worker sends one message to each.
    shard: int = 0


class Relay(NamedTuple):
    """Server → server: what the first shard did with one push, which the others do, too.

    A merge is relayed push by push, in the order of workers.
    """

    #: The worker that pushed, and its clock then.
    worker: int
    clock: int
    #: The version that the push became a part of; the one on which it was too late.
    version: int
    #: The worker whose message completed the merge; −1 if its window was over.
    cause: int = -1
    #: ``MORE`` of the same merge follow, it is the ``LAST`` one, or it came too ``LATE`` for any.
    what: int = 0
    #: The shard that it is for.
    shard: int = 0


#: See ``Relay.what``.
MORE, LAST, LATE = range(3)


class Tick(NamedTuple):
    """A server → its shard: merge those who have come.

    It is never sent: the server makes it itself, when a window has been open for its time, or when
    nobody else can come because all wait for merges of several fragments.
    """

    #: The shard that merges.
    shard: int = 0
    #: Whether a window has been open for its time.
    by_time: bool = True


Message: TypeAlias = Push | Params | Mix | Park | Leave | Relay | Tick
