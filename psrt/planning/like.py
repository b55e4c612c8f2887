"""What a recorded run says about its model and its machines, for a plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from psrt.codec import Matrix
from psrt.collective.analysis.machine import DEFAULT_COSTS
from psrt.collective.costs import LinkCosts
from psrt.core.arrays import ITEMSIZE
from psrt.history import History
from psrt.planning.known import Known, Site, Workload
from psrt.simulation.calibration import calibrate
from psrt.simulation.calibration.times import mean


def known_of(run: str, history: History, **workload: Any) -> Known:
    """Return what is known after a run.

    Args:
        run: its folder.
        history: of it.
        workload: fields of ``Workload`` that only its batches say.

    Raises:
        ConfigError: if the run has no times.
    """
    header, times = history.header, calibrate(history)
    own = [tuple(its[~np.isnan(its)].tolist()) for its in times.compute]
    by_rank, some = dict(zip(header.workers, own, strict=True)), next(filter(None, own))
    ranks = range(len(header.workers) + len(header.server_ranks))
    work = Workload(
        n=header.n,
        gradient_s=tuple(by_rank.get(rank) or some for rank in ranks),
        matrices=tuple(Matrix(*it) for it in header.matrices),
        **workload,
    )
    # Gradients took that long on the cores that there were.
    hosts = tuple(header.hosts) if len(header.hosts) == len(ranks) else (0,) * len(ranks)
    cores = tuple(max(1, hosts.count(host)) for host in range(1 + max(hosts)))
    costs, wire = replace(DEFAULT_COSTS, cores=max(cores)), times.wire
    if wire is not None:
        between = LinkCosts(wire.latency, 1 / wire.bandwidth, costs.between.gamma)
        costs = replace(costs, between=between)
    optimizer = str(header.knob("optimizer", "")).partition(":")[0]
    updates = [(it.size * k, float(s.mean())) for it in times.shards for k, s in it.update.items()]
    nbytes, seconds = ITEMSIZE * sum(n for n, _ in updates), sum(s for _, s in updates)
    messages = {
        "wake_up": mean(*(it.wake_up for it in times.shards)),
        "turnaround": mean(*(it.turnaround for it in times.shards)),
        "reply": mean(times.reply),
    }
    return Known(
        work,
        Site(hosts, tuple(range(len(cores))), cores, costs),
        apply={optimizer: nbytes / seconds} if seconds else {},
        source=f"like {run}",
        # Only in shared memory; nan where there were none.
        details={name: it for name, it in messages.items() if wire is None and it == it},
    )
