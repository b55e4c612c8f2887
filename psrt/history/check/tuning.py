"""What ``--tune`` tried and chose before a run, by formulas of this checker's own.

The header has the times, which no event has. So they are on trust, and the choice must follow.
"""

from __future__ import annotations

import math

from psrt.history.check.findings import TUNING, Findings
from psrt.history.header import Header

#: How much better than the usual value another one must be, and how long averages may take.
_BETTER, _SHARE = 0.98, 0.1
#: Allowed relative error of a quotient of times.
_ROUNDING = 1e-6


def choice(header: Header) -> tuple[str, int | None]:
    """Return the knob that a run could tune, and its value."""
    if header.servers:
        return "shards_per_server", header.knob("shards_per_server")
    name = "local_steps" if header.mode.averages else "bucket_bytes"
    return name, getattr(header.mode, name)


def check_tuning(header: Header, findings: Findings) -> None:
    """Check that a run has the value that follows from what was tried, if anything was.

    Args:
        header: of its history.
        findings: takes what is wrong.
    """
    if not header.tuned:
        return
    tried = [(value, seconds) for value, seconds in header.tuned if seconds is not None]
    most, (knob, chosen) = max(value for value, _ in header.tuned), choice(header)
    findings.count(TUNING, len(header.tuned))
    is_period = knob == "local_steps"
    for holds, text in (
        (len({value for value, _ in header.tuned}) == len(header.tuned), "a value was tried twice"),
        (is_period or len(tried) == len(header.tuned), "a value was not tried"),
        (
            not is_period or [it for it, _ in tried] == sorted({1, min(4, most)}),
            "other periods than 1 and 4 were tried",
        ),
        (
            tried and (_few if is_period else _fast)(tried, chosen or 0, most),
            f"{knob} {chosen} does not follow from the times of {tried}",
        ),
    ):
        if not holds:
            findings.missing(TUNING, text)


def _fast(tried: list[tuple[int, float]], chosen: int, most: int) -> bool:
    """Return whether a choice is the fastest, or the first one if no other is much faster."""
    usual, before = tried[0]
    best = min(seconds for _, seconds in tried)
    if chosen == usual:
        return best >= _BETTER * before * (1 - _ROUNDING)
    return (chosen, best) in tried and best <= _BETTER * before * (1 + _ROUNDING)


def _few(tried: list[tuple[int, float]], chosen: int, most: int) -> bool:
    """Return whether a choice is the shortest period whose averages take a tenth of a step."""
    (short, one), (long, other) = tried[0], tried[-1]
    average = (one - other) * short * long / max(long - short, 1)
    step = one - average / short

    def share(period: int) -> float:
        total = step + average / period
        return average / period / total if total > 0 else math.inf

    if average <= 0:
        return chosen == short
    enough = share(chosen) <= _SHARE * (1 + _ROUNDING) or chosen == most
    fewer = chosen == 1 or share(chosen - 1) > _SHARE * (1 - _ROUNDING)
    return 1 <= chosen <= most and enough and fewer
