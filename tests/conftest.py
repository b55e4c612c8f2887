"""Asserts of the helpers that tests import say what they compared, like those of tests."""

import gc
import zlib

import pytest

pytest.register_assert_rewrite("support")


@pytest.hookimpl(tryfirst=True)  # before what is not asked for is left out, by its marks
def pytest_collection_modifyitems(items):
    """Make cases of tests marked ``one_in(n)`` exhaustive, all but the first and one in about n.

    By their names, so that those left are spread over all parameters, and stay when others come.
    """
    seen = set()
    for item in items:
        mark = item.get_closest_marker("one_in")
        if mark is not None and item.get_closest_marker("exhaustive") is None:
            test = item.nodeid.partition("[")[0]
            if test in seen and zlib.crc32(item.nodeid.encode()) % mark.args[0]:
                item.add_marker(pytest.mark.exhaustive)
            seen.add(test)


def pytest_collection_finish():
    """Leave what was collected, ten thousand tests, out of each collection of garbage."""
    gc.collect()
    gc.freeze()
