"""A run's folder: its history, and whether its config and its summary are of the same run."""

from __future__ import annotations

import dataclasses
import json
from os import PathLike
from pathlib import Path

from psrt.config import from_toml
from psrt.errors import ConfigError
from psrt.files import read_text
from psrt.history.check.checking import check
from psrt.history.check.outcome import Outcome
from psrt.history.folder import FOLDER
from psrt.history.header import Header
from psrt.history.reading import read_history

#: Beside ``history/``.
_CONFIG, _SUMMARY, _SIMULATION = "config.toml", "summary.json", "simulation.json"


def check_run(run: str | PathLike[str]) -> Outcome:
    """Check the history of a run, and that what lies beside it is of the same run.

    Args:
        run: the run's folder, or its ``history/``.

    Raises:
        ConfigError: if there is no history, it is damaged, or it is that of another run.
    """
    history = read_history(run)
    folder = Path(run)
    if folder.resolve().name == FOLDER and not (folder / FOLDER).exists():
        folder = folder.resolve().parent
    _check_config(folder / _CONFIG, history.header)
    told = _read(folder / _SIMULATION) or {}
    crashed = told.get("crashed")
    return check(
        history,
        summary=_read(folder / _SUMMARY),
        crashed=crashed if isinstance(crashed, list) else None,
    )


def _check_config(path: Path, header: Header) -> None:
    """Raise if the run's config is not that of its history."""
    if not path.exists():
        return
    config = dataclasses.asdict(from_toml(read_text(str(path)), source=str(path)))
    # As JSON knows them: a tuple is a list there.
    mine, its = (json.loads(json.dumps(values)) for values in (config, header.config))
    differs = [name for name in mine if mine[name] != its.get(name)]
    differs += [name for name in its if name not in mine]
    if differs:
        name = differs[0]
        raise ConfigError(
            f"{path} is not of the run that the history is of: it has {name} {mine.get(name)!r}, "
            f"the history {its.get(name)!r}"
        )


def _read(path: Path) -> dict[str, object] | None:
    """Return the object in a JSON file; None if there is no such file."""
    if not path.exists():
        return None
    try:
        values = json.loads(read_text(str(path)))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: not a JSON object")
    return values
