"""A collective as JSON for programs, always complete. Pure.

The document (the number in ``format`` is raised when a key changes its meaning):

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

``of`` lists the ranks whose numbers are folded, ``values`` the numbers; null without an example.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from psrt.arrays import ITEMSIZE
from psrt.explain.explanation import Explanation
from psrt.explain.totals import Totals
from psrt.explain.trace import Holding, Hop
from psrt.explain.words import members

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


def _all(explanation: Explanation, held: Sequence[Holding | None]) -> list[dict[str, Any] | None]:
    return [None if one is None else _one(explanation, one) for one in held]


def _one(explanation: Explanation, held: Holding) -> dict[str, Any]:
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
