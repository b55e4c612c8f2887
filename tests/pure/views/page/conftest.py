"""Runs in virtual time to make pages of."""

from __future__ import annotations

import shutil

import pytest

from support.pages import make_run


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Returns the folder of a run of a kind, made once; not to be written to."""
    folder, found = tmp_path_factory.mktemp("made"), {}

    def make(kind):
        if kind not in found:
            found[kind] = make_run(kind, folder / kind)
        return found[kind]

    return make


@pytest.fixture
def copied(made, tmp_path):
    """Returns a copy of a run of a kind, to be broken."""

    def copy(kind="ssp"):
        return shutil.copytree(made(kind), tmp_path / kind)

    return copy
