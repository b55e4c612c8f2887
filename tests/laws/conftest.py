"""The jobs of which the laws hold, and what comes of each, which all laws of a process share."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from support.cases import also
from support.jobs import FACTORS, JOBS, MIXED, Job, Ran, kind_of, ran
from support.temporary import temporary

__all__ = ["temporary"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Try a law that takes a ``job`` on all of them, or on those that its mark ``of`` picks.

    Of these, what its mark ``first`` does not pick is exhaustive. A law that tries a job with
    another event tries first those that have it: they have run already, for all laws, and every
    pair of a level with that event is among them.
    """
    if "job" in metafunc.fixturenames:
        of, first = map(metafunc.definition.get_closest_marker, ("of", "first"))
        jobs = [job for job in JOBS if of is None or of.kwargs["which"](job)]
        assert jobs, "a law of no job"
        marked = [
            also(job, id=str(job)) if first and not first.kwargs["which"](job)
            else pytest.param(job, id=str(job))
            for job in jobs
        ]  # fmt: skip
        metafunc.parametrize("job", marked)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have the laws of jobs of a kind in one process, which shares what comes of them."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        if isinstance(item, pytest.Function) and Path(__file__).parent in item.path.parents:
            given = item.callspec.params if hasattr(item, "callspec") else {}
            about = next((it for it in given.values() if isinstance(it, Job)), given.get("group"))
            mode = about["mode"] if isinstance(about, Job) else about
            if mode in FACTORS["mode"] and mode not in MIXED:
                mode = kind_of("mode", mode)
            if mode is not None:
                item.add_marker(pytest.mark.xdist_group(mode))


@pytest.fixture(scope="session")
def result(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Job], Ran]:
    """Return what runs a job in virtual time and records it; once, for all laws."""
    folder = tmp_path_factory.mktemp("jobs")

    @functools.cache
    def found(job: Job) -> Ran:
        return ran(job, Path(tempfile.mkdtemp(dir=folder)) / "run")

    return found
