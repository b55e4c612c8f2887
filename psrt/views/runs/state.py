"""The state of a run, from its files at one moment. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from psrt.core.progress import amount_text, hours, seconds_left
from psrt.core.units import time_text
from psrt.views.runs.folder import RunFolder


@dataclass(frozen=True, slots=True)
class State:
    """What is known about a running job; None for what is not known."""

    #: Gradient steps: finished by all workers, finished by the furthest, and of the whole run.
    clock: int
    furthest: int
    steps: int | None
    #: Epochs finished, and those of the whole run.
    epoch: int
    epochs: float | None
    #: Seconds of training, and seconds left at this speed.
    seconds: float
    left: float | None
    loss: float | None
    accuracy: float | None
    samples_per_second: float | None
    staleness: float | None
    #: Share of their time that workers wait.
    waiting: float | None
    #: Worker that computes longest for a step, how long, and the median of all.
    slowest: tuple[int, float, float] | None

    @property
    def fraction(self) -> float | None:
        """The part of the run that is done, from 0 to 1."""
        return None if not self.steps else min(1.0, self.clock / self.steps)

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield the rows to show: names and values."""
        of = "" if self.epochs is None else f" of {self.epochs:g}"
        yield "epoch", f"{self.epoch}{of}"
        ahead = f", the furthest {self.furthest:,}" if self.furthest > self.clock else ""
        yield "step", amount_text(self.clock, self.steps) + ahead
        yield "time", hours(self.seconds)
        if self.left is not None:
            yield "left", hours(self.left)
        if self.loss is not None:
            yield "loss", f"{self.loss:.4g}"
        if self.accuracy is not None:
            yield "accuracy", f"{100 * self.accuracy:.1f} %"
        if self.samples_per_second is not None:
            yield "samples/s", f"{self.samples_per_second:,.0f}"
        if self.staleness is not None:
            yield "staleness", f"{self.staleness:.1f}"
        if self.waiting is not None:
            yield "waiting", f"{100 * self.waiting:.0f} %"
        if self.slowest is not None:
            worker, its, median = self.slowest
            text = f"worker {worker}, {time_text(its)} per step, median {time_text(median)}"
            yield "slowest", text

    def line(self) -> str:
        """Return all of that in one line."""
        return "  ".join(f"{name} {value}" for name, value in self.rows())


def state_of(run: RunFolder) -> State:
    """Return the state of a run."""
    last: dict[str, Any] = run.records[-1] if run.records else {}
    progress = run.progress or {}
    # On several ranks progress.json is newer; a record waits for the slowest worker.
    furthest = max(last.get("step", 0), progress.get("clock", 0))
    # Like the epoch, the end is that of the slowest worker.
    clock = max(last.get("step", 0), progress.get("clock_min", progress.get("clock", 0)))
    seconds = max(last.get("seconds", 0.0), progress.get("seconds", 0.0))
    steps = _steps(run)
    loss = progress.get("loss")
    slowest = None
    if "slowest" in progress:
        names = ("slowest", "slowest_step_s", "median_step_s")
        slowest = tuple(progress[name] for name in names)
    accuracies = [it["accuracy"] for it in run.records if it.get("accuracy") is not None]
    return State(
        clock=clock,
        furthest=furthest,
        steps=steps,
        epoch=last.get("epoch", 0),
        epochs=run.config.epochs,
        seconds=seconds,
        left=seconds_left(clock, steps, seconds),
        loss=last.get("loss") if loss is None else loss,
        accuracy=accuracies[-1] if accuracies else None,
        samples_per_second=last.get("samples_per_second"),
        staleness=last.get("staleness_mean"),
        waiting=last.get("waiting_share"),
        slowest=slowest,
    )


def _steps(run: RunFolder) -> int | None:
    """Return the steps of the whole run; None as long as the length of an epoch is not known."""
    if run.config.steps is not None:
        return run.config.steps
    ends = [it for it in run.records if it.get("epoch_end") and it.get("epoch")]
    if not ends or run.config.epochs is None:
        return None
    whole: int = round(run.config.epochs * ends[-1]["step"] / ends[-1]["epoch"])
    return whole
