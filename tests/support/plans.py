"""A plan whose numbers are made up, to be shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from psrt.config import TrainConfig
from psrt.planning.known import Known, ShortRun, Site, Workload
from psrt.planning.ranking import Budget, Plan, Prediction, Row

#: (flags, workers, servers, promise, samples/s, mean staleness, largest, bytes per step)
_ROWS = (
    ({"mode": "async", "servers": "1"}, 3, 1, "stale", 41e3, 1.9, 7, 10**6),
    ({"mode": "ssp:staleness=3", "servers": "1"}, 3, 1, "bounded", 40.1e3, 1.8, 6, 10**6),
    ({"mode": "local-sgd:local-steps=16"}, 4, 0, "local", 38.5e3, None, None, 70_000),
    ({"mode": "allreduce"}, 4, 0, "same", 31e3, None, None, 1_500_000),
    ({"mode": "allreduce", "codec": "int8"}, 4, 0, "bounded", 30.9e3, None, None, 400_000),
    ({"mode": "sync", "servers": "2"}, 2, 2, "same", 19e3, 0.0, 0, 10**6),
)


def made_plan(**changes: Any) -> Plan:
    """Return a plan of four ranks, of which the last is slow, with these fields changed."""
    gradients = tuple((0.004 + 0.001 * rank, 0.005 + 0.001 * rank) for rank in range(4))
    known = Known(
        Workload(250_000, 64, gradients, samples=6_400),
        Site(hosts=(0, 0, 1, 1), machines=(0, 1), cores=(2, 2)),
        apply={"sgd": 3.2e9},
        source="measured on these ranks",
        runs=(ShortRun("sums", 30_500.0, 4),),
    )
    rows = tuple(_row(number, *it) for number, it in enumerate(_ROWS, 1))
    pruned = {"slower than twice the best": 31}
    return replace(Plan(known, rows, Budget(), pruned), **changes)


def _row(
    number: int, knobs: dict[str, str], workers: int, servers: int, promise: str, speed: float,
    mean: float | None, most: int | None, sent: float,
) -> Row:  # fmt: skip
    for_last = {workers - 1: 0.2}
    step_s, waits = 64 * workers / speed, {"workers": 0.2, "messages": 0.01 * number}
    waiting_for = dict.fromkeys(range(workers - 1), for_last)
    figures = step_s, speed, 0.98 * speed, 1.03 * speed, sent, mean, most, waits, waiting_for
    ranks, memory = workers + servers, {"worker": 2_000_000, "server": 3_000_000 * bool(servers)}
    command = " ".join(("psrt launch train", *(f"--{it} {text}" for it, text in knobs.items())))
    return Row(
        number, TrainConfig(mode=knobs["mode"]), ranks, workers, servers, knobs, command,
        Prediction(*figures, steps=40, seconds=1.5), 0.9 * step_s, memory, promise,
    )  # fmt: skip
