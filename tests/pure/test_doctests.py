"""The examples in the docstrings of every module that needs no MPI are true."""

import doctest
import importlib
import pkgutil
import sys

import pytest

import psrt

#: What a module may need and pure tests do without; importing MPI would start it.
WITHOUT = ("mpi4py", "matplotlib", "torch", "jax")


def modules():
    found = pkgutil.walk_packages(psrt.__path__, "psrt.", onerror=lambda name: None)
    return sorted({"psrt", *(module.name for module in found)} - {"psrt.__main__"})


@pytest.mark.parametrize("name", modules())
def test_examples(name, monkeypatch):
    for missing in WITHOUT:
        monkeypatch.setitem(sys.modules, missing, None)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in WITHOUT:
            raise
        pytest.skip(f"needs {error.name}")
    assert doctest.testmod(module).failed == 0
