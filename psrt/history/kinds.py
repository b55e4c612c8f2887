"""The kinds of events, each with its fields by name. Pure.

A kind is declared once, as a class that is never instantiated: its number, its writer, what
happened, and for each field its meaning and its column of ``EVENT``. All else is derived: the
function that packs an event (``EventLog.adder``), and the check that other columns are unused.

A field *is* the name of its column. So ``events[Offer.total]`` and ``table.real(Offer.total)`` are
columns of numbers, and ``Offer.total.of(event)`` is that of one event.
"""

from __future__ import annotations

from typing import Any, ClassVar

from psrt.history.events import Kind


class Field(str):
    """A field of a kind: the column that holds it, with what it means there."""

    #: Its name in the kind, set at the declaration.
    name: str
    #: What it means.
    text: str
    #: Whether it is a ``pair``.
    is_pair: bool

    def __new__(cls, column: str, text: str = "", *, is_pair: bool = False) -> Field:
        """Declare a field.

        Args:
            column: of ``EVENT``.
            text: what it means; empty if its name says that.
            is_pair: whether it is a ``pair``.
        """
        field = super().__new__(cls, column)
        field.text, field.is_pair = text, is_pair
        return field

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def of(self, event: Any) -> Any:
        """Return the field of one event, whose attributes are named as the columns."""
        return getattr(event, self)


#: Who writes events of a kind.
WORKER, SERVER, ANYBODY = "worker", "server", "either"


class Event:
    """The fields of all kinds: ``kind``, ``worker``, −1 for none, and ``time``."""

    kind: ClassVar[Kind]
    #: ``WORKER``, ``SERVER`` or ``ANYBODY``.
    who: ClassVar[str]
    #: By name.
    fields: ClassVar[dict[str, Field]] = {}

    def __init_subclass__(cls, kind: Kind | None = None, who: str | None = None) -> None:
        """Declare a kind or, without a number, the common fields of several kinds."""
        declared = (item for base in reversed(cls.__mro__) for item in vars(base).items())
        cls.fields = {name: it for name, it in declared if isinstance(it, Field)}
        columns = sorted(cls.fields.values())
        assert len(set(columns)) == len(columns), f"two fields of {cls.__name__}: {columns}"
        if who is not None:
            cls.who = who
        if kind is not None:
            cls.kind = kind
            KINDS[kind] = cls

    @classmethod
    def columns(cls) -> set[str]:
        """Return the columns that it has."""
        return {str(it) for it in cls.fields.values()}


#: All kinds, in the order of their declaration.
KINDS: dict[Kind, type[Event]] = {}

_COMPUTED_ON = "that it was computed on"
_COMPUTING = "computing, with injected delays"
_ROUNDING = "the bound of its rounding, over 2⁻²⁴"


class AtWorker(Event, who=WORKER):
    """An event that a worker writes."""


class AtServer(Event, who=SERVER):
    """An event that a server writes, for one of its shards."""

    shard = Field("shard")
    clock = Field("clock")


class OfShard(AtWorker):
    """What a worker does with one shard."""

    shard = Field("shard")
    clock = Field("clock")


class Read(OfShard, kind=Kind.READ):
    """A shard's span of θ is in place, and ``clock`` computes with it."""

    version = Field("version")
    tau = Field("tau", "of the push that it answers, from the reply, −1 if no update takes that")
    seconds = Field(
        "seconds", "waiting: since that push or, of a fragment, since the step that adopts it; "
        "PARKED: of the stop",
    )  # fmt: skip
    flag = Field("flag", "PARKED (1): once more, after a stop for a checkpoint; no tau")


class Push(OfShard, kind=Kind.PUSH):
    """A gradient goes to a shard."""

    version = Field("version", _COMPUTED_ON)
    samples = Field("samples")
    progress = Field("progress")
    rate = Field("rate", "steps a second, where servers must know it")
    seconds = Field("seconds", _COMPUTING)


class Encode(OfShard, kind=Kind.ENCODE):
    """With a codec, the gradient of the push before became a frame."""

    digests = Field(
        "version", "of the frame and, with error feedback, of what it decodes to", is_pair=True
    )
    nbytes = Field("samples", "of the frame")


class Kept(AtWorker):
    """The residual of a codec has changed; with error feedback, its sums as in ``conserved``."""

    given = Field("rate", "the sum of what was given, with signs; with error feedback")
    decoded = Field("gap", "that of what the frame decodes to")
    kept = Field("weight", "that of the new residual")
    most = Field("seconds", "the bound of their rounding, over 2⁻²⁴")


