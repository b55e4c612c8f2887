"""The runs of compression_study.py: every codec in every mode, and seldom averages in local SGD.

Runs go over the same data in virtual time and compute everything. The times of a gradient, of
encoding and of decoding are measured on this machine before the first run; what is sent takes the
time of its bytes on the link. So a codec pays for its own computing.

A learning rate that suits plain gradients may not suit others, so each codec has the best of
several in each mode, found on one seed more.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from script import say

import psrt
from psrt.cli.flags import parse_train
from psrt.codec import CodecRow, Matrix, draws, matrices_within
from psrt.codec.times import CodecTimes, Line
from psrt.config.modes import MODES
from psrt.core.arrays import Vector
from psrt.core.errors import ConfigError
from psrt.core.partition import Span
from psrt.job.problems import supervised_problem
from psrt.report import seconds_to_accuracy
from psrt.rows.suggest import did_you_mean
from psrt.runtime.problem import matrices_of

Row = dict[str, Any]

NONE = "none"
#: Ends the name of a setting in which servers answer by a codec, too.
BOTH_WAYS = " both ways"
#: What is compared: a name, and its flags of ``psrt train``.
SETTINGS: dict[str, tuple[str, ...]] = {
    NONE: (),
    **{name: ("--codec", name) for name in (
        "float16", "bfloat16", "float8-e4m3", "float8-e5m2", "float4-e3m0", "int8", "qsgd",
        "ternary", "ternary-base3", "sign",
    )},
    "sign without feedback": ("--codec", "sign", "--no-error-feedback"),
    **{
        f"{name} {density:.0%}": ("--codec", f"{name}:density={density}")
        for name in ("top-k", "random-k", "dgc") for density in (0.1, 0.01)
    },
    "top-k 1% without feedback": ("--codec", "top-k", "--no-error-feedback"),
    "threshold": ("--codec", "threshold"),
    **{f"low-rank {r}": ("--codec", f"low-rank:rank={r}") for r in (1, 2, 4)},
    "demo": ("--optimizer", "demo"),
    **{f"{name}{BOTH_WAYS}": ("--codec", name, "--codec-reply", name) for name in (
        "bfloat16", "int8", "sign", "top-k",
    )},
}  # fmt: skip
#: DiLoCo's outer step.
_NESTEROV = ",outer=nesterov,outer.lr=0.7,outer.momentum=0.9"
#: Of local-sgd, which has fewer bytes by averaging seldom: none averages after every step. The
#: model has three layers, so there are three fragments.
LOCAL = "local-sgd"
LOCAL_SETTINGS: dict[str, tuple[str, ...]] = {
    NONE: ("--mode", "local-sgd:local-steps=1"),
    **{
        f"every {h} steps{name}": ("--mode", f"local-sgd:local-steps={h}{knobs}")
        for h in (5, 20, 100)
        for name, knobs in {
            "": "",
            " by fragments": ",fragments=3",
            " late": f",sync-delay={h // 2}",
            " by fragments late": f",fragments=3,sync-delay={h // 2}",
            " eager": ",eager=true",
            " Nesterov": _NESTEROV,
        }.items()
    },
    **{
        f"every {h} steps Nesterov {name}": (
            "--mode", f"local-sgd:local-steps={h}{_NESTEROV}", "--codec", codec,
        )
        for h in (5, 20)
        for name, codec in {
            "float4": "float4-e3m0", "int8": "int8", "sign": "sign", "top-k 1%": "top-k",
        }.items()
    },
    "every 20 steps Streaming DiLoCo": (
        "--mode", f"local-sgd:local-steps=20,fragments=3,sync-delay=10{_NESTEROV}",
        "--codec", "float4-e3m0",
    ),
}  # fmt: skip
#: A step of sign descent is as long as its rate, whatever the gradient.
_SIGN_RATE = 0.01
#: Flags of all runs. Not relu: a first step that is too large leaves dead units, whatever comes
#: later.
DEFAULTS = ("--hidden", "128,128", "--activation", "tanh", "--batch-size", "16", "--epochs", "20")
#: Workers leave the server that long alone: what a message takes beside its bytes.
_LATENCY_S = 5e-5
#: Bytes of gradient that a server applies in a second.
_APPLY = 4e9

#: Bytes per second by name.
LINKS = {"100 Mbit/s": 12.5e6, "1 Gbit/s": 125e6, "10 Gbit/s": 1.25e9}


class Job(NamedTuple):
    """One run to do."""

    mode: str
    setting: str
    link: str
    #: Learning rate.
    lr: float
    seed: int
    config: psrt.TrainConfig


class Times(NamedTuple):
    """What was measured on this machine."""

    #: Seconds of a gradient.
    gradient: float
    #: Of the codec, if there is one.
    codec: CodecTimes | None


def modes() -> tuple[str, ...]:
    """Return the modes that can be compared."""
    return tuple(name for name, row in MODES.items() if row.codecs)


def settings_of(mode: str) -> dict[str, tuple[str, ...]]:
    """Return the settings that a mode can have; only servers answer by a codec."""
    if mode == LOCAL:
        return LOCAL_SETTINGS
    answers = mode in MODES and MODES[mode].needs_servers
    return {name: it for name, it in SETTINGS.items() if answers or not name.endswith(BOTH_WAYS)}


def job_of(mode: str, setting: str, link: str, lr: float, seed: int, flags: Sequence[str]) -> Job:
    """Return one run; ``ConfigError`` if it cannot be."""
    mine = settings_of(mode)[setting]
    scaled = lr * _SIGN_RATE if "demo" in mine else lr
    words = [*DEFAULTS, *flags, "--mode", mode, "--lr", repr(scaled)]
    config = parse_train([*words, *mine, "--seed", str(seed)])
    return Job(mode, setting, link, lr, seed, config)


def run_all(options: Namespace, flags: Sequence[str]) -> list[Row]:
    """Find a learning rate for each setting of each mode, then run all seeds on all links."""
    for mode in options.modes:
        if mode not in modes():
            guess = did_you_mean(mode, modes())
            raise ConfigError(f"no mode {mode!r} here{guess}, there are: {', '.join(modes())}")
    known = [name for mode in options.modes for name in settings_of(mode)]
    asked = options.settings or known
    for setting in asked:
        if setting not in known:
            named = "; ".join(dict.fromkeys(known))
            guess = did_you_mean(setting, known)
            raise ConfigError(f"no setting {setting!r} here{guess}, there are: {named}")
    pairs = [
        (mode, setting)
        for mode in options.modes
        for setting in settings_of(mode)
        if setting in asked
    ]
    for pair in pairs:  # before the first is run: a bad flag is an error at once
        config = job_of(*pair, options.links[0], options.rates[0], 0, flags).config
        psrt.resolve(config, ranks=options.workers + (config.servers or 0))
    rows: list[Row] = []
    for mode, setting in pairs:
        lr = _best_rate(mode, setting, options, flags)
        for link in options.links:
            for seed in range(options.seeds):
                row = row_of(job_of(mode, setting, link, lr, seed, flags), options)
                rows.append(row)
            say(_line(rows[-options.seeds :]))
    return rows


def _best_rate(mode: str, setting: str, options: Namespace, flags: Sequence[str]) -> float:
    """Return the learning rate of the best end on a seed that is not shown."""
    if len(options.rates) == 1:
        return float(options.rates[0])
    link, seed = options.links[len(options.links) // 2], options.seeds
    ends = {
        lr: row_of(job_of(mode, setting, link, lr, seed, flags), options) for lr in options.rates
    }
    best: float = max(ends, key=lambda lr: (ends[lr]["test_accuracy"] or 0.0, -lr))
    return best


def _line(rows: Sequence[Row]) -> str:
    first = rows[0]
    ends = ", ".join(
        "diverged" if row["test_accuracy"] is None else f"{100 * row['test_accuracy']:.1f}"
        for row in rows
    )
    where = f"{first['mode']:<10} {first['setting']:<34} {first['link']:>10}"
    return f"{where}  lr {first['lr']:g}: {ends} %"


def row_of(job: Job, options: Namespace) -> Row:
    """Train in virtual time and return what is kept of it: no accuracy, if the run diverged."""
    workers = options.workers
    config = psrt.resolve(job.config, ranks=workers + (job.config.servers or 1))
    problem = supervised_problem(config, workers=workers)
    times = measured(config, problem)
    row: Row = {
        **{name: getattr(job, name) for name in ("mode", "setting", "link", "lr", "seed")},
        "test_accuracy": None, "seconds_to_accuracy": None, "seconds": None, "bytes_sent": None,
        "gradient_us": 1e6 * times.gradient, "encode_us": None, "decode_us": None,
    }  # fmt: skip
    if times.codec is not None:
        n = problem.initial().size
        row |= {
            "encode_us": 1e6 * times.codec.encode.at(n),
            "decode_us": 1e6 * times.codec.decode.at(n),
        }
    costs = costs_of(times, config.codec, LINKS[job.link])
    try:
        run = psrt.simulate(job.config, problem, workers=workers, seed=job.seed, costs=costs)
    except psrt.DivergedError:
        return row
    summary = run.summary
    row["test_accuracy"], row["seconds"] = summary.test_accuracy, summary.seconds
    row["bytes_sent"] = summary.bytes_sent
    row["seconds_to_accuracy"] = seconds_to_accuracy(map(asdict, run.records), options.target)
    return row


def costs_of(times: Times, codec: CodecRow | None, bandwidth: float) -> psrt.SimulationCosts:
    """Return the costs of a run.

    Args:
        times: measured.
        codec: of pushes or sums, and of replies if they have one.
        bandwidth: of each rank's link, in bytes per second.
    """

    def compute(rank: int, rng: np.random.Generator) -> float:
        return rng.uniform(0.9, 1.1) * times.gradient

    return psrt.SimulationCosts(
        compute=compute,
        latency=lambda rng: _LATENCY_S,
        bandwidth=bandwidth,
        apply=lambda shard, applied, rng: applied / _APPLY,
        codecs={} if codec is None or times.codec is None else {codec.name: times.codec},
    )


_MEASURED: dict[tuple[object, ...], Times] = {}


def measured(config: psrt.TrainConfig, problem: Any) -> Times:
    """Return what a gradient, encoding it and decoding it take."""
    theta = problem.initial()
    key = config.codec, theta.size, config.batch_size
    if key not in _MEASURED:
        out = np.empty_like(theta)
        batch = next(iter(problem.batches(0, 1, 0)))
        gradient = _fastest(lambda: problem.loss_and_grad(theta, batch, out))
        codec = None
        if config.codec is not None:
            # Sums encode parts of the vector, pushes all of it.
            matrices = matrices_of(problem, theta.size)
            few, all_ = (
                _codec_times(config.codec, out[:n], matrices_within(matrices, Span(0, n)))
                for n in (theta.size // 2, theta.size)
            )
            codec = CodecTimes(*(_through(*it) for it in zip(few, all_, strict=True)))
        _MEASURED[key] = Times(gradient, codec)
    return _MEASURED[key]


def _codec_times(
    row: CodecRow, gradient: Vector, matrices: Sequence[Matrix]
) -> tuple[tuple[int, float], tuple[int, float]]:
    """Return the elements and the seconds of encoding a gradient, and of decoding it."""
    codec = row.codec(gradient.size, matrices=matrices)
    frame, into = codec.encode(gradient, draws(0, 0, 0, 0)).copy(), np.empty_like(gradient)
    encode = _fastest(lambda: codec.encode(gradient, draws(0, 0, 0, 0)))
    return (gradient.size, encode), (gradient.size, _fastest(lambda: codec.decode(frame, into)))


def _through(few: tuple[int, float], many: tuple[int, float]) -> Line:
    """Return the line through two times; flat if fewer elements took longer."""
    element = max(0.0, (many[1] - few[1]) / (many[0] - few[0]))
    return Line(many[1] - element * many[0], element)


def _fastest(work: Callable[[], object]) -> float:
    """Return the seconds of the fastest call of several."""
    return min(_timed(work) for _ in range(60))


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
