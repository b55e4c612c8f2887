"""What goes wrong in a simulated job, and when: ``KIND:WHO@WHEN``. Pure: texts and numbers.

Events and seconds are counted from the start of the job, across all its attempts, so that a second
fault may strike while the job recovers from the first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from psrt.core.errors import ConfigError

#: Who is struck: a worker or a server by its number, a rank, or all ranks of a host.
_WHO = re.compile(r"(worker|server|rank|host)([0-9]{1,9})")
_NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?"
_FAULT = re.compile(
    rf"(?P<kind>[a-z]+):(?P<what>[a-z0-9,]+)(?::(?P<factor>{_NUMBER}))?"
    rf"@(?:(?P<unit>event|op)(?P<count>[0-9]{{1,15}})|(?P<seconds>{_NUMBER})s)"
    rf"(?:\+(?P<lasts>{_NUMBER})s)?"
)
#: The latest time of a fault.
_LONGEST_S = 1e9

#: How a disk fails.
FULL, ERROR, TORN = "full", "error", "torn"
EVENT, SECONDS, OPERATION = "event", "s", "op"


class Fault(NamedTuple):
    """One thing that goes wrong, once."""

    #: A key of ``KINDS``.
    kind: str
    #: ("worker", 1) and the like, all struck at the same instant; empty for a disk.
    who: tuple[tuple[str, int], ...]
    #: ``EVENT``: before this event, from 1; ``SECONDS``: at this virtual time; ``OPERATION``: in
    #: place of this operation of the disk, from 1.
    unit: str
    at: float
    #: Seconds that it lasts, in the meaning of its kind; None if none were given.
    lasts: float | None = None
    #: For a slow link, how many times as long bytes take; 0 if none was given.
    factor: float = 0.0
    #: How a disk fails.
    how: str = ""

    def __str__(self) -> str:
        what = self.how or ",".join(f"{name}{number}" for name, number in self.who)
        factor = f":{self.factor:g}" if self.factor else ""
        when = f"{self.at!r}s" if self.unit == SECONDS else f"{self.unit}{self.at:g}"
        lasts = "" if self.lasts is None else f"+{self.lasts!r}s"
        return f"{self.kind}:{what}{factor}@{when}{lasts}"

    def ranks(
        self, workers: Sequence[int], servers: Sequence[int], hosts: Sequence[int]
    ) -> list[int]:
        """Return the ranks that it strikes.

        Args:
            workers: the rank of each worker.
            servers: the rank of each server.
            hosts: the host of each rank.

        Raises:
            ConfigError: if there is no such worker, server, rank or host.
        """
        lists = {"worker": workers, "server": servers, "rank": range(len(hosts))}
        found: list[int] = []
        for name, number in self.who:
            if name == "host":
                ranks = [rank for rank, host in enumerate(hosts) if host == number]
                last = max(hosts)
            else:
                ranks, last = list(lists[name][number : number + 1]), len(lists[name]) - 1
            if not ranks:
                there = f"the last is {last}" if last >= 0 else "there is none"
                raise ConfigError(f"fault {self} names {name} {number}, but {there}")
            found += [rank for rank in ranks if rank not in found]
        return found


class Kind(NamedTuple):
    """One kind of fault."""

    #: How it is written, for messages and help.
    form: str
    #: What it does, for the help.
    does: str
    #: Whether a fault has all that this kind needs, and nothing else.
    fits: Callable[[Fault], bool]


def _strikes_ranks(it: Fault) -> bool:
    return bool(it.who) and it.unit != OPERATION


def _plain(it: Fault) -> bool:
    return _strikes_ranks(it) and not it.factor


#: One row for each kind.
KINDS = {
    "crash": Kind(
        "crash:WHO@WHEN[+DURATION]",
        "they end for good; the others learn of it after DURATION (0s)",
        _plain,
    ),
    "pause": Kind(
        "pause:WHO@WHEN[+DURATION]",
        "they are frozen for DURATION, or forever",
        _plain,
    ),
    "cut": Kind(
        "cut:WHO@WHEN[+DURATION]",
        "no message passes between them and the others for DURATION, or forever",
        _plain,
    ),
    "slow": Kind(
        "slow:WHO:FACTOR@WHEN[+DURATION]",
        "their bytes take FACTOR times as long for DURATION, or forever",
        lambda it: _strikes_ranks(it) and it.factor >= 1,
    ),
    "suspect": Kind(
        "suspect:WHO@WHEN",
        "the others declare them dead, although they are alive",
        lambda it: _plain(it) and it.lasts is None,
    ),
    "disk": Kind(
        "disk:HOW@opN",
        "the N-th change to the checkpoint folder fails: with full and error half of it is done, "
        "with torn the job dies during it",
        lambda it: it.how in (FULL, ERROR, TORN) and it.unit == OPERATION and it.lasts is None,
    ),
}


def read_fault(text: str) -> Fault:
    """Return the fault that a text describes.

    >>> read_fault("crash:worker1,server0@event120")[:4]
    ('crash', (('worker', 1), ('server', 0)), 'event', 120.0)
    >>> str(read_fault("crash:rank3@2.5s+1s"))
    'crash:rank3@2.5s+1.0s'

    Raises:
        ConfigError: one line with the valid forms.
    """
    found = _FAULT.fullmatch(text)
    kind = KINDS.get(text.partition(":")[0])
    if kind is None:
        forms = ", ".join(it.form for it in KINDS.values())
        raise ConfigError(f"fault must be one of {forms}, got {text!r}")
    fault = None if found is None else _fault(found)
    if fault is None or not kind.fits(fault):
        raise ConfigError(
            f"fault must be {kind.form}, with a WHO like worker1,server0,rank3,host1, a WHEN "
            "like event120 or 2.5s and a DURATION like 2.5s, or a HOW of full, error and torn, got "
            f"{text!r}"
        )
    return fault


def _fault(found: re.Match[str]) -> Fault | None:
    kind, what, factor, unit, count, seconds, lasts = found.groups()
    names = [_WHO.fullmatch(it) for it in what.split(",")]
    who = tuple((it[1], int(it[2])) for it in names if it is not None)
    at, span = float(count or seconds), None if lasts is None else float(lasts)
    in_range = at <= _LONGEST_S and (span or 0.0) <= _LONGEST_S and (at >= 1 or not count)
    if not in_range or (who and len(who) < len(names)) or float(factor or 0) > _LONGEST_S:
        return None
    how = "" if who else what
    return Fault(kind, who, unit or SECONDS, at, span, float(factor or 0), how)


def crash_of(worker: int, seconds: float) -> Fault:
    """Return the crash of a worker at a time."""
    return Fault("crash", (("worker", worker),), SECONDS, seconds)


class Elapsed(NamedTuple):
    """Events and seconds that earlier attempts of a job took, for counting faults."""

    events: int = 0
    seconds: float = 0.0
    operations: int = 0

    def since(self, fault: Fault) -> Fault:
        """Return a fault that has not struck yet, as counted by the next attempt."""
        before = {EVENT: self.events, SECONDS: self.seconds, OPERATION: self.operations}[fault.unit]
        return fault._replace(at=max(fault.at - before, 0 if fault.unit == SECONDS else 1))
