"""The contents of a run's folder; for each damaged file, a line that says what is wrong."""

from __future__ import annotations

import contextlib
import json
import os
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import index
from pathlib import Path
from typing import Any

from psrt.checkpoint import Checkpoints, Disk, Manifest
from psrt.config import TrainConfig, from_toml
from psrt.core.errors import CheckpointError, ConfigError
from psrt.core.files import open_regular, read_text
from psrt.history import Header
from psrt.history.folder import FOLDER
from psrt.history.reading import folder_of, read_header
from psrt.report.end import RunEnd
from psrt.report.files import (
    CHECKPOINTS,
    CONFIG,
    FILES,
    METRICS,
    MODEL,
    PROGRESS,
    ROSTER,
    SIMULATION,
    SUMMARY,
)
from psrt.report.simulation import Load, Simulation
from psrt.report.summary import Summary
from psrt.views.report.events import EventFigures, read_figures
from psrt.views.report.metrics import Metrics, read_columns
from psrt.views.report.typed import check_types

#: Longest list of tensors that is read, in bytes.
_MOST_HEADER = 1 << 20


@dataclass(slots=True)
class RunFolder:
    """The files of a run, as far as they exist and are intact."""

    path: Path
    #: How the user named it.
    name: str
    config: TrainConfig | None = None
    #: The knobs of a config with some that this version of psrt does not know.
    knobs: dict[str, Any] = field(default_factory=dict)
    summary: Summary | None = None
    simulation: Simulation | None = None
    metrics: Metrics | None = None
    header: Header | None = None
    events: EventFigures | None = None
    #: By rank: role, host and process.
    roster: list[dict[str, Any]] = field(default_factory=list)
    #: The latest progress, and its time.
    progress: dict[str, Any] = field(default_factory=dict)
    #: How it ended early; None if it did not, or if that is not known.
    end: RunEnd | None = None
    #: Name of each checkpoint, the newest first, and its contents or its error.
    checkpoints: list[tuple[str, Manifest | CheckpointError]] = field(default_factory=list)
    #: Name and shape of each array of the model; empty if they are not known.
    tensors: dict[str, Sequence[int]] = field(default_factory=dict)
    #: Whether there is a folder of events, and its size in bytes.
    has_history: bool = False
    history_nbytes: int = 0
    #: A line for each thing that is wrong.
    damage: list[str] = field(default_factory=list)

    @property
    def ranks(self) -> int | None:
        """The number of its ranks; None if it is not known."""
        if self.summary is not None:
            return self.summary.ranks
        if self.header is not None:
            return len(self.header.workers) + len(self.header.server_ranks)
        return len(self.roster) or None

    @property
    def virtual(self) -> bool:
        """Whether it was a simulation."""
        return self.simulation is not None or bool(self.header and self.header.simulated)

    @property
    def mode(self) -> str | None:
        """The synchronization scheme, in words; None if it is not known."""
        found = self.summary
        if self.config is not None and self.config.mode is not None:
            return self.config.scheme.described(found.allreduce if found is not None else None)
        return None if found is None else found.mode


def read_run(name: str) -> RunFolder:
    """Read the folder of a run, as far as that is possible.

    Args:
        name: the folder, as ``--out`` named it.

    Raises:
        ConfigError: if it is not a folder, or contains no files of a run.
    """
    path = Path(name)
    _check(path, name)
    run = RunFolder(path, name)
    with _damage(run):
        _read_config(run)
    with _damage(run):
        _read_summary(run)
    with _damage(run):
        _read_simulation(run)
    with _damage(run):
        if _there(run, METRICS):
            run.metrics = read_columns(path / METRICS)
            run.damage += run.metrics.damage
    with _damage(run):
        _read_roster(run)
    with _damage(run):
        run.end = RunEnd.read(path)
    with _damage(run):
        _read_tensors(run)
    _read_checkpoints(run)
    with _damage(run):
        _read_history(run)
    return run


def _check(path: Path, name: str) -> None:
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name!r} cannot be read: {error}") from None
    if not exists:
        raise ConfigError(f"no run at {name}: psrt train --out {name} makes one")
    if not is_folder:
        raise ConfigError(f"{name} is a file, expected the output folder (--out) of a run")
    if not os.access(path, os.R_OK | os.X_OK):
        raise ConfigError(f"{name} cannot be read: permission denied")
    if not any((path / it).exists() for it in (*FILES, FOLDER, CHECKPOINTS)):
        raise ConfigError(f"{name} holds no run: expected a folder that psrt train --out made")


