"""Tests with tensors where they are, and once more as if they were on a device."""

from __future__ import annotations

from typing import Any

import pytest

#: Marks a module whose tests take both; ``staged`` tells a test which one it is.
BOTH = pytest.mark.parametrize("staged", [False, True], ids=["here", "staged"], indirect=True)
STAGED = "PSRT_STAGE_CPU"


@pytest.fixture(autouse=True)
def staged(request: Any, monkeypatch: Any) -> bool:
    """Whether tensors count as being on a device."""
    found = bool(getattr(request, "param", False))
    monkeypatch.setenv(STAGED, str(int(found)))
    return found
