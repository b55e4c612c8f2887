"""The learning curves of learners_study.py: what a merge and an outer step do to quality.

Four learners compute everything, as ranks of mpirun or in virtual time, over the same data; each
takes as many steps in every run, so all are compared at equal samples. One of them may be wrong: it
pushes noise, or the wrong sign. That is a problem of this study (`Wronged`), not a feature of psrt.
"""

from __future__ import annotations

import math
import statistics
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from script import say

import psrt
from psrt.cli.flags import parse_train
from psrt.core.arrays import Vector
from psrt.job.problems import supervised_problem
from psrt.runtime.problem import problem_of_worker
from studies.kept import Kept, Row

if TYPE_CHECKING:
    from mpi4py import MPI

#: By name, what it adds to the mode. Of three learners or four, the trimmed mean is the median.
MERGES = {"mean": "", "radial": ",merge=radial", "median": ",merge=median",
          "trimmed": ",merge=trimmed"}  # fmt: skip
#: By name the outer step, whose rate is put in, and its usual rate. A period is a round of pushes.
OUTERS = {
    "plain": (",outer=plain,outer.lr={rate}", 1.0),
    "nesterov": (",outer=nesterov,outer.lr={rate}", 0.7),
    "delayed": (",outer=delayed-nesterov,outer.lr={rate},outer.period={learners}", 0.7),
}
#: How a learner's local steps are counted.
FIXED, DYNAMIC = "fixed", "dynamic"
NONE, NOISE, SIGN = "none", "noise", "wrong sign"
WRONGS = (NONE, NOISE, SIGN)
LEARNERS = 4


class Plan(NamedTuple):
    """What one study varies; ``of_text`` says on which problem."""

    quorum: int
    outers: Sequence[str]
    merges: Sequence[str] = ("mean",)
    wrongs: Sequence[str] = (NONE,)
    counted: Sequence[str] = (FIXED,)
    #: Rates of the outer step that are tried, as multiples of the usual one.
    outer_rates: Sequence[float] = (1.0,)
    of_text: bool = False


_MERGES, _STEPS = ("mean", "radial", "median"), (FIXED, DYNAMIC)
#: With a quorum of 1 there is nothing to merge, and most to gain from an outer step.
PLANS = {
    "merges": Plan(3, ("plain", "nesterov"), _MERGES, WRONGS),
    "outers": Plan(1, tuple(OUTERS), counted=_STEPS, outer_rates=(1, 0.5, 0.25, 0.125)),
    "text": Plan(3, ("nesterov",), _MERGES, WRONGS, of_text=True),
    "text-outers": Plan(1, tuple(OUTERS), counted=_STEPS, outer_rates=(1, 0.25), of_text=True),
}
#: Digits: those of the study of topologies; the transformer of torch_text.py. Then local rates that
#: are tried, and seconds of a step of the fastest learner, beside what real ones compute.
_DIGITS = (
    ("--hidden", "128,128", "--activation", "tanh", "--batch-size", "16", "--epochs", "10"),
    (0.2,), 5e-3,
)  # fmt: skip
_TEXT = ("--optimizer", "adam", "--batch-size", "8", "--epochs", "5"), (0.01,), 4e-2
#: The speed of the last learner, which is the wrong one. The fastest has taken its steps before the
#: others, who are there as long as it pushes; the slowest ends alone.
FASTEST, SLOWEST = "fastest", "slowest"
#: By it, a step of each learner over that of the fastest.
_SLOW = {FASTEST: (4 / 3, 5 / 3, 2, 1), SLOWEST: (1, 4 / 3, 5 / 3, 2)}
#: The seed with which rates are compared; it is not shown.
_HIDDEN_SEED = 99
#: How steps vary in virtual time.
_JITTER = 0.1
#: Characters of the text on which it is trained, 16 steps of four learners, and tested.
_TRAIN_CHARACTERS, _TEST_CHARACTERS = 64 * 512 + 1, 10_000


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
            noise = self._rng.standard_normal(out.size, np.float32)
            out[:] = noise * (self._loud * float(np.linalg.norm(out) / np.linalg.norm(noise)))
        for call in filter(None, ready):
            for part in range(len(self._problem.gradient_spans())):
                call(part)
        return loss


def run_all(
    name: str, options: Namespace, flags: Sequence[str], kept: Kept, comm: MPI.Comm | None
) -> list[Row]:
    """Train in every setting of a plan, each with the best of some rates, with every seed.

    Args:
        name: of the plan.
        options: of the script.
        flags: of ``psrt train``, for every run.
        kept: what was found earlier.
        comm: a server and the learners, each of which calls this; None: in virtual time.
    """
    plan = PLANS[name]
    defaults, lrs, step_s = _TEXT if plan.of_text else _DIGITS
    problem = _text_problem() if plan.of_text else _digits
    rows: list[Row] = []

    def trained(
        outer: str, merge: str, wrong: str, counted: str, lr: float, rate: float, seed: int
    ) -> Row:
        setting = {
            "outer": outer, "merge": merge, "wrong": wrong, "counted": counted, "lr": lr,
            "outer_rate": rate, "seed": seed, "quorum": plan.quorum, "loud": options.loud,
            "local_steps": options.local_steps or 8, "flags": list(flags), "last": options.last,
            "step_s": step_s,
            "is_real": comm is not None,
        }  # fmt: skip
        words = [*defaults, *flags, *_words(setting)]
        return kept.row(setting, lambda: row_of(words, problem, setting, comm))

    def best(outer: str, merge: str) -> tuple[float, float]:
        """Return the rates that are best without a wrong learner, on a seed that is not shown."""
        tried = list(product(options.rates or lrs, plan.outer_rates))
        if len(tried) == 1:
            return tried[0]
        found = partial(trained, outer, merge, NONE, FIXED, seed=_HIDDEN_SEED)
        ends = {it: found(*it)["loss"] for it in tried}  # accuracy has few values
        return min(tried, key=lambda it: math.inf if ends[it] is None else ends[it])

    for outer, merge in product(
        _chosen(plan.outers, options.outers), options.merges or plan.merges
    ):
        lr, rate = best(outer, merge)
        for wrong, counted in product(_chosen(plan.wrongs, options.wrongs), plan.counted):
            here = [
                trained(outer, merge, wrong, counted, lr, rate, seed)
                for seed in range(options.seeds)
            ]
            rows += here
            ends = ", ".join(map(_text, here))
            say(f"{outer:<9} {merge:<8} {wrong:<11} {counted:<8} lr {lr:g}, {rate:g}: {ends}")
    return rows


