"""``psrt launch --sweep FILE``: one job after the other, each with other knobs.

The file says which; ``psrt.cli.launch`` starts them. Everything is checked before the first starts.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from psrt.cli.flags import train_parser, values_of
from psrt.cli.printing import say
from psrt.config import TrainConfig, from_toml
from psrt.config.names import AUTO
from psrt.core.errors import ConfigError
from psrt.core.files import read_text
from psrt.core.units import time_text
from psrt.job.attempt import Ended
from psrt.report.files import CONFIG, SUMMARY
from psrt.rows.knobs import dashed, shown

#: The tables of a file, beside ``out``.
_TABLES = ("base", "grid", "run")
#: The most jobs of a sweep: more are a mistyped grid.
_MOST = 10_000
#: Knobs of which each job has its own.
_OWN = ("out", "overwrite")

Values = Mapping[str, Any]


class Member(NamedTuple):
    """One job of a sweep."""

    #: The knobs in which it differs from others, as its folder is called.
    name: str
    folder: Path
    #: The words of its command.
    words: list[str]
    #: Whether it has run to its end before.
    is_done: bool = False


def members(path: str, command: Sequence[str]) -> list[Member]:
    """Return the jobs of a sweep, in order.

    Args:
        path: a TOML file with the tables ``base``, ``grid``, ``run`` and the key ``out``.
        command: the words that all have in common: ``train`` or a script, and flags.

    Raises:
        ConfigError: if the file is not such a file, or two jobs would be the same.
    """
    values = _read(path)
    _check_flags(path, values, command)
    out, base, grid = values["out"], values["base"], values["grid"]
    found: dict[str, Member] = {}
    for own in _points(values["run"], grid):
        knobs = {**base, **own}
        name = ",".join(f"{it}={_text(value)}" for it, value in own.items()).replace("/", "_")
        folder = Path(out) / name
        if name in found or len(found) == _MOST:
            what = f"more than {_MOST} runs" if len(found) == _MOST else f"two runs {name}"
            raise ConfigError(f"{path}: {what}")
        words = [word for it, value in knobs.items() for word in _words(it, value)]
        again = ["--overwrite"] if command[0] == "train" and "--resume" not in command else []
        words = [*command, *words, "--out", str(folder), *again]
        found[name] = Member(name, folder, words, (folder / SUMMARY).exists())
    return [*found.values()]


def _points(runs: Sequence[Values], grid: Values) -> Iterator[dict[str, Any]]:
    """Yield the knobs of each run, beside the common ones, with the last of a grid fastest."""
    for run in runs:
        for point in itertools.product(*grid.values()):
            yield {**run, **dict(zip(grid, point, strict=True))}


def _read(path: str) -> dict[str, Any]:
    try:
        values = tomllib.loads(read_text(path, "a TOML file"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path}: not TOML: {str(error).splitlines()[0]}") from None
    values = {"out": str(Path("runs") / Path(path).stem), "base": {}, "grid": {}, **values}
    found = values.setdefault("run", [{}])
    for name in values:
        if name not in ("out", *_TABLES):
            raise ConfigError(
                f"{path}: unknown key {name!r}; expected out, [base], [grid], [[run]]"
            )
    if not isinstance(values["out"], str) or not values["out"]:
        raise ConfigError(f"{path}: out is {values['out']!r}, expected the name of a folder")
    if not isinstance(found, list) or not all(isinstance(it, dict) for it in found):
        raise ConfigError(f"{path}: run is no list of tables: each begins with [[run]]")
    grid = values["grid"]
    for name in ("base", "grid"):
        if not isinstance(values[name], dict):
            raise ConfigError(f"{path}: {name} is {values[name]!r}, expected a table [{name}]")
    for name, its in grid.items():
        if not isinstance(its, list) or not its:
            raise ConfigError(f"{path}: grid: {name} is {its!r}, expected a list of values")
    if not grid and found == [{}]:
        raise ConfigError(f"{path} has no runs: write a [grid] of lists, or [[run]] tables")
    _check_names(path, values)
    return values


def _check_names(path: str, values: Values) -> None:
    places = [("base", values["base"]), ("grid", values["grid"])]
    places += [("run", it) for it in values["run"]]
    for place, knobs in places:
        for name, value in knobs.items():
            its = value if place == "grid" else [value]
            if not re.fullmatch(r"[A-Za-z]\w*", name.replace("-", "_")) or name in _OWN:
                raise ConfigError(f"{path}: {place}: {name!r} cannot be a knob of one run")
            if any(isinstance(it, dict) for it in its):
                raise ConfigError(f"{path}: {place}: {name} is a table, expected a value")
            if place == "run" and name in values["grid"]:
                raise ConfigError(f"{path}: {name} is both in [grid] and in a [[run]]")


def _check_flags(path: str, values: Values, command: Sequence[str]) -> None:
    """Check that no flag of the command is one that each run has its own of."""
    flags = {word.partition("=")[0] for word in command if word.startswith("--")}
    names = {*values["base"], *values["grid"], *(it for run in values["run"] for it in run), "out"}
    for name in sorted(names):
        if flags & {f"--{dashed(name)}", f"--no-{dashed(name)}"}:
            raise ConfigError(f"--{dashed(name)} is given twice: {path} says it for each run")


def _text(value: Any) -> str:
    """Return a value as a flag takes it."""
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    return value if isinstance(value, str) else shown(value)


def _words(name: str, value: Any) -> list[str]:
    flag = f"--{dashed(name)}"
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    return [f"{flag}={_text(value)}"]


def _check_same(member: Member, config: TrainConfig) -> None:
    """Check that a run that is done has the knobs that it would be started with."""
    path = member.folder / CONFIG
    there = from_toml(read_text(str(path)), source=str(path))
    for name in values_of(train_parser().parse(member.words[1:])):
        asked, found = getattr(config, name), getattr(there, name)
        # What was left to the run, it has chosen.
        if name not in _OWN and asked not in (found, AUTO):
            raise ConfigError(
                f"it is done, with {dashed(name)} {_text(found)}, not {_text(asked)}: "
                "choose another out"
            )


def sweep(
    found: Sequence[Member],
    check: Callable[[list[str]], TrainConfig | None],
    run: Callable[[list[str]], Ended | None],
    tell: Callable[[str], None],
) -> Ended | None:
    """Run jobs one after the other; one that fails does not keep the next from starting.

    Args:
        found: the jobs.
        check: raises if one cannot run; returns its config, resolved, if it is one of psrt's own.
        run: runs one to its end; returns None if it only shows what it would start.
        tell: takes text for the user.

    Returns:
        How the first one that failed has ended, else the last one; None if none was started.

    Raises:
        ConfigError: before the first starts, if any of them cannot run.
    """
    for it in found:
        try:
            config = check(it.words)
            if config is not None and it.is_done:
                _check_same(it, config)
        except ConfigError as error:
            raise ConfigError(f"{it.name}: {error}") from None
    said, first = [], None
    for number, it in enumerate(found, 1):
        if it.is_done:
            said.append(f"{it.name}  done before")
            continue
        tell(f"psrt launch: run {number} of {len(found)}: {it.name}\n")
        ended = run(it.words)
        if ended is None:  # it was only shown
            continue
        how = f"failed with status {ended.status}" if ended.status else "done"
        if not ended.status and not (it.folder / SUMMARY).exists():
            how = f"done, but without {it.folder / SUMMARY}, so a restart runs it again,"
        said.append(f"{it.name}  {how} after {time_text(ended.seconds)}")
        first = first if first is not None and first.status else ended
        if ended.asked is not None:
            break
    if first is not None or len(said) == len(found):
        said += [f"{it.name}  not started" for it in found[len(said) :]]
        say("\n".join(["", *said]))
    return first
