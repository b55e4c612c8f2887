"""Injection: one artificial slow-down of a worker, as ``--inject`` spells it.

`psrt.runtime.delays` turns injections into seconds. Injections for the same worker add up, even
two of the same kind; ``*`` stands for every worker.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from psrt.rows.suggest import did_you_mean
from psrt.rows.values import LARGEST, WHOLE, Kind, Number, form, read_numbers, write_text

_SECONDS = Number("SECONDS", 0.0, 86400.0)
_STEP = Number("STEP", 0, LARGEST, whole=True)
#: The numbers of each kind in order, and an example.
KINDS: Final[dict[str, tuple[tuple[Number, ...], str]]] = {
    "delay": ((_SECONDS,), "0.005"),
    "jitter": ((_SECONDS,), "0.001"),
    # With a smaller shape a random draw may not fit into a float.
    "tail": ((_SECONDS, Number("SHAPE", 0.1, 1e6)), "0.001:1.5"),
    "pause": ((_STEP, _SECONDS), "100:2"),
    "slow": ((Number("FACTOR", 1.0, 1e6), _STEP._replace(default=0)), "2:50"),
}


class Injection(NamedTuple):
    """A slow-down of one worker or of all.

    >>> str(Injection(1, "slow", (2.0, 50)))
    '1:slow:2:50'
    >>> str(Injection(None, "jitter", (0.001,)))
    '*:jitter:0.001'
    """

    #: The worker's number; None is every worker.
    worker: int | None
    #: A key of ``KINDS``.
    kind: str
    #: As ``KINDS`` lists them, defaults filled in.
    numbers: tuple[float, ...]

    @property
    def first_step(self) -> int:
        """The first step that is slowed down, counted from 0."""
        steps = [
            value for n, value in zip(KINDS[self.kind][0], self.numbers, strict=True) if n.whole
        ]
        return int(steps[0]) if steps else 0

    def __str__(self) -> str:
        """Return the text that `read_injection` turns into this injection."""
        numbers = list(self.numbers)
        if numbers[-1] == KINDS[self.kind][0][-1].default:
            numbers.pop()
        who = "*" if self.worker is None else str(self.worker)
        return ":".join([who, self.kind, *map(_written, numbers)])


def _written(number: float) -> str:
    """Return the shortest text that reads back as the same number."""
    return str(int(number)) if number == int(number) else repr(number)


def read_injection(text: str) -> Injection:
    """Parse an injection.

    Raises:
        ValueError: with the end of a sentence, see `psrt.rows.values`.
    """
    who, _, rest = text.strip().partition(":")
    kind, *parts = rest.split(":")
    if kind not in KINDS:
        *others, last = KINDS
        raise ValueError(
            f"must be WORKER:KIND:NUMBERS, KIND {', '.join(others)} or {last}"
            f"{did_you_mean(kind, KINDS)}, like 1:delay:0.005"
        )
    numbers, example = KINDS[kind]
    try:
        return Injection(_worker(who), kind, read_numbers(numbers, ":".join(parts)))
    except ValueError:
        ranges = ", ".join(f"{number.name} {number.range}" for number in numbers)
        raise ValueError(
            f"must be WORKER:{kind}:{form(numbers)}, WORKER from 0 or * for all, {ranges}, "
            f"like 1:{kind}:{example}"
        ) from None


def _worker(text: str) -> int | None:
    if text == "*":
        return None
    if (worker := WHOLE.read(text)) < 0:
        raise ValueError
    return int(worker)


def _read(text: str) -> tuple[Injection, ...]:
    """Read one injection, or several separated by commas."""
    return tuple(read_injection(part) for part in text.split(","))


def _accept(value: Any) -> tuple[Injection, ...]:
    """Accept a list of texts, of injections, or of injections as JSON holds them."""
    if not isinstance(value, list | tuple):
        raise ValueError('must be a list of texts, like ["1:delay:0.005"]')
    return tuple(read_injection(_text(item)) for item in value)


def _text(item: Any) -> str:
    try:
        if not isinstance(item, str):
            worker, kind, numbers = item
            item = ":".join(["*" if worker is None else str(worker), kind, *map(str, numbers)])
    except (TypeError, ValueError):
        raise ValueError('must be a list of texts, like ["1:delay:0.005"]') from None
    return str(item)


def _write(injections: tuple[Injection, ...]) -> str:
    return f"[{', '.join(write_text(str(injection)) for injection in injections)}]"


INJECTIONS = Kind("WORKER:KIND:NUMBERS", _read, _accept, _write, several=True)