class Residual(Kept, OfShard, kind=Kind.RESIDUAL):
    """The residual of a codec has changed."""

    digests = Field("version", "of what it was before the last ENCODE, and is now", is_pair=True)


class OfSum(AtWorker):
    """The frames of a sum over workers."""

    peer = Field("shard")
    updates = Field("clock", "shared updates so far; of fragments the sums so far")
    digests = Field("version", is_pair=True)
    start = Field("progress", "its first element; of fragments in all of them side by side")
    size = Field("tau", "the number of its elements")
    flag = Field("flag", "BACK (1): the mean of a chunk, on its way back; of a part its number")


class SumFrame(OfSum):
    """A frame of a chunk of a sum; straight through a schedule, a part of a span."""

    nbytes = Field("samples", "of the frame")


class SumEncode(SumFrame, kind=Kind.SUM_ENCODE):
    """A chunk of a sum was encoded; straight through a schedule, a part of a span projected."""

    peer = Field("shard", "the worker that sums it, in a ring the next one; −1 if all do")
    digests = Field("version", "as of ENCODE; of a part, its digest and 0", is_pair=True)
    nbytes = Field("samples", "of the frame, or of the part")


class SumKeep(Kept, OfSum, kind=Kind.SUM_KEEP):
    """The residual of that chunk has changed."""

    peer = Field("shard", "as of SUM_ENCODE")
    digests = Field("version", "as of RESIDUAL", is_pair=True)


class SumDecode(SumFrame, kind=Kind.SUM_DECODE):
    """The frame of a chunk was decoded; straight through a schedule, a part was summed."""

    peer = Field("shard", "the worker that sent it; −1 of a part")
    digests = Field(
        "version", "as of DECODE; of a part, of its mean and, of the last, of those of the span",
        is_pair=True,
    )  # fmt: skip
    nbytes = Field("samples", "of the frame; of a part, all that this worker sent for it")


class ReplyDecode(OfShard, kind=Kind.REPLY_DECODE):
    """With a codec of replies, a frame was added to a span of θ."""

    digests = Field("version", "of the frame and of that span", is_pair=True)
    nbytes = Field("samples", "of the frame")


class Step(AtWorker, kind=Kind.STEP):
    """A local step is done, or, without servers, a gradient that is yet to be summed."""

    clock = Field("clock")
    samples = Field("samples")
    progress = Field("progress")
    rate = Field("rate", "η of a local step")
    seconds = Field("seconds", _COMPUTING)


class Reduce(AtWorker, kind=Kind.REDUCE):
    """This worker's part of a sum over all workers is ready."""

    fragment = Field("shard", "where parameters are averaged in fragments")
    clock = Field("clock")
    version = Field("version", "updates so far")
    samples = Field("samples", "behind its part")
    progress = Field("progress")
    weight = Field("weight", "of its part")
    flag = Field("flag", "PRESENT (1) while it is still training")


class Reduced(AtWorker, kind=Kind.REDUCED):
    """The sum is over."""

    fragment = Field("shard", "as of REDUCE")
    clock = Field("clock")
    version = Field("version", "updates so far, this one included")
    tau = Field("tau", "of a fragment: this worker's steps since its part was ready")
    rate = Field("rate", "η; 0 without an update")
    weight = Field("weight", "of all workers")
    seconds = Field("seconds", "waiting")
    flag = Field("flag", "PRESENT (1) while any worker is still training")


class Leave(AtWorker, kind=Kind.LEAVE):
    """The worker is done."""

    clock = Field("clock")
    seconds = Field("seconds", "waiting until its neighbours are, too")


class Vector(AtWorker):
    """A vector that neighbours average, or the result."""

    clock = Field("clock", "the round; without rounds, gradient steps finished")
    digests = Field("version", is_pair=True)
    total = Field("progress", "the sum of its numbers, with signs")


class Offer(Vector, kind=Kind.OFFER):
    """A vector was sent to neighbours; with a codec, it is what they know of θ by then."""

    digests = Field(
        "version", "its digest and, without rounds, the number of the offer, counted by who asks",
        is_pair=True,
    )  # fmt: skip
    neighbour = Field("shard", "that it goes to, without rounds")
    receivers = Field("samples", "neighbours that it was sent to")
    rms = Field("gap", "the root of the mean square of its numbers")
    weight = Field("weight", "that of push-sum, else 1; of a HOST its workers in this round")
    seconds = Field("seconds", "waiting until all of it was sent")
    flag = Field(
        "flag", "TRACKED (1): gradients, which travel beside parameters; ANSWER (2); HOST (4): the "
        "mean of a host",
    )  # fmt: skip


