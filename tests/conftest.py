"""Asserts of the helpers that tests import say what they compared, like those of tests."""

import gc

import pytest

pytest.register_assert_rewrite("support")


def pytest_collection_finish():
    """Leave what was collected, ten thousand tests, out of each collection of garbage."""
    gc.collect()
    gc.freeze()
