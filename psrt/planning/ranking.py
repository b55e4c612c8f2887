"""A plan: candidates with what is predicted of them, best first. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from psrt.config import TrainConfig
from psrt.config.knobs import knobs_of
from psrt.config.modes import PROMISES as PROMISES
from psrt.core.errors import ConfigError
from psrt.planning.known import Known
from psrt.rows.values import SWITCH


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

    @property
    def words(self) -> tuple[str, ...]:
        """The flags as words, to put them into a command."""
        return tuple(words_of(self.knobs))


def words_of(knobs: Mapping[str, str]) -> list[str]:
    """Return flags, by name without dashes, as words."""
    return [word for it in knobs.items() for word in _words(*it)]


def _words(flag: str, text: str) -> tuple[str, ...]:
    if knobs_of(TrainConfig)[flag.replace("-", "_")].kind is SWITCH:
        return (f"--{flag}" if text == "true" else f"--no-{flag}",)
    return f"--{flag}", text


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

    @property
    def listed(self) -> int:
        """The number of candidates."""
        return len(self.rows) + sum(self.pruned.values())

    def to_json(self) -> str:
        """Return it as text, for other programs."""
        rows = [_document(row) for row in self.rows]
        found = {"known": json.loads(self.known.to_json()), "asked": self.asked}
        return json.dumps(found | {"rows": rows, "pruned": dict(self.pruned)}, indent=1) + "\n"


def _document(row: Row) -> dict[str, Any]:
    prediction = asdict(row.prediction)
    more = {"sent_bytes_per_step": prediction.pop("sent_per_step")}
    more["waiting"] = prediction.pop("waits")
    return {
        "number": row.number, "ranks": row.ranks, "workers": row.workers, "servers": row.servers,
        "knobs": dict(row.knobs), "words": list(row.words), "command": row.command,
        **prediction, **more, "memory_bytes": dict(row.memory), "promise": row.promise,
        "goodput": row.goodput, "closed_step_s": row.closed_step_s,
    }  # fmt: skip


def promise_of(config: TrainConfig, *, several: bool) -> str:
    """Return what a config promises about the parameters: a key of ``PROMISES``.

    A codec that is in effect changes them, within what it loses.

    Args:
        config: with a mode.
        several: whether its ranks are on several hosts.
    """
    own, is_coded = config.scheme.promise, config.codec is not None
    return "bounded" if own == "same" and is_coded and (several or config.codec_everywhere) else own


class Budget(NamedTuple):
    """What rows are ranked by."""

    #: In words.
    words: str
    #: ``samples``, ``seconds``, or a name of ``_FIGURES``.
    kind: str = "samples"
    #: Samples, or seconds; None for a rate.
    amount: float | None = None

    def key(self, row: Row) -> tuple[float, float]:
        """Return what to sort rows by, the best first."""
        first = _FIGURES[self.kind](row) if self.kind in _FIGURES else 0.0
        return first, -row.useful_per_s

    def of(self, row: Row) -> float | None:
        """Return the time for the samples, or the samples in the time; None without an amount."""
        if self.amount is None:
            return None
        rate = row.useful_per_s
        return self.amount / rate if self.kind == "samples" else self.amount * rate


_FIGURES: Final[Mapping[str, Callable[[Row], float]]] = {
    "staleness": lambda row: row.prediction.staleness_mean or 0.0,
    "bytes": lambda row: row.prediction.sent_per_step * row.ranks / row.workers,
    "memory": lambda row: float(max(row.memory.values())),
}


def read_budget(text: str | None) -> Budget:
    """Return the budget that a text spells.

    >>> read_budget("samples:1e6").words, read_budget("staleness").words
    ('seconds for 1e+06 samples', 'staleness, then samples/s')

    Raises:
        ConfigError: if it is none.
    """
    if text is None:
        return Budget("samples/s")
    kind, colon, number = text.strip().partition(":")
    if kind in _FIGURES and not colon:
        return Budget(f"{kind}, then samples/s", kind)
    try:
        amount = float(number) if kind in ("samples", "seconds") else 0.0
    except ValueError:
        amount = 0.0
    if not 0 < amount < 1e18:
        raise ConfigError(
            f"budget must be samples:N, seconds:T, {', '.join(_FIGURES)}, N and T above 0, "
            f"got {text!r}"
        )
    words = f"seconds for {amount:g} samples" if kind == "samples" else f"samples in {amount:g} s"
    return Budget(words, kind, amount)
