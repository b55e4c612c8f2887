"""What a stranger wrote is refused by one of psrt's errors, or read: nothing else comes of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import warnings

import pytest

from support.fuzz import SEED
from support.mutation import Mutator, confined
from support.strangers import EXPECTED, READERS, make_runs

#: How many cases there are of all formats; ``make fuzz`` sets it.
CASES = int(os.environ.get("PSRT_FUZZ_CASES", "100"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("strangers")
    make_runs(folder)
    return folder


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_whatever_is_read_is_refused_or_right(reader, runs, tmp_path):
    shutil.copytree(runs, tmp_path / "it")
    cases = CASES * READERS[reader] // sum(READERS.values())
    with confined() as case:
        for seed in range(SEED, SEED + max(1, cases)):
            with told(reader, seed), case(), warnings.catch_warnings():
                warnings.simplefilter("error")
                assert "fit into memory" not in refusal(reader, seed, tmp_path / "it")


def refusal(reader, seed, folder):
    """Return what psrt says of a case; nothing if it takes it."""
    try:
        reader(Mutator(seed), folder)
    except EXPECTED as error:
        return str(error)
    return ""


@contextlib.contextmanager
def told(reader, seed):
    """Say of what fails how to have it again."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"{reader.__name__}: make fuzz JOBS=1 CASES=1 SEED={seed}")
        raise
