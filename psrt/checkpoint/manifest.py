"""``manifest.json``: the facts and parts of a checkpoint; it is written last. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields

from psrt.checkpoint.part import PartEntry
from psrt.core.errors import CheckpointError
from psrt.core.version import __version__

#: The format that this psrt writes, and the only one that it reads.
FORMAT = 2
#: Longest text that is read, in bytes.
MOST = 16 << 20
_TYPES = {"int": int, "str": str, "float": (int, float)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The facts of a checkpoint."""

    #: Of this file.
    format: int = FORMAT
    #: Version of psrt that wrote it.
    psrt: str = __version__
    #: Gradient steps that every worker had finished.
    step: int
    #: Number of parameters.
    n: int
    #: Numbers of ranks.
    workers: int
    servers: int
    #: The numbers of workers without a part in it, ascending: the others continued without them.
    absent: tuple[int, ...] = ()
    #: The resolved configuration, as TOML.
    config: str
    #: How often the run had been resumed.
    attempt: int = 0
    #: Name of the checkpoint that it was resumed from; empty if it was not.
    parent: str = ""
    #: When it was written, in ISO 8601.
    created: str = ""
    #: The choices that the run made by itself, by name.
    more: dict[str, str] = field(default_factory=dict)
    parts: tuple[PartEntry, ...] = ()

    def to_json(self) -> str:
        """Return the text of the file."""
        values = {it.name: getattr(self, it.name) for it in fields(self)}
        values["parts"] = [it.to_json() for it in self.parts]
        return json.dumps(values, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Manifest:
        """Read the text of a file.

        Raises:
            CheckpointError: if it is not a manifest, or has another format.
        """
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            raise CheckpointError("not JSON") from None
        if not isinstance(values, dict) or type(values.get("format")) is not int:
            raise CheckpointError("not the manifest of a checkpoint")
        if values["format"] != FORMAT:
            # Before a release, one version may have written several formats.
            who = "an older psrt" if values["format"] < FORMAT else "a newer psrt"
            if (by := values.get("psrt", __version__)) != __version__:
                who = f"psrt {by!r:.20}"
            when = ""
            if isinstance(created := values.get("created"), str) and created:
                when = f" at {created!r:.27}"
            raise CheckpointError(
                f"of format {values['format']}, which {who} wrote{when}; this psrt reads format "
                f"{FORMAT}: resume with that one"
            )
        if set(values) != {it.name for it in fields(cls)}:
            raise CheckpointError("not the manifest of a checkpoint: other fields are expected")
        parts, absent = values.pop("parts"), values.pop("absent")
        if not isinstance(parts, list) or not isinstance(absent, list):
            raise CheckpointError("its parts, or its absent workers, are not a list")
        entries = tuple(map(PartEntry.from_json, parts))
        found = cls(**values, absent=tuple(absent), parts=entries)
        found._check()
        return found

    def _check(self) -> None:
        for name in ("step", "n", "workers", "servers", "attempt"):
            it = getattr(self, name)
            if type(it) is not int or not 0 <= it < 1 << 63:
                raise CheckpointError(f"its {name} is not a number: {it!r}")
        numbers = self.absent
        good = all(type(it) is int and 0 <= it < self.workers for it in numbers)
        if not good or list(numbers) != sorted(set(numbers)) or 0 < len(numbers) == self.workers:
            raise CheckpointError(f"its absent workers are invalid: {numbers!r}")
        for name in ("psrt", "config", "parent", "created"):
            if not isinstance(getattr(self, name), str):
                raise CheckpointError(f"its {name} is not a text")
        more = self.more
        if not isinstance(more, dict) or not all(isinstance(it, str) for it in more.values()):
            raise CheckpointError("the choices of its run are not texts")
        names = [it.name for it in self.parts]
        if len(set(names)) != len(names):
            raise CheckpointError("two of its parts have one name")
