"""One rank on its way through its steps, while a schedule is proved. Pure: sets, not numbers.

A ``Walker`` knows the rules of a step: where spans may be, what must be there before it is sent or
folded, what a message does at both ends. When messages go through, it is told (``proof.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

from psrt.collective.analysis.holdings import Flaw, Holdings, Run, joined, own, told
from psrt.collective.analysis.refuted import RefutedError
from psrt.collective.spec import CollectiveSpec, Postcondition
from psrt.collective.step import NOTHING, Step
from psrt.partition import Span


class Walker:
    """One rank on its way; its steps have been looked at one by one before it begins."""

    __slots__ = (
        "_arrived",
        "_memory",
        "_task",
        "clock",
        "combined",
        "index",
        "met",
        "rank",
        "received",
        "sending",
        "sent",
        "step",
        "steps",
        "waiting",
    )

    def __init__(self, rank: int, steps: list[Step], task: CollectiveSpec) -> None:
        """Stand before the first step, with what the task says that the rank has."""
        self.rank = rank
        self.steps = steps
        self._task = task
        #: Steps that are through; of these and the others, the posted one.
        self.index = 0
        self.step = Step(None, NOTHING, None, NOTHING, False)
        #: Peers of the halves of the posted step that are not through yet.
        self.sending: int | None = None
        self.waiting: int | None = None
        #: Rounds gone by when the step was posted, and when its halves are through.
        self.clock = self.met = 0
        #: Elements sent to others, received from them, and folded.
        self.sent = self.received = self.combined = 0
        self._arrived: Sequence[Run] | None = None
        self._memory = self._begin()

    @property
    def done(self) -> bool:
        """Whether all steps are through."""
        return self.index == len(self.steps)

    @property
    def missing(self) -> int:
        """The peer that this rank is waiting for."""
        peer = self.waiting if self.sending is None else self.sending
        assert peer is not None, "it is stuck"
        return peer

    def refuted(self, why: str) -> RefutedError:
        """Return the error that tells what is wrong with the posted step."""
        return RefutedError(self.rank, why, self.index, self.step)

    def post(self) -> None:
        """Post the next step, local ones done on the way."""
        while self.index < len(self.steps):
            self.step = step = self.steps[self.index]
            if step.send_to != self.rank:
                self.sending, self.waiting = step.send_to, step.receive_from
                return
            self._take(step, self._read(step))
            self.index += 1

    def meet(self, other: Walker) -> None:
        """Hand the posted ``send`` to ``other``, which waits for it."""
        step, theirs = self.step, other.step
        size = step.send.stop - step.send.start
        if size != theirs.receive.stop - theirs.receive.start:
            raise other.refuted(f"{size} elements come from rank {self.rank} ({step.send})")
        other._arrived = self._read(step)
        self.sending = other.waiting = None
        self.sent += size
        other.received += size
        met = max(self.clock, other.clock) + 1
        self.met, other.met = max(self.met, met), max(other.met, met)

    def complete(self) -> None:
        """Take in what came; both halves are through."""
        if self._arrived is not None:
            self._take(self.step, self._arrived)
            self._arrived = None
        self.clock = self.met
        self.index += 1

    def end_with(self, owed: Postcondition) -> list[Run]:
        """Return what is in the place of what is owed, having checked that it is that."""
        size, (span, source) = self._task.size, owed
        due = (1 << size) - 1 if source is None else 1 << source
        try:
            runs = self._memory.read(span)
        except Flaw as flaw:
            raise RefutedError(self.rank, f"ends where {flaw}, owed {told(due)}") from None
        place = span.start
        for length, element, ranks, _ in runs:
            if ranks != due:
                why = f"ends with {told(ranks)} in element {element}, owed {told(due)}"
                raise RefutedError(self.rank, why)
            if element != place:
                raise RefutedError(self.rank, f"ends with element {element} at place {place}")
            place += length
        return joined(runs)

    def _begin(self) -> Holdings:
        """Return the memory at the start, cut at the ends of all spans that will be used."""
        has, owed = self._task.has[self.rank], self._task.owed[self.rank]
        cuts = {cut for span in (*has, *(due.span for due in owed)) for cut in span}
        for index, step in enumerate(self.steps):
            if wrong := wrong_alone(self.rank, step, self._task):
                raise RefutedError(self.rank, wrong, index, step)
            cuts.update(step.send)
            cuts.update(step.receive)
        memory = Holdings(cuts)
        for span in has:
            memory.write(span, [own(self.rank, span)])
        return memory

    def _read(self, step: Step) -> Sequence[Run]:
        try:
            return self._memory.read(step.send)
        except Flaw as flaw:
            raise self.refuted(f"is to send, but {flaw}") from None

    def _take(self, step: Step, runs: Sequence[Run]) -> None:
        if not step.combine:
            self._memory.write(step.receive, runs)
            return
        try:
            self._memory.fold(step.receive, runs)
        except Flaw as flaw:
            raise self.refuted(str(flaw)) from None
        self.combined += step.receive.size


def wrong_alone(rank: int, step: Step, task: CollectiveSpec) -> str | None:
    """Return what can be seen to be wrong with a step of ``rank`` by itself, if anything."""
    to, (start, stop), source, (first, last), combine = step
    local = to == rank
    if local != (source == rank):
        return "is its own peer on one side only"
    if to is None and source is None:
        return "neither sends nor receives"
    if to is not None:
        if not 0 <= to < task.size:
            return f"rank {to} is not one of {task.size}"
        if not (0 <= start <= stop <= task.n or (local and _in_workspace(step.send, task))):
            return f"sends from [{start}, {stop}), not within the vector of {task.n}"
    if source is not None:
        if not 0 <= source < task.size:
            return f"rank {source} is not one of {task.size}"
        if not (0 <= first <= last <= task.n or _in_workspace(step.receive, task)):
            return f"[{first}, {last}) is in neither the vector of {task.n} nor the workspace"
        if to is not None and (local or not combine) and start < last and first < stop:
            return "overwrites what is being sent"
    if local and stop - start != last - first:
        return "spans of different size within one rank"
    return None


def _in_workspace(span: Span, task: CollectiveSpec) -> bool:
    return task.n <= span.start <= span.stop <= task.n + task.workspace
