"""A plan: candidates with what is predicted of them, best first. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from psrt.config import TrainConfig
from psrt.planning.known import Known


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a simulation of some steps says about the steady state of a job."""

    #: Mean seconds of a step of a worker.
    step_s: float
    #: Samples of all workers per second, with an interval that has the true mean 19 times of 20.
    samples_per_s: float
    low: float
    high: float
    #: Bytes that a rank sends per step: the mean over all ranks.
    sent_per_step: float
    #: In versions; None in modes without any staleness.
    staleness_mean: float | None
    staleness_max: int | None
    #: By cause, the share of a worker's time that it spends waiting for it.
    waits: Mapping[str, float]
    #: By rank that waits and rank that is waited for, both as "worker 1", the share of time.
    waiting_for: Mapping[str, Mapping[str, float]]
    #: Steps of each worker that were simulated, and their virtual seconds.
    steps: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Row:
    """One candidate of a plan."""

    #: Its place, from 1.
    number: int
    #: As a user would ask for it, not resolved.
    config: TrainConfig
    ranks: int
    workers: int
    servers: int
    #: The flags of ``psrt train`` that make it this candidate: by name, such as "mode", the text.
    knobs: Mapping[str, str]
    #: To be typed in a shell.
    command: str
    prediction: Prediction
    #: Seconds of a step by the closed form.
    closed_step_s: float
    #: By role, "worker" or "server", the bytes that are counted.
    memory: Mapping[str, int]
    #: One of "same", "bounded", "stale" and "local"; see ``promise_of``.
    promise: str
    #: Share of the time that is not lost to failures; None where none were asked about.
    goodput: float | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The flags as words, to put them into a command."""
        return tuple(word for name, text in self.knobs.items() for word in (f"--{name}", text))


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer of ``psrt plan``."""

    known: Known
    #: Best first.
    rows: tuple[Row, ...]
    #: What they are ranked by, in words, such as "samples/s".
    asked: str
    #: By reason, the number of candidates that were left out.
    pruned: Mapping[str, int]
