"""Registry: things that can be chosen by name, psrt's own and those of other packages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from psrt.core.errors import ConfigError
from psrt.rows.suggest import did_you_mean
from psrt.rows.values import TEXT, Kind, write_text


class Named(Protocol):
    """An entry of a registry."""

    @property
    def name(self) -> str:
        """Its name in flags."""


NamedT = TypeVar("NamedT", bound=Named)


class Registry(Mapping[str, NamedT], Generic[NamedT]):
    """Rows by their names.

    Other packages may add rows by declaring them under an entry point. These are looked up if a
    name is not one of psrt's, or if all names are asked for.
    """

    def __init__(self, what: str, group: str, base: type[NamedT], rows: Iterable[NamedT]) -> None:
        """Set up.

        Args:
            what: what a row is, for messages: "codec".
            group: group of entry points in other packages, each with a row's name, and the row or
                its class.
            base: class of all rows.
            rows: psrt's own.
        """
        self.what, self.group, self.base = what, group, base
        self._rows = {row.name: row for row in rows}
        #: Rows that files name and no user chooses: found by name, but in no list.
        self.unlisted: dict[str, NamedT] = {}
        #: The names of psrt's own rows.
        self.own = tuple(self._rows)
        self._looked = False

    def __getitem__(self, name: str) -> NamedT:
        if name in self.unlisted:
            return self.unlisted[name]
        if name not in self._rows:
            self._look()
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        self._look()
        return iter(self._rows)

    def __len__(self) -> int:
        self._look()
        return len(self._rows)

    def _look(self) -> None:
        """Add the rows of other packages.

        Raises:
            ConfigError: if one cannot be loaded, or has a name that is taken.
        """
        if self._looked:
            return
        self._looked = True
        from importlib.metadata import entry_points  # costs milliseconds, and few need it

        for point in entry_points(group=self.group):
            try:
                found = point.load()
                row = found() if isinstance(found, type) else found
                is_one = isinstance(row, self.base) and row.name == point.name
            except Exception as error:
                raise ConfigError(
                    f"{self.what} {point.name} cannot be loaded from {point.value}: {error}"
                ) from error
            if not is_one or point.name in self._rows:
                why = "it exists already" if is_one else f"it is not a {self.base.__name__}"
                raise ConfigError(f"{point.value} cannot be {self.what} {point.name}: {why}")
            self._rows[point.name] = row

    @property
    def words(self) -> dict[str, str]:
        """Other name that a user may try → name."""
        return {word: row.name for row in self.values() for word in getattr(row, "synonyms", ())}

    @property
    def kind(self) -> Kind:
        """Kind of the values of a flag that chooses a name."""
        return Kind(
            "NAME", self.checked, lambda value: self.checked(TEXT.accept(value)), write_text
        )

    def checked(self, name: str) -> str:
        """Return a name.

        Raises:
            ConfigError: with the end of a sentence that begins with the flag's name.
        """
        if name in self:
            return name
        hint = did_you_mean(name, self, self.words)
        raise ConfigError(f"must be one of {', '.join(self)}, got {name!r}{hint}")

    def where(self, holds: Callable[[NamedT], bool]) -> Chosen[NamedT]:
        """Return the rows for which a condition holds; it may depend on their knobs."""
        return Chosen(self, holds)


class Chosen(Collection[str], Generic[NamedT]):
    """The names of some rows of a registry; it contains any row for which the condition holds.

    Where it only holds with another knob, that is part of the name: ``local-sgd:quorum=2``.
    """

    def __init__(self, registry: Registry[NamedT], holds: Callable[[NamedT], bool]) -> None:
        self._registry, self._holds = registry, holds

    def __contains__(self, value: object) -> bool:
        row = self._registry.get(value) if isinstance(value, str) else value
        return isinstance(row, self._registry.base) and self._holds(row)

    def __iter__(self) -> Iterator[str]:
        return self._names(self._registry)

    @property
    def own(self) -> tuple[str, ...]:
        """Names of psrt's rows, and of other packages' as far as they were looked up."""
        return tuple(self._names(self._registry.own))

    def _names(self, names: Iterable[str]) -> Iterator[str]:
        for name in names:
            row = self._registry[name]
            if self._holds(row):
                yield name
            else:
                yield from (str(it) for it in getattr(row, "variants", ()) if self._holds(it))

    def __len__(self) -> int:
        return sum(1 for _ in self)
