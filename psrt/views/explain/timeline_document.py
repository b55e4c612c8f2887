"""A timeline as JSON for programs.

=============  ===================================================================================
key            value
=============  ===================================================================================
format         ``"psrt explain timeline 1"``
mode, steps    the mode, and steps per worker; ``workers`` and ``servers`` count them
slow           by worker, the factor by which its steps take longer
seconds        time at which the last worker finished; a normal step takes 1
lines          by worker, in order of time: ``{"start", "stop", "what"}``; ``what`` is
               ``compute``, with ``step`` (from 0 on), or what it waits for: ``workers``, with
               ``waiting_for`` (the one), ``window`` (until it is over), or ``messages``
sums           of streaming local SGD, by worker, in the order of sending: ``{"fragment", "sent",
               "complete", "taken"}``, the times when this worker sent its part of a mean, when
               the last one did, and when this worker took the mean; with servers of its push and
               its merge; else empty
merges         of a mode with a quorum, in order of time: ``{"fragment", "version", "first",
               "opened", "made", "is_over", "members"}``, the times when its first push came, when
               it had its quorum, and when it was made, ``is_over`` if because its window was;
               ``members`` in the order in which they came: ``{"worker", "tau", "sent", "came",
               "taken"}``, with its staleness; else empty
shares         by worker, as fractions of its time: ``compute``, ``waiting``, and of that for
               ``workers``, for a ``window`` and for ``messages``
staleness      ``{"mean", "max"}`` in versions; null where there is none
lesson         one line for people
=============  ===================================================================================
"""

from __future__ import annotations

from typing import Any

from psrt.views.explain.timeline import (
    COMPUTE,
    WAITING,
    WORKERS,
    Stretch,
    Timeline,
    Transfer,
    lesson,
)

FORMAT = "psrt explain timeline 1"


def as_document(timeline: Timeline) -> dict[str, Any]:
    """Return the document as objects for ``json.dumps``."""
    config, staleness = timeline.config, timeline.staleness
    return {
        "format": FORMAT,
        "mode": config.scheme.name,
        "workers": timeline.workers,
        "servers": config.servers,
        "steps": config.steps,
        "slow": list(timeline.slow),
        "seconds": timeline.seconds,
        "lines": [[_stretch_document(stretch) for stretch in line] for line in timeline.lines],
        "sums": [[_sum_document(it) for it in of_worker] for of_worker in timeline.sums],
        "merges": [
            it._asdict() | {"members": [member._asdict() for member in it.members]}
            for it in timeline.merges
        ],
        "shares": [
            {"waiting": timeline.share(worker, *WAITING)}
            | {what: timeline.share(worker, what) for what in (COMPUTE, *WAITING)}
            for worker in range(timeline.workers)
        ],
        "staleness": staleness and {"mean": staleness[0], "max": staleness[1]},
        "lesson": lesson(timeline),
    }


def _sum_document(it: Transfer) -> dict[str, Any]:
    return {name: getattr(it, name) for name in ("fragment", "sent", "complete", "taken")}


def _stretch_document(stretch: Stretch) -> dict[str, Any]:
    found: dict[str, Any] = {
        "start": stretch.start,
        "stop": stretch.stop,
        "what": stretch.what,
    }
    if stretch.what == COMPUTE:
        found["step"] = stretch.waiting_for
    elif stretch.what == WORKERS:
        found["waiting_for"] = stretch.waiting_for
    return found
