"""The decisions of one shard: when pushes make an update and when a worker may continue.

Every mode with servers is this state machine with three numbers, *quorum*, *gate* and *late*
(table in ``psrt.sync.modes``). Events go in, decisions come out, without MPI, arrays or time,
so tests can explore every interleaving.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from psrt.core.errors import CheckpointError, ProtocolError
from psrt.core.messages import Leave, Park, Push, Relay, Tick


class Apply(NamedTuple):
    """Make the next version of the span from these pushes, summed in this order."""

    pushes: tuple[Push, ...]


class Keep(NamedTuple):
    """Save this push's gradient: its worker continues, and overwrites it, before the update."""

    push: Push


class Drop(NamedTuple):
    """Discard this push, and count it."""

    push: Push


class Serve(NamedTuple):
    """Send the newest version to this worker, whose next step is ``clock``."""

    worker: int
    clock: int


class Cut(NamedTuple):
    """Save the shard: all live workers are parked, so no message is in flight."""

    #: The checkpoint, by the step that workers were given.
    cut: int


#: The fields of a pending push that a checkpoint keeps; one that counts several steps is never
#: pending then. And such fields of the right types, to compare restored ones with.
OWED = 6
_LIKE = Push(0, 0, 0, 0, 0.0, 0)[:OWED]

#: What a shard decides about.
Event: TypeAlias = Push | Leave | Park | Tick | Relay
Decision: TypeAlias = Apply | Keep | Drop | Serve | Cut


