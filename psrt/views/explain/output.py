"""A collective as text for people and as JSON for programs.

The document (the number in ``format`` is increased when a key changes its meaning):

=============  ===================================================================================
key            value
=============  ===================================================================================
format         ``"psrt explain 1"``
name, kind     the schedule, and its collective: ``all-reduce`` or the phase's own name
op             sum, mean, min, max or prod
ranks          names, by rank; the keys below hold ranks as numbers
order, root    ranks in the order of the ring, and the root; null where there is none
elements       of a vector, and ``itemsize`` bytes of each; ``workspace`` elements behind it
chunks         ``[start, stop]`` of each cell, those of the workspace last
start          by rank, by chunk: its content at the start, as ``{"of", "values"}`` or null
rounds         a list of rounds, each ``{"round", "steps"}``; round 0 has local steps only
steps          ``from``, ``to`` (equal: a local step), ``send`` and ``receive`` (lists of chunks),
               ``combine``, and by chunk ``carries``, ``before`` and ``after``
result         by rank, ``{chunk: {"of", "values"}}`` for the chunks of its result
totals         sums and predicted seconds, with ``least`` and ``ratio``
=============  ===================================================================================

``of`` lists the ranks whose numbers are combined, ``values`` the numbers; null without an example.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from psrt.collective.costs import LinkCosts
from psrt.core.arrays import ITEMSIZE
from psrt.core.units import size_text, time_text
from psrt.views.explain.explanation import Explanation, Totals, overlaps
from psrt.views.explain.trace import Content, Hop
from psrt.views.explain.words import (
    COMPLETE,
    hop_text,
    members,
    numbers,
    place_text,
    ranges,
    sizes,
    symbol_text,
)

FORMAT = "psrt explain 1"


def as_document(explanation: Explanation) -> dict[str, Any]:
    """Return the document as objects for ``json.dumps``."""
    trace = explanation.trace
    return {
        "format": FORMAT,
        "name": explanation.schedule.name,
        "kind": explanation.schedule.kind,
        "op": explanation.op,
        "ranks": list(explanation.names),
        "order": None if explanation.order is None else list(explanation.order),
        "root": explanation.root,
        "elements": explanation.n,
        "itemsize": ITEMSIZE,
        "workspace": trace.spec.workspace,
        "chunks": [[*span] for span in trace.cells.spans],
        "start": [_all(explanation, held) for held in trace.start],
        "rounds": [
            {"round": number, "steps": [_step(explanation, hop) for hop in hops]}
            for number, hops in trace.by_round()
        ],
        "result": [
            {str(cell): _one(explanation, held) for cell, held in explanation.result(rank)}
            for rank in range(explanation.size)
        ],
        "totals": _totals(explanation.totals),
    }


def _step(explanation: Explanation, hop: Hop) -> dict[str, Any]:
    return {
        "from": hop.source,
        "to": hop.target,
        "send": list(hop.send),
        "receive": list(hop.receive),
        "combine": hop.combine,
        "carries": _all(explanation, hop.carried),
        "before": _all(explanation, hop.before),
        "after": _all(explanation, hop.after),
    }


def _all(explanation: Explanation, held: Sequence[Content | None]) -> list[dict[str, Any] | None]:
    return [None if one is None else _one(explanation, one) for one in held]


def _one(explanation: Explanation, held: Content) -> dict[str, Any]:
    values = list(held.numbers) if explanation.numbered else None
    return {"of": list(members(held.whose)), "values": values}


def _totals(totals: Totals) -> dict[str, Any]:
    """Return the sums; bytes are per rank, times in seconds."""
    price = totals.price
    return {
        "rounds": price.rounds,
        "messages": price.messages,
        "wires": price.wires,
        "bytes_sent": list(price.sent),
        "bytes_received": list(price.received),
        "bytes_combined": list(price.combined),
        "seconds": price.seconds,
        "costs": asdict(totals.costs),
        "least": {
            "rounds": totals.least.rounds,
            "bytes_moved": totals.least.moved,
            "bytes_combined": totals.least.combined,
            "seconds": totals.bounds.seconds,
        },
        "ratio": totals.ratio,
    }


#: Most lines of hops that are printed in full.
_ALL = 100
#: With more lines: number of rounds shown at the beginning and at the end, and hops of each.
_FIRST, _LAST, _HOPS = 3, 2, 6


def as_text(explanation: Explanation, *, everything: bool = False) -> str:
    """Return the whole explanation.

    Args:
        explanation: what to print.
        everything: whether to print every hop, however many there are.
    """
    parts = [
        _heading(explanation),
        *_rounds(explanation, everything),
        ending_text(explanation),
        totals_text(explanation),
    ]
    return "\n\n".join(part for part in parts if part)


def _heading(explanation: Explanation) -> str:
    schedule, trace = explanation.schedule, explanation.trace
    size, n = explanation.size, explanation.n
    whose = (
        " ".join(explanation.names)
        if size <= 26
        else f"{explanation.names[0]} to {explanation.names[-1]}"
    )
    kind = f", an {schedule.kind}" if schedule.kind != schedule.name else ""
    lines = [f"{schedule.name}{kind} of {size} rank{'s' if size > 1 else ''}: {whose}"]
    lines.append(f"  {schedule.summary}")
    if explanation.order is not None:
        ring = [explanation.names[rank] for rank in (*explanation.order, explanation.order[0])]
        lines.append(f"  ring: {' → '.join(ring)}")
    if explanation.root is not None:
        lines.append(f"  root: {explanation.names[explanation.root]}")
    cells = trace.cells.spans[: trace.cells.in_vector]
    amount = f"{n} number{'s' if n != 1 else ''}"
    if not explanation.numbered:
        amount = f"{size_text(n * ITEMSIZE)} = {n} float32"
    cut = "in one piece"
    if len(cells) > 1:
        cut = f"chunks {ranges(range(len(cells)), len(cells))} of {sizes(cells)}"
    lines.append(f"  vector: {amount}{', ' + cut if cells else ''}")
    if len(trace.cells.spans) > len(cells):
        room = size_text(trace.spec.workspace * ITEMSIZE)
        lines.append(f"  workspace behind it, w0 and so on: {room}")
    if trace.folds and not explanation.numbered and size > 1:
        lines.append(f"  {COMPLETE} is the {explanation.fold_name} of all {size}")
    return "\n".join(lines)


def _rounds(explanation: Explanation, everything: bool) -> Iterator[str]:
    """Yield a paragraph per round; if there are many, rounds in the middle are left out."""
    rounds = list(explanation.trace.by_round())
    if not rounds:
        yield "nothing to send"
    if everything or len(explanation.trace.hops) <= _ALL:
        yield from (_round(explanation, label, hops, len(hops)) for label, hops in rounds)
        return
    if len(rounds) <= _FIRST + _LAST + 1:
        most = max(_HOPS, _ALL // len(rounds))
        yield from (_round(explanation, label, hops, most) for label, hops in rounds)
        return
    skipped = rounds[_FIRST:-_LAST]
    yield from (_round(explanation, label, hops, _HOPS) for label, hops in rounds[:_FIRST])
    yield (
        f"… rounds {skipped[0][0]} to {skipped[-1][0]} with "
        f"{sum(len(hops) for _, hops in skipped)} steps are left out; --all prints them"
    )
    yield from (_round(explanation, label, hops, _HOPS) for label, hops in rounds[-_LAST:])


def _round(explanation: Explanation, label: int, hops: Sequence[Hop], most: int) -> str:
    shown = hops if len(hops) <= most + 1 else hops[:most]
    rows = [hop_text(explanation, hop) for hop in shown]
    width = max(len(left) for left, _ in rows)
    lines = [f"round {label}" if label else "before the first round"]
    lines += [f"  {left:{width}}   {right}" for left, right in rows]
    if len(shown) < len(hops):
        lines.append(f"  … and {len(hops) - len(shown)} more; --all prints them")
    return "\n".join(lines)


#: Most ranks whose results are shown individually.
_MOST_RESULTS = 40
#: Most numbers and chunks shown of a rank's result.
_MOST_NUMBERS, _MOST_CHUNKS = 64, 16


def ending_text(explanation: Explanation) -> str:
    """Return the result; before it the partial results of each chunk, if they form a chain."""
    if not explanation.n:
        return ""
    lines = _chains(explanation)
    ends = [
        (explanation.names[rank], _result(explanation, rank)) for rank in range(explanation.size)
    ]
    if explanation.divides:
        lines.append(f"each sum is divided by the number of ranks, {explanation.size}")
    if len({text for _, text in ends}) == 1:
        who = "all ranks end" if explanation.size > 1 else f"{ends[0][0]} ends"
        lines.append(f"{who} with {ends[0][1]}")
    else:
        lines += [f"{name} ends with {text}" for name, text in ends if text][:_MOST_RESULTS]
        if len(ends) > _MOST_RESULTS:
            lines.append("… and so on; --json has all of them")
    return "\n".join(lines)


def totals_text(explanation: Explanation) -> str:
    """Return the table of totals next to their lower bounds."""
    totals, size = explanation.totals, explanation.size
    price, least = totals.price, totals.least
    pairs = size * (size - 1)
    is_even = size > 1 and price.messages % size == 0
    each = f", {price.messages // size} per rank" if is_even else ""
    lines = [
        f"wires     {price.wires} of the {pairs} from one rank to another",
        f"messages  {price.messages}{each}",
    ]
    rows = [
        ("", "this one", "least", "ratio", "in time", "at least"),
        (
            "rounds", str(price.rounds), str(least.rounds), _ratio(price.rounds, least.rounds),
            time_text(totals.parts.latency), time_text(totals.bounds.latency),
        ),
        (
            "bytes of the busiest rank", size_text(totals.moved), size_text(least.moved),
            _ratio(totals.moved, least.moved),
            time_text(totals.parts.bandwidth), time_text(totals.bounds.bandwidth),
        ),
        (
            "bytes it combines", size_text(price.combined_max), size_text(least.combined),
            _ratio(price.combined_max, least.combined),
            time_text(totals.parts.combining), time_text(totals.bounds.combining),
        ),
        (
            "time", time_text(price.seconds), time_text(totals.bounds.seconds),
            _ratio(price.seconds, totals.bounds.seconds), "", "",
        ),
    ]  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    lines.append("")
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(row[i].rjust(widths[i]) for i in range(1, 6))]
        lines.append("   ".join(cells).rstrip())
    lines.append(f"at {costs_text(totals.costs)}")
    if overlaps(explanation.schedule):
        lines.append("received bytes are combined while the next ones are in flight")
    return "\n".join(lines)


def costs_text(costs: LinkCosts) -> str:
    """Return α, β and γ."""
    return (
        f"α = {time_text(costs.alpha)} per message, β = {_rate(costs.beta)} on the wire, "
        f"γ = {_rate(costs.gamma)} combined"
    )


def _result(explanation: Explanation, rank: int) -> str:
    """Return a rank's result as text; empty if it has none."""
    found = explanation.result(rank)
    if not found:
        return ""
    place = place_text(explanation, [cell for cell, _ in found])
    held = [content for _, content in found]
    if explanation.numbered:
        flat = [value for content in held for value in content.numbers]
        text = numbers(flat, most=_MOST_NUMBERS)
        return text if len(flat) == explanation.n else f"{place}: {text}"
    if len({content.whose for content in held}) == 1:
        return f"{symbol_text(explanation, held[0], new=True)} in {place}"
    vector = explanation.trace.cells.in_vector
    texts = [
        f"{ranges([cell], vector)}: {symbol_text(explanation, content, new=False)}"
        for cell, content in found[:_MOST_CHUNKS]
    ]
    if len(found) > _MOST_CHUNKS:
        texts.append(f"… {len(found)} in all")
    return ", ".join(texts)


def _chains(explanation: Explanation) -> list[str]:
    """Return each chunk's partial results, if every chunk is summed along a single path."""
    if not explanation.numbered or not explanation.trace.folds or explanation.size == 1:
        return []
    chains: dict[int, list[Content]] = {}
    for hop in explanation.trace.hops:
        if hop.local and hop.combine:
            return []
        for cell, came, after in zip(hop.receive, hop.carried, hop.after, strict=True):
            if hop.combine and came is not None and after is not None:
                chain = chains.setdefault(cell, [came])
                if chain[-1] != came:
                    return []
                chain.append(after)
    return [
        f"chunk {cell}: {' → '.join(numbers(held.numbers) for held in chain)}"
        for cell, chain in sorted(chains.items())
    ]


def _ratio(found: float, bound: float) -> str:
    if bound:
        return f"{found / bound:.2f}"
    return "–" if found else "1.00"


def _rate(seconds_per_byte: float) -> str:
    return f"{seconds_per_byte * 1e9:.3g} ns/byte"
