"""What a recorded run says about its model and its machines, for a plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from psrt.codec import Matrix
from psrt.collective.analysis.machine import DEFAULT_COSTS
from psrt.collective.costs import LinkCosts
from psrt.config import TrainConfig
from psrt.config.knobs import knobs_of
from psrt.core.arrays import ITEMSIZE
from psrt.history import Header, History
from psrt.planning.known import Known, Site, Workload
from psrt.rows.knobs import accept
from psrt.simulation.calibration import Calibration, calibrate
from psrt.simulation.calibration.times import mean

#: Headings of the knobs that describe a model and its training, but not how ranks work together.
_GROUPS = ("optimizer", "data and model")


def known_of(run: str, history: History, workload: dict[str, Any]) -> Known:
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
    by_rank = dict(zip(header.workers, own, strict=True))
    some = next(filter(None, own))
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
    costs = replace(DEFAULT_COSTS, cores=max(cores))
    if (wire := times.wire) is not None:
        between = LinkCosts(wire.latency, 1 / wire.bandwidth, costs.between.gamma)
        costs = replace(costs, between=between)
    optimizer = str(header.knob("optimizer", "")).partition(":")[0]
    return Known(
        work,
        Site(hosts, tuple(range(len(cores))), cores, costs),
        apply=apply_of(optimizer, times),
        source=f"like {run}",
        details=messages_of(times) if wire is None else {},
    )


def values_like(header: Header) -> dict[str, Any]:
    """Return the knobs of a run's model, data and optimizer."""
    return {
        name: accept(name, knob, header.config[name])
        for name, knob in knobs_of(TrainConfig).items()
        if knob.group in _GROUPS and not knob.requires and header.config.get(name) is not None
    }


def apply_of(optimizer: str, times: Calibration) -> dict[str, float]:
    """Return the bytes of gradient per second that a server applied, if there was any."""
    updates = [(it.size * k, float(s.mean())) for it in times.shards for k, s in it.update.items()]
    seconds = sum(took for _, took in updates)
    nbytes = ITEMSIZE * sum(size for size, _ in updates)
    return {optimizer: nbytes / seconds} if seconds else {}


def messages_of(times: Calibration) -> dict[str, float]:
    """Return the seconds that messages in shared memory took, where there were servers."""
    found = {
        "wake_up": mean(*(it.wake_up for it in times.shards)),
        "turnaround": mean(*(it.turnaround for it in times.shards)),
        "reply": mean(times.reply),
    }
    return {name: seconds for name, seconds in found.items() if seconds == seconds}
