"""Run all ranks of a schedule by rendezvous: the one engine of proofs, prices and drawings.

A rank takes its steps in order. A message is delivered when both of its ends have posted it, the
strictest behaviour that MPI allows; a step ends when both its halves have finished. A ``Memory``
defines the content and the effect of a message: contributions (``proof``), times (``cost``), or
a drawing (``psrt.views.explain``).

**One run is enough.** The ranks could take turns in many ways, but all of them lead to the same
end. A step names its peers, so the k-th message from a to b is the same one in every run. Its
content depends only on the sender's earlier steps, and so on back. A message that can be delivered
stays possible until it is, since neither end may do anything else. So in whatever order messages
are delivered, the same ones are, with the same content.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from psrt.collective.step import NOTHING, Step
from psrt.core.errors import ProtocolError

_NO_STEP = Step(None, NOTHING, None, NOTHING, False)
#: The most links of a deadlock that are named; a chain may contain all ranks.
_LINKS = 6


class ScheduleError(ProtocolError):
    """A schedule is wrong; the text says at which rank and step, and why."""

    def __init__(self, rank: int, why: str, index: int | None = None, step: Step | None = None):
        """Compose the message.

        Args:
            rank: the rank at fault, or the first to notice.
            why: the error.
            index: of the step among the rank's own; None after the last step.
            step: that step.
        """
        where = "" if step is None else f", step {index} ({in_words(rank, step)})"
        super().__init__(f"rank {rank}{where}: {why}")
        self.rank, self.why, self.index, self.step = rank, why, index, step


class RankState:
    """One rank's progress through its steps."""

    __slots__ = (
        "combined", "done", "index", "met", "rank", "received", "receiving", "round", "sending",
        "sent", "step", "steps",
    )  # fmt: skip

    def __init__(self, rank: int, steps: Iterable[Step]) -> None:
        self.rank = rank
        self.steps = iter(steps)
        #: The posted step, its number, and whether there is no further one.
        self.step = _NO_STEP
        self.index = -1
        self.done = False
        #: Peers of the halves of the posted step that have not finished yet.
        self.sending: int | None = None
        self.receiving: int | None = None
        #: Rounds before the step was posted, and rounds when its halves finished, so far.
        self.round = self.met = 0
        #: Elements sent to others, received from them, and combined.
        self.sent = self.received = self.combined = 0

    @property
    def missing(self) -> int:
        """The peer that a stuck rank is waiting for."""
        peer = self.receiving if self.sending is None else self.sending
        assert peer is not None, "it is stuck"
        return peer

    def error(self, why: str) -> ScheduleError:
        """Return an error at the posted step."""
        return ScheduleError(self.rank, why, self.index, self.step)


class Memory(Protocol):
    """The contents of ranks, and the effect of messages on them."""

    def post(self, rank: RankState) -> None:
        """Take note that ``rank`` has posted a step with a peer."""

    def local(self, rank: RankState) -> None:
        """Execute a step of ``rank`` within its own memory."""

    def carry(self, sender: RankState, receiver: RankState) -> None:
        """Transfer a message whose ends are both posted."""

    def end(self, rank: RankState) -> None:
        """Complete the posted step, whose halves have both finished."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Totals of a schedule; elements, not bytes."""

    #: Messages in the longest chain that wait for each other; local steps do not count.
    rounds: int
    #: Messages of all ranks, save empty ones.
    messages: int
    #: Elements that each rank sends to others, receives from them, and combines.
    sent: tuple[int, ...]
    received: tuple[int, ...]
    combined: tuple[int, ...]
    #: Pairs (from, to) of ranks that some message takes.
    wires: int


