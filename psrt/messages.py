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


class Report(NamedTuple):
    """Worker → rank 0: the measurements since the worker's previous report."""

    #: Who reports.
    worker: int
    #: Epochs finished at ``step``.
    epoch: int
    #: The worker's clock: gradient steps finished.
    step: int
    #: Mean training loss over ``samples``.
    loss: float
    #: Samples since the previous report.
    samples: int
    #: Sum of τ over the answered pushes since the previous report, one per push and shard.
    staleness_sum: int
    #: Number of τ in the sum.
    staleness_count: int
    #: The largest of them.
    staleness_max: int
    #: Time of the port since training began, in seconds.
    seconds: float
    #: That of the previous report; 0 for the first one.
    since: float
    #: Seconds of waiting since the previous report: for others, servers and messages.
    waited: float
    #: Largest skew of a read since the previous report.
    skew_max: int
    #: Sum of the gaps ‖θ_now − θ_read‖/√n that were measured since the previous report.
    gap_sum: float
    #: Number of gaps in the sum.
    gap_count: int
    #: Loss on the test set; nan where this report did not evaluate.
    test_loss: float
    #: Accuracy on the test set in [0, 1]; nan where this report did not evaluate.
    test_accuracy: float
    #: Whether ``step`` ends an epoch.
    epoch_end: bool
    #: Whether the worker is done and sends no more.
    last: bool
    #: ``Stats.columns`` of the worker: what it has counted since the start.
    columns: tuple[float, ...]
    #: What else was found on the test set, by its user's names: JSON; empty without any.
    figures: str = ""


class Sketch(NamedTuple):
    """Worker → rank 0: what tells how far a worker's parameters are from those of others."""

    #: Who sends.
    worker: int
    #: The worker's clock: gradient steps finished.
    clock: int
    #: Of its parameters, float64 each; see ``psrt.runtime.sketch``.
    numbers: bytes


Message: TypeAlias = Push | Params | Mix | Park | Leave
