"""Runs of every row of the mode table, at costs of every kind."""

from __future__ import annotations

import pytest

from support.histories import COSTS, MODES

#: `make test` leaves out what has two things at once, as drops and shards: `make test-all` has all.
ROWS = [pytest.param(it, marks=[pytest.mark.exhaustive] if ", " in it else []) for it in MODES]


@pytest.fixture(scope="session", params=ROWS)
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session", params=COSTS)
def costs(request: pytest.FixtureRequest) -> str:
    return request.param
