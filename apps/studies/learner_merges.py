"""The learning curves of learners_study.py: what a merge and an outer step do to quality.

Four learners compute everything, in virtual time, over the same data; each takes as many steps in
every run, so all are compared at equal samples. One of them may be wrong: it pushes noise, or the
wrong sign. That is a problem of this study (`Wronged`), not a feature of psrt.
"""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from script import say

import psrt
from psrt.cli.flags import parse_train
from psrt.core.arrays import Vector
from psrt.job.problems import supervised_problem
from psrt.runtime.problem import problem_of_worker

Row = dict[str, Any]

#: By name, what it adds to the mode.
MERGES = {"mean": "", "radial": ",merge=radial", "median": ",merge=median",
          "trimmed": ",merge=trimmed"}  # fmt: skip
OUTERS = {
    "none": "",
    "nesterov": ",outer=nesterov",
    "delayed-nesterov": ",outer=delayed-nesterov",
}
#: How a learner's local steps are counted.
STEPS = {"fixed": "local-steps={steps}", "dynamic": "local-steps={steps},dynamic=true"}
NONE, NOISE, SIGN = "none", "noise", "wrong sign"
WRONGS = (NONE, NOISE, SIGN)
#: Digits: those of the study of topologies.
DEFAULTS = ("--hidden", "128,128", "--activation", "tanh", "--batch-size", "16", "--epochs", "10")
#: The transformer, for which --rates should name one of Adam.
TEXT = ("--optimizer", "adam", "--batch-size", "16", "--steps", "96")
#: A step of a learner, with the others' between 1 and 2 times as long, in seconds.
_STEP_S, _SPREAD, _JITTER = 1e-3, 2.0, 0.1
#: Characters of the text on which it is tested.
_TEST_CHARACTERS = 20_000


class Wronged:
    """A problem whose last worker has wrong gradients."""

    def __init__(self, problem: Any, wrong: str, workers: int, loud: float, seed: int) -> None:
        """Wrap ``problem``; ``wrong`` is NOISE, ``loud`` times a gradient's norm, or SIGN."""
        self._problem, self._last, self._how = problem, workers - 1, (wrong, loud, seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._problem, name)

    def of_worker(self, number: int) -> Any:
        """Return what a worker trains on."""
        mine = problem_of_worker(self._problem, number)
        return mine if number < self._last else _Wrong(mine, *self._how)


class _Wrong:
    """The problem of the wrong worker."""

    def __init__(self, problem: Any, wrong: str, loud: float, seed: int) -> None:
        self._problem, self._wrong, self._loud = problem, wrong, loud
        self._rng = np.random.default_rng(seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._problem, name)

    def loss_and_grad(self, theta: Vector, batch: Any, out: Vector, *ready: Any) -> float:
        """Compute the gradient, spoil it, and only then say that its parts are ready."""
        nobody = [lambda part: None] * len(ready)
        loss: float = self._problem.loss_and_grad(theta, batch, out, *nobody)
        if self._wrong == SIGN:
            np.negative(out, out=out)
        else:
            noise = self._rng.standard_normal(out.size)
            out[:] = noise * (self._loud * float(np.linalg.norm(out) / np.linalg.norm(noise)))
        for call in filter(None, ready):
            for part in range(len(self._problem.gradient_spans())):
                call(part)
        return loss


def run_all(options: Namespace, flags: Sequence[str]) -> list[Row]:
    """Train the digits in every setting, each with the best of some rates, with every seed."""

    def problem(config: psrt.TrainConfig) -> Any:
        resolved = psrt.resolve(config, ranks=options.learners + 1)
        return supervised_problem(resolved, workers=options.learners)

    return _run(options, [*DEFAULTS, *flags], problem)


