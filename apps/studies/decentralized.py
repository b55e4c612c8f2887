"""The runs of decentralized_study.py, and what they come to.

All compute everything, over the same data in virtual time. What is compared is the mean of the
workers' models at the end, whatever the mode; a worker of its own may do worse.
"""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from script import say

import psrt
from psrt.cli.flags import parse_train
from psrt.core.errors import ConfigError
from psrt.core.units import size_text
from psrt.job.problems import supervised_problem
from psrt.rows.suggest import did_you_mean
from studies.compression import LINKS, costs_of, measured

Row = dict[str, Any]

_GOSSIP = "gossip:topology="
#: What is compared: a name, and its flags of ``psrt train``.
SETTINGS: dict[str, tuple[str, ...]] = {
    "all-reduce": ("--mode", "allreduce"),
    "local SGD, 8 steps": ("--mode", "local-sgd:local-steps=8"),
    "elastic averaging": ("--mode", "easgd"),
    "elastic averaging, asynchronous": ("--mode", "easgd:asynchronous=true"),
    "full": ("--mode", f"{_GOSSIP}full"),
    "exponential": ("--mode", f"{_GOSSIP}exponential"),
    "one-peer exponential": ("--mode", f"{_GOSSIP}one-peer-exponential"),
    "hypercube": ("--mode", f"{_GOSSIP}hypercube"),
    "torus": ("--mode", f"{_GOSSIP}torus"),
    "star": ("--mode", f"{_GOSSIP}star"),
    "ring": ("--mode", f"{_GOSSIP}ring"),
    "ring, adapt first": ("--mode", f"{_GOSSIP}ring,order=adapt-then-combine"),
    "ring, gradient tracking": ("--mode", f"{_GOSSIP}ring,variant=gradient-tracking"),
    "ring, top-k 10 %": (
        "--mode", f"{_GOSSIP}ring", "--codec", "top-k:density=0.1", "--codec-everywhere",
    ),
    "ring, asynchronous": ("--mode", f"{_GOSSIP}ring,variant=pairs"),
    "one-peer exponential, push-sum": (
        "--mode", f"{_GOSSIP}one-peer-exponential,variant=push-sum",
    ),
}  # fmt: skip
PARTITIONS = ("iid", "by-label:2", "dirichlet:0.1")
#: Flags of all runs; the same as those of the study of codecs, and half as many epochs.
DEFAULTS = ("--hidden", "128,128", "--activation", "tanh", "--batch-size", "16", "--epochs", "10")
_LINK = "10 Gbit/s"
#: What of a run is put together over seeds.
FIGURES = ("accuracy", "apart", "step_bytes", "seconds")


def run_all(options: Namespace, flags: Sequence[str]) -> list[Row]:
    """Find a learning rate for each setting and partition, then run all seeds."""
    asked = options.settings or list(SETTINGS)
    for setting in asked:
        if setting not in SETTINGS:
            guess = did_you_mean(setting, SETTINGS)
            raise ConfigError(f"no setting {setting!r} here{guess}, there are: "
                              f"{', '.join(SETTINGS)}")  # fmt: skip
    pairs = [(setting, partition) for partition in options.partitions for setting in asked]
    for pair in pairs:  # before the first is run: a bad flag is an error at once
        config = config_of(*pair, options.rates[0], 0, flags)
        psrt.resolve(config, ranks=options.workers + (config.servers or 1))
    rows: list[Row] = []
    for setting, partition in pairs:
        lr = _best_rate(setting, partition, options, flags)
        for slow in (1, options.slow):
            for seed in range(options.seeds):
                config = config_of(setting, partition, lr, seed, flags, slow=slow)
                row = row_of(config, options.workers)
                rows.append({"setting": setting, "partition": partition, "slow": slow, **row})
        say(_line(rows[-2 * options.seeds :]))
    return rows


def config_of(
    setting: str, partition: str, lr: float, seed: int, flags: Sequence[str], *, slow: int = 1
) -> psrt.TrainConfig:
    """Return the config of one run; ``ConfigError`` if it cannot be."""
    words = [*DEFAULTS, *flags, *SETTINGS[setting], "--partition", partition]
    words += ["--lr", repr(lr), "--seed", str(seed)]
    return parse_train(words + (["--inject", f"0:slow:{slow}"] if slow > 1 else []))


