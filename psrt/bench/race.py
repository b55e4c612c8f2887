"""Time candidates against each other: interleaved, in one run, by the slowest rank.

A machine's speed drifts by more than the differences worth knowing. So candidates take turns, round
by round, and compared readings are moments apart. A turn repeats a call until the turn is full, so
that neither the clock nor the meeting before it shows.

The ranks of a race are laid out on hosts, real or pretended. Pure: ``RankTrack`` knows of MPI.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Generic, Protocol, TypeVar

from psrt.bench.figures import Summary
from psrt.core.errors import ConfigError
from psrt.core.progress import PROGRESS

Key = TypeVar("Key", bound=Hashable)
#: Makes the given number of calls in a row and returns the seconds that count on this rank, in all:
#: 0 on a rank whose time does not count, such as a server.
Run = Callable[[int], float]
#: Trials to find the time of a call: the number of calls in a row, made if a call is believed to
#: take less than these seconds. One call alone may have had no core just then.
_TRIALS = ((1, math.inf), (10, 10e-3), (100, 200e-6))


#: Factor by which a budget may be exceeded, for ``Candidate.least`` or by turns that take longer
#: than the trials.
_STRETCH = 4


@dataclass(frozen=True, slots=True)
class Candidate:
    """A call to time, and its share of the time."""

    #: None on ranks that do not take part.
    run: Run | None
    #: Seconds that all its turns together may take.
    budget_s: float = math.inf
    #: Turns that it has in any case, unless there are fewer rounds or they take more than
    #: ``_STRETCH`` budgets.
    least: int = 3


@dataclass(frozen=True, slots=True)
class Pace:
    """The length of a turn, in seconds, and the fewest and the most calls in it."""

    turn_s: float = 4e-3
    fewest: int = 1
    most: int = 1 << 30


class Track(Protocol):
    """The place of a race: among ranks, or in one process."""

    def meet(self) -> None:
        """Wait for all ranks, so that a turn begins on all of them at once."""

    def slowest(self, seconds: list[float]) -> list[float]:
        """Return, place by place, the largest number of any rank, on every rank."""


class _OneProcess:
    def meet(self) -> None:
        """Do nothing: there are no other ranks."""

    def slowest(self, seconds: list[float]) -> list[float]:
        return seconds


ONE_PROCESS: Track = _OneProcess()


@dataclass(frozen=True, slots=True)
class Readings(Generic[Key]):
    """The result of a race; the same on every rank."""

    #: By round, the seconds of one call of each candidate that had a turn in it.
    rounds: Sequence[Mapping[Key, float]]

    def of(self, key: Key) -> list[float]:
        """Return the readings of one candidate, in order."""
        return [row[key] for row in self.rounds if key in row]

    def pairs(self, key: Key, other: Key) -> list[tuple[float, float]]:
        """Return the readings of two candidates in those rounds in which both had a turn."""
        return [(row[key], row[other]) for row in self.rounds if key in row and other in row]

    def summary(self, key: Key, scale: float = 1.0) -> Summary:
        """Summarize the seconds of one candidate, times ``scale``."""
        return Summary.of([scale * seconds for seconds in self.of(key)])

    def ratio(
        self, over: Key, under: Key, factor: float = 1.0, plus: float = 0.0
    ) -> Summary | None:
        """Summarize ``over`` / (``factor`` · ``under`` + ``plus``), round by round.

        This cancels the drift of the machine, which a ratio of medians would not. None if they have
        no round in common.

        Args:
            over: the candidate above the line.
            under: the candidate below it.
            factor: that the seconds of ``under`` are multiplied by.
            plus: seconds added to that.

        >>> Readings([{"a": 2.0, "b": 1.0}, {"a": 20.0, "b": 10.0}, {"b": 10.0}]).ratio("a", "b")
        Summary(median=2.0, low=2.0, high=2.0, readings=2)
        """
        both = self.pairs(over, under)
        return Summary.of([a / (factor * b + plus) for a, b in both]) if both else None


def race(
    candidates: Mapping[Key, Candidate],
    rounds: int,
    *,
    track: Track = ONE_PROCESS,
    pace: Pace = Pace(),
    calls: int | None = None,
    warmup: int = 0,
) -> Readings[Key]:
    """Time every candidate in some of the rounds or in all, as its budget allows; collective.

    Every other round goes through them backwards, so that none always follows the same candidate
    and inherits its caches.

    Args:
        candidates: by name, the same ones on every rank; each has been called before, so that it is
            set up.
        rounds: at least 1.
        track: where the race is held.
        pace: the number of calls in a turn.
        calls: that number of calls, whatever the pace.
        warmup: rounds before those that count, in which every candidate has a turn.
    """
    order = list(enumerate(candidates.items()))
    seconds = [[0.0] * len(order) for _ in range(rounds)]
    plans = {}
    for place, (key, candidate) in order:
        if calls is not None:
            plans[key] = calls, rounds
            continue
        about_s, seconds[0][place] = _tried(candidate.run, track)
        plans[key] = plan(about_s, candidate, rounds, pace)
    #: By candidate, the time of its turns on this rank, including time that does not count.
    spent = [0.0] * len(order)
    for number in PROGRESS.each(range(-warmup, rounds), "measures", "round"):
        # Trials end within a slice of the scheduler. Where ranks share cores and wait by spinning,
        # a turn was seen to take fifty times as long as its trials promised.
        most = track.slowest(list(spent))
        for place, (key, candidate) in order if number % 2 == 0 else reversed(order):
            count, turns = plans[key]
            if number < 0 or (
                has_turn(number, turns, rounds) and most[place] <= _STRETCH * candidate.budget_s
            ):
                taken, wall_s = _turn(candidate.run, count, track)
                if number >= 0:
                    seconds[number][place] = taken / count
                    spent[place] += wall_s
            elif number == 0 and turns:
                seconds[0][place] = 0.0  # the trial does not count if there are turns
    flat = iter(track.slowest([taken for row in seconds for taken in row]))
    rows = [[next(flat) for _ in row] for row in seconds]
    return Readings(
        [{key: s for key, s in zip(candidates, row, strict=True) if s > 0} for row in rows]
    )


def repeated(call: Callable[[], object]) -> Run:
    """Return a function that repeats a call, back to back."""

    def run(count: int) -> float:
        start = perf_counter()
        for _ in range(count):
            call()
        return perf_counter() - start

    return run


def trial(run: Run | None, track: Track = ONE_PROCESS) -> float:
    """Return the approximate seconds of a call, including what it waits for; collective."""
    return _tried(run, track)[0]


def _tried(run: Run | None, track: Track) -> tuple[float, float]:
    """Return the approximate seconds of a call by the clock, and those that count on this rank."""
    best, counted = math.inf, 0.0
    for count, below_s in _TRIALS:
        if count == 1 or best < below_s:
            track.meet()
            start = perf_counter()
            counted = 0.0 if run is None else run(count) / count
            (seconds,) = track.slowest([perf_counter() - start])
            best = min(best, seconds / count)
    return best, counted


def calls_in_a_turn(seconds: float, pace: Pace) -> int:
    """Return the number of calls in a turn, if one takes about ``seconds``.

    >>> [calls_in_a_turn(s, Pace(4e-3, most=2000)) for s in (1e-9, 1e-5, 1.0)]
    [2000, 400, 1]
    """
    return int(min(max(pace.turn_s / max(seconds, 1e-9), pace.fewest), pace.most))


def plan(seconds: float, candidate: Candidate, rounds: int, pace: Pace) -> tuple[int, int]:
    """Return the number of calls in a turn, and the number of rounds with a turn of a candidate.

    No rounds if a single call takes longer than its budget, stretched: then only the trial is left.
    With more ranks than cores a call of MPICH's own may take seconds where another takes
    a millisecond.

    Args:
        seconds: approximate time of a call.
        candidate: its budget counts.
        rounds: number of rounds.
        pace: length of a turn.

    >>> budget = Candidate(None, budget_s=0.3)
    >>> [plan(s, budget, 9, Pace()) for s in (1e-5, 0.05, 0.3, 0.6, 5.0)]
    [(400, 9), (1, 6), (1, 3), (1, 2), (1, 0)]
    """
    calls = calls_in_a_turn(seconds, pace)
    affordable = candidate.budget_s / max(calls * seconds, 1e-9) + 1e-9
    turns = max(affordable, min(_STRETCH * affordable, candidate.least))
    return calls, int(min(turns, rounds))


def has_turn(number: int, turns: int, rounds: int) -> bool:
    """Return whether a candidate has a turn in round ``number``; turns are spread evenly.

    Args:
        number: of the round, from 0.
        turns: rounds in which it has one, at most ``rounds``.
        rounds: number of rounds.

    >>> [number for number in range(9) if has_turn(number, 3, 9)]
    [2, 5, 8]
    """
    return (number + 1) * turns // rounds > number * turns // rounds


def _turn(run: Run | None, count: int, track: Track) -> tuple[float, float]:
    """Meet, then return the seconds of ``count`` calls that count on this rank, and all of them."""
    track.meet()
    start = perf_counter()
    return 0.0 if run is None else run(count), perf_counter() - start


@dataclass(frozen=True, slots=True)
class Layout:
    """Ranks by host."""

    hosts: tuple[tuple[int, ...], ...]
    #: Whether ranks of one host are treated as several hosts: they then share no memory, and their
    #: messages go through MPI as between hosts, but over no wire.
    pretended: bool

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks, host by host."""
        return tuple(rank for host in self.hosts for rank in host)

    @property
    def apart(self) -> bool:
        """Whether each rank has its own host, and there are several."""
        return len(self.hosts) == len(self.ranks) > 1

    def host_of(self, rank: int) -> int:
        """Return the number of a rank's host."""
        return next(number for number, host in enumerate(self.hosts) if rank in host)


