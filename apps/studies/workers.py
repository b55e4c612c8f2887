"""Accuracy against the number of workers, with and without staleness-aware learning rates.

The more workers push at will, the staler their gradients: with W workers about W - 1 updates pass
between the read and the push of one. A learning rate that suits one worker is too large for many;
rates that shrink with the staleness keep it usable. All runs go over the same data at the same
learning rate. A gradient takes 1 ms, give or take 20 %, and a message 0.1 ms.

Two modes are shown: async, where each gradient is an update, and softsync, where two are.
"""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from script import DEFAULT, can_plot, make_folder, names, number, numbers, say

import psrt
from psrt.cli.flags import FlagParser, parse_train
from psrt.job.problems import supervised_problem
from psrt.report import Staleness
from psrt.report.strict_json import dumps
from studies import refuse, workers_plot

#: A learning rate that one worker learns well with and many do not, and epochs enough for what is
#: left of it. Not relu: first steps that are too large leave dead units, whatever comes later.
DEFAULTS = ("--lr", "0.2", "--batch-size", "16", "--epochs", "25", "--activation", "tanh")
RATES = "constant,inverse,mean-inverse,delay-compensated,gap-aware"
COSTS = psrt.SimulationCosts(
    compute=lambda rank, rng: rng.uniform(0.8e-3, 1.2e-3), latency=lambda rng: rng.exponential(1e-4)
)

Row = dict[str, Any]


def add_flags(flags: FlagParser) -> None:
    """Add what is not a flag of ``psrt train``."""
    add = flags.add_argument
    add("--out", type=Path, default=Path("runs/staleness"), metavar="DIR", help=DEFAULT)
    add("--workers", type=numbers, default="1,2,4,8,16,32", metavar="W,...", help=DEFAULT)
    add("--rates", type=names, default=RATES, metavar="RATE,...", help=DEFAULT)
    add("--modes", type=names, default="async,softsync", metavar="MODE,...", help=DEFAULT)
    add("--seeds", type=number, default=3, metavar="N", help=DEFAULT)


def study(options: Namespace, flags: Sequence[str]) -> None:
    """Run all combinations; show and write what came out."""
    refuse(flags, "--mode", "--staleness-rate", "--seed")
    jobs = [  # all made before the first is run: a bad flag is an error at once
        (workers, config_of(mode, rate, workers, seed, flags))
        for mode, seed, workers, rate in product(
            options.modes, range(options.seeds), options.workers, options.rates
        )
    ]
    make_folder(options.out)
    plots = can_plot()
    rows = []
    for workers, config in jobs:
        rows.append(row_of(config, workers))
        where = f"{config.scheme.name:9} seed {config.seed}  {workers:3} workers"
        say(f"{where}  {config.staleness_rate!s:18} {cell(rows[-1:])}")
    show(rows, options, f"{settings(jobs[0][1])}, {options.seeds} seeds", plots=plots)


def config_of(
    mode: str, rate: str, workers: int, seed: int, flags: Sequence[str]
) -> psrt.TrainConfig:
    """Return the config of one run; `ConfigError` if it cannot be."""
    if mode == "softsync":  # an update averages workers / k gradients: two
        mode = f"softsync:k={max(1, workers // 2)}"
    words = [*DEFAULTS, *flags, "--mode", mode, "--staleness-rate", rate, "--seed", str(seed)]
    return psrt.resolve(parse_train(words), ranks=workers + 1)


def settings(config: psrt.TrainConfig) -> str:
    """Return in words what all runs have in common."""
    length = f"{config.steps} steps" if config.steps else f"{config.epochs:g} epochs"
    return f"{config.optimizer} lr {config.lr:g}, batches of {config.batch_size}, {length}"


def row_of(config: psrt.TrainConfig, workers: int) -> Row:
    """Train in virtual time and return what is kept of it: no accuracy, if the run diverged."""
    problem = supervised_problem(config, workers=workers)
    row: Row = {
        "mode": config.scheme.name, "staleness_rate": str(config.staleness_rate),
        "workers": workers, "seed": config.seed, "test_accuracy": None, "staleness_mean": None,
    }  # fmt: skip
    try:
        run = psrt.simulate(config, problem, workers=workers, seed=config.seed, costs=COSTS)
    except psrt.DivergedError:
        return row
    row["test_accuracy"] = problem.evaluate(run.theta)["accuracy"]
    row["staleness_mean"] = Staleness.of(np.array(run.servers[0].shard.counts.stats.histogram)).mean
    return row


def show(rows: Sequence[Row], options: Namespace, note: str, *, plots: bool) -> None:
    """Write all rows, then print a table and, if that can be, draw a plot for each mode."""
    document = dumps({"settings": note, "runs": rows}, indent=2)
    (options.out / "workers.json").write_text(document + "\n", encoding="utf-8")
    for mode in options.modes:
        mine = [row for row in rows if row["mode"] == mode]
        say(f"\n{mode}, {note}: mean (and lowest) accuracy [%]\n{table(mine)}")
        if plots:
            workers_plot.draw(mine, options.out / f"workers-{mode}.png", note=f"{mode}, {note}")
    say(f"\nwritten to {options.out}")


def table(rows: Sequence[Row]) -> str:
    """Return a table with a column for each number of workers and a line for each rate."""
    workers = list(dict.fromkeys(row["workers"] for row in rows))
    rates = list(dict.fromkeys(row["staleness_rate"] for row in rows))
    lines = [f"{'workers':20}" + "".join(f"{count:>14}" for count in workers)]
    for rate in rates:
        cells = [
            cell([r for r in rows if (r["staleness_rate"], r["workers"]) == (rate, count)])
            for count in workers
        ]
        lines.append(f"{rate:20}" + "".join(f"{text:>14}" for text in cells))
    staleness = [
        statistics.mean(r["staleness_mean"] or 0.0 for r in rows if r["workers"] == count)
        for count in workers
    ]
    return "\n".join([*lines, f"{'mean staleness':20}" + "".join(f"{x:14.1f}" for x in staleness)])


def cell(rows: Sequence[Row]) -> str:
    """Return the mean and, of several, the lowest accuracy in percent."""
    known = [100 * row["test_accuracy"] for row in rows if row["test_accuracy"] is not None]
    if len(known) < len(rows):
        return "diverged"
    mean = f"{statistics.mean(known):.1f}"
    return f"{mean} ({min(known):.1f})" if len(known) > 1 else mean
