"""The decisions of one shard: when pushes make an update and when a worker may go on.

Every mode with servers is this machine with three numbers, *quorum*, *gate* and *late*
(``psrt.sync.modes`` has the table). Events go in, decisions come out; nothing here knows of
MPI, arrays or time, so every interleaving can be tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from psrt.errors import ProtocolError
from psrt.messages import Leave, Push


class Apply(NamedTuple):
    """Make the next version of the span out of these pushes, in this order."""

    pushes: tuple[Push, ...]


class Keep(NamedTuple):
    """Save this push's gradient: its worker goes on, and overwrites it, before it is applied."""

    push: Push


class Drop(NamedTuple):
    """Do not use this push; count it."""

    push: Push


class Serve(NamedTuple):
    """Send the newest version to this worker, which goes on with ``clock``."""

    worker: int
    clock: int


Decision: TypeAlias = Apply | Keep | Drop | Serve


class Policy:
    """The state machine of one shard.

    Invariants:
        - a worker has at most one push unanswered, so ``waiting`` holds each at most once;
        - ``version`` is the number of ``Apply`` decisions so far;
        - a push waits in ``pending`` only while no ``Apply`` passes it by, so its staleness when
          applied is the one it had when it arrived;
        - where updates are rounds, version v is what clock v computes with, on every shard: a
          worker's gradient for clock c was computed on version c of all of them.

    Each shard decides by itself which pushes of a round are late, so with backups a worker may
    be answered with version 5 by one shard and version 4 by another. It must not compute with
    such a mixture. It asks the shard that is behind again, with a push of no samples for clock
    5 on version 4, which is no part of round 4 and is answered when the shard has come to
    version 5. It will: whoever was in round 4 of the other shard has pushed clock 4 here, too.
    """

    def __init__(
        self,
        workers: int,
        *,
        quorum: Callable[[int], int],
        gate: float = math.inf,
        late: float = math.inf,
        rounds: bool = False,
    ) -> None:
        """Start with all ``workers`` alive at clock 0 and the span at version 0.

        Args:
            workers: W, at least 1.
            quorum: how many pushes make an update when so many workers are alive.
            gate: a worker may start clock c only if the slowest has finished c − gate steps.
            late: a push staler than this is dropped.
            rounds: whether an update is a round that all workers share: its pushes are folded in
                worker order, an empty push counts to the quorum, and a worker that the round did
                not wait for goes on with the round's clock, so that none is slower than it.
        """
        self._quorum = quorum
        self._gate = gate
        self._late = late
        self._rounds = rounds
        #: Whether every push is an update by itself and nobody ever waits.
        self._alone = not rounds and gate == math.inf and quorum(workers) <= 1
        #: Updates applied.
        self.version = 0
        #: Gradient steps finished by each live worker, as far as this shard knows.
        self.clock = dict.fromkeys(range(workers), 0)
        #: Pushes that wait for their quorum, in order of arrival.
        self.pending: list[Push] = []
        #: Workers that wait for an answer, in order of arrival.
        self.waiting: dict[int, None] = {}
        #: A worker that was the slowest when that was asked last, and its clock then.
        self._hindmost, self._least = -1, 0
        #: Largest clock that the gate let through when somebody waited last.
        self._bound = -math.inf

    @property
    def live(self) -> bool:
        """Whether any worker is left."""
        return bool(self.clock)

    def handle(self, event: Push | Leave) -> list[Decision]:
        """Return what this event sets off, in the order in which it must be done.

        Raises:
            ProtocolError: if the event does not follow from what this worker said before.
        """
        if type(event) is Push:
            return self._push(event)
        return self._leave(event)  # type: ignore[arg-type]

    @property
    def slowest(self) -> int:
        """Gradient steps that every live worker has finished; there must be one."""
        # Clocks never go back, so a worker that was the slowest is so until it moves or leaves:
        # only then are all of them looked at, which is rare among many.
        if self.clock.get(self._hindmost) != self._least:
            self._hindmost = min(self.clock, key=self.clock.__getitem__)
            self._least = self.clock[self._hindmost]
        return self._least

    def staleness(self, push: Push) -> int:
        """Return τ: the versions between the one that was read and the one that is met now."""
        return self.version - push.version

    def catches_up(self, push: Push) -> bool:
        """Tell whether a worker that has finished no step asks for a newer version only."""
        return self._rounds and push.clock > push.version

    def _push(self, push: Push) -> list[Decision]:
        worker, version = push.worker, self.version
        # One test for all that is not the plain next push of a worker. The exact look costs more
        # than the decision itself and is needed about never.
        if (
            push.clock != self.clock.get(worker)
            or not 0 <= push.version <= version
            or (self._rounds and push.version != version)
            or worker in self.waiting
        ):
            self._refuse_or_pass(push)
        if self._alone and push.samples and version - push.version <= self._late:
            # A push that is an update by itself, and a worker that never waits: the shortest way
            # through what follows.
            self.clock[worker] = clock = push.clock + 1
            self.version = version + 1
            return [Apply((push,)), Serve(worker, clock)]
        return self._decide(push)

    def _decide(self, push: Push) -> list[Decision]:
        worker = push.worker
        decisions: list[Decision] = []
        # The clock counts arrivals, not updates: under softsync a gradient may wait for its quorum
        # while its worker is already free to go on. For SSP's progress rule that is the clock to
        # use, and the read guarantee holds all the same: there quorum is 1, so what has arrived is
        # applied before anybody is answered.
        self.clock[worker] = push.clock + 1
        # Waiting before it is asked whether it must: ``_serve`` is the only place that answers.
        self.waiting[worker] = None
        if self.catches_up(push):
            # It has finished no step, so the clock must not move past the one it asks for. But this
            # shard may be further than that by now, and then the worker goes on with the newest
            # round: an older version is not to be had any more.
            self.clock[worker] = max(push.clock, self.version)
            self._fill(decisions)
        elif self.version - push.version > self._late:
            if push.samples:
                decisions.append(Drop(push))
            if self._rounds:
                # Too late for its round: it goes on with the one that is open, or it would stay
                # behind by a round for ever and each of its gradients would be dropped.
                self.clock[worker] = self.version
        elif push.samples or self._rounds:
            # In rounds an empty push counts to the quorum: those who have run out of data for this
            # step would otherwise be waited for by all the others.
            self.pending.append(push)
            self._fill(decisions)
        self._serve(decisions)
        if self.pending and self.pending[-1] is push and worker not in self.waiting:
            # Answered before it is applied: the worker is free to overwrite its gradient.
            decisions.insert(0, Keep(push))
        return decisions

    def _leave(self, leave: Leave) -> list[Decision]:
        worker = leave.worker
        if worker not in self.clock:
            raise ProtocolError(f"worker {worker} left, but it is not among the live workers")
        decisions: list[Decision] = []
        del self.clock[worker]
        if worker in self.waiting:
            # It died with a push unanswered; the gradient was never kept and may be torn: it lies
            # in the dead worker's memory. One that was answered is either applied or kept, in the
            # server's own, so it stays in ``pending``.
            del self.waiting[worker]
            lost = [push for push in self.pending if push.worker == worker]
            self.pending = [push for push in self.pending if push.worker != worker]
            decisions.extend(map(Drop, lost))
        # Both may be due now, and in this order: fewer live workers make a smaller quorum, and the
        # slowest may have been the one who left. Without this the last steps of a run would hang.
        self._fill(decisions)
        self._serve(decisions)
        return decisions

    def _refuse_or_pass(self, push: Push) -> None:
        """Look closely at a push that is not the plain next one of its worker."""
        worker, expected = push.worker, self.clock.get(push.worker)
        if expected is None:
            raise ProtocolError(f"worker {worker} pushed, but it is not among the live workers")
        if worker in self.waiting:
            raise ProtocolError(f"worker {worker} pushed again before it was answered")
        if self._rounds:
            self._check_round(push)
        elif push.clock != expected:
            raise ProtocolError(
                f"worker {push.worker} pushed clock {push.clock}, expected {expected}"
            )
        if not 0 <= push.version <= self.version:
            raise ProtocolError(
                f"worker {push.worker} read version {push.version}, the newest is {self.version}"
            )

    def _check_round(self, push: Push) -> None:
        """Check that a round's push was computed on the round's version, or is to catch up."""
        backups = self._late < math.inf
        catches_up = backups and push.version < push.clock and not push.samples
        if push.version != push.clock and not catches_up:
            raise ProtocolError(
                f"worker {push.worker} pushed clock {push.clock} on version {push.version}, "
                f"expected version {push.clock}"
            )
        if not backups and push.clock != self.version:
            raise ProtocolError(
                f"worker {push.worker} pushed clock {push.clock}, expected {self.version}"
            )

    def _fill(self, decisions: list[Decision]) -> None:
        """Make an update if the pending pushes are enough for those who are left."""
        pending = self.pending
        # More than one update only where a death or a leave completes a round, after which another
        # shard's rounds that everybody is past follow at once, empty.
        while self._complete():
            if self._rounds and len(pending) > 1:
                pending.sort(key=_worker)  # one order of summation, whatever order they came in
            decisions.append(Apply(tuple(pending)))
            pending.clear()
            self.version += 1
            if self._rounds:
                # Those whom the round did not wait for are carried along. Then no live clock is
                # below the version, so ``slowest`` ≥ version is an invariant of rounds, and a gate
                # counted from the version is as good as one counted from the slowest.
                for worker, clock in self.clock.items():
                    if clock < self.version:
                        self.clock[worker] = self.version

    def _complete(self) -> bool:
        """Tell whether an update is due."""
        live, pending = len(self.clock), len(self.pending)
        if not live:
            return pending > 0  # what was kept of those who left is not thrown away
        if pending and pending >= self._quorum(live):
            return True
        # Everybody pushed or is past this round, which another shard has finished with a push of
        # a worker that died before it reached this one. Nobody else will come.
        return self._rounds and self.slowest > self.version

    def _serve(self, decisions: list[Decision]) -> None:
        """Answer every waiting worker that the gate lets through."""
        waiting = self.waiting
        if not waiting:
            return
        clock = self.clock
        bound = self._gate
        if bound < math.inf:
            # A worker may start clock c only if min c_j ≥ c − s, that is c ≤ min c_j + s. The gate
            # is here, where the parameters are: asked apart from the data, the answer could be
            # older than what it promises, and the read guarantee would not follow.
            bound += self.version if self._rounds else self.slowest
        # Those who waited before were not let through by this bound; the newest comes last.
        asked = [next(reversed(waiting))] if bound == self._bound else list(waiting)
        self._bound = bound
        for worker in [worker for worker in asked if clock[worker] <= bound]:
            del waiting[worker]
            decisions.append(Serve(worker, clock[worker]))


def _worker(push: Push) -> int:
    return push.worker
