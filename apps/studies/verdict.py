"""Where each mode wins, where it loses, and its price: from standings to words. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from studies.standings import BASELINE, BEHIND, FIRST, NEAR, TIED, Row, median_of, repeats

#: A loss of accuracy that is reported: a hundredth, some four samples of the digits' test set.
ACCURACY_LOSS = 0.01


def verdicts(cells: Sequence[Row], runs: Sequence[Row]) -> list[str]:
    """Return the lines that say who is the fastest where, and of each mode where it loses.

    Args:
        cells: as ``medians`` returned them.
        runs: the rows that they were made of.
    """
    lines = [_fastest(cell, cells) for cell in cells if cell["standing"] == FIRST]
    for mode in dict.fromkeys(cell["mode"] for cell in cells):
        mine = [cell for cell in cells if cell["mode"] == mode]
        lines += ["", mode]
        for heading, told in (
            ("wins", [_won(cell, cells) for cell in mine]),
            ("ties", [_tied(cell, cells) for cell in mine]),
            ("is near", [_near(cell, cells) for cell in mine]),
            ("loses", [_lost(cell, cells) for cell in mine]),
            ("shows", [_shown(cell, cells) for cell in mine]),
            ("price", [_price(mine, [run for run in runs if run["mode"] == mode])]),
        ):
            if words := "; ".join(filter(None, told)):
                lines += _wrapped(f"  {heading:<8} {words}")
    return lines


def _wrapped(line: str) -> list[str]:
    """Break a line, but not between a scenario, a ratio and a mode."""
    for parts in (": ", " x "):
        line = line.replace(parts, parts.replace(" ", "\N{NO-BREAK SPACE}"))
    lines = textwrap.wrap(line, 100, subsequent_indent=" " * 11, break_on_hyphens=False)
    return [part.replace("\N{NO-BREAK SPACE}", " ") for part in lines]


def _fastest(cell: Row, cells: Sequence[Row]) -> str:
    """Return the winner of a scenario as text; ``cell`` is the first of its standings."""
    rivals = _rivals(cell, cells)
    tie = f", a tie with {_listed(rivals)}" if rivals else ""
    return "\n".join(_wrapped(f"  {cell['scenario']:<8} {cell['mode']}, {_time(cell)}{tie}"))


def _won(cell: Row, cells: Sequence[Row]) -> str:
    """Describe a scenario in which no other mode is as fast."""
    if cell["standing"] != FIRST or _rivals(cell, cells):
        return ""
    rivals = [c for c in _beside(cell, cells) if c is not cell]
    others = [c for c in rivals if c["ratio"] is not None]
    if not others:
        return f"{cell['scenario']}: nobody else reaches the target" if rivals else ""
    second = min(others, key=median_of)
    return f"{cell['scenario']}: the next, {second['mode']}, takes {_times(second['ratio'])}"


def _tied(cell: Row, cells: Sequence[Row]) -> str:
    """Describe a scenario in which the seeds do not decide which mode is faster."""
    if cell["standing"] == FIRST and (rivals := _rivals(cell, cells)):
        return f"{cell['scenario']}: with {_listed(rivals)}"
    return _beaten(cell, cells) if cell["standing"] == TIED else ""


def _near(cell: Row, cells: Sequence[Row]) -> str:
    """Describe a scenario in which the mode is almost the fastest."""
    return _beaten(cell, cells) if cell["standing"] == NEAR else ""


def _beaten(cell: Row, cells: Sequence[Row]) -> str:
    return f"{cell['scenario']}: {_times(cell['ratio'])} {_best(cell, cells)['mode']}"


def _lost(cell: Row, cells: Sequence[Row]) -> str:
    """Describe a scenario in which the mode is slow, misses the target, or is less accurate."""
    if cell["standing"] == BASELINE:
        return ""
    losses = []
    if cell["standing"] == BEHIND:
        losses.append(f"{_times(cell['ratio'])} {_best(cell, cells)['mode']}")
    if not cell["reached"]:
        losses.append("never reaches the target")
    elif missed := cell["runs"] - cell["reached"]:
        losses.append(f"misses the target with {missed} of {cell['runs']} seeds")
    short = max(c["worst_accuracy"] for c in _beside(cell, cells)) - cell["worst_accuracy"]
    if short >= ACCURACY_LOSS:
        losses.append(f"{100 * short:.1f} points of accuracy below the best")
    return f"{cell['scenario']}: {', '.join(losses)}" if losses else ""


def _shown(cell: Row, cells: Sequence[Row]) -> str:
    """Describe the baseline, which does not compete."""
    if cell["standing"] != BASELINE:
        return ""
    beside = "" if cell["ratio"] is None else f"; {_beaten(cell, cells)}"
    return f"one process by itself, never late: {_time(cell)}{beside}"


def _price(mine: Sequence[Row], runs: Sequence[Row]) -> str:
    """Describe the price of a mode's speed, each part in the scenario where it is largest."""
    stalest, dropped, waiting = (
        max(mine, key=lambda cell: cell[key])
        for key in ("staleness_mean", "dropped", "waiting_share")
    )
    prices = []
    if stalest["staleness_max"]:
        prices.append(
            f"staleness {stalest['staleness_mean']:.2f} ({stalest['scenario']}), "
            f"at most {max(cell['staleness_max'] for cell in mine)}"
        )
    if dropped["dropped"]:
        prices.append(f"{dropped['dropped']:.0f} gradients dropped a run ({dropped['scenario']})")
    if waiting["waiting_share"] >= 0.005:
        share = f"{100 * waiting['waiting_share']:.0f} %"
        prices.append(f"workers wait {share} of the time ({waiting['scenario']})")
    same = repeats(runs)
    if same is not None:
        bits = "the same bits with any" if same else "other bits with another"
        prices.append(f"{bits} straggler")
    return ", ".join(prices)


def _beside(cell: Row, cells: Iterable[Row]) -> list[Row]:
    """Return all who compete in the scenario of ``cell``."""
    return [c for c in cells if c["scenario"] == cell["scenario"] and c["standing"] != BASELINE]


def _best(cell: Row, cells: Iterable[Row]) -> Row:
    return next(c for c in _beside(cell, cells) if c["standing"] == FIRST)


def _rivals(cell: Row, cells: Iterable[Row]) -> list[str]:
    return [c["mode"] for c in _beside(cell, cells) if c["standing"] == TIED]


def _time(cell: Row) -> str:
    seconds = cell["seconds_to_accuracy"]
    return "never at the target" if seconds is None else f"{seconds:.3g} s"


def _times(ratio: float) -> str:
    digits = 2 if ratio < 2 else 1 if ratio < 10 else 0
    return f"{ratio:.{digits}f} x"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