def _best_rate(setting: str, partition: str, options: Namespace, flags: Sequence[str]) -> float:
    """Return the learning rate of the best end on a seed that is not shown."""
    if len(options.rates) == 1:
        return float(options.rates[0])
    ends = {
        lr: row_of(config_of(setting, partition, lr, options.seeds, flags), options.workers)
        for lr in options.rates
    }
    best: float = max(ends, key=lambda lr: (ends[lr]["accuracy"] or 0.0, -lr))
    return best


def row_of(config: psrt.TrainConfig, workers: int) -> Row:
    """Train in virtual time and return what is kept of it; no figures, if the run diverged."""
    resolved = psrt.resolve(config, ranks=workers + (config.servers or 1))
    problem = supervised_problem(resolved, workers=workers)
    costs = costs_of(measured(resolved, problem), resolved.codec, LINKS[_LINK])
    row: Row = {"lr": config.lr, "seed": config.seed, **dict.fromkeys(FIGURES)}
    try:
        run = psrt.simulate(config, problem, workers=workers, seed=config.seed, costs=costs)
    except psrt.DivergedError:
        return row
    ports = [run.world.ports[rank] for rank in run.world.role_map.workers]
    thetas = np.array([port.theta for port in ports], np.float64)
    sent = sum(worker.stats.bytes_sent for worker in run.workers)
    steps = sum(worker.stats.steps for worker in run.workers)
    return row | {
        "accuracy": run.summary.test_accuracy,
        "apart": float(np.sqrt(np.mean(np.square(thetas - thetas.mean(axis=0))))),
        "step_bytes": sent / steps,
        "seconds": run.summary.seconds,
    }


def _line(rows: Sequence[Row]) -> str:
    first = rows[0]
    ends = ", ".join(
        "diverged" if row["accuracy"] is None else f"{100 * row['accuracy']:.1f}" for row in rows
    )
    return f"{first['partition']:<14} {first['setting']:<32} lr {first['lr']:g}: {ends} %"


def cells(rows: Iterable[Row]) -> list[Row]:
    """Return by partition, setting and straggler the medians of the runs, in order.

    Returns:
        ``partition``, ``setting``, ``slow``, ``lr``; of each of ``FIGURES`` the median, and with
        ``_worst`` and ``_best`` the ends; None where a run diverged.
    """
    groups: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["partition"], row["setting"], row["slow"]), []).append(row)
    found = []
    for (partition, setting, slow), group in groups.items():
        cell: Row = {"partition": partition, "setting": setting, "slow": slow, "lr": group[0]["lr"]}
        for figure in FIGURES:
            values = [row[figure] for row in group]
            known = all(value is not None for value in values)
            cell[figure] = statistics.median(values) if known else None
            cell[f"{figure}_least"] = min(values) if known else None
            cell[f"{figure}_most"] = max(values) if known else None
        found.append(cell)
    return found


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """Return a table for each partition."""
    lines: list[str] = []
    for partition in dict.fromkeys(cell["partition"] for cell in found):
        lines += [
            "", partition,
            f"{'setting':<34}{'lr':>6}{'accuracy':>10}{'(worst)':>9}{'apart':>10}"
            f"{'sent a step':>14}{'time':>10}{'with straggler':>24}",
        ]  # fmt: skip
        mine = [cell for cell in found if cell["partition"] == partition]
        for setting in dict.fromkeys(cell["setting"] for cell in mine):
            alike, *slow = [cell for cell in mine if cell["setting"] == setting]
            lines.append(f"{setting:<34}{alike['lr']:>6g}{_texts(alike, slow)}")
    return "\n".join(lines)


def _texts(alike: Mapping[str, Any], slow: Sequence[Mapping[str, Any]]) -> str:
    if alike["accuracy"] is None:
        return f"{'diverged':>10}"
    straggling = ""
    if slow and slow[0]["accuracy"] is not None:
        times = slow[0]["seconds"] / alike["seconds"]
        straggling = f"{slow[0]['seconds']:.3f} s ({times:.2f} times)"
    return (
        f"{100 * alike['accuracy']:>8.1f} %{100 * alike['accuracy_least']:>7.1f} %"
        f"{alike['apart']:>10.2g}{size_text(alike['step_bytes']):>14}"
        f"{alike['seconds']:>8.3f} s{straggling:>24}"
    )