def _chosen(names: Sequence[str], asked: Sequence[str] | None) -> list[str]:
    return [it for it in names if asked is None or it in asked]


def _digits(config: psrt.TrainConfig) -> Any:
    resolved = psrt.resolve(config, ranks=LEARNERS + 1)
    return supervised_problem(resolved, workers=LEARNERS)


def _text_problem() -> Callable[[psrt.TrainConfig], Any]:
    """Return what makes the problem of torch_text.py for a config."""
    import torch_text

    text = torch_text.characters()
    train, test = np.split(text, [len(text) * 9 // 10])
    train, test = train[:_TRAIN_CHARACTERS], test[:_TEST_CHARACTERS]
    parts = torch_text.windows(train), torch_text.windows(test)
    return lambda config: psrt.torch.Problem(
        torch_text.Speller(config.seed), torch_text.loss, *parts,
        batch_size=config.batch_size, seed=config.seed, accuracy=psrt.torch.accuracy,
    )  # fmt: skip


def _words(setting: Mapping[str, Any]) -> list[str]:
    """Return the flags of one run."""
    outer, usual = OUTERS[setting["outer"]]
    mode = f"local-sgd:local-steps={setting['local_steps']},quorum={setting['quorum']}"
    mode += MERGES[setting["merge"]]
    mode += outer.format(rate=usual * setting["outer_rate"], learners=LEARNERS)
    mode += ",dynamic=true" if setting["counted"] == DYNAMIC else ""
    lr, seed = repr(setting["lr"]), str(setting["seed"])
    return ["--mode", mode, "--servers", "1", "--lr", lr, "--seed", seed]


def row_of(
    words: Sequence[str],
    problem_of: Callable[[psrt.TrainConfig], Any],
    setting: Mapping[str, Any],
    comm: MPI.Comm | None,
) -> Row:
    """Train, and return what came of it on all ranks; no figures, if the run diverged."""
    slow, step_s = _SLOW[setting["last"]], setting["step_s"]
    if comm is not None:
        for worker, times in enumerate(slow):
            words = [*words, "--inject", f"{worker}:delay:{step_s * times:g}"]
    config = parse_train(words)
    problem = problem_of(config)
    if setting["wrong"] != NONE:
        problem = Wronged(problem, setting["wrong"], LEARNERS, setting["loud"], config.seed)
    try:
        with np.errstate(all="ignore"):
            if comm is not None:
                run = psrt.run(config, problem, comm=comm)
                row: Row = comm.bcast(None if run is None else _figures(run))
                return row
            costs = psrt.SimulationCosts(
                compute=lambda rank, rng: (  # rank 0 is the server
                    step_s * slow[rank - 1] * float(np.exp(_JITTER * rng.standard_normal()))
                ),
                latency=lambda rng: 1e-4,
            )
            return _figures(
                psrt.simulate(config, problem, workers=LEARNERS, seed=config.seed, costs=costs)
            )
    except psrt.DivergedError:
        return {"accuracy": None, "loss": None, "curve": []}


def _figures(run: psrt.Run) -> Row:
    summary = run.summary
    curve = [
        [it.samples, it.test_loss, it.accuracy] for it in run.records if it.accuracy is not None
    ]
    return {"accuracy": summary.test_accuracy, "loss": summary.test_loss, "curve": curve,
            "samples": summary.samples, "seconds": summary.seconds,
            "staleness": summary.staleness.mean, "sha256": summary.parameters_sha256}  # fmt: skip


def _text(row: Mapping[str, Any]) -> str:
    return "diverged" if row["accuracy"] is None else f"{100 * row['accuracy']:.1f}"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return means and standard deviations: a line for each setting, a column for each merge."""
    merges = list(dict.fromkeys(row["merge"] for row in rows))
    fields = ("outer", "wrong", "counted")
    lines = [f"{'outer step':<12}{'wrong':<12}{'steps':<9}" + "".join(f"{it:>18}" for it in merges)]
    for line in dict.fromkeys(tuple(row[it] for it in fields) for row in rows):
        mine = [row for row in rows if tuple(row[it] for it in fields) == line]
        texts = [cell([row for row in mine if row["merge"] == it]) for it in merges]
        lines.append("{:<12}{:<12}{:<9}".format(*line) + "".join(f"{it:>18}" for it in texts))
    return "\n".join(lines)


def cell(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return mean ± standard deviation of the accuracy in percent, and how many diverged."""
    found = [100 * row["accuracy"] for row in rows if row["accuracy"] is not None]
    if len(found) < len(rows):
        return f"{len(rows) - len(found)} of {len(rows)} diverged"
    spread = statistics.stdev(found) if len(found) > 1 else 0.0
    return f"{statistics.mean(found):.1f} ± {spread:.1f}"
