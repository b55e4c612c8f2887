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

Row = dict[str, Any]


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
_FAILURES = (math.inf, 1e3)
_SEEDS = 3


def run_all(options: Namespace, flags: Sequence[str]) -> list[Row]:
    """Run every scheme with every number of workers, with and without failures."""
    rows: list[Row] = []
    for workers in options.workers:
        for mtbf in _FAILURES:
            cluster = Cluster(workers=workers, mtbf=mtbf)
            for scheme in SCHEMES:
                best = _best_rates(scheme, replace(cluster, mtbf=math.inf), options, flags)
                seeds = range(min(options.seeds, _SEEDS))
                here = [row_of(scheme, cluster, best, seed, options, flags) for seed in seeds]
                rows += here
                ends = ", ".join(
                    "never" if it["to"] is None else f"{it['to']:.1f} s" for it in here
                )
                say(f"{workers} learners, MTBF {mtbf:g}  {scheme:<20}{_named(best)}: {ends}")
    return rows


def _named(rates: Rates) -> str:
    return f"lr {rates.lr:g}" + ("" if rates.outer == 1 else f", outer {rates.outer:g}")


_BEST: dict[tuple[str, int], Rates] = {}


def _best_rates(scheme: str, cluster: Cluster, options: Namespace, flags: Sequence[str]) -> Rates:
    """Return the rates that get there first on a seed that is not shown."""
    key = scheme, cluster.workers
    if key not in _BEST:
        outers = _OUTER if "{outer}" in MODES[scheme] else (1.0,)
        tried = [Rates(lr, outer) for lr in options.rates for outer in outers]
        times = {
            it: row_of(scheme, cluster, it, _SEEDS, options, flags)["to"] or math.inf
            for it in tried
        }
        _BEST[key] = min(times, key=lambda it: times[it])
    return _BEST[key]


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
    row: Row = {"scheme": scheme, "workers": workers, "mtbf": cluster.mtbf, "lr": rates.lr,
                "outer": rates.outer, "seed": seed, "to": None, "accuracy": None}  # fmt: skip
    try:
        run = psrt.simulate(
            config, problem, workers=workers, seed=seed,
            costs=lambda roles: costs_of(roles, cluster, model, speeds, 1),
            faults=list(failures(cluster, model, speeds, seed, until_s=2000 * options.step * 40)),
        )  # fmt: skip
    except psrt.DivergedError:
        return row
    to = seconds_to_accuracy(map(asdict, run.records), options.target)
    return row | {"to": to, "accuracy": run.summary.test_accuracy}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the median times to the target."""
    lines = [f"{'virtual time to the target':<34}" + "".join(f"{it:>19}" for it in SCHEMES)]
    for workers, mtbf in dict.fromkeys((row["workers"], row["mtbf"]) for row in rows):
        name = f"{workers} learners, " + (
            "no failures" if mtbf == math.inf else f"MTBF {mtbf:,.0f}"
        )
        texts = []
        for scheme in SCHEMES:
            found = [
                row["to"] if row["to"] is not None else math.inf for row in rows
                if (row["workers"], row["mtbf"], row["scheme"]) == (workers, mtbf, scheme)
            ]  # fmt: skip
            middle = statistics.median(found)
            texts.append("never" if middle == math.inf else f"{middle:.1f} s")
        lines.append(f"{name:<34}" + "".join(f"{it:>19}" for it in texts))
    return "\n".join(lines)
