import doctest
import importlib
import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["console", "metrics", "strict_json", "staleness"])
def test_examples_in_docstrings(module):
    names = importlib.import_module(f"psrt.report.{module}")
    record = importlib.import_module("psrt.report").Record
    result = doctest.testmod(names, extraglobs={"Record": record})
    assert result.attempted > 0
    assert result.failed == 0


def test_import_is_light():
    """A rank that reports must need neither MPI nor matplotlib."""
    code = (
        "import sys, psrt.report; "
        "print([m for m in ('mpi4py', 'matplotlib', 'safetensors') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
