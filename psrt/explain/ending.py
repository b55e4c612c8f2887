"""How the explanation of a collective ends: the partial results, the result, the totals. Pure."""

from __future__ import annotations

from psrt.explain.names import numbers, ranges
from psrt.explain.phrases import place_text, symbol_text
from psrt.explain.story import Holding
from psrt.explain.telling import Telling, overlaps
from psrt.units import size_text, time_text

#: Ranks whose results are told one by one.
_MOST_RESULTS = 40
#: Numbers and chunks of a rank's result that are told.
_MOST_NUMBERS, _MOST_CHUNKS = 64, 16


def ending_text(telling: Telling) -> str:
    """Return the partial results of each chunk, where they form a chain, and the result."""
    if not telling.n:
        return ""
    lines = _chains(telling)
    ends = [(telling.names[rank], _result(telling, rank)) for rank in range(telling.size)]
    if telling.op == "mean" and telling.story.folds:
        lines.append(f"each sum is divided by the {telling.size} ranks")
    if len({text for _, text in ends}) == 1:
        who = "all ranks end" if telling.size > 1 else f"{ends[0][0]} ends"
        lines.append(f"{who} with {ends[0][1]}")
    else:
        lines += [f"{name} ends with {text}" for name, text in ends if text][:_MOST_RESULTS]
        if len(ends) > _MOST_RESULTS:
            lines.append("… and so on; --json has all of them")
    return "\n".join(lines)


def totals_text(telling: Telling) -> str:
    """Return the table of sums beside their bounds."""
    totals, size = telling.totals, telling.size
    price, least, costs = totals.price, totals.least, totals.costs
    pairs = size * (size - 1)
    each = f", {price.messages // size} a rank" if size > 1 and price.messages % size == 0 else ""
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
    lines.append(
        f"at α = {time_text(costs.alpha)} a message, β = {_rate(costs.beta)} on the wire, "
        f"γ = {_rate(costs.gamma)} combined"
    )
    if overlaps(telling.schedule):
        lines.append("what has come is combined while the next bytes are on their way")
    return "\n".join(lines)


def _result(telling: Telling, rank: int) -> str:
    """Return what a rank was owed and has; nothing if it was owed nothing."""
    found = telling.result(rank)
    if not found:
        return ""
    place = place_text(telling, [cell for cell, _ in found])
    held = [holding for _, holding in found]
    if telling.numbered:
        flat = [value for holding in held for value in holding.numbers]
        text = numbers(flat, most=_MOST_NUMBERS)
        return text if len(flat) == telling.n else f"{place}: {text}"
    if len({holding.whose for holding in held}) == 1:
        return f"{symbol_text(telling, held[0], new=True)} in {place}"
    vector = telling.story.cells.in_vector
    texts = [
        f"{ranges([cell], vector)}: {symbol_text(telling, holding, new=False)}"
        for cell, holding in found[:_MOST_CHUNKS]
    ]
    if len(found) > _MOST_CHUNKS:
        texts.append(f"… {len(found)} in all")
    return ", ".join(texts)


def _chains(telling: Telling) -> list[str]:
    """Return each chunk's partial results, if every chunk is added up along one path."""
    if not telling.numbered or not telling.story.folds or telling.size == 1:
        return []
    chains: dict[int, list[Holding]] = {}
    for hop in telling.story.hops:
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
