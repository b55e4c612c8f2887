"""What the tests of explanations share: the example of the documentation, and short cuts."""

from __future__ import annotations

import pytest

from psrt.collective import SCHEDULES
from psrt.collective.costs import Costs
from psrt.explain.explanation import explain
from psrt.explain.values import Example

COSTS = Costs(alpha=1e-3, beta=1e-6, gamma=1e-7)


@pytest.fixture
def example():
    """The vectors of the worked example, whose sums are known number by number."""
    return Example(
        ("A", "B", "C", "D"), ((17, 11, 1, 9), (5, 13, 23, 14), (3, 6, 10, 8), (12, 7, 2, 12))
    )


@pytest.fixture
def explained():
    """Explains a schedule by its name."""

    def shown(name, size=4, n=8, example=None, **more):
        if example is not None:
            size, n = len(example.names), example.n
        return explain(SCHEDULES[name], size=size, n=n, costs=COSTS, example=example, **more)

    return shown
