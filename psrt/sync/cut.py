"""At which step all save: one protocol for checkpoints by time, for parking and for a stop. Pure.

A *boundary* is a moment between two steps at which a role can be saved. Steps that are known from
the start need no protocol: every role counts. Seconds and signals do, since no role may have passed
the step when it learns of it. One process decides; where roles come to boundaries decides how:

- **In rounds** all come to the same boundaries. Whoever wants a checkpoint tells the process that
  decides, by ``Wish``. That has all ``Hold``: each promises the next boundary, which it does not
  pass until it knows more, by ``Held``. When all have, the largest of these is ``Agreed`` on.
  Nobody is beyond it: whose promise was smaller is waiting, or has not come to that. Each role
  saves itself at its first boundary from that step on.
- **Where workers park**, each comes to a checkpoint at a step of its own, when it is told. So any
  step will do, and who decides just names the one that it knows of. It is a server, which all
  workers push to, or, where there is none, the first process: then others tell it, by ``Came``,
  when a checkpoint is due by their steps.

Nobody waits for ever: a promise is made without the role's doing, so that it comes also from a
process whose role waits for others; and the dead are not waited for (``lose``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias


class Wish(NamedTuple):
    """To who decides: somebody wants a checkpoint."""

    #: And the run to end with it.
    stop: bool


class Came(NamedTuple):
    """To who decides, where nobody sees all workers: one has come so far that one is due."""

    step: int


class Hold(NamedTuple):
    """To all: promise a boundary that you will not pass before you know more."""


class Held(NamedTuple):
    """To who decides: this process promises that."""

    process: int
    step: int


class Agreed(NamedTuple):
    """To all: what was decided."""

    #: From which step on the next boundary is saved; where workers park, its name.
    step: int
    #: Whether the run ends there.
    stops: bool


Message: TypeAlias = Wish | Came | Hold | Held | Agreed
#: What is to be sent: to a process, or to all others where that is None.
Sends: TypeAlias = list[tuple[int | None, Message]]
_KINDS: dict[str, Any] = {it.__name__: it for it in (Wish, Came, Hold, Held, Agreed)}


def words_of(message: Message) -> list[Any]:
    """Return a message as JSON knows it."""
    return [type(message).__name__, *message]


def message_of(words: Sequence[Any]) -> Message:
    """Return what ``words_of`` was given."""
    kind, *fields = words
    message: Message = _KINDS[kind](*fields)
    return message


class Cuts:
    """One process's part: events in, messages out, and what its roles are to do.

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
        """Begin.

        Args:
            process: number of this one.
            processes: how many there are.
            decider: the number of the one that decides.
            parks: whether workers park, at steps of their own.
            sees_all: there, whether who decides sees all workers; else ``reach`` is each one's own.
            every: there, steps from one checkpoint to the next; None makes one on a wish only.
            step: at which the run begins.
        """
        self.process, self.decider = process, decider
        self._there = set(range(processes))
        self._parks, self._sees_all, self._every = parks, sees_all, every
        self._began = self._told = step
        #: The newest boundary that a role here has come to; who decides knows of others, too.
        self._step = step
        #: The boundary that no role here passes; None if it has promised none.
        self._limit: int | None = None
        #: What was decided, the newest last. In rounds two may be of one step, of which the second
        #: one stops: nobody had come to it.
        self.agreed: list[Agreed] = []
        # Of who decides: whether somebody wants a checkpoint and a stop, and who has promised what
        # since it had all hold; None while it has not.
        self._wants = self._wants_stop = False
        self._promised: dict[int, int] | None = None

    # --- what happens here ------------------------------------------------------------------

    def ask(self, *, stop: bool = False) -> Sends:
        """Somebody wants a checkpoint soon, and to end the run after it if so."""
        return self._to_decider(Wish(stop))

    def reach(self, step: int) -> Sends:
        """A role here has come to a boundary; where workers park, one has taken so many steps."""
        self._step = max(self._step, step)
        if not self._parks:
            return []
        if self.process == self.decider:
            return self._decide()
        if self._is_due() and self._told // (self._every or 1) < step // (self._every or 1):
            self._told = step
            return [(self.decider, Came(step))]
        return []

    def lose(self, processes: Iterable[int]) -> Sends:
        """The others go on without these: nobody waits for what they would have promised."""
        self._there.difference_update(processes)
        return self._decide() if self.process == self.decider and not self._parks else []

    def hear(self, message: Message) -> Sends:
        """Another process has told this."""
        if isinstance(message, Agreed):
            self.agreed.append(message)
            self._limit = None
            return []
        if isinstance(message, Hold):
            self._limit = self._step + 1
            return self._to_decider(Held(self.process, self._limit))
        if isinstance(message, Wish):
            self._wants = True
            self._wants_stop |= message.stop
        elif isinstance(message, Came):
            self._step = max(self._step, message.step)
        elif self._promised is not None:  # else it was given up, and the others have agreed
            self._promised[message.process] = message.step
        # A server names the step that workers have come to by then, when it hears the next of them.
        return [] if self._parks and self._sees_all else self._decide()

    # --- what roles here are to do ----------------------------------------------------------

    def may_pass(self, step: int) -> bool:
        """Whether a role may go on at a boundary, or must wait until more is known."""
        return self._limit is None or step < self._limit

    def due(self, step: int, saved: int) -> Agreed | None:
        """Return what a role at a boundary is to be saved for, in rounds; None for nothing.

        Args:
            step: at which it is.
            saved: at which it was saved last.
        """
        found: Agreed | None = None
        for it in reversed(self.agreed):  # which never decrease: most end at once
            if it.step <= saved:
                break
            if it.step <= step:
                found = Agreed((found or it).step, it.stops or (found is not None and found.stops))
        return found

    def after(self, last: int) -> int:
        """Return the checkpoint that a worker parks for after one, as ``Params.cut``; 0 for none.

        Args:
            last: the step of the one before; 0 in a run that has just begun or goes on.
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
        """Whether workers have taken the steps from one checkpoint to the next, where they park."""
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
        # A wish that came since is met, too: nobody has been told yet.
        step, self._promised = max(self._promised.values()), None
        return self._agree(step)

    def _name(self) -> Sends:
        """Name the step that workers have come to, if it is time."""
        step = self._step
        if not step or not (self._is_due() or self._wants):
            return []  # where no step is done there is nothing to save
        if step <= self._last:
            if self._sees_all:
                return []  # it would be the same one again; workers are about to go on
            # The first process may be slower than the one by whose steps the last one was named,
            # or done: a stop need not wait until it has overtaken that.
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
        # To the others first: what follows of this process's own part is said after that.
        others: Sends = [(None, message)] if len(self._there) > 1 else []
        return others + self.hear(message)
