"""Knob: everything declared about a number, switch or text that users set."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Collection, Sequence
from typing import Any

from psrt.core.errors import ConfigError
from psrt.rows.registry import Registry
from psrt.rows.suggest import did_you_mean
from psrt.rows.values import LARGEST, Kind, Number, read_numbers

#: Characters of a strange value that a message shows.
_SHOWN = 60


@dataclasses.dataclass(frozen=True, slots=True)
class Knob:
    """What help, parsing, checks and defaults need to know about a field."""

    #: Type of its values.
    kind: Kind
    #: One line for the help text.
    help: str
    #: Name of its value in the help text; if empty, that of its kind.
    metavar: str = ""
    #: The rows that it chooses from, each with its own knobs; None for any other knob.
    rows: Registry[Any] | None = None
    #: The only values allowed; empty allows any.
    choices: Collection[str] = ()
    #: Smallest value, inclusive.
    min: float | None = None
    #: Lower bound, exclusive.
    exclusive_min: float | None = None
    #: Largest value, inclusive.
    max: float | None = None
    #: Upper bound, exclusive.
    exclusive_max: float | None = None
    #: Other names for it, with dashes, that a user may try.
    synonyms: tuple[str, ...] = ()
    #: Whether None leaves it open until a run sets it; otherwise None is a value as well.
    is_open: bool = False
    #: The default in words, if the field's default does not say all.
    default_text: str = ""


def knob(default: Any, kind: Kind, help: str, *, kw_only: bool = False, **rest: Any) -> Any:
    """Return a dataclass field with ``default`` whose metadata is a `Knob`.

    Args:
        default: default of the field.
        kind: type of its values.
        help: one line for the help text.
        kw_only: whether it can only be given by name, like a knob that all rows of a kind have.
        rest: further fields of `Knob`.
    """
    metadata = {"knob": Knob(kind, help, **rest)}
    return dataclasses.field(default=default, kw_only=kw_only, metadata=metadata)


def dashed(name: str) -> str:
    """Return a field's name, as spelled in flags and messages.

    >>> dashed("batch_size")
    'batch-size'
    """
    return name.replace("_", "-")


def accept(name: str, knob: Knob, value: Any) -> Any:
    """Return ``value`` in its canonical type.

    Args:
        name: name of the knob, for the message.
        knob: its type, choices and range.
        value: a value from Python or TOML.

    Raises:
        ConfigError: for a wrong type, choice or range: "batch-size must be at least 1, got 0".
    """
    try:
        value = knob.kind.accept(value)
    except ConfigError as error:
        raise ConfigError(f"{dashed(name)} {error}") from None
    except ValueError as error:
        raise _refusal(name, str(error), value) from None
    if knob.choices and value not in knob.choices:
        names = ", ".join(knob.choices)
        hint = did_you_mean(value, knob.choices)
        raise ConfigError(f"{dashed(name)} must be one of {names}, got {value!r}{hint}")
    for words, bound, holds in (
        ("at least", knob.min, operator.ge),
        ("above", knob.exclusive_min, operator.gt),
        ("at most", knob.max, operator.le),
        ("below", knob.exclusive_max, operator.lt),
    ):
        if bound is not None and not isinstance(value, str) and not holds(value, bound):
            raise _refusal(name, f"must be {words} {shown(bound)}", value)
    return value


def read(name: str, knob: Knob, text: str) -> Any:
    """Parse the text of a knob's flag.

    Args:
        name: name of the knob, for the message.
        knob: its type, choices and range.
        text: text on the command line.

    Raises:
        ConfigError: as `accept`.
    """
    try:
        value = knob.kind.read(text)
    except ConfigError as error:
        raise ConfigError(f"{dashed(name)} {error}") from None
    except ValueError as error:
        raise ConfigError(f"{dashed(name)} {error}, got {text!r}") from None
    return accept(name, knob, value)


def read_flag(name: str, kind: Kind, text: str, **bounds: float) -> Any:
    """Parse the text of a flag that is not a knob of a run.

    Args:
        name: name of the flag, for the message.
        kind: type of its values.
        text: text on the command line.
        bounds: ``min``, ``exclusive_min``, ``max`` or ``exclusive_max``.

    >>> from psrt.rows.values import BYTES
    >>> read_flag("bytes", BYTES, "1K", min=1)
    1024

    Raises:
        ConfigError: as `accept`.
    """
    return read(name, Knob(kind, "", **bounds), text.strip())  # type: ignore[arg-type]


def read_by_worker(
    name: str, number: Number, texts: Sequence[str], workers: int
) -> dict[int, float]:
    """Return a dict from worker to number, from texts ``WORKER:NUMBER[,WORKER:NUMBER...]``.

    Args:
        name: name of the flag, for the message.
        number: the number of each worker, with its range.
        texts: one for each time that the flag was given.
        workers: number of workers, W.

    >>> read_by_worker("crash", Number("SECONDS", 0, 10), ["1:0.5,0:2", "3:1"], 4)
    {1: 0.5, 0: 2.0, 3: 1.0}

    Raises:
        ConfigError: if a text has another form, or names a worker twice or one that does not exist.
    """
    numbers = (Number("WORKER", 0, LARGEST, whole=True), number)
    found: dict[int, float] = {}
    for text in ",".join(texts).split(",") if texts else ():
        try:
            who, value = read_numbers(numbers, text.strip())
        except ValueError as error:
            raise ConfigError(f"{name} {error}, got {text!r}") from None
        if who >= workers:
            raise ConfigError(
                f"{name} names worker {who}, which does not exist; the last is {workers - 1}"
            )
        if who in found:
            raise ConfigError(f"{name} names worker {who} twice")
        found[int(who)] = value
    return found


def shown(value: Any) -> str:
    """Return a value for a message, about as a user would type it; a row as its text.

    >>> shown(10.0), shown(0.5), shown(True), shown("a"), shown((128, 64))
    ('10', '0.5', 'true', "'a'", '128,64')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, list | tuple):
        return ",".join(shown(item) for item in value)
    if dataclasses.is_dataclass(value):
        return str(value)
    # On one line: it may be anything, such as an optimizer of another library.
    text = " ".join(repr(value).split())
    return text if isinstance(value, str) or len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _refusal(name: str, must: str, value: Any) -> ConfigError:
    return ConfigError(f"{dashed(name)} {must}, got {shown(value)}")