def layout(present: Sequence[Sequence[int]], ranks: int, hosts: int) -> Layout | None:
    """Place ranks on hosts, the same number on each.

    Args:
        present: by real host, its ranks.
        ranks: number of ranks to place.
        hosts: number of hosts to place them on.

    Returns:
        The ranks on different hosts if there are enough, else all on the first one; None if the
        ranks cannot be spread evenly or are too few.

    >>> layout([[0, 1, 2, 3]], 4, 2)
    Layout(hosts=((0, 1), (2, 3)), pretended=True)
    >>> layout([[0, 1], [2, 3]], 2, 2), layout([[0, 1]], 4, 1)
    (Layout(hosts=((0,), (2,)), pretended=False), None)
    """
    each, left = divmod(ranks, hosts)
    if left or not each:
        return None
    large = [tuple(host[:each]) for host in present if len(host) >= each]
    # Rank 0 takes part in everything, since it reports.
    if len(large) >= hosts and len(present[0]) >= each:
        return Layout(tuple(large[:hosts]), pretended=False)
    if len(present[0]) < ranks:
        return None
    first = present[0]
    return Layout(
        tuple(tuple(first[i * each : (i + 1) * each]) for i in range(hosts)), pretended=True
    )


def layouts(
    present: Sequence[Sequence[int]], ranks: Sequence[int], hosts: Sequence[int]
) -> list[Layout]:
    """Return a layout for each number of ranks on each number of hosts that is possible.

    Raises:
        ConfigError: if no layout is possible.
    """
    found = [layout(present, p, h) for h in hosts for p in ranks]
    if not any(found):
        raise ConfigError(
            f"{sum(map(len, present))} ranks cannot place {_either(ranks)} ranks evenly on "
            f"{_either(hosts)} hosts"
        )
    return [placed for placed in found if placed is not None]


def _either(numbers: Sequence[int]) -> str:
    return " or ".join(map(str, numbers))
