"""Row: one of several ways to do something, chosen by name, which owns the knobs of that way.

A row is a frozen dataclass. Constant facts are class attributes, and its fields are its knobs.
Flags, TOML files and histories spell one ``top-k:density=0.01``, Python ``TopK(density=0.01)``;
neither knows the runs that use it. A knob may itself be a row, whose knobs follow after a dot:
``local-sgd:outer=nesterov,outer.lr=0.7``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

from psrt.core.errors import ConfigError
from psrt.rows.knobs import Knob, accept, dashed, read, shown
from psrt.rows.registry import Registry
from psrt.rows.suggest import did_you_mean
from psrt.rows.values import Kind, write_text


@dataclass(frozen=True)
class Row:
    """One row of a registry, with a value for each of its knobs.

    A subclass with its own knobs is also a dataclass, whose fields are made by ``knob``.

    Raises:
        ConfigError: one line that begins with the row's name, if a knob is out of range or knobs
            cannot be combined.
    """

    #: Its name in flags.
    name: ClassVar[str]
    #: What it does, in a few words.
    summary: ClassVar[str] = ""
    #: Other names that a user may try.
    synonyms: ClassVar[tuple[str, ...]] = ()
    #: Module and class of the object that it makes, ``package.module:Class``; imported on use.
    home: ClassVar[str] = ""
    #: Constant arguments of that class.
    fixed: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    def __post_init__(self) -> None:
        try:
            for field in fields(self):
                value = getattr(self, field.name)
                if value is not field.default:  # which is in its canonical type
                    checked = accept(field.name, field.metadata["knob"], value)
                    if isinstance(checked, str) and (checked != checked.strip() or "," in checked):
                        raise ConfigError(
                            f"{dashed(field.name)} cannot have a comma, or blanks around it, got "
                            f"{checked!r}"
                        )
                    object.__setattr__(self, field.name, checked)
            self.check()
        except ConfigError as error:
            raise ConfigError(f"{self.name}: {error}") from None

    def check(self) -> None:
        """Check the knobs against each other.

        Raises:
            ConfigError: one line, without the row's name.
        """

    def line(self) -> str:
        """Return a description in a few words, for a list of rows."""
        return self.summary

    @property
    def knobs(self) -> dict[str, Any]:
        """Value of each knob; None if it was left open."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def given(self) -> dict[str, Any]:
        """Value of each knob that is not at its default."""
        usual = {field.name: field.default for field in fields(self)}
        return {name: it for name, it in self.knobs.items() if it != usual[name]}

    @property
    def text(self) -> str:
        """The row with all knobs that have a value, for files: defaults may change later."""
        return self._spelled(lambda row: row.knobs)

    def __str__(self) -> str:
        """Return the row with the knobs that are not at their defaults, for people."""
        return self._spelled(lambda row: row.given)

    def _spelled(self, of: Callable[[Row], Mapping[str, Any]]) -> str:
        words = ",".join(f"{name}={it}" for name, it in _words(self, of))
        return f"{self.name}:{words}" if words else self.name

    def typed(self, *names: str) -> dict[str, str]:
        """Return those of some knobs that are not at their defaults, as one types them.

        The knobs of one that is a row follow it: ``outer`` and ``outer.lr``.
        """
        words = _words(self, lambda row: row.given)
        return {it: value for it, value in words if it.partition(".")[0] in map(dashed, names)}

    def made(self, *arguments: Any, **named: Any) -> Any:
        """Return an object of its class, see ``home``."""
        module, _, name = self.home.partition(":")
        return getattr(importlib.import_module(module), name)(*arguments, **self.fixed, **named)


