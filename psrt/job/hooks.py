"""The user's own functions that see a run while it trains: ``on_record`` and ``on_epoch``.

Rank 0 calls them where it receives what workers report. They change nothing of the run, except that
one may stop it early.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psrt.core.arrays import AnyArray
from psrt.core.errors import ConfigError
from psrt.core.stats import Evaluated, Report, Sent
from psrt.faults.vitals import HERE
from psrt.job.boundaries import Boundaries
from psrt.job.launcher import Launcher
from psrt.job.result import Run
from psrt.job.setup import Setup
from psrt.runtime.worker import Worker
from psrt.sync.cut import Cuts


@dataclass(frozen=True, slots=True)
class Epoch:
    """The state of a run when worker 0 has evaluated its parameters, after an epoch or at the end.

    In modes without rounds other workers may be elsewhere. What was evaluated is what worker 0 has:
    all parameters as it read them last, or its own model where each worker has one.
    """

    #: Epochs that worker 0 has finished.
    number: int
    #: Its gradient steps.
    step: int
    #: Time since training began, in seconds.
    seconds: float
    #: What ``evaluate`` returned: ``loss``, ``accuracy`` in [0, 1], and others; empty without data.
    figures: Mapping[str, float]
    _model: bytes = field(repr=False)
    _stop: Callable[[], None] = field(repr=False)

    @property
    def tensors(self) -> dict[str, AnyArray]:
        """A copy of what was evaluated, by the names that ``model.safetensors`` has."""
        from safetensors.numpy import load

        return load(self._model) if self._model else {}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what was evaluated to a file of safetensors, in place of one that is there.

        Raises:
            OSError: if it cannot be written; an older file stays as it was.
        """
        part = Path(f"{os.fspath(path)}.part")
        try:
            part.write_bytes(self._model)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)

    def stop(self) -> None:
        """End training a few steps later, where all workers can; the result is that of the run."""
        self._stop()


class Hooks:
    """Calls the user's functions, at rank 0, and keeps what they raise until the run is over."""

    def __init__(
        self,
        on_record: Callable[[dict[str, Any]], object] | None = None,
        on_epoch: Callable[[Epoch], object] | None = None,
    ) -> None:
        """Take them.

        Raises:
            ConfigError: if one cannot be called.
        """
        for name, hook in (("on_record", on_record), ("on_epoch", on_epoch)):
            if hook is not None and not callable(hook):
                raise ConfigError(f"{name} is {type(hook).__name__} {hook!r}, expected a function")
        self._on_record, self._on_epoch = on_record, on_epoch
        #: What a hook raised first; it is raised again once the result is safe.
        self.failure: Exception | None = None
        #: Whether a hook has asked to stop.
        self.asked = False
        #: The model of the next report that has figures.
        self._model: bytes | None = None

    def begin(self, launcher: Launcher) -> bool:
        """Begin a run; return whether it has an ``on_epoch`` at rank 0; collective."""
        self._warn = launcher.warn
        self.asked, self.failure, self._ask = False, None, _nothing
        return bool(launcher.share("on_epoch" if self._on_epoch is not None else ""))

    def ended(self, run: Run | None) -> None:
        """Raise what a hook raised, now that all ranks are done; at the first process.

        Raises:
            Exception: that; its ``run`` is the result.
        """
        if self.failure is not None:
            with contextlib.suppress(AttributeError):  # an exception without attributes
                self.failure.run = run  # type: ignore[attr-defined]
            raise self.failure

    def may_stop(self, ask: Callable[[], None]) -> None:
        """Let ``Epoch.stop`` call a function; without this, as in a replay, it does nothing."""
        self._ask = ask

    def record(self, line: dict[str, Any]) -> None:
        """Take a line of the metrics."""
        if self._on_record is not None and not self._call("on_record", self._on_record, line):
            self._on_record = None

    def report(self, report: Sent) -> None:
        """Take what a worker reports; after a model come its figures."""
        if isinstance(report, Evaluated):
            self._model = report.data
        elif isinstance(report, Report) and self._model is not None and report.worker == 0:
            epoch, self._model = self._epoch(report, self._model), None
            if self._on_epoch is not None and not self._call("on_epoch", self._on_epoch, epoch):
                self._on_epoch = None

    def _epoch(self, report: Report, model: bytes) -> Epoch:
        usual = {"loss": report.test_loss, "accuracy": report.test_accuracy}
        figures = {name: it for name, it in usual.items() if not math.isnan(it)}
        figures |= json.loads(report.figures or "{}")
        return Epoch(report.epoch, report.step, report.seconds, figures, model, self._stop)

    def _stop(self) -> None:
        self.asked = True
        self._ask()

    def _call(self, name: str, hook: Callable[[Any], object], argument: Any) -> bool:
        """Call a hook; return whether to call it again.

        The ranks that wait meanwhile must know that this one is busy, even if it was waiting itself
        when the report came.
        """
        before, HERE.doing = (HERE.doing, HERE.waiting_for), f"is in {name}()"
        HERE.waiting_for = None
        try:
            hook(argument)
        except Exception as error:
            self.failure = self.failure or error
            said = (str(error).splitlines() or [""])[0]
            raised = f"{type(error).__name__}{said and f': {said}'}"
            self._warn(f"psrt: rank 0: {name} raised {raised}; it is not called any more")
            return False
        finally:
            HERE.doing, HERE.waiting_for = before
        return True


def _nothing() -> None:
    return


class Stops:
    """Ends the workers of one process early, when a hook asks.

    Workers in lockstep, and those that are parts of one model, end after the same step, on which
    all processes agree. Others leave one by one, as a worker does that has no more data.
    """

    def __init__(self, launcher: Launcher, setup: Setup, process: int) -> None:
        """Set up.

        Args:
            launcher: of this process.
            setup: the job.
            process: the number of this process.
        """
        config, several = setup.config, launcher.several
        resumption = setup.resumption
        cuts = Cuts(
            process,
            processes=setup.role_map.size if several else 1,
            decider=0 if several else process,
            step=0 if resumption is None else resumption.manifest.step,
        )
        self.boundaries = Boundaries(
            cuts,
            launcher.line,
            timeout_s=config.timeout_s,
            gone=launcher.gone if several else tuple,
        )
        self._together = (
            not config.scheme.parks or config.parallel is not None or config.scheme.has_teams
        )
        if launcher.unheard:
            self.boundaries.trouble = "some ranks cannot be reached, so training does not stop"
            self.boundaries.failed = lambda why: launcher.warn(f"psrt: rank 0: on_epoch: {why}")

    def are_over(self, worker: Worker) -> bool:
        """Return whether a worker ends here, after a step."""
        if self._together:
            return self.boundaries.at(worker.clock, 0) is not None
        return self.boundaries.has_agreed()
