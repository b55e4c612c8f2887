"""Rows of a study in a file, a line each as they come: a study that was stopped continues."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from psrt.core.errors import ConfigError
from psrt.report.strict_json import dumps

Row = dict[str, Any]


class Kept:
    """What was found, by the setting in which it was."""

    def __init__(self, path: Path, *, writes: bool = True) -> None:
        """Read what an earlier study has found.

        Args:
            path: of the file, which need not exist.
            writes: whether what is found is added to it: of several ranks, by one.

        Raises:
            ConfigError: if the file is not one of this study.
        """
        self._path, self._writes = path, writes
        self._found: dict[str, Row] = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            try:
                row = json.loads(line)
                self._found[_key(row["setting"])] = row["found"]
            except (ValueError, TypeError, KeyError):
                raise ConfigError(f"{path}: {line[:40]!r} is no row of a study") from None

    def row(self, setting: Mapping[str, Any], find: Callable[[], Row]) -> Row:
        """Return a setting and what is found in it, if need be by ``find``."""
        key = _key(setting)
        if key not in self._found:
            found = self._found[key] = find()
            if self._writes:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(dumps({"setting": dict(setting), "found": found}) + "\n")
        return {**setting, **self._found[key]}


def _key(setting: Mapping[str, Any]) -> str:
    return dumps(dict(sorted(setting.items())))
