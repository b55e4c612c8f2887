"""The jobs of which the laws hold, and what comes of each, which all laws of a process share."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from support.jobs import JOBS, Job, Ran, ran
from support.temporary import temporary

__all__ = ["temporary"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Try a law that takes a ``job`` on all of them, or on those that its mark ``of`` picks."""
    if "job" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("of")
        jobs = [job for job in JOBS if mark is None or mark.kwargs["which"](job)]
        assert jobs, "a law of no job"
        metafunc.parametrize("job", jobs, ids=str)


@pytest.fixture(scope="session")
def result(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Job], Ran]:
    """Return what runs a job in virtual time and records it; once, for all laws."""
    folder = tmp_path_factory.mktemp("jobs")

    @functools.cache
    def found(job: Job) -> Ran:
        return ran(job, Path(tempfile.mkdtemp(dir=folder)) / "run")

    return found