def _words(row: Row, of: Callable[[Row], Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield names and values of some of a row's knobs; those of a knob that is a row follow it."""
    for name, it in of(row).items():
        if isinstance(it, Row):
            yield dashed(name), it.name
            yield from ((f"{dashed(name)}.{inner}", value) for inner, value in _words(it, of))
        elif it is not None:
            yield dashed(name), it if isinstance(it, str) else shown(it)


def knobs_of_row(row: Row | type[Row]) -> Mapping[str, Knob]:
    """Return the knobs of a row by field name, in order."""
    return {field.name: field.metadata["knob"] for field in fields(row)}


RowT = TypeVar("RowT", bound=Row)


class Rows(Registry[RowT], Generic[RowT]):
    """Rows with knobs by name, each with the default knobs."""

    def __init__(self, what: str, group: str, base: type[RowT], rows: Iterable[type[RowT]]) -> None:
        """Set up.

        Args:
            what: what a row is, for messages: "codec".
            group: group of entry points in other packages, each with the name of a row and its
                class.
            base: class of all rows.
            rows: psrt's own.
        """
        super().__init__(what, group, base, (row() for row in rows))

    @property
    def kind(self) -> Kind:
        """Kind of the values of a flag that chooses a row."""
        metavar = "NAME[:KNOB=VALUE,...]"
        return Kind(metavar, self.read, self.accept, lambda row: write_text(row.text))

    def read(self, text: str) -> RowT:
        """Return the row that a text spells.

        Args:
            text: a name and, after a colon, values of knobs: ``qsgd:levels=3,bucket=64``.

        Raises:
            ConfigError: with the end of a sentence that begins with the flag's name.
        """
        row, given = self.parsed(text)
        return type(row)(**given)

    def parsed(self, text: str) -> tuple[RowT, dict[str, Any]]:
        """Return the row that a text names, with default knobs; and the knobs in the text.

        Raises:
            ConfigError: as ``read``.
        """
        name, colon, rest = text.strip().partition(":")
        row, found = self[self.checked(name)], dict[str, str]()
        knobs = knobs_of_row(row)
        for part in rest.split(",") if colon else ():
            word, equals, value = (it.strip() for it in part.partition("="))
            knob, dot, inner = word.replace("-", "_").partition(".")
            if knob not in knobs:
                raise ConfigError(f"{name} has no knob {word!r}{self._hint(row, knob)}")
            wrong = f"{word} twice" if knob in found and not dot else ""
            wrong = wrong if equals else f"{word} without =VALUE"
            if dot and knob not in found:
                wrong = f"{word} without {dashed(knob)}=NAME before it"
            if wrong:
                raise ConfigError(f"{name} has {wrong}, got {text!r}")
            if dot:
                value = f"{found[knob]}{',' if ':' in found[knob] else ':'}{inner}={value}"
            found[knob] = value
        try:
            return row, {knob: read(knob, knobs[knob], value) for knob, value in found.items()}
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None

    def _hint(self, row: RowT, knob: str) -> str:
        """Return a guess which knob was meant, or which rows have the knob."""
        known = {name: it.synonyms for name, it in knobs_of_row(row).items()}
        words = {word: dashed(name) for name, its in known.items() for word in its}
        if near := did_you_mean(dashed(knob), map(dashed, known), words):
            return near
        for name, it in knobs_of_row(row).items():
            if any(knob in knobs_of_row(inner) for inner in (it.rows or {}).values()):
                return f" (did you mean {dashed(name)}.{dashed(knob)}?)"
        others = [name for name, it in self.items() if knob in it.knobs]
        if others:
            return f", which is one of {', '.join(others)}"
        if known and knob.isdecimal():
            return f": write {dashed(next(iter(known)))}={knob}"
        return f"; it has {', '.join(map(dashed, known)) or 'none'}"

    def accept(self, value: Any) -> RowT:
        """Return the row for a Python or TOML value.

        Raises:
            ConfigError: as ``read``.
            ValueError: if it is neither a row nor a text.
        """
        if isinstance(value, str):
            return self.read(value)
        if not isinstance(value, self.base):
            article = "an" if self.what.startswith(tuple("aeiou")) else "a"
            raise ValueError(
                f"must be the name of {article} {self.what}, such as {next(iter(self))!r}"
            )
        if type(self.get(value.name)) is not type(value):
            raise ConfigError(
                f"{value.name} has no package that declares it under the entry point {self.group}"
            )
        return value
