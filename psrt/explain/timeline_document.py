"""A timeline as JSON, for programs.

=============  ===================================================================================
key            value
=============  ===================================================================================
format         ``"psrt explain timeline 1"``
mode, steps    the mode, and steps per worker; ``workers`` and ``servers`` count them
slow           by worker, how many times longer than usual its steps take
seconds        when the last worker was done; a usual step takes 1
lines          by worker, what it did: ``{"start", "stop", "what"}`` with ``step`` (from 0 on)
               where it computes and ``whom`` (a worker) where it waits; ``message`` has neither
shares         by worker, ``compute``, ``wait`` and ``message`` as shares of its time
staleness      ``{"mean", "max"}`` in versions; null where there is none
lesson         one line for people
=============  ===================================================================================
"""

from __future__ import annotations

from typing import Any

from psrt.explain.timeline import Timeline, lesson
from psrt.explain.waiting import COMPUTE, MESSAGE, WAIT, Stretch

FORMAT = "psrt explain timeline 1"


def as_document(timeline: Timeline) -> dict[str, Any]:
    """Return what ``json.dumps`` takes."""
    config, staleness = timeline.config, timeline.staleness
    return {
        "format": FORMAT,
        "mode": config.mode,
        "workers": timeline.workers,
        "servers": config.servers,
        "steps": config.steps,
        "slow": list(timeline.slow),
        "seconds": timeline.seconds,
        "lines": [[_stretch(stretch) for stretch in line] for line in timeline.lines],
        "shares": [
            {what: timeline.share(worker, what) for what in (COMPUTE, WAIT, MESSAGE)}
            for worker in range(timeline.workers)
        ],
        "staleness": staleness and {"mean": staleness[0], "max": staleness[1]},
        "lesson": lesson(timeline),
    }


def _stretch(stretch: Stretch) -> dict[str, Any]:
    found: dict[str, Any] = {
        "start": stretch.start,
        "stop": stretch.stop,
        "what": stretch.what,
    }
    if stretch.what == COMPUTE:
        found["step"] = stretch.whom
    elif stretch.what == WAIT:
        found["whom"] = stretch.whom
    return found
