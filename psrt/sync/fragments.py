"""Streaming local SGD: which layers a fragment has, and when each is sent. Pure.

A period of H steps averages the whole model, one fragment at a time: fragment f of F after the step
⌈(f + 1)·H/F⌉ of the period, so that the last one ends it. What is sent at once is 1/F of the model,
and as much in all.

Source: Douillard et al., "Streaming DiLoCo with Overlapping Communication", 2025, arXiv:2501.18512.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from psrt.config.names import STRIDED
from psrt.errors import ConfigError
from psrt.partition import Span, even_spans


def fragments_of(
    layers: Sequence[Span], count: int, order: str = STRIDED
) -> tuple[tuple[Span, ...], ...]:
    """Deal the layers out to fragments.

    Args:
        layers: the spans of the layers, in any order.
        count: F, the number of fragments, at least 1.
        order: ``strided``: fragment f has the layers f, f + F, f + 2F, …; ``sequential``: each has
            layers that follow each other.

    Returns:
        The spans of each fragment, from the first layer on; layers that touch are one span.

    Raises:
        ConfigError: if a fragment would have no layer.

    >>> layers = [Span(9, 10), Span(4, 9), Span(0, 4)]
    >>> fragments_of(layers, 2)
    ((Span(start=0, stop=4), Span(start=9, stop=10)), (Span(start=4, stop=9),))
    >>> fragments_of(layers, 2, "sequential")
    ((Span(start=0, stop=9),), (Span(start=9, stop=10),))
    """
    if count > len(layers):
        raise ConfigError(
            f"--fragments {count} is more than the model has layers, {len(layers)}: a fragment is "
            "one layer or more"
        )
    ordered = sorted(layers)
    if order == STRIDED:
        return tuple(_joined(ordered[f::count]) for f in range(count))
    return tuple(_joined(ordered[a:b]) for a, b in even_spans(len(ordered), count))


def _joined(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Return ascending spans, with one in place of those that touch."""
    found: list[Span] = []
    for span in spans:
        if found and found[-1].stop == span.start:
            found[-1] = Span(found[-1].start, span.stop)
        else:
            found.append(span)
    return tuple(found)


class FragmentPeriod(NamedTuple):
    """When fragments are sent and when they arrive, counted in steps of one worker.

    >>> period = FragmentPeriod(local_steps=8, fragments=3)
    >>> [period.due(step) for step in range(1, 9)]
    [None, None, 0, None, None, 1, None, 2]
    """

    #: H, steps of a period.
    local_steps: int
    #: F, at most H: a step sends one fragment or none.
    fragments: int = 1
    #: T, steps from the sending of a fragment to its arrival, at most H.
    delay: int = 0
    #: The epoch until which H = 1: each step averages the whole model, and nothing is delayed.
    post_local_epoch: float = 0.0

    def due(self, step: int) -> int | None:
        """Return the fragment that is sent after a step of a period, None for none.

        Args:
            step: of the period, from 1 to H.
        """
        # ⌈(f + 1)·H/F⌉ = step holds for f + 1 = ⌊step·F/H⌋ if for any.
        count = step * self.fragments // self.local_steps
        before = (step - 1) * self.fragments // self.local_steps
        return count - 1 if count > before else None

    def is_early(self, progress: float) -> bool:
        """Return whether a step is before the epoch until which H = 1.

        Args:
            progress: epochs finished before this step.
        """
        return progress < self.post_local_epoch
