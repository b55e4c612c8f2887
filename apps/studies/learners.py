"""The clusters of learners_study.py: who trains in what share of the time, in virtual time.

Only times: nothing is computed. Where a mode averages after H steps, a step of the simulation is a
whole round of H, which costs H times less to simulate and comes to the same. An all-reduce takes
the time of its formula, 2 lg W messages and 2(W − 1)/W of the bytes, instead of its messages.
"""

from __future__ import annotations

import math
import statistics
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from script import say

import psrt
from psrt.config.faults import SECONDS, Fault
from psrt.history import EventLog, Kind
from psrt.job.learner_rates import LearnerJob, learner_rates
from psrt.transport import RoleMap
from studies.compression import LINKS
from studies.kept import Kept, Row

ALL_REDUCE, LOCAL, ONE, HALF, GOSSIP = (
    "all-reduce", "local SGD", "quorum 1", "quorum W/2, grace", "gossip",
)  # fmt: skip
#: Standard deviation of the logarithm of a step, about.
_JITTER = 0.1
_LATENCY_S = 5e-5
_ITEMSIZE = 4
#: Learners of a server, and the most servers.
_LEARNERS, _MOST_SERVERS = 16, 8
#: A window is this share of the fastest learner's round.
_GRACE = 0.1
#: Nobody who is away for less is declared dead.
_NEVER_S = 1e6
#: The fewest steps of a learner that are simulated, and the fewest rounds; and the most.
_FEWEST, _MOST = (150, 8), 1000
#: A step takes less to simulate than a round over servers, so there can be more of them.
_STEPS_OF_ROUND = 4
#: The most seeds with more learners than this: failures of many average out in one run.
_CROWD, _SEEDS_OF_CROWD = 500, 3


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where it trains."""

    workers: int = 64
    #: How many times as long as the fastest the slowest computes; the others are spread evenly.
    spread: float = 2
    #: Steps between two failures of a learner, on average; infinite: none fails.
    mtbf: float = 1e5
    link: str = "1 Gbit/s"


class Model(NamedTuple):
    """What is trained, as far as time depends on it."""

    #: Seconds of a step of the fastest learner, on average.
    step_s: float
    parameters: int
    #: H.
    local_steps: int
    #: Steps of the fastest that a learner which failed is away.
    restart: float

    @property
    def nbytes(self) -> int:
        """Bytes of the parameters."""
        return _ITEMSIZE * self.parameters


class Scheme(NamedTuple):
    """How it trains."""

    #: From the number of workers and the seconds of a window to the mode.
    mode: Callable[[int, float], str]
    #: Whether a step of the simulation is a round of local steps.
    in_rounds: bool = False
    has_servers: bool = False


SCHEMES: dict[str, Scheme] = {
    ALL_REDUCE: Scheme(lambda workers, grace: "allreduce"),
    LOCAL: Scheme(lambda workers, grace: "local-sgd:local-steps=1", in_rounds=True),
    ONE: Scheme(
        lambda workers, grace: "local-sgd:local-steps=1,quorum=1", in_rounds=True, has_servers=True
    ),
    HALF: Scheme(
        lambda workers, grace: f"local-sgd:local-steps=1,quorum={workers // 2},grace={grace}",
        in_rounds=True, has_servers=True,
    ),
    GOSSIP: Scheme(lambda workers, grace: "gossip:topology=one-peer-exponential"),
}  # fmt: skip

#: What is varied, one at a time.
SWEEPS: dict[str, list[Cluster]] = {
    "workers": [Cluster(workers=it) for it in (8, 64, 512, 2048)],
    "spread": [Cluster(spread=it) for it in (1, 2, 4)],
    "mtbf": [Cluster(mtbf=it) for it in (1e3, 1e4, 1e5, 1e6)],
    "link": [Cluster(link=it) for it in LINKS],
    "many": [Cluster(workers=2048, mtbf=it) for it in (1e3, 1e4, 1e5)],
}


def run_all(options: Namespace, flags: Sequence[str], kept: Kept) -> list[Row]:
    """Run every scheme on every cluster of the sweeps that are asked for, with every seed."""
    model = Model(options.step, options.parameters, options.local_steps or 32, options.restart)
    rows: list[Row] = []

    def found(scheme: str, cluster: Cluster, seed: int) -> Row:
        setting = {
            "scheme": scheme, **asdict(cluster), **model._asdict(), "simulated": options.simulated,
            "seed": seed,
        }  # fmt: skip
        return kept.row(
            setting, lambda: row_of(scheme, cluster, model, options.simulated, seed=seed)
        )

    for sweep in options.sweeps:
        for cluster in SWEEPS[sweep]:
            seeds = options.seeds
            if cluster.workers > _CROWD:
                seeds = min(seeds, _SEEDS_OF_CROWD)
            shares = []
            for scheme in SCHEMES:
                here = [found(scheme, cluster, seed) for seed in range(seeds)]
                rows += [{"sweep": sweep, **row} for row in here]
                shares.append(f"{scheme} {cell(here)} %")
            say(f"{named(sweep, cluster)}: {', '.join(shares)}")
    return rows


def cell(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return mean ± standard deviation of goodput in percent."""
    shares = [100 * row["goodput"] for row in rows]
    spread = statistics.stdev(shares) if len(shares) > 1 else 0.0
    return f"{statistics.mean(shares):.1f} ± {spread:.1f}"


