"""Decides from what ranks tell of themselves whether one is dead, silent, or all are stuck. Pure.

Every rank tells at regular intervals whether it is busy, waits or pauses, and for how long. Then

- a rank whose process has ended before its part was over is *dead*, at once;
- a rank that has reported nothing for the time-out is *silent*: stopped, cut off, or locked up; it
  is busy if its process is seen at work;
- a rank that waits longer than the time-out, while no other has been busy or made progress, is
  *stuck*: a rank that computes is not late, and it may be any of those it waits for, directly or
  not;
- a rank that has been busy with one thing for the limit of busy work is *stuck*, too.

It also says which ranks are the cause, so that the others may continue without them: those
that are silent or busy for too long, and those that pause while all others wait.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from psrt.faults.processes import Sight
from psrt.faults.roster import Roster, how_it_ended

#: A story does not mention waits shorter than this, in seconds.
_SHORT_S = 1.0
#: What a process is called that is in one of these states of the kernel's.
STATES = {"T": "stopped by a signal", "t": "stopped by a debugger", "Z": "dead", "X": "dead"}
#: Ranks that a message describes one by one.
_MOST = 6


@dataclass(frozen=True, slots=True)
class Condition:
    """What a rank tells of itself."""

    #: For how long it has not changed.
    seconds: float
    #: How far it is, such as ``clock 412``; may be empty.
    where: str


@dataclass(frozen=True, slots=True)
class Busy(Condition):
    """Does something by itself."""

    #: Such as ``computes``.
    doing: str


@dataclass(frozen=True, slots=True)
class Waiting(Condition):
    """Waits for other ranks."""

    waiting_for: str


@dataclass(frozen=True, slots=True)
class Paused(Condition):
    """Does nothing on purpose, which is what others may be late for."""


_KINDS: Mapping[str, type[Condition]] = {"busy": Busy, "waiting": Waiting, "paused": Paused}


def told_of(condition: Condition) -> dict[str, Any]:
    """Return a condition as a message.

    >>> told_of(Waiting(2.0, "clock 7", "rank 3"))
    {'is': 'waiting', 's': 2.0, 'at': 'clock 7', 'what': 'rank 3'}
    """
    kind = next(name for name, kind in _KINDS.items() if isinstance(condition, kind))
    told: dict[str, Any] = {"is": kind, "s": condition.seconds, "at": condition.where}
    if isinstance(condition, Waiting):
        told["what"] = condition.waiting_for
    elif isinstance(condition, Busy):
        told["what"] = condition.doing
    return told


def condition_of(message: Mapping[str, Any]) -> Condition:
    """Return the condition that a message of ``told_of`` tells.

    Raises:
        KeyError, TypeError, ValueError: if it is no such message.
    """
    kind = _KINDS[message["is"]]
    seconds, where = float(message["s"]), str(message["at"])
    return kind(seconds, where, *([str(message["what"])] if "what" in message else []))


@dataclass(frozen=True, slots=True)
class Verdict:
    """Something to tell, and perhaps the end of the job."""

    #: ``stall`` is only told; all others end the job, or the part of the ranks that are gone.
    kind: Literal["stall", "dead", "silent", "stuck"]
    #: One line without a prefix.
    text: str
    #: The ranks that caused it; empty if the others could not continue without some of them.
    ranks: tuple[int, ...] = ()


@dataclass(slots=True)
class _Rank:
    heard_at: float
    condition: Condition | None = None
    ended: bool = False
    gone: bool = False
    #: Its process while it is silent, as somebody on its host sees it.
    process: Sight = field(default_factory=Sight)


@dataclass
class Detector:
    """What is known of all ranks, at the one that decides."""

    roster: Roster
    #: Seconds that a rank may be silent, or wait while nobody is busy.
    timeout_s: float
    #: Seconds that one piece of work may take.
    busy_s: float
    #: Seconds of a wait after which it is reported once.
    stall_s: float
    #: What the user sets the time-out with, for messages.
    knob: str = "--timeout-s"
    _ranks: dict[int, _Rank] = field(default_factory=dict)
    #: The last time that a rank was busy, or got on: it excuses those who wait.
    _got_on_at: float = -math.inf
    _told_stall: bool = False

    def watch(self, ranks: Iterable[int], now: float) -> None:
        """Begin to watch over these ranks.

        Args:
            ranks: of the roster.
            now: in seconds, on the clock of all methods.
        """
        self._ranks.update((rank, _Rank(now)) for rank in ranks)

    def heard(self, rank: int, condition: Condition, now: float) -> None:
        """Note what a rank tells of itself."""
        entry = self._ranks.get(rank)
        if entry is None:
            return  # not watched yet
        entry.heard_at, entry.condition, entry.process = now, condition, Sight()
        # Short steps count as much as long ones: of two ranks that answer each other many times a
        # second, either may be seen waiting every time, but never for long.
        got_on_at = now if isinstance(condition, Busy) else now - condition.seconds
        self._got_on_at = max(self._got_on_at, got_on_at)

    def looked_up(self, rank: int, state: str, cpu_s: float, now: float) -> None:
        """Note how the process of a silent rank looks, as ``processes.look`` returns it."""
        if rank in self._ranks:
            self._ranks[rank].process.seen(state, cpu_s, now)

    def ended(self, rank: int) -> None:
        """Note that a rank has done its part."""
        if rank in self._ranks:
            self._ranks[rank].ended = True

    def died(self, rank: int, code: int | None) -> Verdict | None:
        """Note that the process of a rank has ended; return what to tell, None if it was to end.

        Args:
            rank: whose process it was.
            code: as ``waitpid`` gives it; None if it is not known.
        """
        entry = self._ranks.setdefault(rank, _Rank(0.0))
        if entry.ended or entry.gone:
            return None
        entry.gone = True
        return Verdict(
            "dead", f"{self.roster.name(rank)} {how_it_ended(code)}{_at(entry)}", (rank,)
        )

    def quiet(self, now: float, seconds: float) -> list[int]:
        """Return the ranks that have reported nothing for the given time."""
        return [
            rank
            for rank, entry in self._ranks.items()
            if not entry.ended and not entry.gone and now - entry.heard_at > seconds
        ]

    def judge(self, now: float) -> Verdict | None:
        """Return what must be reported now; to be called at regular intervals."""
        quiet = self.quiet(now, self.timeout_s)
        silent = [rank for rank in quiet if not self._may_be_busy(rank, now)]
        if silent:
            return self._silent(silent)
        if any(rank not in silent for rank in quiet):
            self._got_on_at = now
        stuck = self._overworked()
        if stuck is not None:
            return stuck
        late = self._late(now)
        if late > self.timeout_s:
            story = self._story(f"no answer within {self.timeout_s:g} s", now)
            return Verdict("stuck", story, self._pausing())
        quiet_s = max((now - self._ranks[rank].heard_at for rank in self.quiet(now, 0)), default=0)
        if max(late, quiet_s) <= self.stall_s:
            self._told_stall = False
            return None
        if self._told_stall:
            return None
        self._told_stall = True
        begin = f"no progress for {self.stall_s:g} s, the limit is {self.timeout_s:g} s"
        return Verdict("stall", self._story(begin, now))

    def standing(self, now: float, seconds: float) -> tuple[float, dict[int, tuple[float, str]]]:
        """Return what to know of the ranks before one is called late, which is left to others.

        Args:
            now: on the clock of all methods.
            seconds: for which a rank may have reported nothing without being looked at.

        Returns:
            when a rank was last busy, or got on, and of each rank that is silent, and not at work,
            since when and in which words.
        """
        silent = {}
        for rank in self.quiet(now, seconds):
            if self._may_be_busy(rank, now):
                self._got_on_at = now
            else:
                silent[rank] = (self._ranks[rank].heard_at, self._is_silent(rank))
        return self._got_on_at, silent

    def excuse(self, now: float) -> None:
        """Forget for how long ranks have been silent, or waited: it was not their fault."""
        self._got_on_at = now
        for entry in self._ranks.values():
            entry.heard_at = now
            entry.condition, entry.process = None, Sight()

    def forget(self, ranks: Iterable[int], now: float) -> None:
        """Continue without these ranks, which waiting ranks may have waited for until now."""
        self._got_on_at = now
        for rank in ranks:
            self._ranks[rank].gone = True

    def _may_be_busy(self, rank: int, now: float) -> bool:
        """Return whether a silent process is at work, as far as anyone can see."""
        entry = self._ranks[rank]
        return entry.process.may_work(now, self.timeout_s) and now - entry.heard_at < self.busy_s

    def _silent(self, ranks: list[int]) -> Verdict:
        for rank in ranks:
            self._ranks[rank].gone = True
        told = map(self._is_silent, ranks[:_MOST])
        more = "" if len(ranks) <= _MOST else f", and {len(ranks) - _MOST} more"
        return Verdict(
            "silent",
            f"no sign of life within {self.timeout_s:g} s ({self.knob}): {', '.join(told)}{more}",
            tuple(ranks),
        )

    def _is_silent(self, rank: int) -> str:
        entry = self._ranks[rank]
        why = STATES.get(entry.process.state, "silent")
        return f"{self.roster.name(rank)} is {why}{_at(entry)}"

    def _overworked(self) -> Verdict | None:
        for rank, entry in self._living():
            doing = entry.condition
            if isinstance(doing, Busy) and doing.seconds > self.busy_s:
                name = self.roster.name(rank)
                text = f"{name} {doing.doing} for more than {self.busy_s:g} s{_at(entry)}"
                return Verdict("stuck", text, (rank,))
        return None

    def _pausing(self) -> tuple[int, ...]:
        return tuple(rank for rank, entry in self._living() if isinstance(entry.condition, Paused))

    def _living(self) -> list[tuple[int, _Rank]]:
        return [
            (rank, entry)
            for rank, entry in self._ranks.items()
            if not entry.ended and not entry.gone
        ]

    def _late(self, now: float) -> float:
        """Return for how long a rank waits while nobody was busy, the longest of all."""
        return max(
            (
                min(entry.condition.seconds + now - entry.heard_at, now - self._got_on_at)
                for _, entry in self._living()
                if isinstance(entry.condition, Waiting)
            ),
            default=0.0,
        )

    def _story(self, begin: str, now: float) -> str:
        """Tell who is silent, who waits for whom, and who does something else."""
        silent, waits, others = [], [], []
        for rank, entry in self._living():
            name, doing = self.roster.name(rank), entry.condition
            state = entry.process.state
            if state in STATES or now - entry.heard_at > max(2.0, self.timeout_s / 4):
                is_what = STATES.get(state, "silent")
                if entry.process.worked_at > -math.inf:
                    is_what = f"at work, and silent for up to {self.busy_s:g} s (--busy-timeout-s)"
                silent.append(f"{name} is {is_what}{_at(entry)}")
            elif isinstance(doing, Waiting):
                if doing.seconds > min(_SHORT_S, self.timeout_s / 4):
                    waits.append(f"{name} waits for {doing.waiting_for}")
            elif isinstance(doing, Busy):
                others.append(f"{name} {doing.doing}{_at(entry)}")
            elif doing is not None:
                others.append(f"{name} pauses{_at(entry)}")
        # Those that say what is missing come first; a server knows whose push that is.
        waits.sort(key=lambda line: not line.startswith("server"))
        lines = silent + waits + others
        more = "" if len(lines) <= _MOST else f"; and {len(lines) - _MOST} more ranks"
        return f"{begin} ({self.knob}): {'; '.join(lines[:_MOST])}{more}"


def _at(entry: _Rank) -> str:
    """Return how far a rank has reported to be, in words that follow others."""
    where = "" if entry.condition is None else entry.condition.where
    return where and f" at {where}"
