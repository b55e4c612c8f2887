"""The values of ``--parallel`` and of the flags that belong to it, read from texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from psrt.pipeline.registry import schedule_of
from psrt.rows.suggest import did_you_mean
from psrt.rows.values import TEXT, WHOLE, WIDTHS, Kind, write_text

#: More would be a typing error.
_MOST: Final = 1_000_000


class Axes(NamedTuple):
    """The size of each axis; 0 copies are filled in later from the number of ranks.

    >>> axes_of("pipeline:2")
    Axes(data=0, pipeline=2, tensor=1)
    >>> str(axes_of("pipeline:2")), str(axes_of("tensor:2,pipeline:1,data:1"))
    ('pipeline:2', 'data:1,tensor:2')
    """

    #: D: copies of the model, each trained on its own data.
    data: int = 0
    #: P: stages, each with some of the layers.
    pipeline: int = 1
    #: T: slices of each layer.
    tensor: int = 1

    @property
    def cells(self) -> int:
        """Parts that a model is split into."""
        return self.pipeline * self.tensor

    def __str__(self) -> str:
        given = {"data": self.data} if self.data else {}
        # A model that is not split has one stage, so its text is never empty.
        given |= {"pipeline": self.pipeline} if self.pipeline > 1 or self.tensor == 1 else {}
        given |= {"tensor": self.tensor} if self.tensor > 1 else {}
        return ",".join(f"{name}:{size}" for name, size in given.items())


def axes_of(text: str) -> Axes:
    """Return what a text of ``--parallel`` says.

    Raises:
        ValueError: with the end of a sentence, see ``psrt.rows.values``.
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.strip().partition(":")
        if name not in Axes._fields:
            meant, _, size = name.partition("=")
            is_equal = meant in Axes._fields and size.isdecimal()
            hint = (
                f" (did you mean {meant}:{size}?)" if is_equal else did_you_mean(name, Axes._fields)
            )
            raise ValueError(
                f"must be made of data:D, pipeline:P and tensor:T, like pipeline:2{hint}"
            )
        if name in found:
            raise ValueError(f"must have {name} only once")
        try:
            found[name] = WHOLE.read(size)
        except ValueError:
            found[name] = 0
        if not 1 <= found[name] <= _MOST:
            raise ValueError(f"must have a number from 1 to {_MOST} after {name}:")
    return Axes(**found)


class Given(tuple[str, ...]):
    """Any value at all; a condition's message shows these as examples."""

    __slots__ = ()

    def __contains__(self, value: object) -> bool:
        return value is not None


def _read_stages(text: str) -> str:
    try:
        counts = WIDTHS.read(text)
    except ValueError:
        counts = ()
    if not counts:
        raise ValueError("must be the number of layers of each stage, like 3,4")
    return ",".join(map(str, counts))


def _of_text(read: Callable[[str], Any], metavar: str) -> Kind:
    return Kind(
        metavar,
        lambda text: str(read(text)),
        lambda value: str(read(TEXT.accept(value))),
        write_text,
    )


AXES = _of_text(axes_of, "AXIS:N,...")
PIPELINE_SCHEDULE = _of_text(schedule_of, "NAME")
STAGES = _of_text(_read_stages, "N,N,...")
