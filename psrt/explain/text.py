"""A collective as text: round by round who sends what to whom, and the sums beneath. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from psrt.explain.ending import ending_text, totals_text
from psrt.explain.names import COMPLETE, ranges, sizes
from psrt.explain.phrases import hop_text
from psrt.explain.story import Hop
from psrt.explain.telling import ITEMSIZE, Telling
from psrt.units import size_text

#: Lines of hops up to which all of them are printed.
_ALL = 100
#: Where there are more: rounds told at the beginning and at the end, and hops told of each.
_FIRST, _LAST, _HOPS = 3, 2, 6


def as_text(telling: Telling, *, everything: bool = False) -> str:
    """Return the whole explanation.

    Args:
        telling: what to print.
        everything: whether to print every hop, however many they are.
    """
    parts = [
        _heading(telling),
        *_rounds(telling, everything),
        ending_text(telling),
        totals_text(telling),
    ]
    return "\n\n".join(part for part in parts if part)


def _heading(telling: Telling) -> str:
    schedule, story = telling.schedule, telling.story
    size, n = telling.size, telling.n
    whose = " ".join(telling.names) if size <= 26 else f"{telling.names[0]} to {telling.names[-1]}"
    kind = f", an {schedule.kind}" if schedule.kind != schedule.name else ""
    lines = [f"{schedule.name}{kind} of {size} rank{'s' if size > 1 else ''}: {whose}"]
    lines.append(f"  {schedule.summary}")
    if telling.order is not None:
        ring = [telling.names[rank] for rank in (*telling.order, telling.order[0])]
        lines.append(f"  ring: {' → '.join(ring)}")
    if telling.root is not None:
        lines.append(f"  root: {telling.names[telling.root]}")
    cells = story.cells.spans[: story.cells.in_vector]
    amount = f"{n} number{'s' if n != 1 else ''}"
    if not telling.numbered:
        amount = f"{size_text(n * ITEMSIZE)} = {n} float32"
    cut = "in one piece"
    if len(cells) > 1:
        cut = f"chunks {ranges(range(len(cells)), len(cells))} of {sizes(cells)}"
    lines.append(f"  vector: {amount}{', ' + cut if cells else ''}")
    if len(story.cells.spans) > len(cells):
        room = size_text(story.task.workspace * ITEMSIZE)
        lines.append(f"  workspace behind it, w0 and so on: {room}")
    if story.folds and not telling.numbered and size > 1:
        lines.append(f"  {COMPLETE} is the {telling.op} of all {size}")
    return "\n".join(lines)


def _rounds(telling: Telling, everything: bool) -> Iterator[str]:
    """Yield a paragraph per round, or as many as can be read."""
    rounds = list(telling.story.by_round())
    if not rounds:
        yield "nothing to send"
    if everything or len(telling.story.hops) <= _ALL:
        yield from (_round(telling, label, hops, len(hops)) for label, hops in rounds)
        return
    if len(rounds) <= _FIRST + _LAST + 1:
        most = max(_HOPS, _ALL // len(rounds))
        yield from (_round(telling, label, hops, most) for label, hops in rounds)
        return
    skipped = rounds[_FIRST:-_LAST]
    yield from (_round(telling, label, hops, _HOPS) for label, hops in rounds[:_FIRST])
    yield (
        f"… rounds {skipped[0][0]} to {skipped[-1][0]} with "
        f"{sum(len(hops) for _, hops in skipped)} steps are left out; --all prints them"
    )
    yield from (_round(telling, label, hops, _HOPS) for label, hops in rounds[-_LAST:])


def _round(telling: Telling, label: int, hops: Sequence[Hop], most: int) -> str:
    shown = hops if len(hops) <= most + 1 else hops[:most]
    rows = [hop_text(telling, hop) for hop in shown]
    width = max(len(left) for left, _ in rows)
    lines = [f"round {label}" if label else "before the first round"]
    lines += [f"  {left:{width}}   {right}" for left, right in rows]
    if len(shown) < len(hops):
        lines.append(f"  … and {len(hops) - len(shown)} more; --all prints them")
    return "\n".join(lines)