class Policy:
    """The state machine of one shard.

    Invariants:
        - a worker has at most one push unanswered, so ``waiting`` holds each at most once;
        - ``version`` is the number of ``Apply`` decisions so far;
        - every ``Apply`` takes all of ``pending``, so the version does not change while a push
          is pending: its staleness when applied is the one it had on arrival;
        - where updates are rounds, clock v computes with version v of every shard: a worker's
          gradient for clock c was computed on version c of all of them.

    Each shard decides alone which pushes of a round are late. So with backups one shard may answer
    a worker with version 5 and another with version 4, and the worker must not compute with such a
    mixture. It asks the shard that is behind again, by a push without samples for clock 5 on
    version 4. This push is not part of round 4 and is answered when the shard reaches version 5.
    The shard will reach it: all who pushed for round 4 of the other shard have done so here, too.

    A worker that is parked for a checkpoint pushes nothing until all are parked. This does not
    deadlock at the gate, because one shard asks all workers to park. Take a worker that the shard
    let start step c before it asked: all clocks were at least c − s then. Its next step needs
    clocks of at least c + 1 − s, which only workers at clock c − s lack. The gate had let these
    start, too, so each pushes once more before it parks, and the worker passes the gate.
    """

    saved = ("version", "clock", "_owed")
    #: Whether an update has its quorum, and waits for more pushes until a ``Tick``.
    is_open = False
    #: Whether another shard decides what this one does.
    follows = False

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
            quorum: number of live workers → number of pushes that make an update.
            gate: a worker may start clock c only if the slowest has finished c − gate steps.
            late: a push staler than this is dropped.
            rounds: whether an update is a round shared by all workers. Its pushes are summed in
                worker order. An empty push counts towards the quorum; a round of empty pushes only
                needs all live workers. A worker that the round did not wait for continues at the
                round's clock, so no clock is below the version.
        """
        self._workers, self._quorum = workers, quorum
        self._gate = gate
        self._late = late
        self._rounds = rounds
        #: Whether an update sums in the order of workers, not in that of arrival.
        self._sorts = rounds
        #: Whether every push is an update and no worker ever waits.
        self._alone = not rounds and gate == math.inf and quorum(workers) <= 1
        #: Updates applied.
        self.version = 0
        #: Gradient steps finished by each live worker, as known to this shard.
        self.clock = dict.fromkeys(range(workers), 0)
        #: Pushes that wait for their quorum, in order of arrival.
        self.pending: list[Push] = []
        #: Workers that wait for a reply, in order of arrival.
        self.waiting: dict[int, None] = {}
        #: Workers that are parked, in order of arrival, and the step of the checkpoint.
        self.parked: dict[int, None] = {}
        self._cut = 0
        #: Workers declared dead, from which nothing is accepted any more.
        self.fenced: dict[int, None] = {}
        #: The slowest worker when the minimum was last taken, and its clock then.
        self._hindmost, self._least = -1, 0
        #: The largest clock that the gate let through when it was last checked.
        self._bound = -math.inf

    @property
    def live(self) -> bool:
        """Whether any worker is left."""
        return bool(self.clock)

    @property
    def quorum(self) -> int:
        """The number of pushes that make an update while all workers are live."""
        return max(1, self._quorum(self._workers))

    @property
    def rounds(self) -> bool:
        """Whether an update is a round shared by all workers."""
        return self._rounds

    @property
    def _owed(self) -> tuple[float, ...]:
        """The pending pushes, field by field."""
        return tuple(field for push in self.pending for field in push[:OWED])

    @_owed.setter
    def _owed(self, fields: tuple[float, ...]) -> None:
        kinds = [*map(type, _LIKE)]
        rows = [fields[i : i + OWED] for i in range(0, len(fields), OWED)]
        if any([*map(type, row)] != kinds or not 0 <= row[0] < self._workers for row in rows):
            raise CheckpointError(f"a shard's pending pushes are none: {fields}")
        self.pending = [Push(*row) for row in rows]  # type: ignore[arg-type]
        # Saved with more workers, whose quorum was larger: they are part of the next update.
        self._alone = self._alone and not self.pending

    def check(self) -> None:
        """Check the restored state.

        Raises:
            CheckpointError: if it cannot be the state of such a shard.
        """
        ahead = self._rounds and any(clock > self.version for clock in self.clock.values())
        if ahead or not set(self.clock) <= set(range(self._workers)):
            raise CheckpointError(
                f"a shard at version {self.version} has workers at clocks {self.clock}"
            )

    def fences(self, event: Event) -> bool:
        """Return whether to ignore an event, because its worker was declared dead.

        Whether it is dead or only slow, all others have continued without it, so its messages come
        too late. A worker that has left by itself cannot be declared dead afterwards.
        """
        if type(event) is Leave and event.missed and event.worker not in self.clock:
            return True
        if not self.fenced or type(event) is Tick or type(event) is Relay:
            return False
        return event.worker in self.fenced  # type: ignore[union-attr]

    def handle(self, event: Event) -> list[Decision]:
        """Return the decisions on this event, in the order in which they must be carried out.

        Raises:
            ProtocolError: if the event cannot follow this worker's earlier ones.
        """
        if type(event) is Push:
            return self._push(event)
        if type(event) is Park:
            return self._park(event)
        if type(event) is Tick:
            return self._tick()
        if type(event) is Relay:
            return self._relay(event)
        return self._leave(event)  # type: ignore[arg-type]

    @property
    def slowest(self) -> int:
        """Gradient steps that every live worker has finished; there must be one."""
        # Clocks never decrease, so the slowest worker stays the slowest until its own clock moves
        # or it leaves. Only then is the minimum taken again, which is rare among many workers.
        if self.clock.get(self._hindmost) != self._least:
            self._hindmost = min(self.clock, key=self.clock.__getitem__)
            self._least = self.clock[self._hindmost]
        return self._least

    def staleness(self, push: Push) -> int:
        """Return τ: the newest version minus the one that the gradient was computed on.

        −1 for a push that no update takes: it is dropped, or only asks for a newer version.
        """
        tau = self.version - push.version
        if tau <= self._late and (push.samples or (self._rounds and push.clock <= push.version)):
            return tau
        return -1

    def catches_up(self, push: Push) -> bool:
        """Return whether a push only asks for a newer version, without a step of its own."""
        return self._rounds and push.clock > push.version

    def _push(self, push: Push) -> list[Decision]:
        worker, version = push.worker, self.version
        # One test for everything but a worker's plain next push. To find which rule is broken costs
        # more than the decision itself, and is almost never needed.
        if (
            push.clock != self.clock.get(worker)
            or not 0 <= push.version <= version
            or (self._rounds and push.version != version)
            or worker in self.waiting
        ):
            self._refuse_or_pass(push)
        if self._alone and push.samples and version - push.version <= self._late:
            # What ``_decide`` returns if each push is an update and no worker waits, without its
            # lists: the hot path of async. With a gate of ∞ nobody waits, so nobody needs serving.
            self.clock[worker] = clock = push.clock + 1
            self.version = version + 1
            return [Apply((push,)), Serve(worker, clock)]
        return self._decide(push)

    def _decide(self, push: Push) -> list[Decision]:
        worker = push.worker
        decisions: list[Decision] = []
        # The clock counts arrivals, not updates: under softsync a gradient may wait for its quorum
        # while its worker already continues. SSP's progress bound is about this clock. Its read
        # guarantee holds as well: under SSP the quorum is 1, so every push that has arrived is
        # applied before a worker is answered.
        self.clock[worker] = push.clock + 1
        # Before the gate is checked: ``_serve`` is the only place that answers.
        self.waiting[worker] = None
        if self.catches_up(push):
            # It has finished no step, so its clock must not exceed the one it asks for. But this
            # shard may be ahead by now; then the worker continues at the newest round, since older
            # versions no longer exist.
            self.clock[worker] = max(push.clock, self.version)
            self._fill(decisions)
        elif self.version - push.version > self._late:
            if push.samples:
                decisions.append(Drop(push))
            if self._rounds:
                # Too late for its round: it continues at the open one. Otherwise it would stay a
                # round behind for ever, and all of its gradients would be dropped.
                self.clock[worker] = self.version
        elif push.samples or self._rounds:
            # In rounds an empty push counts towards the quorum: otherwise all would wait for a
            # worker that has no data for this step.
            self.pending.append(push)
            self._fill(decisions)
        self._serve(decisions)
        if self.pending and self.pending[-1] is push and worker not in self.waiting:
            # Answered before the update: the worker will overwrite its gradient. First in the list,
            # since the server must save it before it sends the reply.
            decisions.insert(0, Keep(push))
        return decisions

    def _leave(self, leave: Leave) -> list[Decision]:
        worker = leave.worker
        if worker not in self.clock:
            raise ProtocolError(f"worker {worker} left, but it is not among the live workers")
        decisions: list[Decision] = []
        del self.clock[worker]
        if leave.missed:
            self.fenced[worker] = None
        self.parked.pop(worker, None)
        if worker in self.waiting:
            # It died with a push unanswered. That gradient was never saved and lies in the dead
            # worker's memory, where it may be torn. A push that was answered has been applied, or
            # saved in the server's memory (``Keep``), so it stays in ``pending``.
            del self.waiting[worker]
            lost = [push for push in self.pending if push.worker == worker]
            self.pending = [push for push in self.pending if push.worker != worker]
            decisions.extend(map(Drop, lost))
        # Both may be due now, in this order: fewer live workers need a smaller quorum, and the one
        # that left may have been the slowest. Without these the last steps of a run would hang.
        self._fill(decisions)
        self._serve(decisions)
        self._release(decisions)
        return decisions

    def _park(self, park: Park) -> list[Decision]:
        worker, decisions = park.worker, list[Decision]()
        expected = self.clock.get(worker)
        if park.clock != expected or worker in self.waiting or worker in self.parked:
            raise ProtocolError(f"worker {worker} parked at clock {park.clock}, not at {expected}")
        if self.parked and park.cut != self._cut:
            raise ProtocolError(
                f"worker {worker} parked for step {park.cut}, others for step {self._cut}"
            )
        self.parked[worker], self._cut = None, park.cut
        self._release(decisions)
        return decisions

    def _tick(self) -> list[Decision]:
        raise ProtocolError("a window is over, but none was open")

    def _relay(self, relay: Relay) -> list[Decision]:
        raise ProtocolError(f"a shard that decides by itself received {relay}")

    def _release(self, decisions: list[Decision]) -> None:
        """Make the checkpoint if all live workers are parked, and let them continue."""
        if self.parked and len(self.parked) == len(self.clock):
            decisions.append(Cut(self._cut))
            self.waiting.update(self.parked)
            self.parked.clear()
            self._bound = -math.inf  # none of them has been checked against the gate
            self._serve(decisions)

    def _refuse_or_pass(self, push: Push) -> None:
        """Raise if a push that is not its worker's plain next one breaks the protocol."""
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
        """Check that a round's push was computed on the round's version, or only catches up."""
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
        """Make an update if the pending pushes are a quorum of the live workers."""
        pending = self.pending
        # More than one update only if a death or a leave completes a round: then empty rounds may
        # follow at once, which another shard has finished and all live workers are past.
        while self._complete():
            if self._sorts and len(pending) > 1:
                pending.sort(key=_worker)  # the sum has the same bits in any order of arrival
            decisions.append(Apply(tuple(pending)))
            pending.clear()
            self.version += 1
            if self._rounds:
                # Workers that the round did not wait for move to its clock. So no live clock is
                # below the version: ``slowest`` ≥ version is an invariant of rounds, and a gate
                # relative to the version is at least as strict as one relative to the slowest.
                for worker, clock in self.clock.items():
                    if clock < self.version:
                        self.clock[worker] = self.version

    def _complete(self) -> bool:
        """Return whether an update is due."""
        live, pending = len(self.clock), len(self.pending)
        if not live:
            return pending > 0  # saved gradients of workers that left are still applied
        if pending and pending >= self._quorum(live) and self._has_gradient(live):
            return True
        # All live workers are past this round: another shard finished it with the push of a worker
        # that died before its push to this shard. No more pushes of this round will arrive.
        return self._rounds and self.slowest > self.version

    def _has_gradient(self, live: int) -> bool:
        """Return whether a pending push has samples, or no push with samples can come.

        With backups a round need not wait for all. A worker without data computes nothing and
        would make rounds alone, for which the gradients of all others would come too late.
        """
        return len(self.pending) >= live or any(push.samples for push in self.pending)

    def _serve(self, decisions: list[Decision]) -> None:
        """Answer every waiting worker that the gate lets through."""
        waiting = self.waiting
        if not waiting:
            return
        clock = self.clock
        bound = self._gate
        if bound < math.inf:
            # A worker may start clock c only if min c_j ≥ c − s, that is c ≤ min c_j + s. The gate
            # is checked by the shard that sends the parameters. If it were a separate request,
            # another shard's parameters, read after it, could lack updates that the gate promised.
            bound += self.version if self._rounds else self.slowest
        # Clocks of waiting workers change only when the version does, and so the bound (in rounds).
        # So with an unchanged bound only the newest, the last in ``waiting``, can be let through.
        asked = [next(reversed(waiting))] if bound == self._bound else list(waiting)
        self._bound = bound
        for worker in [worker for worker in asked if clock[worker] <= bound]:
            del waiting[worker]
            decisions.append(Serve(worker, clock[worker]))


def _worker(push: Push) -> int:
    return push.worker
