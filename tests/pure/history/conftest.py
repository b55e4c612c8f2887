"""Runs of every row of the mode table, at costs of every kind."""

from __future__ import annotations

import pytest

from support.histories import COSTS, MODES


@pytest.fixture(scope="session", params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session", params=COSTS)
def costs(request: pytest.FixtureRequest) -> str:
    return request.param
