"""Measure the durations in a history. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from psrt.core.errors import ConfigError
from psrt.history import History, Kind
from psrt.simulation.calibration.clocks import on_one_clock
from psrt.simulation.calibration.servers import ServerTimeline, Step
from psrt.simulation.calibration.times import Calibration, Seconds
from psrt.simulation.calibration.wire import measure_wire
from psrt.simulation.calibration.workers import by_clock, computing, rounds, steps_of


def calibrate(history: History) -> Calibration:
    """Measure the parts of the steps of a recorded run.

    All steps count, also the slow first ones and those that the machine interrupted: the run took
    that long because of them.

    Args:
        history: of a run over MPI, or in virtual time.

    Raises:
        ConfigError: if nothing was computed, if a worker was lost, or if the times have gaps.
    """
    header = history.header
    if header.crashes and not header.simulated:
        raise ConfigError(f"worker {header.crashes[0]} was lost in the run and left no times")
    if header.resumed or history.has_stops:
        raise ConfigError("the run resumed from or stopped for checkpoints: its times have gaps")
    history = on_one_clock(history)
    took, idle, over = rounds(history)
    compute = tuple(computing(events, over) for events in history.workers)
    if all(np.isnan(seconds).all() for seconds in compute):
        raise ConfigError("no gradient was computed in the run")
    reads = _reads(history)
    owners = history.header.servers
    servers = [
        ServerTimeline(history, [i for i, owner in enumerate(owners) if owner == rank], reads)
        for rank in history.header.server_ranks
    ]
    shards = {shard: times for server in servers for shard, times in server.times.items()}
    return Calibration(
        compute,
        _replies(history, servers, reads),
        tuple(shards[shard] for shard in range(len(owners))),
        took,
        float(idle.mean()) if idle.size else 0.0,
        measure_wire(header, history),
    )


def _reads(history: History) -> dict[Step, float]:
    """Return when each worker continued with each clock."""
    reads: dict[Step, float] = {}
    for events in history.workers:
        these = events[(events["kind"] == Kind.READ) & (events["shard"] == 0)]
        workers, clocks, times = (these[name].tolist() for name in ("worker", "clock", "time"))
        reads.update(zip(zip(workers, clocks, strict=True), times, strict=True))
    return reads


def _replies(
    history: History, servers: Sequence[ServerTimeline], reads: Mapping[Step, float]
) -> tuple[Seconds, ...]:
    """Return the time from the last server's decision until each worker continued, by push."""
    found: list[dict[int, float]] = [{} for _ in history.workers]
    for (worker, clock), time in reads.items():
        decided = [it.replied[worker, clock] for it in servers if (worker, clock) in it.replied]
        if decided:
            found[worker][clock - 1] = time - max(decided)
    steps = (steps_of(events, Kind.PUSH) for events in history.workers)
    return tuple(map(by_clock, found, steps))
