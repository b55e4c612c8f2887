"""The jobs of which the laws hold, and what comes of each, which all laws of a process share."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from support.jobs import JOBS, Job, Ran, ran

hypothesis.settings.register_profile("psrt", deadline=None)
hypothesis.settings.load_profile("psrt")


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


@pytest.fixture(scope="session", autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have runs that fail leave their last events among what pytest cleans up."""
    before, tempfile.tempdir = tempfile.tempdir, str(tmp_path_factory.mktemp("temporary"))
    yield
    tempfile.tempdir = before
