"""Asserts of the helpers that tests import say what they compared, like those of tests."""

import gc
import importlib.util
import os
import signal
import tempfile
import time
import zlib

import pytest

# Else matplotlib would keep its list of fonts in the home of who runs the tests.
os.environ.setdefault("MPLCONFIGDIR", f"{tempfile.gettempdir()}/psrt-tests-{os.geteuid()}")

# What a shell starts in the background ignores it, which those that tests interrupt would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest.register_assert_rewrite("support")


def pytest_ignore_collect(collection_path):
    """Leave out tests of what is not installed, by their folder; make test-oracles runs them."""
    needed = collection_path.parent.name
    is_test = collection_path.name.startswith("test_") and needed in ("jax", "torch")
    return True if is_test and importlib.util.find_spec(needed) is None else None


@pytest.hookimpl(tryfirst=True)  # before what is not asked for is left out, by its marks
def pytest_collection_modifyitems(items):
    """Make cases of tests marked ``one_in(n)`` exhaustive, all but the first and one in about n.

    By their names, so that those left are spread over all parameters, and stay when others come.
    Where a test is marked ``rest_one_in(n)`` too, so many of its exhaustive cases are left, and the
    others are a soak.
    """
    first, first_of_rest = set(), set()
    for item in items:
        test, number = item.nodeid.partition("[")[0], zlib.crc32(item.nodeid.encode())
        mark = item.get_closest_marker("one_in")
        if mark is not None and item.get_closest_marker("exhaustive") is None:
            if test in first and number % mark.args[0]:
                item.add_marker(pytest.mark.exhaustive)
            first.add(test)
        mark = item.get_closest_marker("rest_one_in")
        if mark is not None and item.get_closest_marker("exhaustive") is not None:
            # By other digits of the number than those that have decided above.
            if test in first_of_rest and number // 1000 % mark.args[0]:
                item.own_markers = [it for it in item.own_markers if it.name != "exhaustive"]
                item.add_marker(pytest.mark.soak)
            first_of_rest.add(test)


def pytest_collection_finish():
    """Leave what was collected, ten thousand tests, out of each collection of garbage."""
    gc.collect()
    gc.freeze()


def pytest_sessionstart(session):
    """Note when, for what is deleted at the end."""
    session.began = time.time()


def pytest_sessionfinish(session):
    """Delete the shared memory that ranks which tests have killed could not."""
    from psrt.launch.segments import sweep  # not above: psrt sets variables for MPI

    sweep(session.began)
