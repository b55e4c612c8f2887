"""An exchange as JSON for programs.

=============  ===================================================================================
key            value
=============  ===================================================================================
format         ``"psrt explain exchange 1"``
mode, steps    the mode, and steps per worker; ``workers`` and ``servers`` count them
shards         shards of a server
slow           by worker, the factor by which its steps take longer
step, whole    mean time of a step, and with one shard per server; computing a gradient takes 1
hidden         share of the time of pushes and reads in which their worker computes
bars           in order of their start: ``{"start", "stop", "what"}``; ``what`` is ``forward`` or
               ``backward``, with ``worker`` and ``layer``; ``push`` or ``read``, with ``worker``,
               ``shard``, and ``since`` when it waited for the link; or ``update``, with ``server``
               and ``shard``
lesson         one line for people
=============  ===================================================================================
"""

from __future__ import annotations

from typing import Any

from psrt.views.explain.exchange import BACKWARD, FORWARD, PUSH, READ, UPDATE, Bar, Exchange, lesson

FORMAT = "psrt explain exchange 1"


def as_document(exchange: Exchange) -> dict[str, Any]:
    """Return the document as objects for ``json.dumps``."""
    config = exchange.config
    return {
        "format": FORMAT,
        "mode": config.scheme.name,
        "workers": exchange.workers,
        "servers": exchange.servers,
        "shards": config.shards_per_server,
        "steps": config.steps,
        "slow": list(exchange.slow),
        "step": exchange.step,
        "whole": exchange.whole,
        "hidden": exchange.hidden(),
        "bars": [_document_of(bar) for bar in exchange.bars],
        "lesson": lesson(exchange),
    }


def _document_of(bar: Bar) -> dict[str, Any]:
    found: dict[str, Any] = {"start": bar.start, "stop": bar.stop, "what": bar.what}
    found["server" if bar.what == UPDATE else "worker"] = bar.number
    found["layer" if bar.what in (FORWARD, BACKWARD) else "shard"] = bar.part
    if bar.what in (PUSH, READ):
        found["since"] = bar.since
    return found
