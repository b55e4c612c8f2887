"""Chooses the step at which all roles save: for checkpoints by time, parking and stops. Pure.

A *boundary* is a moment between two steps at which a role can be saved. Steps that are known from
the start need no protocol: every role counts. Seconds and signals need one, since no role may have
passed the chosen step when it learns of it. One process, the *decider*, chooses, in two ways:

- **In rounds** all roles reach the same boundaries. A process that wants a checkpoint sends
  ``Wish`` to the decider, which sends ``Hold`` to all. Each process then promises, by ``Held``, not
  to pass its next boundary until it knows more. Once all have promised, the decider announces the
  largest promise, by ``Agreed``. No role is beyond it: a role with a smaller promise waits at that,
  or has not reached it. Each role saves itself at its first boundary from the agreed step on.
- **Where workers park**, each saves at a step of its own, when it is asked to. Any step will do as
  a name, so the decider takes the newest one that it knows of. It is a server, which all workers
  push to; without servers it is the first process, which others tell by ``Came`` that their steps
  make a checkpoint due.

No process waits for ever. A promise needs nothing of the role, so a process whose role is blocked
still makes one; and nobody waits for dead processes (``lose``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias


class Wish(NamedTuple):
    """To the decider: a process wants a checkpoint."""

    #: Whether it also wants the run to end there.
    stop: bool


class Came(NamedTuple):
    """To the decider, if it does not see all workers: by its steps, a checkpoint is due."""

    step: int


class Hold(NamedTuple):
    """To all: promise a boundary that you will not pass before you know more."""


class Held(NamedTuple):
    """To the decider: this process will not pass the boundary ``step``."""

    process: int
    step: int


class Agreed(NamedTuple):
    """To all: the decision."""

    #: Roles save at their first boundary from this step on; where workers park, it is only a name.
    step: int
    #: Whether the run ends there.
    stops: bool


Message: TypeAlias = Wish | Came | Hold | Held | Agreed
#: Messages to send: each to one process, or to all others if that is None.
Sends: TypeAlias = list[tuple[int | None, Message]]
_KINDS: dict[str, Any] = {it.__name__: it for it in (Wish, Came, Hold, Held, Agreed)}


def words_of(message: Message) -> list[Any]:
    """Return a message as a list for JSON."""
    return [type(message).__name__, *message]


def message_of(words: Sequence[Any]) -> Message:
    """Return the message of ``words_of``."""
    kind, *fields = words
    message: Message = _KINDS[kind](*fields)
    return message


class Cuts:
    """One process's part: events in, messages out, and what its roles should do.

    >>> first, other = (Cuts(it, processes=2) for it in range(2))
    >>> other.reach(7), other.ask(stop=True)
    ([], [(0, Wish(stop=True))])
    >>> first.hear(Wish(stop=True))
    [(None, Hold())]
    >>> other.hear(Hold())
    [(0, Held(process=1, step=8))]
    >>> other.may_pass(8)
    False
    >>> first.hear(Held(process=1, step=8))
    [(None, Agreed(step=8, stops=True))]
    >>> other.hear(Agreed(step=8, stops=True)), other.may_pass(8), other.due(8, saved=0)
    ([], True, Agreed(step=8, stops=True))
    """

    def __init__(
        self,
        process: int,
        *,
        processes: int,
        decider: int = 0,
        parks: bool = False,
        sees_all: bool = True,
        every: int | None = None,
        step: int = 0,
    ) -> None:
        """Set up.

        Args:
            process: the number of this process.
            processes: the number of processes.
            decider: the number of the decider.
            parks: whether workers park, each at a step of its own.
            sees_all: if they park, whether the decider sees the steps of all workers; else each
                process reports those of its own.
            every: if they park, steps from one checkpoint to the next; None saves on a wish only.
            step: at which the run starts.
        """
        self.process, self.decider = process, decider
        self._there = set(range(processes))
        self._parks, self._sees_all, self._every = parks, sees_all, every
        self._began = self._told = step
        #: The newest boundary that a role here has reached; at the decider, also of others.
        self._step = step
        #: The promised boundary, which no role here passes; None without a promise.
        self._limit: int | None = None
        #: The decisions, the newest last. In rounds two may name the same step, of which the second
        #: stops the run: no role had reached the step when the second was made.
        self.agreed: list[Agreed] = []
        # At the decider: whether a checkpoint and a stop are wanted, and the promises since its
        # last ``Hold``; None while no ``Hold`` is open.
        self._wants = self._wants_stop = False
        self._promised: dict[int, int] | None = None

    # --- what happens here ------------------------------------------------------------------

    def ask(self, *, stop: bool = False) -> Sends:
        """Ask for a checkpoint soon, and with ``stop`` for the end of the run after it."""
        return self._to_decider(Wish(stop))

    def reach(self, step: int) -> Sends:
        """A role here has reached a boundary; where workers park, one has taken this many steps."""
        self._step = max(self._step, step)
        if not self._parks:
            return []
        if self.process == self.decider:
            return self._decide()
        # Once for each multiple of ``every``: further reports would change nothing.
        if self._is_due() and self._told // (self._every or 1) < step // (self._every or 1):
            self._told = step
            return [(self.decider, Came(step))]
        return []

    def lose(self, processes: Iterable[int]) -> Sends:
        """The others continue without these: their promises are no longer waited for."""
        self._there.difference_update(processes)
        return self._decide() if self.process == self.decider and not self._parks else []

    def hear(self, message: Message) -> Sends:
        """Handle a message of another process, or of this one to itself."""
        if isinstance(message, Agreed):
            self.agreed.append(message)
            self._limit = None  # the promise is kept: ``due`` now holds roles to the decision
            return []
        if isinstance(message, Hold):
            # The next boundary, since a role here may be past ``_step`` and cannot go back. It
            # stops nobody early: roles wait at it only if they reach it before the answer comes.
            self._limit = self._step + 1
            return self._to_decider(Held(self.process, self._limit))
        if isinstance(message, Wish):
            self._wants = True
            self._wants_stop |= message.stop
        elif isinstance(message, Came):
            self._step = max(self._step, message.step)
        elif self._promised is not None:  # else it comes late: the others have agreed without it
            self._promised[message.process] = message.step
        # A server decides at the next push that it receives (``reach``), by its newest step then.
        return [] if self._parks and self._sees_all else self._decide()

    # --- what roles here are to do ----------------------------------------------------------

    def may_pass(self, step: int) -> bool:
        """Whether a role may pass a boundary, rather than wait there for a decision."""
        return self._limit is None or step < self._limit

    def due(self, step: int, saved: int) -> Agreed | None:
        """Return the decision for which a role at a boundary must save, in rounds; None if none.

        Args:
            step: the boundary.
            saved: the step of the role's last save.
        """
        found: Agreed | None = None
        for it in reversed(self.agreed):  # steps never decrease, so most loops end at once
            if it.step <= saved:
                break
            if it.step <= step:
                found = Agreed((found or it).step, it.stops or (found is not None and found.stops))
        return found

    def after(self, last: int) -> int:
        """Return the next checkpoint that a worker parks for, as ``Params.cut``; 0 for none.

        Args:
            last: the step of the checkpoint before; 0 in a run that has just started or resumed.
        """
        at = bisect_right(self.agreed, last, key=lambda it: it.step)
        if at == len(self.agreed):
            return 0
        step, stops = self.agreed[at]
        return -step if stops else step

    # --- deciding ---------------------------------------------------------------------------

    @property
    def _last(self) -> int:
        """The step of the newest checkpoint."""
        return self.agreed[-1].step if self.agreed else self._began

    def _is_due(self) -> bool:
        """Whether the workers' steps make the next checkpoint due, where they park."""
        return self._every is not None and self._step // self._every > self._last // self._every

    def _decide(self) -> Sends:
        if self.agreed and self.agreed[-1].stops:
            return []
        if self._parks:
            return self._name()
        if self._promised is None:
            if not self._wants:
                return []
            self._promised = {}
            return self._to_all(Hold())
        if not self._promised.keys() >= self._there:
            return []
        # All live processes have promised. The largest promise is a step that no role has passed:
        # every role is held at its own promise, which is no larger. A wish that came meanwhile is
        # met by the same decision, since that has not been announced yet.
        step, self._promised = max(self._promised.values()), None
        return self._agree(step)

    def _name(self) -> Sends:
        """Announce the step that workers have reached, if a checkpoint is due or wanted."""
        step = self._step
        if not step or not (self._is_due() or self._wants):
            return []  # before the first step there is nothing to save
        if step <= self._last:
            if self._sees_all:
                return []  # the same checkpoint again; workers are about to continue
            # The first process may be slower than the one whose steps named the last checkpoint, or
            # be done. A stop must not wait until it has caught up: the name grows by one instead.
            step = self._last + 1
        return self._agree(step)

    def _agree(self, step: int) -> Sends:
        self._wants = False
        return self._to_all(Agreed(step, self._wants_stop))

    def _to_decider(self, message: Message) -> Sends:
        if self.process == self.decider:
            return self.hear(message)
        return [(self.decider, message)]

    def _to_all(self, message: Message) -> Sends:
        # To the others first: handling it here may produce further messages, which must come after.
        others: Sends = [(None, message)] if len(self._there) > 1 else []
        return others + self.hear(message)
