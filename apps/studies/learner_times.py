"""Virtual time until the digits are learned, by the schemes of ``learners``: all is computed."""

from __future__ import annotations

import math
import statistics
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from script import say

import psrt
from psrt.cli.flags import parse_train
from psrt.job.problems import supervised_problem
from psrt.report import seconds_to_accuracy
from studies.kept import Kept, Row
from studies.learners import (
    ALL_REDUCE,
    GOSSIP,
    HALF,
    LOCAL,
    ONE,
    SCHEMES,
    Cluster,
    Model,
    costs_of,
    failures,
    speeds_of,
)


class Rates(NamedTuple):
    """Of learning, and of the outer step."""

    lr: float
    outer: float


#: H, a window in seconds and the rate of an outer step are put in.
MODES = {
    ALL_REDUCE: "allreduce",
    LOCAL: "local-sgd:local-steps={h}",
    ONE: "local-sgd:local-steps={h},quorum=1,outer=plain,outer.lr={outer}",
    HALF: "local-sgd:local-steps={h},quorum={half},grace={grace},outer=plain,outer.lr={outer}",
    GOSSIP: "gossip:topology=one-peer-exponential",
}
#: Several merges of one round add up, so each may need a smaller step.
_OUTER = (1.0, 0.5, 0.25, 0.125)
DEFAULTS = ("--hidden", "128,128", "--activation", "tanh", "--batch-size", "16", "--epochs", "40")
#: Local rates that are tried.
_RATES = (0.1, 0.2, 0.4)
_CALM = [Cluster(workers=it, mtbf=math.inf) for it in (8, 32)]
#: By name, where: with the rates that are best for that number of learners that never fail.
CLUSTERS: dict[str, Cluster] = {
    "8 learners": _CALM[0],
    "8 learners, MTBF 1,000": replace(_CALM[0], mtbf=1e3),
    "32 learners": _CALM[1],
    "32 learners, MTBF 1,000": replace(_CALM[1], mtbf=1e3),
}


def run_all(options: Namespace, flags: Sequence[str], kept: Kept) -> list[Row]:
    """Run every scheme on every cluster with every seed."""
    rows: list[Row] = []

    def trained(scheme: str, cluster: Cluster, rates: Rates, seed: int) -> Row:
        setting = {
            "scheme": scheme, **asdict(cluster), **rates._asdict(), "seed": seed,
            "step_s": options.step, "local_steps": options.local_steps or 8,
            "restart": options.restart, "target": options.target, "flags": list(flags),
        }  # fmt: skip
        return kept.row(setting, lambda: row_of(scheme, cluster, rates, seed, options, flags))

    def best(scheme: str, cluster: Cluster) -> Rates:
        """Return the rates that get there first on a seed that is not shown."""
        outers = _OUTER if "{outer}" in MODES[scheme] else (1.0,)
        tried = [Rates(lr, outer) for lr in options.rates or _RATES for outer in outers]
        calm = next(it for it in _CALM if it.workers == cluster.workers)
        return min(tried, key=lambda it: trained(scheme, calm, it, options.seeds)["to"] or math.inf)

    for name, cluster in CLUSTERS.items():
        for scheme in SCHEMES:
            rates = best(scheme, cluster)
            here = [trained(scheme, cluster, rates, seed) for seed in range(options.seeds)]
            rows += [{"cluster": name, **row} for row in here]
            outer = "" if rates.outer == 1 else f", outer {rates.outer:g}"
            say(f"{name:<26}{scheme:<20}lr {rates.lr:g}{outer}: {cell(here)}")
    return rows


def row_of(
    scheme: str, cluster: Cluster, rates: Rates, seed: int, options: Namespace, flags: Sequence[str]
) -> Row:
    """Train in virtual time; ``to`` is when the target was reached."""
    h, workers = options.local_steps or 8, cluster.workers
    mode = MODES[scheme].format(
        h=h, half=workers // 2, grace=0.1 * h * options.step, outer=rates.outer
    )
    words = [*DEFAULTS, *flags, "--mode", mode, "--lr", repr(rates.lr), "--seed", str(seed)]
    config = parse_train(words + (["--servers", "1"] if SCHEMES[scheme].has_servers else []))
    config = replace(config, timeout_s=1e6)
    resolved = psrt.resolve(config, ranks=workers + (config.servers or 0))
    problem = supervised_problem(resolved, workers=workers)
    model = Model(options.step, problem.initial().size, h, options.restart)
    speeds = speeds_of(cluster)
    try:
        run = psrt.simulate(
            config, problem, workers=workers, seed=seed,
            costs=lambda roles: costs_of(roles, cluster, model, speeds, 1),
            faults=list(failures(cluster, model, speeds, seed, until_s=2000 * options.step * 40)),
        )  # fmt: skip
    except psrt.DivergedError:
        return {"to": None, "accuracy": None}
    to = seconds_to_accuracy(map(asdict, run.records), options.target)
    return {"to": to, "accuracy": run.summary.test_accuracy}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the times to the target."""
    lines = [f"{'virtual seconds to the target':<30}" + "".join(f"{it:>21}" for it in SCHEMES)]
    for name in dict.fromkeys(row["cluster"] for row in rows):
        mine = [row for row in rows if row["cluster"] == name]
        texts = [cell([row for row in mine if row["scheme"] == it]) for it in SCHEMES]
        lines.append(f"{name:<30}" + "".join(f"{it:>21}" for it in texts))
    return "\n".join(lines)


def cell(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the median of the times, and their range."""
    found = [math.inf if row["to"] is None else row["to"] for row in rows]
    texts = [
        "never" if it == math.inf else f"{it:.1f}"
        for it in (statistics.median(found), min(found), max(found))
    ]
    return "{} ({} to {})".format(*texts)
