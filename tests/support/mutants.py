"""Ways to break what takes part in a run, each with where it shows and by which rules.

What is registered stands in the place of a method, and takes that one first. Either is one:

    broken.add("weighs a sender more", (Part, "weight"), RING, "neighbours",
               lambda weight, self, j, at: 1.01 * weight(self, j, at))

    @broken((Part, "weight"), RING, "neighbours")
    def weighs_a_sender_more(weight, self, j, at):
        return 1.01 * weight(self, j, at)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest

from psrt.history.check import Outcome


class Mutant(NamedTuple):
    """What is broken, in one kind of run."""

    name: str
    changed: Any
    #: What owns a method, or a value, and its name.
    places: tuple[tuple[Any, str], ...]
    where: Any
    #: The rules that may tell of it first, with | between them.
    rules: str
    #: What else there is to know of the run.
    more: Mapping[str, Any]

    def breaks(self, patch: pytest.MonkeyPatch) -> None:
        for owner, name in self.places:
            patch.setattr(owner, name, instead_of(getattr(owner, name), self.changed))

    def is_named_by(self, outcome: Outcome) -> bool:
        """Return whether a check went red; if by another rule, that is an error."""
        if outcome.violation is None:
            return False
        assert outcome.violation.rule in self.rules.split("|"), "\n".join(outcome.lines())
        assert len(outcome.lines()) > 3 or outcome.violation.event is None
        return True


class Mutants(list[Mutant]):
    """Those of a kind; as a decorator, it registers what it decorates."""

    def add(
        self, name: str, places: Any, where: Any, rules: str, changed: Any, **more: Any
    ) -> None:
        """Register what stands in one or several places, in one or several kinds of runs."""
        places = tuple(places if isinstance(places, list) else [places])
        for one in where if isinstance(where, list) else [where]:
            self.append(Mutant(name, changed, places, one, rules, more))

    def __call__(self, places: Any, where: Any, rules: str, **more: Any) -> Callable[[Any], Any]:
        def register(changed: Any) -> Any:
            self.add(changed.__name__, places, where, rules, changed, **more)
            return changed

        return register

    @property
    def names(self) -> list[str]:
        return [f"{it.name}, {it.where}".replace(" ", "_") for it in self]


def instead_of(method: Any, changed: Any) -> Any:
    """Return what stands in the place of a method, a property, or a value."""
    if isinstance(method, property):
        return property(instead_of(method.fget, changed))
    if not callable(changed):
        return changed
    return lambda *args, **more: changed(method, *args, **more)


def before(owner: Any, name: Any, now: Any) -> Any:
    """Return what this was given the last time for a name; the first time, what it is given."""
    kept = owner.__dict__.setdefault("_given_before", {})
    found, kept[name] = kept.get(name, now), now
    return found
