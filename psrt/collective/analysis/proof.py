"""The prover: shows that a schedule does what it owes, or where it does not. Pure: no numbers.

``prove`` runs the schedules of all ranks on sets of contributions (``holdings.py``) instead of
numbers, and sends by *rendezvous*: a message goes through when both ends have posted it, which is
the strictest that MPI allows. A ``Proof`` means that, for these p and n,

- every rank ends with what the task owes it, each contribution counted exactly once;
- ranks that are owed the same fold bracket it in the same way, so they end with the same bits
  wherever a + b and b + a have the same;
- nothing is sent, folded or copied before it is there;
- every send has its receive, of the same size, and nobody waits for ever;
- spans are where they may be, and nothing overwrites what is being sent.

**One run is enough.** The ranks could take turns in many ways, but every one of them leads to the
same end. A step names its peers, so the k-th message from a to b is the same one in every run; what
it carries depends only on the sender's earlier steps, and so on back; and a message that can go
through stays possible until it does, since neither end may do anything else. So whatever order the
messages go through in, the same ones do, with the same content.

**What it does not show.** It holds for the p and n that were tried. A schedule depends on n only by
where it cuts, so a few n with empty, ragged and even chunks tell about all; but that is a habit of
these schedules, not a theorem about yours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from psrt.collective.analysis.holdings import Run
from psrt.collective.analysis.refuted import RefutedError
from psrt.collective.analysis.walker import Walker
from psrt.collective.spec import CollectiveSpec
from psrt.collective.step import Step
from psrt.errors import ConfigError
from psrt.partition import Span

#: Links of a deadlock that are told; a chain may be as long as there are ranks.
_LINKS = 6

__all__ = ["Proof", "RefutedError", "prove"]


@dataclass(frozen=True, slots=True)
class Proof:
    """What a schedule that was proved comes to; elements, not bytes."""

    #: Steps in the longest chain that wait for each other; local ones do not count.
    rounds: int
    #: Messages of all ranks, save empty ones.
    messages: int
    #: Elements that each rank sends to others, receives from them, and folds.
    sent: tuple[int, ...]
    received: tuple[int, ...]
    combined: tuple[int, ...]


def prove(task: CollectiveSpec, plan: Sequence[Iterable[Step]]) -> Proof:
    """Show that ``plan`` does ``task``.

    Args:
        task: what ranks start with, and must end with.
        plan: the steps of each rank.

    Raises:
        RefutedError: if it does not.
        ConfigError: if the plan is for another number of ranks.

    >>> from psrt.collective import ALGORITHMS
    >>> ring = ALGORITHMS["ring"]
    >>> prove(ring.spec(3, 6), ring.plan(3, 6))
    Proof(rounds=4, messages=12, sent=(8, 8, 8), received=(8, 8, 8), combined=(4, 4, 4))
    >>> prove(ring.spec(2, 2), [steps[:-1] for steps in ring.plan(2, 2)])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    psrt...RefutedError: rank 0: ends with rank 0 in element 0, owed ranks 0, 1
    """
    if len(plan) != task.size:
        raise ConfigError(f"steps of {len(plan)} ranks, expected {task.size}")
    ranks = [Walker(rank, list(steps), task) for rank, steps in enumerate(plan)]
    messages = _run(ranks)
    _check_all_are_through(ranks)
    _check_ends(ranks, task)
    return Proof(
        rounds=max((rank.clock for rank in ranks), default=0),
        messages=messages,
        sent=tuple(rank.sent for rank in ranks),
        received=tuple(rank.received for rank in ranks),
        combined=tuple(rank.combined for rank in ranks),
    )


def _run(ranks: Sequence[Walker]) -> int:
    """Let all ranks go as far as they can; return the number of messages."""
    messages = 0
    ready = deque(ranks)
    while ready:
        rank = ready.popleft()
        rank.post()
        for sender, receiver in _pairs(rank, ranks):
            sender.meet(receiver)
            messages += sender.step.send.size > 0
            for end in (sender, receiver):
                if end.sending is None and end.waiting is None:
                    end.complete()
                    ready.append(end)
    return messages


def _pairs(rank: Walker, ranks: Sequence[Walker]) -> Iterator[tuple[Walker, Walker]]:
    """Yield the senders and receivers that can meet now that ``rank`` has posted its step."""
    if rank.sending is not None and ranks[rank.sending].waiting == rank.rank:
        yield rank, ranks[rank.sending]
    if rank.waiting is not None and ranks[rank.waiting].sending == rank.rank:
        yield ranks[rank.waiting], rank


def _check_all_are_through(ranks: Sequence[Walker]) -> None:
    """Check that nobody is left waiting, or tell who waits for whom."""
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
    raise first.refuted(f"deadlock: {', '.join(links)}, {end}")


def _check_ends(ranks: Sequence[Walker], task: CollectiveSpec) -> None:
    """Check that all hold what they are owed, and the same bits of the same fold."""
    folds: dict[Span, tuple[int, list[Run]]] = {}
    for rank in ranks:
        for owed in task.owed[rank.rank]:
            runs = rank.end_with(owed)
            if owed.source is None:
                other, same = folds.setdefault(owed.span, (rank.rank, runs))
                if runs != same:
                    why = f"folds {owed.span} in another bracketing than rank {other}: other bits"
                    raise RefutedError(rank.rank, why)