@contextlib.contextmanager
def _damage(run: RunFolder) -> Iterator[None]:
    """Keep the line of an error; intact files are shown all the same."""
    try:
        yield
    except ConfigError as error:
        text = str(error)
        run.damage.append(text.removeprefix(f"{run.path}{os.sep}").removeprefix(f"{run.name}/"))


def _there(run: RunFolder, name: str) -> bool:
    return os.path.lexists(run.path / name)


def _read_config(run: RunFolder) -> None:
    if not _there(run, CONFIG):
        raise ConfigError(f"{CONFIG} is missing, so the configuration is not known")
    text = read_text(str(run.path / CONFIG))
    try:
        run.config = from_toml(text, source=CONFIG)
    except ConfigError as error:
        with contextlib.suppress(ValueError, RecursionError):
            run.knobs = tomllib.loads(text)
        newer = "; was it written by another version of psrt?" if run.knobs else ""
        raise ConfigError(f"{error}{newer}") from None


def _read_summary(run: RunFolder) -> None:
    if not _there(run, SUMMARY):
        return
    try:
        summary = Summary.from_json(read_text(str(run.path / SUMMARY)))
        check_types(summary, SUMMARY)
    except ConfigError as error:
        text = str(error)
        raise ConfigError(text if SUMMARY in text else f"{SUMMARY}: {text}") from None
    run.summary = summary


def _read_simulation(run: RunFolder) -> None:
    if not _there(run, SIMULATION):
        return
    values = _object(run, SIMULATION)
    values.pop("failures", None), values.pop("lost", None)
    try:
        values["servers"] = tuple(Load(**it) for it in values["servers"])
        values["crash"] = tuple(map(tuple, values["crash"]))
        for name in ("hosts", "crashed", "crashed_at", "stages", "faults"):
            values[name] = tuple(values[name])
        simulation = Simulation(**values)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{SIMULATION}: not what psrt writes: {error}") from None
    check_types(simulation, SIMULATION)
    run.simulation = simulation


def _read_roster(run: RunFolder) -> None:
    if _there(run, ROSTER):
        rows = _json(run, ROSTER)
        kinds = {"rank": int, "role": str, "host": str, "pid": int}
        if not isinstance(rows, list) or not all(
            isinstance(row, dict) and all(type(row.get(it)) is kind for it, kind in kinds.items())
            for row in rows
        ):
            raise ConfigError(f"{ROSTER}: not what psrt writes")
        run.roster = rows
    if _there(run, PROGRESS):
        found = _object(run, PROGRESS)
        run.progress = {
            name: it for name, it in found.items() if type(it) in (int, float) and abs(it) < 1e15
        }


def _read_tensors(run: RunFolder) -> None:
    """Read the names of the tensors, which show whether the model is psrt's own, and shapes."""
    if not _there(run, MODEL):
        return
    wrong = ConfigError(f"{MODEL}: not a file of tensors")
    try:
        with open_regular(run.path / MODEL) as file:
            size = int.from_bytes(file.read(8), "little")
            if size > _MOST_HEADER:
                return
            names = json.loads(file.read(size))
    except OSError as error:
        raise ConfigError(f"{MODEL} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise wrong from None
    if not isinstance(names, dict):
        raise wrong
    names.pop("__metadata__", None)
    try:
        run.tensors = {name: [*map(index, it["shape"])] for name, it in names.items()}
    except (TypeError, KeyError):
        raise wrong from None


def _read_checkpoints(run: RunFolder) -> None:
    try:
        found = list(Checkpoints(Disk(), run.path).listed())
    except (OSError, CheckpointError) as error:
        run.damage.append(f"{CHECKPOINTS}/ cannot be read: {error}")
        return
    run.checkpoints = [(path.name, it) for path, it in found]


def _read_history(run: RunFolder) -> None:
    run.has_history = _there(run, FOLDER)
    if not run.has_history:
        return
    folder = folder_of(run.path / FOLDER)
    run.header = read_header(folder)
    with contextlib.suppress(OSError):
        run.history_nbytes = sum(it.stat().st_size for it in folder.iterdir())
    run.events = read_figures(folder, run.header)


def _object(run: RunFolder, name: str) -> dict[str, Any]:
    values = _json(run, name)
    if not isinstance(values, dict):
        raise ConfigError(f"{name}: not what psrt writes")
    return values


def _json(run: RunFolder, name: str) -> Any:
    try:
        return json.loads(read_text(str(run.path / name)))
    except (ValueError, RecursionError) as error:
        text = str(error)
        raise ConfigError(text if name in text else f"{name}: not JSON: {text}") from None