class Own(Vector, kind=Kind.OWN):
    """The vector that is averaged into, if not the offered one: with a codec, and when asking."""

    rms = Field("gap", "as of OFFER")


class Take(AtWorker, kind=Kind.TAKE):
    """A neighbour's offer is averaged in."""

    neighbour = Field("shard", "that offered it")
    clock = Field("clock", "the round; without rounds, gradient steps finished")
    digests = Field("version", "as of its OFFER, of what came", is_pair=True)
    factor = Field("weight", "M_ij")
    tau = Field("tau", "without rounds, this worker's steps since it offered what this answers")
    flag = Field("flag", "as of OFFER")


class Mixed(Vector, kind=Kind.MIXED):
    """The average is complete; the fields describe the result."""

    neighbour = Field("shard", "without rounds")
    divided = Field("rate", "under push-sum, the sum of what is divided by its weight")
    gap = Field("gap", "‖result − own‖/√n; without rounds between what came and what was sent")
    weight = Field("weight", "the new one of push-sum, else 1")
    seconds = Field("seconds", "waiting")
    flag = Field("flag", "TRACKED (1), HOST (4) or none")


class Track(Vector, kind=Kind.TRACK):
    """A gradient is tracked, y ← y + G − G_before; the fields describe y."""

    gradient_total = Field("rate", "the sum of the numbers of G, with signs")
    rms = Field("gap", "as of OFFER")
    gradient_rms = Field("weight", "that of G")


class Draw(OfShard, kind=Kind.DRAW):
    """In ``easgd``, the worker was pulled to a shard of the centre, after the push of ``clock``.

    Where servers merge, it took a new anchor; ``apart``, ``moved`` and ``most`` are 0.
    """

    digests = Field(
        "version", "of the force and of the centre that made it; of the Δ that it pushed, as "
        "servers see it, and of the anchor that it took", is_pair=True,
    )  # fmt: skip
    force = Field("progress", "the sum of the force, or of Δ, with signs")
    apart = Field("rate", "that of x − x̃")
    moved = Field("gap", "that of what the worker moved by")
    most = Field("weight", _ROUNDING)
    most_force = Field("seconds", "likewise of the force")


class Pass(AtWorker, kind=Kind.PASS):
    """A stage of a split model has computed a micro-batch."""

    chunk = Field("shard")
    clock = Field("clock")
    version = Field("version", "steps that its parameters had taken, where it awaits no update")
    micro_batch = Field("tau", "−1: the weights of all in one product")
    rows = Field("samples", "samples of the micro-batch")
    flag = Field("flag", "FORWARD (1), BACKWARD (2), BACKWARD_INPUT (3) or BACKWARD_WEIGHT (4)")


class Message(AtWorker, kind=Kind.MESSAGE):
    """A micro-batch goes to another stage, or has come from there."""

    chunk = Field("shard", "that sends or receives")
    clock = Field("clock")
    stage = Field("version", "the other one")
    micro_batch = Field("tau")
    rows = Field("samples", "samples of the micro-batch")
    nbytes = Field("progress")
    flag = Field("flag", "GRADIENT (1), else an activation; CAME (2), else it was sent")


class Park(AtWorker, kind=Kind.PARK):
    """In gossip by pairs, the worker has reached a checkpoint, with its neighbours.

    It has taken what they sent before theirs, and nothing that they sent after.
    """

    clock = Field("clock")
    step = Field("version", "of the checkpoint")
    neighbours = Field("samples", "those that it has notified")
    seconds = Field("seconds", "of the stop")


class Receive(AtServer, kind=Kind.RECEIVE):
    """A push was received."""

    version = Field("version", _COMPUTED_ON)
    samples = Field("samples")
    progress = Field("progress")
    rate = Field("rate", "as of PUSH")
    flag = Field("flag", "PARKED (1): not a push, its worker stopped for a checkpoint, as all had")


class Decode(AtServer, kind=Kind.DECODE):
    """With a codec, its frame was decoded."""

    digests = Field("version", "of the frame and of what it decodes to", is_pair=True)
    nbytes = Field("samples", "of the frame")