def run_text(options: Namespace, flags: Sequence[str]) -> list[Row]:
    """Train the transformer of torch_text.py in every setting with every seed."""
    import torch_text

    text = torch_text.characters()
    train, test = np.split(text, [len(text) * 9 // 10])
    parts = torch_text.windows(train), torch_text.windows(test[:_TEST_CHARACTERS])

    def problem(config: psrt.TrainConfig) -> Any:
        return psrt.torch.Problem(
            torch_text.Speller(config.seed), torch_text.loss, *parts,
            batch_size=config.batch_size, seed=config.seed, accuracy=psrt.torch.accuracy,
        )  # fmt: skip

    return _run(options, [*TEXT, *flags], problem)


def _run(
    options: Namespace, flags: Sequence[str], problem: Callable[[psrt.TrainConfig], Any]
) -> list[Row]:
    rows: list[Row] = []

    def trained(merge: str, outer: str, wrong: str, lr: float, seed: int) -> Row:
        config = config_of(merge, outer, lr, seed, options, flags)
        return {"merge": merge, "outer": outer, "wrong": wrong, "seed": seed, "lr": lr} | row_of(
            config, problem(config), wrong, options
        )

    for outer, merge in product(options.outers, options.merges):
        lr = options.rates[0]
        if len(options.rates) > 1:  # the best, without a wrong learner, on a seed that is not shown
            ends = {it: trained(merge, outer, NONE, it, options.seeds) for it in options.rates}
            lr = max(ends, key=lambda it: (ends[it]["accuracy"] or 0.0, -it))
        for wrong in options.wrongs:
            here = [trained(merge, outer, wrong, lr, seed) for seed in range(options.seeds)]
            rows += here
            ends_text = ", ".join(_text(row) for row in here)
            say(f"{outer:<18}{wrong:<12}{merge:<9}lr {lr:g}: {ends_text}")
    return rows


def config_of(
    merge: str, outer: str, lr: float, seed: int, options: Namespace, flags: Sequence[str]
) -> psrt.TrainConfig:
    """Return the config of one run; ``ConfigError`` if it cannot be."""
    steps = STEPS[options.counted].format(steps=options.local_steps or 8)
    mode = f"local-sgd:{steps},quorum={options.quorum}{MERGES[merge]}{OUTERS[outer]}"
    words = ["--mode", mode, "--servers", "1", "--lr", repr(lr), "--seed", str(seed)]
    return parse_train([*flags, *words])


def row_of(config: psrt.TrainConfig, problem: Any, wrong: str, options: Namespace) -> Row:
    """Train in virtual time; no figures, if the run diverged."""
    learners = options.learners
    if wrong != NONE:
        problem = Wronged(problem, wrong, learners, options.loud, config.seed)
    slow = np.linspace(1, _SPREAD, learners)
    costs = psrt.SimulationCosts(
        # Servers come first.
        compute=lambda rank, rng: (
            _STEP_S * slow[rank % learners] * float(np.exp(_JITTER * rng.standard_normal()))
        ),
        latency=lambda rng: 1e-4,
    )
    try:
        with np.errstate(all="ignore"):
            run = psrt.simulate(config, problem, workers=learners, seed=config.seed, costs=costs)
    except psrt.DivergedError:
        return {"accuracy": None, "loss": None, "curve": []}
    summary = run.summary
    curve = [[it.samples, it.test_loss, it.accuracy] for it in run.records if it.accuracy]
    return {"accuracy": summary.test_accuracy, "loss": summary.test_loss, "curve": curve,
            "staleness": summary.staleness.mean}  # fmt: skip


def _text(row: Mapping[str, Any]) -> str:
    return "diverged" if row["accuracy"] is None else f"{100 * row['accuracy']:.1f}"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the means, and the standard deviations, by outer step and what is wrong."""
    merges = list(dict.fromkeys(row["merge"] for row in rows))
    lines = [f"{'outer step':<18}{'wrong learner':<15}" + "".join(f"{it:>18}" for it in merges)]
    for outer, wrong in dict.fromkeys((row["outer"], row["wrong"]) for row in rows):
        texts = [
            cell([r for r in rows if (r["outer"], r["wrong"], r["merge"]) == (outer, wrong, it)])
            for it in merges
        ]
        lines.append(f"{outer:<18}{wrong:<15}" + "".join(f"{it:>18}" for it in texts))
    return "\n".join(lines)


def cell(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return mean ± standard deviation of the accuracy in percent, and how many diverged."""
    found = [100 * row["accuracy"] for row in rows if row["accuracy"] is not None]
    if len(found) < len(rows):
        return f"{len(rows) - len(found)} of {len(rows)} diverged"
    spread = statistics.stdev(found) if len(found) > 1 else 0.0
    return f"{statistics.mean(found):.1f} ± {spread:.1f}"