def named(sweep: str, cluster: Cluster) -> str:
    """Return in words what a sweep varies."""
    return {
        "workers": f"{cluster.workers} learners", "spread": f"speeds spread by {cluster.spread:g}",
        "mtbf": f"MTBF {cluster.mtbf:,.0f} steps", "link": cluster.link,
        "many": f"2,048 learners, MTBF {cluster.mtbf:,.0f} steps",
    }[sweep]  # fmt: skip


def row_of(scheme: str, cluster: Cluster, model: Model, simulated: int, *, seed: int = 0) -> Row:
    """Train in virtual time and return what came of it."""
    how, workers = SCHEMES[scheme], cluster.workers
    speeds = speeds_of(cluster)
    each = model.local_steps if how.in_rounds else 1
    step_s = each * model.step_s
    servers = min(_MOST_SERVERS, math.ceil(workers / _LEARNERS)) if how.has_servers else None
    steps = simulated // workers * (1 if how.in_rounds else _STEPS_OF_ROUND)
    steps = max(_FEWEST[how.in_rounds], min(_MOST, steps))
    mode = how.mode(workers, _GRACE * step_s)
    shards: dict[str, Any] = {"shards_per_server": 1} if how.has_servers else {}
    config = psrt.TrainConfig(mode=mode, servers=servers, steps=steps, timeout_s=_NEVER_S, **shards)
    faults = list(
        failures(cluster, model, speeds, seed, until_s=_longest(steps, step_s, cluster, model))
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "events.npy"
        with EventLog(path) as log:
            psrt.simulate(
                config, workers=workers, seed=seed, numerics=False, parameters=model.parameters,
                costs=lambda roles: costs_of(roles, cluster, model, speeds, each),
                faults=faults, log=log,
            )  # fmt: skip
        events = np.load(path)
    row: Row = {
        "servers": servers, "steps": steps * each, "failures": 0,
        **measured(events, speeds * step_s),
    }  # fmt: skip
    row["failures"] = sum(fault.at < row["seconds"] for fault in faults)
    if how.has_servers:
        found = learner_rates(
            LearnerJob(
                list(speeds * step_s),
                1 if scheme == ONE else workers // 2,
                variation=_JITTER / math.sqrt(each),
                grace_s=0.0 if scheme == ONE else _GRACE * step_s,
                nbytes=model.nbytes,
                servers=servers or 1,
                latency_s=_LATENCY_S,
                bandwidth=LINKS[cluster.link],
            )
        )
        row["closed_form"] = 1 - found.idle
    return row


def speeds_of(cluster: Cluster) -> np.ndarray:
    """Return the seconds of a learner's step over the fastest's, in no order."""
    even = np.linspace(1, cluster.spread, cluster.workers)
    return np.random.default_rng(0).permutation(even)


def costs_of(
    roles: RoleMap, cluster: Cluster, model: Model, speeds: np.ndarray, each: int
) -> psrt.SimulationCosts:
    """Return the costs of a job whose steps are ``each`` steps of the model."""
    number = {rank: worker for worker, rank in enumerate(roles.workers)}
    jitter, bandwidth = _JITTER / math.sqrt(each), LINKS[cluster.link]
    workers = cluster.workers
    sum_s = 2 * math.ceil(math.log2(workers)) * _LATENCY_S
    sum_s += 2 * (workers - 1) / workers * model.nbytes / bandwidth

    def compute(rank: int, rng: np.random.Generator) -> float:
        mean = each * model.step_s * float(speeds[number[rank]])
        return mean * math.exp(jitter * rng.standard_normal() - jitter**2 / 2)

    return psrt.SimulationCosts(
        compute=compute, latency=lambda rng: _LATENCY_S, bandwidth=bandwidth,
        reduce=lambda rng: sum_s,
    )  # fmt: skip


def failures(
    cluster: Cluster,
    model: Model,
    speeds: Sequence[float] | np.ndarray,
    seed: int,
    *,
    until_s: float,
) -> Iterator[Fault]:
    """Yield the failures of all learners: each is away for as long as it takes to restart."""
    if cluster.mtbf == math.inf:
        return
    rng, away_s = np.random.default_rng(seed + 1), model.restart * model.step_s
    for worker, slow in enumerate(speeds):
        at = 0.0
        while (at := at + float(rng.exponential(cluster.mtbf * model.step_s * slow))) < until_s:
            yield Fault("pause", (("worker", worker),), SECONDS, at, away_s)
            at += away_s


def _longest(steps: int, step_s: float, cluster: Cluster, model: Model) -> float:
    """Return a time by which a run has ended: in each step some may be away again and again."""
    return steps * (2 * step_s * cluster.spread + 4 * model.restart * model.step_s)


def measured(events: Any, step_s: np.ndarray) -> Row:
    """Return goodput and staleness, from a fifth of the time until the first learner has ended.

    Args:
        events: of all ranks.
        step_s: by worker, the seconds that a step takes on average.
    """
    end = float(events["time"][events["kind"] == Kind.LEAVE].min())
    begin = end / 5
    steps = events[events["kind"] == Kind.STEP]
    ends, seconds = steps["time"], steps["seconds"]
    # Of a step or round that lasts beyond this time, its part counts.
    part = (np.minimum(ends, end) - np.maximum(ends - seconds, begin)) / seconds
    taken = np.bincount(steps["worker"], np.maximum(0.0, part), minlength=len(step_s))
    inside = events[(events["time"] > begin) & (events["time"] <= end)]
    applied = inside[(inside["kind"] == Kind.APPLY) & (inside["shard"] == 0)]
    return {
        "goodput": float(taken @ step_s) / (len(step_s) * (end - begin)),
        "seconds": end,
        "staleness": float(applied["tau"].mean()) if len(applied) else 0.0,
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of goodput for each sweep."""
    lines: list[str] = []
    for sweep in dict.fromkeys(row["sweep"] for row in rows):
        mine = [row for row in rows if row["sweep"] == sweep]
        lines += ["", f"{'goodput [%]':<34}" + "".join(f"{it:>19}" for it in SCHEMES)]
        for cluster in SWEEPS[sweep]:
            cells = [row for row in mine if _is_on(row, cluster)]
            texts = [cell([row for row in cells if row["scheme"] == it]) for it in SCHEMES]
            lines.append(f"{named(sweep, cluster):<34}" + "".join(f"{it:>19}" for it in texts))
    return "\n".join(lines)


def _is_on(row: Mapping[str, Any], cluster: Cluster) -> bool:
    return replace(
        cluster, **{name: row[name] for name in ("workers", "spread", "mtbf", "link")}
    ) == cluster  # fmt: skip
