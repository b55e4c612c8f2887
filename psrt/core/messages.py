"""The messages that roles exchange.

They are named tuples: as immutable as frozen dataclasses and made in a fraction of the time, which
matters in a round trip of a few microseconds. A message is small and of fixed size; a gradient or
parameters are sent as its *payload*, in a region of the port (see ``psrt.transport.port``).
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class Push(NamedTuple):
    """Worker → server: one worker's contribution for one clock; its payload is the gradient span.

    A push without samples has no payload: it only advances the clock. If its clock is later than
    its version, it asks for the version of that clock, since backups left this shard behind.
    """

    #: Who pushes, in ``[0, W)``.
    worker: int
    #: Gradient steps the worker had finished before this one, c.
    clock: int
    #: Version of this shard that the gradient was computed on.
    version: int
    #: Samples behind the mean gradient, m.
    samples: int
    #: The worker's progress in epochs, for learning-rate schedules.
    progress: float
    #: The shard that it is for.
    shard: int = 0


class Params(NamedTuple):
    """Server → worker: the answer to a push; its payload is the shard's span of parameters."""

    #: The shard that answers.
    shard: int
    #: Version of the span in the payload.
    version: int
    #: The clock of the worker's next step; more than one further only if backups overtook it.
    clock: int
    #: τ of the answered push: the version it met minus the one it was computed on; −1 if no update
    #: takes it.
    staleness: int
    #: From the receipt of the push to this reply, in seconds.
    held: float = 0.0
    #: The worker whose message triggered this reply; −1 if the answered push itself did.
    awaited: int = -1
    #: ‖θ_now − θ_read‖/√n when the push was applied; −1 if not measured.
    gap: float = -1.0
    #: The step of a checkpoint that its worker is to ``Park`` for, before it does anything else;
    #: negative if the run ends with it, 0 for none.
    cut: int = 0


class Mix(NamedTuple):
    """Worker → worker: what one averages with its neighbours; its payload is the vector.

    Without a payload it says that this worker will take part in a round.
    """

    #: Who sends.
    worker: int
    #: The round that it is for; without rounds, the gradient steps that the worker has finished.
    clock: int
    #: Without rounds, the number of the offer that it makes or answers, counted by who asks.
    version: int = 0
    #: What became of a 1 that is mixed along, w; 1 where only vectors are; 0 without a vector.
    weight: float = 1.0
    #: The vector is sent as a whole.
    shard: int = 0


class Leave(NamedTuple):
    """Worker → server or neighbour: the last message; nobody counts on this worker any more.

    One that is ``missed`` comes of those who watch the ranks; a server sends it on to a worker that
    lives after all, in answer to whatever it still hears of it.
    """

    #: Who leaves.
    worker: int
    #: Gradient steps it finished.
    clock: int
    #: The shard that it leaves; a worker leaves each.
    shard: int = 0
    #: Whether others say so, who take the worker to be dead.
    missed: bool = False


class Park(NamedTuple):
    """Worker → server: it has saved itself, and takes no step before all others have, too.

    It is answered like a push. Worker → neighbour, where these average in pairs: it has no offer
    open, saves itself next, and takes no step before its neighbours have said the same.
    """

    #: Who parks.
    worker: int
    #: Gradient steps it has finished, whose pushes have been answered.
    clock: int
    #: As the server said it, ``Params.cut``.
    cut: int
    #: The shard at which it parks; a worker parks at each.
    shard: int = 0


Message: TypeAlias = Push | Params | Mix | Park | Leave
