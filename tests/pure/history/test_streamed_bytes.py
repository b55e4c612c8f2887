"""The checker's own formula of what an all-reduce sends, against the schedules."""

from __future__ import annotations

import pytest

from psrt.collective.registry import ALGORITHMS
from psrt.history.check.fragments import _copies


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_schedule_sends_each_element_that_often(name):
    for ranks in range(1, 10):
        for n in (0, 3, 100):
            sent = sum(
                step.send.size
                for rank in range(ranks)
                for step in ALGORITHMS[name](rank, ranks, n)
                if step.send_to not in (None, rank)
            )
            assert sent == n * _copies(name, ranks), ranks


@pytest.mark.parametrize("name", ["", "node", "mpi", "node+ring", "auto"])
def test_what_nobody_sees_is_not_counted(name):
    assert _copies(name, 4) is None