def run(plan: Sequence[Iterable[Step]], memory: Memory, *, empty_messages: bool = False) -> Traffic:
    """Run all steps of all ranks.

    Args:
        plan: by rank, its steps.
        memory: the contents that the steps act on.
        empty_messages: whether halves of empty spans wait for each other like others; executors
            leave them out.

    Raises:
        ScheduleError: if ranks deadlock, two ends of a message differ in size, or the memory
            raises it.
    """
    ranks = [RankState(rank, steps) for rank, steps in enumerate(plan)]
    messages = 0
    wires: set[tuple[int, int]] = set()

    def meet(sender: RankState, receiver: RankState) -> None:
        nonlocal messages
        send, receive = sender.step.send, receiver.step.receive
        size = send.stop - send.start
        if size != receive.stop - receive.start:
            raise receiver.error(f"{size} elements come from rank {sender.rank} ({send})")
        memory.carry(sender, receiver)
        sender.sending = receiver.receiving = None
        if size:
            messages += 1
            sender.sent += size
            receiver.received += size
            wires.add((sender.rank, receiver.rank))
        # Comparisons, since this is the innermost loop of every proof.
        met = (sender.round if sender.round > receiver.round else receiver.round) + 1
        if sender.met < met:
            sender.met = met
        if receiver.met < met:
            receiver.met = met
        if sender.receiving is None:
            finish(sender)
        if receiver.sending is None:
            finish(receiver)

    def finish(rank: RankState) -> None:
        step = rank.step
        memory.end(rank)
        if step.combine and step.receive_from is not None:
            rank.combined += step.receive.stop - step.receive.start
        rank.round = rank.met
        ready.append(rank)

    ready = deque(ranks)
    while ready:
        rank = ready.popleft()
        step = _next(rank, memory)
        if step is None:
            continue
        sending, receiving = step.send_to, step.receive_from
        if not empty_messages:
            sending = sending if step.send.stop > step.send.start else None
            receiving = receiving if step.receive.stop > step.receive.start else None
        rank.sending, rank.receiving, rank.met = sending, receiving, rank.round
        memory.post(rank)
        if sending is None and receiving is None:
            finish(rank)
        if sending is not None and ranks[sending].receiving == rank.rank:
            meet(rank, ranks[sending])
        if receiving is not None and ranks[receiving].sending == rank.rank:
            meet(ranks[receiving], rank)
    _check_all_are_through(ranks)
    return Traffic(
        rounds=max((rank.round for rank in ranks), default=0),
        messages=messages,
        sent=tuple(rank.sent for rank in ranks),
        received=tuple(rank.received for rank in ranks),
        combined=tuple(rank.combined for rank in ranks),
        wires=len(wires),
    )


def _next(rank: RankState, memory: Memory) -> Step | None:
    """Return the next step with a peer, executing local ones before it."""
    for step in rank.steps:
        rank.step = step
        rank.index += 1
        if step.send_to != rank.rank:
            return step
        memory.local(rank)
        if step.combine:
            rank.combined += step.receive.size
    rank.done = True
    return None


def _check_all_are_through(ranks: Sequence[RankState]) -> None:
    """Check that no rank is left waiting; raise with the chain of waiting ranks otherwise."""
    first = next((rank for rank in ranks if not rank.done), None)
    if first is None:
        return
    chain = [first]
    while not (peer := ranks[chain[-1].missing]).done and peer not in chain:
        chain.append(peer)
    links = [f"{rank.rank} waits for {rank.missing} (step {rank.index})" for rank in chain]
    if len(links) > _LINKS:
        links[_LINKS - 1 : -1] = ["…"]
    end = f"and {peer.rank} has no step left" if peer.done else "in a circle"
    raise first.error(f"deadlock: {', '.join(links)}, {end}")


def in_words(rank: int, step: Step) -> str:
    """Return a step of ``rank`` in words.

    >>> from psrt.core.partition import Span
    >>> in_words(0, Step(1, Span(0, 4), 2, Span(4, 8), True))
    'sends [0, 4) to 1, folds what 2 sends into [4, 8)'
    >>> in_words(0, Step.local(0, Span(4, 8), Span(0, 4), combine=False))
    'copies [4, 8) to [0, 4)'
    """
    send, receive = (f"[{span.start}, {span.stop})" for span in (step.send, step.receive))
    if step.is_local(rank):
        return f"folds {send} into {receive}" if step.combine else f"copies {send} to {receive}"
    words = [] if step.send_to is None else [f"sends {send} to {step.send_to}"]
    if step.receive_from is not None:
        how = "folds" if step.combine else "copies"
        words.append(f"{how} what {step.receive_from} sends into {receive}")
    return ", ".join(words) or "nothing"
