"""A plan: candidates with what is predicted of them, best first. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import NamedTuple

from psrt.config import TrainConfig
from psrt.config.knobs import knobs_of
from psrt.config.names import DEFAULT_PIPELINE
from psrt.core.errors import ConfigError
from psrt.core.units import time_text
from psrt.pipeline.registry import schedule_of
from psrt.planning.known import Known
from psrt.rows.knobs import read_flag
from psrt.rows.values import REAL, SWITCH


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a simulation of some steps says about the steady state of a job.

    Where it would take too long, the first two are those of the closed form, and no others.
    """

    #: Mean seconds of a step of a worker.
    step_s: float
    #: Samples of all workers per second, with an interval that has the true mean 19 times of 20.
    samples_per_s: float
    low: float | None = None
    high: float | None = None
    #: Bytes that a rank sends per step: the mean over all ranks.
    sent_per_step: float | None = None
    #: In versions; None in modes without any staleness.
    staleness_mean: float | None = None
    staleness_max: int | None = None
    #: By cause, the share of a worker's time that it spends waiting for it.
    waits: Mapping[str, float] = field(default_factory=dict)
    #: By worker that waits and worker that is waited for, the share of its time.
    waiting_for: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    #: Steps of each worker that were simulated, and their virtual seconds.
    steps: int = 0
    seconds: float = 0.0
    #: Share of the gradients that no update uses, such as late ones of backups.
    dropped: float = 0.0


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
    def useful_per_s(self) -> float:
        """Samples per second that updates use and failures do not undo."""
        used = self.prediction.samples_per_s * (1 - self.prediction.dropped)
        return used if self.goodput is None else used * self.goodput


def words_of(knobs: Mapping[str, str]) -> list[str]:
    """Return flags, by name without dashes, as words."""
    words, kinds = list[str](), {it: knob.kind for it, knob in knobs_of(TrainConfig).items()}
    for flag, text in knobs.items():
        if kinds[flag.replace("-", "_")] is SWITCH:
            words.append(f"--{'' if text == 'true' else 'no-'}{flag}")
        else:
            words += [f"--{flag}", text]
    return words


class Budget(NamedTuple):
    """What a row is to be good for: what that is called, and a column for it."""

    words: str = "samples/s"
    #: Empty: there is no such column.
    head: str = ""
    #: Formats what comes of a number of samples per second.
    of: Callable[[float], str] = str


def read_budget(text: str) -> Budget:
    """Return the budget that a text spells.

    >>> budget = read_budget("samples:1e6")
    >>> budget.words, budget.of(50.0)
    ('seconds for 1e+06 samples', '20000 s')

    Raises:
        ConfigError: if it is none.
    """
    kind, _, number = text.partition(":")
    if kind not in ("samples", "seconds"):
        raise ConfigError(f"budget must be samples:N or seconds:T, got {text!r}")
    asked = read_flag(f"budget {kind}", REAL, number, exclusive_min=0, max=1e18)
    if kind == "samples":
        words = f"seconds for {asked:g} samples"
        return Budget(words, "time", lambda rate: time_text(asked / rate) if rate else "never")
    return Budget(f"samples in {asked:g} s", "samples", lambda rate: f"{asked * rate:.3g}")


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer of ``psrt plan``."""

    known: Known
    #: Best first; at least one.
    rows: tuple[Row, ...]
    budget: Budget
    #: By reason, the number of candidates that were left out.
    pruned: Mapping[str, int]

    def to_json(self) -> str:
        """Return it as text, for other programs."""
        rows = []
        for row in self.rows:
            found = {it.name: getattr(row, it.name) for it in fields(row) if it.name != "config"}
            rows.append(found | asdict(found.pop("prediction")))
        found = {"known": asdict(self.known), "asked": self.budget.words, "rows": rows}
        return json.dumps(found | {"pruned": self.pruned}, indent=1, allow_nan=False) + "\n"


def promise_of(config: TrainConfig, *, several: bool) -> str:
    """Return what a config promises about the parameters, a key of ``PROMISES``.

    A codec that is in effect changes them, within what it loses; so do stages that begin a batch
    before they have updated after the one before.

    Args:
        config: with a mode.
        several: whether its ranks are on several hosts.
    """
    own, is_coded = config.scheme.promise, config.codec is not None
    is_off = is_coded and (several or config.codec_everywhere)
    return "bounded" if own == "same" and (is_off or is_pipedream(config)) else own


def is_pipedream(config: TrainConfig) -> bool:
    """Return whether stages do not wait for each other's updates."""
    schedule = schedule_of(config.pipeline_schedule or DEFAULT_PIPELINE)
    return config.axes.pipeline > 1 and schedule.row.asynchronous
