"""Knobs of a mode beside those of a run, as tables of jobs put them together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, Final

from psrt.config.modes import MODES
from psrt.rows.row import Row

#: Knobs that some mode has.
OF_MODES: Final = frozenset(it.name for row in MODES.values() for it in fields(row))


def spelled(mode: str, **knobs: Any) -> str:
    """Return the text of a mode with other knobs; what is None is not given.

    >>> spelled("local-sgd:local-steps=2,eager=true", local_steps=3), spelled("sync", backup=None)
    ('local-sgd:local-steps=3,eager=true', 'sync')
    """
    name, _, rest = mode.partition(":")
    words = dict(it.split("=") for it in rest.split(",") if it)
    for field, it in knobs.items():
        knob = field.replace("_", "-")
        if isinstance(it, Row):
            words |= {knob: it.name} | {
                f"{knob}.{inner}": str(its) for inner, its in it.knobs.items()
            }
        elif it is not None:
            words[knob] = str(it).lower() if isinstance(it, bool) else str(it)
    return name + (":" if words else "") + ",".join(f"{knob}={it}" for knob, it in words.items())


def together(knobs: dict[str, Any], names: Iterable[str] = OF_MODES) -> dict[str, Any]:
    """Return the knobs of a run with those of its mode in the mode's text."""
    own = {name: knobs[name] for name in knobs if name in names}
    rest = {name: it for name, it in knobs.items() if name not in own}
    return rest | {"mode": spelled(rest["mode"], **own)} if own else rest