class Save(AtServer, kind=Kind.SAVE):
    """Its gradient was saved, since its worker continues before the update."""

    version = Field("version", _COMPUTED_ON)


class Apply(AtServer, kind=Kind.APPLY):
    """It is part of an update: one event each, in the order of summation.

    An update without pushes has worker −1 and clock −1.
    """

    version = Field("version", "the new one")
    tau = Field("tau", "its staleness, in versions")
    samples = Field("samples")
    progress = Field("progress")
    rate = Field("rate", "η·r(τ)")
    gap = Field("gap", "‖θ_now − θ_read‖/√n; nan where it was not measured")
    seconds = Field("seconds", "of the whole update")


class Drop(AtServer, kind=Kind.DROP):
    """A push is not used."""

    version = Field("version", _COMPUTED_ON)
    tau = Field("tau", "its staleness, in versions")
    samples = Field("samples")
    progress = Field("progress")
    flag = Field("flag", "LATE (1): it came too late; LOST (2): its worker died")


class Reply(AtServer, kind=Kind.REPLY):
    """A worker was answered."""

    clock = Field("clock", "of its next step")
    version = Field("version")
    steps = Field("samples", "local steps before its next push, where servers say so")


class ReplyEncode(AtServer, kind=Kind.REPLY_ENCODE):
    """With a codec of replies, the reply before was a frame."""

    digests = Field("version", "of the frame and of the span that its worker holds", is_pair=True)
    nbytes = Field("samples", "of the frame")


class Left(AtServer, kind=Kind.LEFT):
    """A worker's LEAVE was received."""

    flag = Field("flag", "MISSED (1): it sent none, but was declared dead")


class Tick(AtServer, kind=Kind.TICK):
    """A merge's window for further pushes is over, or nobody else can come to any merge."""

    clock = Field("clock", "the version that it makes")
    seconds = Field("seconds", "for which the window was open; 0 if nobody else can come")


class Relay(AtServer, kind=Kind.RELAY):
    """The first shard has relayed what it did with a worker's push."""

    version = Field("version", "that the push became a part of; on which it was too late")
    flag = Field(
        "flag", "MORE (0) of the same merge follow, it was the LAST (1), or came too LATE (2)"
    )


class Force(AtServer, kind=Kind.FORCE):
    """In ``easgd``, a push pulled the centre; where servers merge, it is part of a merge."""

    digests = Field("version", "of the force, or of Δ as it was received, and 0", is_pair=True)
    force = Field("progress", "the sum of the force, or of Δ, with signs")
    norm = Field("gap", "‖Δ‖; none in ``easgd``")
    weight = Field("weight", "of Δ in the merge, its staleness factor included; 0 in ``easgd``")


class Centre(Event, kind=Kind.CENTRE, who=SERVER):
    """An update has moved the centre, or the span of a merge, after its FORCE events."""

    shard = Field("shard")
    version = Field("clock", "the new one")
    digests = Field(
        "version", "of the centre that it moved, and of the one that the update before had made, 0 "
        "at the first", is_pair=True,
    )  # fmt: skip
    moved = Field("progress", "the sum of what it moved by, with signs")
    total = Field("rate", "that of the merge of all Δ; 0 in ``easgd``")
    norm = Field("gap", "the norm of that; none in ``easgd``")
    most = Field("weight", _ROUNDING)
    length = Field("seconds", "the norm of what a merge moved by; 0 in ``easgd``")


class Final(Event, kind=Kind.FINAL, who=ANYBODY):
    """The final parameters were written."""

    shard = Field("shard", "−1 without servers")
    version = Field("version")


class End(Event, kind=Kind.END, who=ANYBODY):
    """The last event of a file; its other columns are unused."""

    events = Field("clock", "before it")
    crc = Field("version", "CRC-32 of these and then of numpy's header")


#: Kinds that a worker writes, and those of a server.
WORKER_KINDS = tuple(it.kind for it in KINDS.values() if it.who == WORKER)
SERVER_KINDS = tuple(it.kind for it in KINDS.values() if it.who == SERVER)
#: Those that stand for what a shard decides on: the receipt of a message, or a time that is over.
MESSAGES = (Kind.RECEIVE, Kind.LEFT, Kind.RELAY, Kind.TICK)
#: Kinds whose version is a ``pair``.
PAIRED = tuple(kind for kind, it in KINDS.items() if any(one.is_pair for one in it.fields.values()))
