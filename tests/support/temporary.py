"""Where runs that fail leave their last events while tests run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have runs that fail leave their last events among what pytest cleans up."""
    before, tempfile.tempdir = tempfile.tempdir, str(tmp_path_factory.mktemp("temporary"))
    yield
    tempfile.tempdir = before
