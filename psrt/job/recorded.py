"""A run recorded with ``--record``: its folder, its header, and the config that repeats it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import Any

from psrt.config import ALLREDUCE_NAMES, TrainConfig, from_toml
from psrt.config.knobs import knobs_of
from psrt.config.modes import MODES, Mode
from psrt.config.names import AUTO
from psrt.config.tuning import tuned_like
from psrt.core.errors import ConfigError
from psrt.core.files import read_text
from psrt.history import Header
from psrt.history.differences import knob_differences
from psrt.history.folder import FOLDER
from psrt.history.reading import folder_of, read_header
from psrt.report.files import CONFIG
from psrt.rows.knobs import dashed


def recorded_config(run: str | PathLike[str], **changes: Any) -> TrainConfig:
    """Return the config that repeats a recorded run.

    Args:
        run: its folder.
        changes: knobs to set; those that affect the numbers must keep the recorded value.

    Raises:
        ConfigError: if there is no history, or a change would alter the numbers.
    """
    header = recorded_header(run)
    if changes.get("allreduce") == header.algorithm:
        changes.pop("allreduce", None)  # given by name, where the run left it to ``auto``
    for name in ("shards_per_server", "stages"):
        if changes.get(name) == AUTO:
            changes.pop(name)  # ``auto`` must choose as in the run
    kept = dict[str, Any]()
    if header.tuned and changes.get("tune"):
        kept["tune"] = changes.pop("tune")
        if changes.get("mode") is not None:
            changes["mode"] = as_tuned(header, changes["mode"]).get("mode", changes["mode"])
    given = changes.get("mode")
    if given is not None:
        row: Mode = MODES.read(given) if isinstance(given, str) else given
        # As it was resolved for the ranks of the run.
        changes["mode"] = row.among(len(header.workers), len(header.server_ranks))
    if wrong := knob_differences(changes, header.config):
        raise refusal(run, wrong)
    return TrainConfig(**{**_of_run(header), **changes, **kept, "replay": str(run)})


def as_tuned(header: Header, mode: Mode | str | None) -> dict[str, Any]:
    """Return the knobs of a run that keeps what ``--tune`` found in a recorded one.

    Args:
        header: of the recorded run.
        mode: as it is asked for; None: that of the recorded run.
    """
    shards = header.knob("shards_per_server")
    return tuned_like(mode, len(header.server_ranks), header.mode, shards)


def recorded_ranks(run: str | PathLike[str]) -> tuple[int, int]:
    """Return the number of workers and the number of servers of a recorded run.

    Raises:
        ConfigError: if there is no history.
    """
    header = read_header(run)
    return len(header.workers), len(header.server_ranks)


def recorded_header(run: str | PathLike[str]) -> Header:
    """Read the header of a run; check that its config is valid and matches the run's folder.

    Raises:
        ConfigError: if not, or if there is no header.
    """
    header = read_header(run)
    where = folder_of(run)
    if strange := set(header.config) - set(knobs_of(TrainConfig)):
        raise ConfigError(f"{where}: of a run with knobs that this psrt lacks: {min(strange)}")
    for name in (header.algorithm, header.control_algorithm):
        if name is not None and name not in ALLREDUCE_NAMES:
            raise ConfigError(f"{where}: of a run with an unknown all-reduce: {name!r}")
    for field in fields(TrainConfig):
        if field.default is not None and header.config.get(field.name) is None:
            raise ConfigError(f"{where}: not the config of a run: it lacks {dashed(field.name)}")
    try:
        TrainConfig(**_of_run(header))
    except ConfigError as error:
        raise ConfigError(f"{where}: not the config of a run: {error}") from None
    path = root_of(run) / CONFIG
    if path.exists():
        beside = from_toml(read_text(str(path)), source=str(path))
        if found := knob_differences(beside.plain(), header.config):
            raise ConfigError(f"{path} does not go with the history: {'; '.join(found)}")
    return header


def _of_run(header: Header) -> dict[str, Any]:
    """Return the knobs that define a run, without its output folder and injected delays."""
    knobs = knobs_of(TrainConfig)
    return {name: value for name, value in header.config.items() if knobs[name].of_run}


def root_of(run: str | PathLike[str]) -> Path:
    """Return the run's folder, even if its ``history/`` was named."""
    folder = folder_of(run)
    return folder.parent if folder.resolve().name == FOLDER else folder


def unconfirmed(run: str | PathLike[str]) -> str:
    """Return the remark on a history without a config beside it; empty if there is one."""
    if (root_of(run) / CONFIG).exists():
        return ""
    return f"no {CONFIG} beside the history of {run}: using the config in its header"


def refusal(run: str | PathLike[str], found: Sequence[str]) -> ConfigError:
    """Return the error of a replay that would not be the recorded run, with the differences."""
    return ConfigError(f"--replay {run} would not be that run: {'; '.join(found)}")
