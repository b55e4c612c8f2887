"""Staleness of softsync(n), and the error at a constant and at a staleness-aware rate."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from script import DEFAULT, can_plot, make_folder, names, number, numbers, say

import psrt
from psrt.cli.flags import FlagParser, parse_train
from psrt.core.errors import ConfigError
from psrt.core.units import plural
from psrt.job.scenario import Scenario, run_in_virtual_time
from psrt.report.strict_json import dumps
from psrt.simulation.cost_flags import DEFAULT_LINK, DEFAULT_SERVER_APPLY, VirtualCosts
from studies import refuse, softsync_plot
from studies.softsync_lines import Errors, lines_of, share_beyond, table

#: Workers, batches and momentum as in the paper. The learning rate is psrt's default for momentum,
#: 0.05; of 0.001, 0.002, 0.005 and so on up to 0.1 it is the one that softsync(1) learns best with.
DEFAULTS = ("--batch-size", "4", "--optimizer", "momentum", "--epochs", "40")
#: Equal workers: each gradient takes 10 ms, give or take a tenth, so that no server is full.
COMPUTE = "lognormal:0.01:0.1"

Row = dict[str, Any]


def add_flags(flags: FlagParser) -> None:
    """Add what is not a flag of ``psrt train``."""
    add = flags.add_argument
    add("--out", type=Path, default=Path("runs/staleness"), metavar="DIR", help=DEFAULT)
    add("--workers", type=number, default=30, metavar="W", help=DEFAULT)
    add("--softsync", type=numbers, default="1,15,30", metavar="N,...", help=DEFAULT)
    add("--rates", type=names, default="constant,inverse", metavar="RATE,...", help=DEFAULT)
    add("--seeds", type=number, default=3, metavar="COUNT", help=DEFAULT)
    like = "as psrt simulate's, default: %(default)s"
    add("--compute", default=COMPUTE, metavar="LAW", help=like)
    add("--link", default=DEFAULT_LINK, metavar="LATENCY_S:BYTES_PER_S", help=like)
    add("--server-apply", default=DEFAULT_SERVER_APPLY, metavar="BYTES_PER_S", help=like)


def study(options: Namespace, words: Sequence[str]) -> None:
    """Run all combinations; show and write what came out."""
    costs = VirtualCosts(options.compute, options.link, options.server_apply)
    scenario = Scenario(options.workers, costs)
    jobs = list(configs(options, words))  # all made before the first is run
    make_folder(options.out)
    plots = can_plot()
    rows = []
    for config in jobs:
        rows.append(row_of(config, scenario))
        where = f"softsync {config.scheme.share:3}  {config.staleness_rate!s:12} seed {config.seed}"
        say(f"{where}  error {Errors.of(rows[-1:])} %")
    show(rows, options, settings(jobs[0], options), plots=plots)


def configs(options: Namespace, words: Sequence[str]) -> Iterator[psrt.TrainConfig]:
    """Yield the config of each run.

    Raises:
        ConfigError: if one of them cannot be.
    """
    refuse(words, "--mode", "--staleness-rate", "--seed")
    for n, rate, seed in product(options.softsync, options.rates, range(options.seeds)):
        flags = ["--mode", f"softsync:k={n}", "--staleness-rate", rate, "--seed", str(seed)]
        config = parse_train([*DEFAULTS, *words, *flags])
        config = replace(config, out=None)  # a folder in a --config is not the study's
        yield psrt.resolve(config, ranks=options.workers + (config.servers or 1))


def row_of(config: psrt.TrainConfig, scenario: Scenario) -> Row:
    """Train in virtual time and return what is kept of it: no numbers, if the run diverged."""
    row: Row = {
        "softsync": config.scheme.share, "staleness_rate": str(config.staleness_rate),
        "seed": config.seed,
        "test_error": None, "errors": [], "histogram": None, "beyond_2n": None, "staleness": None,
        "skew": None, "parameters_sha256": None,
    }  # fmt: skip
    try:
        run = run_in_virtual_time(config, scenario)
    except psrt.DivergedError:
        return row
    summary = run.summary
    histogram = summary.staleness.histogram
    row["test_error"] = 1 - known(summary.test_accuracy)
    row["errors"] = [
        [record.epoch, 1 - record.accuracy] for record in run.records if record.accuracy is not None
    ]
    row["histogram"] = histogram
    row["beyond_2n"] = share_beyond(dict(enumerate(histogram)), 2 * (config.scheme.share or 1))
    row["staleness"] = asdict(summary.staleness)
    row["skew"] = asdict(summary.skew)
    row["parameters_sha256"] = summary.parameters_sha256
    return row


def known(accuracy: float | None) -> float:
    """Return the accuracy.

    Raises:
        ConfigError: if there is none.
    """
    if accuracy is None or math.isnan(accuracy):
        raise ConfigError("the study is of errors in percent: its loss must be cross-entropy")
    return accuracy


def settings(config: psrt.TrainConfig, options: Namespace) -> str:
    """Return in words what all runs have in common."""
    length = f"{config.steps} steps" if config.steps else f"{config.epochs:g} epochs"
    servers = plural(config.servers or 0, "server")
    return (
        f"{options.workers} workers, {servers}, {config.dataset}, batches of "
        f"{config.batch_size}, {config.optimizer}, lr {config.lr:g}, {length}, "
        f"{plural(options.seeds, 'seed')}"
    )


def show(rows: Sequence[Row], options: Namespace, note: str, *, plots: bool) -> None:
    """Write all rows, then print the table and draw the plot if that can be."""
    document = {
        "study": "softsync", "settings": note, "compute": options.compute, "link": options.link,
        "server_apply": options.server_apply, "runs": rows,
    }  # fmt: skip
    (options.out / "softsync.json").write_text(dumps(document, indent=1) + "\n", encoding="utf-8")
    say(
        f"\n{note}: mean (and worst) test error [%] at each staleness rate\n{table(lines_of(rows))}"
    )
    if plots:
        softsync_plot.draw(rows, options.out / "softsync.png", note=note)
    say(f"\nwritten to {options.out}")
