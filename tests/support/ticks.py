"""Jobs whose parameters say which gradients they are made of, however the job was interrupted.

A gradient is 1 at an element of its attempt, epoch and sample, in each of ``ROWS`` rows, and 0
elsewhere, so that updates of rate 1 subtract it: −θ has a tick there, of the weight of the gradient
in its update. Shards hold whole rows.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.job.virtual import SimulatedRun
from support.jobs import JOBS, MIXED, STALE, Job, kind_of

#: A multiple of all numbers of shards, and of all numbers of workers.
ROWS, SAMPLES = 4, 30
ATTEMPTS, EPOCHS = 2, 2
#: Modes in which a gradient ends as a tick: it is multiplied with its share of a mean only. (In
#: EASGD it stays with its worker in part; an outer rate, or momentum, makes more or less of it.)
TICKING = ("serial", "allreduce", "sync", "backup", *STALE, "local", "learners", *MIXED)
#: What else of a job would make something else of a gradient, and its plain level.
_PLAIN = {
    "codec": "none", "cut": "whole", "data": "iid", "optimizer": "sgd", "trim": "none",
    "rate": "constant",
}  # fmt: skip
#: Of what is left of it, in float32.
_ROUNDING = 1e-4


class Ticks:
    """A problem that keeps books: sample i of an epoch is a batch of place i mod W."""

    def __init__(self) -> None:
        #: Set by who starts the job again.
        self.attempt = 0
        #: (attempt, epoch, sample) of each gradient that was computed, in order.
        self.computed: list[tuple[int, int, int]] = []
        #: (attempt, epoch, place, among) of whoever asked for batches, in order.
        self.asked: list[tuple[int, int, int, int]] = []

    def initial(self) -> np.ndarray:
        return np.zeros(ROWS * ATTEMPTS * EPOCHS * SAMPLES, np.float32)

    def batches(self, place: int, among: int, epoch: int) -> list[tuple[int, int, int]]:
        self.asked.append((self.attempt, epoch, place, among))
        return [(self.attempt, epoch, it) for it in range(place, SAMPLES, among)]

    def samples(self, batch: tuple[int, int, int]) -> int:
        return 1

    def loss_and_grad(self, theta: np.ndarray, batch: tuple[int, int, int], out: Any) -> float:
        self.computed.append(batch)
        out[:] = 0
        _table(out)[:, *batch] = 1
        return 0.5

    def evaluate(self, theta: np.ndarray) -> dict[str, float]:
        return {}


def _table(vector: np.ndarray) -> np.ndarray:
    return vector.reshape(ROWS, ATTEMPTS, EPOCHS, SAMPLES)


def table_of(run: SimulatedRun) -> np.ndarray:
    """Return (rows, attempts, epochs, samples): what the parameters have of each gradient."""
    return -_table(run.theta)


@functools.cache
def ticking() -> tuple[Job, ...]:
    """Return all jobs, as far as they differ where a gradient ends as a tick."""
    plain = (job.but(event="none", **_PLAIN) for job in JOBS if job["mode"] in TICKING)
    found = dict.fromkeys(Job(it.levels) for it in plain)
    return tuple(it for it in found if it.is_possible)


def one_of_each_mode(jobs: Iterable[Job]) -> list[Any]:
    """Return jobs to try a law on; all but the one of most workers of a mode are exhaustive."""
    seen: set[str] = set()
    found = []
    for job in sorted(jobs, key=lambda it: -it.copies):
        marks = [pytest.mark.exhaustive] if job["mode"] in seen else []
        found.append(pytest.param(job, marks=marks, id=str(job)))
        seen.add(job["mode"])
    return found


def savers(which: Callable[[Job], bool], *, by_codec: bool = True) -> frozenset[Job]:
    """Return of each mode, and kind of codec, a job: of those that save, if there are any.

    A codec that is no level has a job of its own.

    By these it is what a checkpoint must have; whichever a job is, it is tried as one that saves.
    """
    found = {}
    for job in sorted(filter(which, JOBS), key=lambda it: it["event"] == "saves"):
        kind = kind_of("codec", job["codec"]) if job.codec == job["codec"] else job.codec
        found[job["mode"], by_codec and kind] = job
    return frozenset(found.values())


def config_of(job: Job, out: Path, **more: Any) -> TrainConfig:
    """Return the config with which a job trains ``Ticks``."""
    knobs: dict[str, Any] = {
        "dataset": None, "hidden": None, "lr": 1.0, "batch_size": 1, "epochs": EPOCHS,
        "inject": ("*:jitter:0.0005", "0:delay:0.0003"),
    }  # fmt: skip
    if job["mode"] == "learners":  # of which some push fewer steps at their end
        knobs["mode"] = "local-sgd:local-steps=3,quorum=2,merge-weights=equal"
    if job.saves:
        knobs["checkpoint_every"] = 5  # of 2 to 30 steps an epoch, which are short
    return job.config(out, **knobs | more)


def weights_of(job: Job, among: Sequence[int]) -> list[float]:
    """Return the ticks that a gradient may be, of so many workers at the time."""
    if job["mode"] in ("async", "ssp"):
        return [1.0]
    if job["mode"] in ("softsync", "backup", "learners"):  # of an update of one push, up to all
        among = range(1, max(among) + 1)
    assert job["mode"] in TICKING, f"add what a gradient of {job} weighs"
    return [1 / it for it in among]


def ticked(table: np.ndarray, weights: Sequence[float]) -> np.ndarray:
    """Return where a gradient counts once; it counts nowhere else, and nowhere twice."""
    found: np.ndarray = np.isclose(table[..., None], weights, rtol=0, atol=_ROUNDING).any(-1)
    odd = table[~found & (np.abs(table) > _ROUNDING)]
    assert not len(odd), f"neither a whole gradient nor none of it: {odd[:5]}"
    return found


def order_of(place: int, among: int) -> Iterator[tuple[int, int]]:
    """Yield the (epoch, sample) of all steps of a place."""
    for epoch in range(EPOCHS):
        for sample in range(place, SAMPLES, among):
            yield epoch, sample


def reached(is_there: np.ndarray, place: int, among: int) -> list[int]:
    """Return by row the steps of a place that are there: all up to one, and none behind it."""
    found = []
    for row in is_there:
        steps = [bool(row[it]) for it in order_of(place, among)]
        count = sum(steps)
        assert steps == [True] * count + [False] * (len(steps) - count), "a gap in what is there"
        found.append(count)
    return found


def drawn(*what: Any, among: int, count: int = 1) -> list[int]:
    """Return different numbers below another one that are always the same of the same."""
    words = " ".join(map(str, what)).encode()
    rng = np.random.default_rng(zlib.crc32(words))
    return sorted(rng.permutation(among)[:count].tolist())


def saves(job: Job) -> bool:
    """Whether a job can save; with which event it stands in the table does not matter."""
    return job.but(event="saves").is_possible


def has_cuts(job: Job) -> bool:
    """Whether there are steps at which a job can be saved.

    Under pipedream these are ends of epochs, which are no steps of averages of several.
    """
    steps = ("local", "post-local", "streaming", "easgd")
    is_drained = job["cut"] != "pipedream" or job["mode"] not in steps
    return is_drained and saves(job)


def cuts_of(out: Path, run: SimulatedRun) -> list[Path]:
    """Return the checkpoints from which there is something left to do."""
    found = sorted((out / "checkpoints").iterdir())
    left = [it for it in found if int(it.name) < run.summary.steps]
    assert left
    return left
