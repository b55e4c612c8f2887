"""The decisions of one shard whose workers are learners: when what they have learnt is merged.

A learner takes local steps by itself, pushes what they have changed, and continues with the merge
that has its push. Nobody waits for all: a merge needs a quorum of K learners, and may then stay
open for a *window*, so that those who are nearly done come into it. Pure, as ``policy``: that the
time of a window is over is an event, ``Tick``.

Sources: K = 1, Liu et al. 2024 (arXiv:2401.09135); a quorum and a window, Douillard et al. 2026
(arXiv:2604.21428).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from psrt.core.messages import LAST, LATE, Leave, Park, Relay
from psrt.sync.policy import Apply, Decision, Drop, Policy, Serve


class Learners(Policy):
    """The state machine of a shard of learners.

    Invariants, beside those of ``Policy``:
        - a learner is answered by the merge that has its push, so it reads what it has learnt and
          no push needs to be saved;
        - so a merge has each learner at most once;
        - it has K of them, or all that can still come: a learner that has left, died or is parked
          for a checkpoint cannot, and a parked one could not continue before the others.

    >>> from psrt.core.messages import Push
    >>> shard = Learners(3, quorum=2)
    >>> shard.handle(Push(2, 0, 0, 8, 0.0))
    []
    >>> [type(it).__name__ for it in shard.handle(Push(0, 0, 0, 8, 0.0))]
    ['Apply', 'Serve', 'Serve']
    """

    def __init__(
        self, workers: int, *, quorum: int, has_window: bool = False, late: float = math.inf
    ) -> None:
        """Start with all learners alive at clock 0 and the span at version 0.

        Args:
            workers: W, at least 1.
            quorum: K, from 1 to W.
            has_window: whether a merge with its quorum stays open until a ``Tick``.
            late: a push staler than this is dropped.
        """
        super().__init__(workers, quorum=lambda live: min(quorum, live), late=late)
        self._has_window = has_window
        self._sorts = True
        self._alone &= not has_window
        self._is_over = False

    def _complete(self) -> bool:
        pending = len(self.pending)
        if not pending or self._is_over or pending >= len(self.clock) - len(self.parked):
            self.is_open = False
            return pending > 0  # nobody else can come
        enough = pending >= self.quorum
        # Not once a learner has died and taken its push along, which the quorum had needed.
        self.is_open = enough and self._has_window
        return enough and not self._has_window

    def _serve(self, decisions: list[Decision]) -> None:
        _answer(self, decisions)

    def _park(self, park: Park) -> list[Decision]:
        decisions = super()._park(park)
        # Fewer can come now: those that wait for them continue without.
        self._fill(decisions)
        self._serve(decisions)
        return decisions

    def _tick(self) -> list[Decision]:
        """Merge those who have come: the window is over, or nobody else can come."""
        decisions: list[Decision] = []
        self._is_over = True
        self._fill(decisions)
        self._is_over = False
        self._serve(decisions)
        return decisions


class Follower(Policy):
    """A shard that merges what the first shard does, so all make the same versions.

    Shards that decided alone would merge different learners, since pushes arrive in another order
    at each; and learners could wait for each other for ever, each at another shard.

    What a learner sends to this shard and what the first one relays have no order: a merge waits
    until its pushes are here. One whose learner has died on the way is made without it.

    >>> from psrt.core.messages import Push
    >>> shard = Follower(3)
    >>> shard.handle(Relay(1, 0, 1, what=LAST))
    []
    >>> shard.handle(Push(1, 0, 0, 8, 0.0))[1:]
    [Serve(worker=1, clock=1)]
    """

    follows = True

    def __init__(self, workers: int) -> None:
        """Start with all learners alive at clock 0 and the span at version 0."""
        super().__init__(workers, quorum=lambda live: 1)
        self._alone = False
        #: What was relayed of merges that are yet to be made, in order.
        self._relayed: list[Relay] = []
        #: Learners whose next push came too late at the first shard, and its version then.
        self._late_ones: dict[int, int] = {}

    def _relay(self, relay: Relay) -> list[Decision]:
        decisions: list[Decision] = []
        if relay.what != LATE:
            self._relayed.append(relay)
        elif relay.worker in self.clock:
            self._late_ones[relay.worker] = relay.version
        self._fill(decisions)
        self._serve(decisions)
        return decisions

    def _leave(self, leave: Leave) -> list[Decision]:
        self._late_ones.pop(leave.worker, None)
        return super()._leave(leave)

    def _fill(self, decisions: list[Decision]) -> None:
        """Make the merges that were relayed and whose pushes are here; drop those too late.

        One that was too late for the first shard is answered when this shard has its version, not
        before: it would be staler here the next time.
        """
        while members := self._next():
            here = {push.worker: push for push in self.pending}
            pushes = tuple(here[it] for it in members if it in here)
            self.pending = [push for push in self.pending if push not in pushes]
            del self._relayed[: len(members)]
            decisions.append(Apply(pushes))
            self.version += 1
        for push in self.pending[:]:
            if self._late_ones.get(push.worker, math.inf) <= self.version:
                self.pending.remove(push)
                del self._late_ones[push.worker]
                decisions.append(Drop(push))

    def _next(self) -> list[int]:
        """Return the learners of the next merge, if it can be made."""
        here = {push.worker: None for push in self.pending}
        members: list[int] = []
        for relay in self._relayed:
            if relay.worker in self.clock and relay.worker not in here:
                return []
            members.append(relay.worker)
            if relay.what == LAST:
                return members
        return []

    def _serve(self, decisions: list[Decision]) -> None:
        _answer(self, decisions)


def stuck_one(policies: Sequence[Policy]) -> int | None:
    """Return which of several shards must merge those who have come; None for none.

    Where each fragment of a model has a shard that decides for it, learners that wait for merges of
    different fragments may wait for each other. A learner has one push on its way, so once all who
    train wait, somewhere, or are parked, nobody else can come to any of them. A window that is open
    closes first, then the merge that most wait for.

    >>> from psrt.core.messages import Push
    >>> shards = Learners(2, quorum=2), Learners(2, quorum=2)
    >>> [it.handle(Push(worker, 0, 0, 8, 0.0)) for worker, it in enumerate(shards)]
    [[], []]
    >>> stuck_one(shards)
    0
    """
    waiting = {push.worker: None for it in policies for push in it.pending}
    if not waiting or any(
        worker not in waiting and worker not in it.parked for it in policies for worker in it.clock
    ):
        return None
    sizes = [(it.is_open, len(it.pending)) for it in policies]
    return sizes.index(max(sizes))


def _answer(policy: Policy, decisions: list[Decision]) -> None:
    """Answer every waiting learner whose push is not waiting for its merge."""
    held = {push.worker: None for push in policy.pending}
    for worker in [it for it in policy.waiting if it not in held]:
        del policy.waiting[worker]
        decisions.append(Serve(worker, policy.clock[worker]))
