"""RunKnob: what is declared about one field of the configuration, kept in its metadata."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from psrt.config.modes import MODES
from psrt.rows.knobs import Knob, dashed
from psrt.rows.values import Kind


class Condition(NamedTuple):
    """A knob has an effect only if another field has one of these values."""

    #: Name of the other field.
    field: str
    #: Values of it with which the knob has an effect.
    values: Collection[Any]
    #: Another condition that is enough instead.
    otherwise: Condition | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunKnob(Knob):
    """A knob of a run: a flag and a TOML key, which may have an effect only in some runs."""

    #: Heading of its group in the help text.
    group: str
    #: Conditions under which it has an effect; all must hold. It is ``None`` when not given.
    requires: tuple[Condition, ...] = ()
    #: For knobs that only some modes use: a condition that is enough in any mode.
    otherwise: Condition | None = None
    #: Value that `resolve` fills in if the knob has an effect and was not given.
    fallback: Any = None
    #: Whether its value changes the numbers of a training; if not, a replay may change it.
    numeric: bool = True
    #: Whether it describes the run, so that a replay and ``simulate --like`` copy it. Otherwise it
    #: describes how that one run was observed or disturbed.
    of_run: bool = True
    #: Whether it is about real time, so that it has no effect in virtual time.
    real_time: bool = False
    #: Whether a timeline of a few steps shows its effect, so that ``psrt explain`` has the flag.
    drawn: bool = False
    #: Whether it is common, so that ``--help`` shows it; ``--help-all`` shows every knob.
    usual: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names that may be chosen; empty if its values are not names."""
        return tuple(self.choices if self.rows is None else self.rows)


def knob(default: Any, kind: Kind, group: str, help: str, **rest: Any) -> Any:
    """Return a dataclass field with ``default`` whose metadata is a `RunKnob`.

    Args:
        default: default of the field; None leaves it to `resolve`.
        kind: type of its values.
        group: heading in the help text.
        help: one line for the help text.
        rest: further fields of `RunKnob`.
    """
    metadata = {"knob": RunKnob(kind=kind, group=group, help=help, **rest)}
    return dataclasses.field(default=default, metadata=metadata)


def knobs_of(config: Any) -> Mapping[str, RunKnob]:
    """Return the knobs of a config class or instance by field name, in order.

    A knob that only some rows of `psrt.config.modes` use requires one of those modes first.
    """
    return _knobs(config if isinstance(config, type) else type(config))


@functools.cache
def _knobs(cls: type) -> Mapping[str, RunKnob]:
    found: dict[str, RunKnob] = {}
    for field in dataclasses.fields(cls):
        knob: RunKnob = field.metadata["knob"]
        if any(field.name in MODES[mode].uses for mode in MODES.own):
            users = MODES.where(lambda mode, name=field.name: name in mode.uses)  # type: ignore[misc]
            condition = Condition("mode", users, knob.otherwise)
            knob = dataclasses.replace(knob, requires=(condition, *knob.requires))
        found[field.name] = knob
    return MappingProxyType(found)


def synonyms_of(config: Any) -> dict[str, str]:
    """Return a dict from each synonym to its knob, both with dashes."""
    return {word: dashed(name) for name, it in knobs_of(config).items() for word in it.synonyms}
