"""Every test that takes a ``subject`` runs on each of the schedules."""

from __future__ import annotations

import pytest

from support.numbers import SUBJECTS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "subject" in metafunc.fixturenames:
        metafunc.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)
