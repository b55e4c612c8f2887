"""The files of a run's folder, whether the run has finished or not."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psrt.config import TrainConfig
from psrt.config.toml import from_toml
from psrt.core.errors import ConfigError, PsrtError
from psrt.core.files import read_text
from psrt.report.end import RunEnd
from psrt.report.files import CONFIG, METRICS, PROGRESS, ROSTER, SUMMARY
from psrt.report.metrics import read_metrics


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The contents of a run's folder; some of it may not exist yet."""

    path: Path
    config: TrainConfig
    #: Lines of ``metrics.jsonl``, in order.
    records: list[dict[str, Any]]
    #: None until the run has finished.
    summary: dict[str, Any] | None
    #: None for a run on one rank.
    progress: dict[str, Any] | None
    #: Its ranks; empty if there is only one.
    roster: list[dict[str, Any]]
    #: How it ended early, if that is known.
    end: RunEnd | None = None


def read_run(run: str | Path) -> RunFolder:
    """Read the folder of a run.

    Raises:
        ConfigError: if it is not the folder of a run, or one of its files is damaged.
    """
    path = Path(run)
    if not path.exists():
        raise ConfigError(f"no run at {path}")
    if not (path / CONFIG).is_file():
        inside = any(path.glob(f"*/{CONFIG}"))
        hint = f"; it has runs: use {path}/*" if inside else ""
        raise ConfigError(f"{path} is not the folder of a run (--out): it has no {CONFIG}{hint}")
    roster = _json(path / ROSTER, list) or []
    if not all(isinstance(row, dict) for row in roster):
        raise ConfigError(f"{path / ROSTER}: not a list of ranks")
    return RunFolder(
        path,
        from_toml(read_text(str(path / CONFIG)), source=str(path / CONFIG)),
        read_metrics(path / METRICS) if (path / METRICS).exists() else [],
        _json(path / SUMMARY, dict),
        _json(path / PROGRESS, dict),
        roster,
        RunEnd.read(path),
    )


@contextlib.contextmanager
def as_written(run: str | Path) -> Iterator[None]:
    """Read values that psrt writes into a run's files.

    Raises:
        ConfigError: if one is missing or has another type.
    """
    try:
        yield
    except PsrtError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        found = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{run}: one of its files is not as psrt writes it ({found})") from None


def labels(runs: Sequence[str | Path]) -> list[str]:
    """Return short, distinct names of runs: as much of the end of each path as needed.

    >>> labels(["runs/a", "runs/b"]), labels(["x/run", "y/run"])
    (['a', 'b'], ['x/run', 'y/run'])

    Raises:
        ConfigError: if a run is named twice.
    """
    parts = [Path(run).resolve().parts for run in runs]
    if len(set(parts)) < len(parts):
        twice = next(run for run, it in zip(runs, parts, strict=True) if parts.count(it) > 1)
        raise ConfigError(f"{twice} is given twice")
    for length in range(1, max(map(len, parts), default=1) + 1):
        found = ["/".join(it[-length:]) for it in parts]
        if len(set(found)) == len(found):
            return found
    return found


def _json(path: Path, kind: type) -> Any:
    """Return the value in a file; None if there is no file.

    Raises:
        ConfigError: if it is damaged, or has another type.
    """
    if not path.exists():
        return None
    try:
        value = json.loads(read_text(str(path)))
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, kind):
        raise ConfigError(f"{path}: expected a JSON {kind.__name__}")
    return value
