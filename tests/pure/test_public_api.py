"""What ``import psrt`` offers and costs, and what is told of errors in code of users."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import psrt
from psrt.core.errors import users_traceback
from psrt.core.files import open_regular
from support.launching import TIMEOUT_S
from support.least_squares import UnevenSquares

ROOT = pathlib.Path(psrt.__file__).parent.parent


def python(code):
    """Run ``code`` in a fresh interpreter, warnings as errors, and return what it printed."""
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(
        command, cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE, timeout=TIMEOUT_S
    ).stdout


def test_every_public_name_is_there():
    assert all(getattr(psrt, name) is not None for name in psrt.__all__)
    assert dir(psrt) == sorted([*psrt.__all__, "jax", "torch"])
    with pytest.raises(AttributeError, match="module 'psrt' has no attribute 'trian'"):
        _ = psrt.trian


def test_importing_psrt_imports_nothing_and_needs_no_mpi():
    loaded = "m.split('.')[0] in {'psrt', 'numpy', 'mpi4py', 'argparse'}"
    found = f"sorted(m for m in sys.modules if {loaded})"
    done = python(
        f"import psrt, sys; print({found}); sys.modules['mpi4py'] = None\n"
        "from psrt import *\n"
        "print(len(psrt.__all__))\n"
        "config = dict(steps=3, hidden=(4,))\n"
        "print(psrt.run(psrt.TrainConfig(**config)).theta.size)\n"
        "done = psrt.simulate(psrt.TrainConfig(mode='async', **config), workers=3)\n"
        "print([worker.clock for worker in done.workers])"
    )
    assert done.splitlines() == [
        "['psrt', 'psrt.core', 'psrt.core.vendors', 'psrt.core.version']",
        f"{len(psrt.__all__)}",
        f"{64 * 4 + 4 + 4 * 10 + 10}",
        "[3, 3, 3]",
    ]


OPEN = {"mode": "serial", "epochs": 1, "lr": 0.1}


class Broken(UnevenSquares):
    """Raises, in one of its methods, what opening a file that is not there does."""

    def __init__(self, where, fault):
        super().__init__()
        self.fault = fault
        setattr(self, where, lambda *_: self.read())

    def read(self):
        try:
            self.fault()
        except KeyError as error:
            raise LookupError("no such sample") from error


def missing():
    Path("nowhere", "x.npy").read_bytes()


def unread():
    np.load(os.path.join("nowhere", "x.npy"))


def unknown():
    {}["sample"]


def too_large():
    raise MemoryError


@pytest.mark.parametrize("where", ["batches", "loss_and_grad", "evaluate"])
@pytest.mark.parametrize("fault", [missing, unread, unknown, too_large])
def test_it_is_that_of_the_users_code(where, fault):
    with pytest.raises((OSError, LookupError, MemoryError)) as caught:
        psrt.run(psrt.TrainConfig(**OPEN), Broken(where, fault))
    told = users_traceback(caught.value)
    assert os.path.dirname(psrt.__file__) not in told
    assert "in read" in told
    assert f"in {fault.__name__}" in told


def test_a_loop_of_ones_own_is_the_users_code():
    def loop():
        with psrt.Trainer(psrt.TrainConfig(**OPEN), np.ones(1, np.float32)) as trainer:
            trainer.epoch()
            missing()

    with pytest.raises(FileNotFoundError) as caught:
        loop()
    told = users_traceback(caught.value)
    assert os.path.dirname(psrt.__file__) not in told
    assert "in missing" in told


def test_what_psrt_does_itself_is_not():
    with pytest.raises(OSError, match="nowhere") as caught:
        open_regular("/nowhere/x")
    assert users_traceback(caught.value) is None
    with pytest.raises(psrt.ConfigError) as caught:
        psrt.run(psrt.TrainConfig(**OPEN), 3)
    assert users_traceback(caught.value) is None
