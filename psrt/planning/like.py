"""What a recorded run says about its model and its machines, for a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from psrt.codec import Matrix
from psrt.collective.analysis.machine import DEFAULT_COSTS, MachineCosts
from psrt.collective.costs import LinkCosts
from psrt.config import TrainConfig
from psrt.config.knobs import knobs_of
from psrt.core.arrays import ITEMSIZE
from psrt.core.errors import ConfigError
from psrt.history import Header, History
from psrt.planning.known import Known, Site, Workload
from psrt.rows.knobs import accept
from psrt.simulation.calibration import Calibration, Seconds, calibrate
from psrt.simulation.calibration.times import mean

#: Headings of the knobs that describe a model and its training, but not how ranks work together.
_GROUPS = ("optimizer", "data and model")


def known_of(
    run: str, history: History, *, batch: int, samples: int | None, parts: Sequence[Any]
) -> Known:
    """Return what is known after a run.

    Args:
        run: its folder, for messages.
        history: of it.
        batch: samples of a full batch.
        samples: of an epoch; None if unknown.
        parts: the gradient's spans in the order in which they were ready.

    Raises:
        ConfigError: if the run has no times.
    """
    header = history.header
    try:
        times = calibrate(history)
    except ConfigError as error:
        raise ConfigError(f"{run}: {error}") from None
    work = Workload(
        header.n,
        batch,
        _by_rank(header, times.compute),
        samples,
        tuple(parts),
        tuple(Matrix(*it) for it in header.matrices),
    )
    name = header.knob("optimizer", "sgd")
    return Known(
        work,
        _site(header, times),
        apply=_apply(times, str(name).partition(":")[0]),
        source=f"like {run}",
        details={} if times.wire is not None else _messages(times),
    )


def values_like(header: Header) -> dict[str, Any]:
    """Return the knobs of a run's model, data and optimizer."""
    return {
        name: accept(name, knob, header.config[name])
        for name, knob in knobs_of(TrainConfig).items()
        if knob.group in _GROUPS and not knob.requires and header.config.get(name) is not None
    }


def _by_rank(header: Header, compute: Sequence[Seconds]) -> tuple[tuple[float, ...], ...]:
    """Return the times of gradients by rank; a server's rank has those of a worker."""
    own = [tuple(its[~np.isnan(its)].tolist()) for its in compute]
    known = [its for its in own if its]
    by_rank = dict(zip(header.workers, own, strict=True))
    ranks = range(len(header.workers) + len(header.server_ranks))
    return tuple(by_rank.get(rank) or known[rank % len(known)] for rank in ranks)


def _site(header: Header, times: Calibration) -> Site:
    """Return where the run was; the times of its gradients contain that ranks share cores."""
    ranks = len(header.workers) + len(header.server_ranks)
    hosts = tuple(header.hosts) if len(header.hosts) == ranks else (0,) * ranks
    count = 1 + max(hosts)
    cores = tuple(max(1, hosts.count(host)) for host in range(count))
    return Site(hosts, tuple(range(count)), cores, _costs(times, max(cores)))


def _costs(times: Calibration, cores: int) -> MachineCosts:
    costs = replace(DEFAULT_COSTS, cores=cores)
    if times.wire is None:
        return costs
    rate = 1 / times.wire.bandwidth
    return replace(costs, between=LinkCosts(times.wire.latency, rate, costs.between.gamma))


def _apply(times: Calibration, optimizer: str) -> dict[str, float]:
    """Return the bytes of gradient per second that a server applied."""
    moved = [
        (gradients * ITEMSIZE * shard.size, float(seconds.sum()) / seconds.size)
        for shard in times.shards
        for gradients, seconds in shard.update.items()
        if seconds.size and seconds.sum() > 0
    ]
    nbytes, seconds = (sum(it) for it in zip(*moved, strict=True)) if moved else (0, 0.0)
    return {optimizer: nbytes / seconds} if seconds else {}


def _messages(times: Calibration) -> dict[str, float]:
    """Return the seconds that messages in shared memory took, where there were servers."""
    found = {
        "wake_up": mean(*(it.wake_up for it in times.shards)),
        "turnaround": mean(*(it.turnaround for it in times.shards)),
        "reply": mean(times.reply),
    }
    return {name: seconds for name, seconds in found.items() if seconds == seconds}
