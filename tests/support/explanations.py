"""Explanations of schedules by their names, and the example of the documentation."""

from __future__ import annotations

from typing import Any

from psrt.collective import SCHEDULES
from psrt.collective.costs import LinkCosts
from psrt.views.explain.explanation import Explanation, explain
from psrt.views.explain.inputs import Example

COSTS = LinkCosts(alpha=1e-3, beta=1e-6, gamma=1e-7)
#: The vectors of the worked example, whose sums are known number by number.
EXAMPLE = Example(
    ("A", "B", "C", "D"), ((17, 11, 1, 9), (5, 13, 23, 14), (3, 6, 10, 8), (12, 7, 2, 12))
)


def explained(
    name: str, size: int = 4, n: int = 8, example: Example | None = None, **more: Any
) -> Explanation:
    """Explain a schedule; an example says itself how many ranks and elements there are."""
    if example is not None:
        size, n = len(example.names), example.n
    return explain(SCHEDULES[name], size=size, n=n, costs=COSTS, example=example, **more)
