"""What a run with ``--tune`` tried and chose, by formulas of this checker's own.

The header has the values, since when they held, and the times; no event has these times. So they
are on trust, and the choice must follow from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from psrt.history.check.contract import Contract
from psrt.history.check.findings import TUNING, Findings
from psrt.history.header import Header

#: Sums over all workers with each value, and the longest period that is tried.
_SUMS, _PERIOD = 8, 4
#: How much better than the usual value another one must be, and how long averages may take.
_BETTER, _SHARE = 0.98, 0.1
#: Allowed relative error of a quotient of times.
_ROUNDING = 1e-6


def check_tuning(contract: Contract, header: Header, sums: int, findings: Findings) -> None:
    """Check the header's values against each other and, as far as they show, against the run.

    Args:
        contract: of the run.
        header: of its history.
        sums: over all workers, while any of them trained; 0 with servers.
        findings: takes what is wrong.
    """
    tuned = contract.tuned
    tried = [(value, seconds) for _, value, seconds in tuned if seconds is not None]
    each = 0 if contract.shards else _SUMS
    periods = _tried_periods(contract)
    has_both, is_chosen = len(tried) == len(periods), len(tuned) > len(tried)
    findings.count(TUNING, len(tuned))
    for holds, text in (
        (contract.tunes or contract.shards or not tuned, "values were tuned without --tune"),
        (
            [since for since, *_ in tuned] == [i * each for i in range(len(tuned))],
            f"tuned values do not follow each other after {each} sums",
        ),
        (
            all(seconds is not None for *_, seconds in tuned[:-1]) and (tried or not tuned),
            "a value was chosen before others were tried",
        ),
        (len({value for value, _ in tried}) == len(tried), "a value was tried twice"),
        (
            not periods or [value for value, _ in tried] == periods[: len(tried)],
            f"other periods than {periods} were tried",
        ),
        (
            not periods or (len(tried) >= min(2, sums // _SUMS) and has_both == is_chosen),
            "a period was not tried, or not chosen, in its turn",
        ),
        (not tuned or tuned[-1][0] <= sums, f"a value holds after more than {sums} sums"),
        (
            not is_chosen or _follows(contract, tried, tuned[-1][1]),
            f"the choice does not follow from the times of {tried}",
        ),
        (
            not contract.shards or (is_chosen and tuned[-1][1] == header.knob("shards_per_server")),
            "the run has other shards than were chosen",
        ),
    ):
        if not holds:
            findings.missing(TUNING, text)


def _tried_periods(contract: Contract) -> list[int]:
    """Return the periods that are tried; none where something else is."""
    if not contract.tunes or contract.shards or not contract.mode.averages:
        return []
    return [1, min(_PERIOD, contract.local_steps)]


def _follows(contract: Contract, tried: list[tuple[int, float]], chosen: int) -> bool:
    """Return whether a choice follows from what was tried."""
    if contract.shards or not contract.mode.averages:
        usual, before = tried[0]
        after = dict(tried).get(chosen, math.inf)
        if chosen == usual:
            return all(seconds >= _BETTER * before * (1 - _ROUNDING) for _, seconds in tried)
        return after <= min(min(it for _, it in tried), _BETTER * before * (1 + _ROUNDING))
    (short, one), (long, other) = tried
    average = (one - other) * short * long / (long - short)
    step = one - average / short

    def share(period: int) -> float:
        total = step + average / period
        return average / period / total if total > 0 else math.inf

    if average <= 0:
        return chosen == short
    enough = share(chosen) <= _SHARE * (1 + _ROUNDING) or chosen == contract.local_steps
    fewer = chosen == 1 or share(chosen - 1) > _SHARE * (1 - _ROUNDING)
    return 1 <= chosen <= contract.local_steps and enough and fewer


def period_of(contract: Contract) -> Callable[[int], int]:
    """Return what has the period before the i-th average of a worker, from 0."""
    periods = _tried_periods(contract)
    if not periods:
        return lambda i: contract.local_steps

    def period(i: int) -> int:
        if i < _SUMS * len(periods):
            return periods[i // _SUMS]
        return contract.tuned[-1][1] if contract.tuned else contract.local_steps

    return period
