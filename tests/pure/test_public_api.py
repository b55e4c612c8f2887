"""What ``import psrt`` offers, to whom, and what it costs."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

import psrt
from support.launching import TIMEOUT_S

ROOT = pathlib.Path(psrt.__file__).parent.parent

#: Makes ``import mpi4py`` fail as if it were not installed.
NO_MPI = "import sys; sys.modules['mpi4py'] = None; "


def python(code):
    """Run ``code`` in a fresh interpreter, warnings as errors, and return what it printed."""
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(
        command, cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE, timeout=TIMEOUT_S
    ).stdout


@pytest.mark.parametrize("name", psrt.__all__)
def test_every_public_name_is_there(name):
    assert getattr(psrt, name) is not None
    assert name in dir(psrt)


def test_what_a_user_is_shown_is_what_there_is_to_use():
    assert dir(psrt) == sorted([*psrt.__all__, "jax", "torch"])


def test_names_are_those_of_their_modules():
    from psrt.config import TrainConfig
    from psrt.errors import ConfigError
    from psrt.job.local import run
    from psrt.job.virtual import simulate

    assert psrt.TrainConfig is TrainConfig
    assert psrt.run is run
    assert psrt.simulate is simulate
    assert psrt.ConfigError is ConfigError


def test_every_lazy_name_is_public():
    assert sorted([*psrt._HOME, "__version__"]) == sorted(psrt.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'psrt' has no attribute 'trian'"):
        _ = psrt.trian


def test_importing_psrt_imports_nothing():
    out = python("import psrt, sys; print(sorted(m for m in sys.modules if m.split('.')[0] in "
                 "('psrt', 'numpy', 'mpi4py', 'argparse')))")  # fmt: skip
    assert out == "['psrt', 'psrt.vendors', 'psrt.version']\n"


def test_every_public_name_is_there_without_mpi():
    assert python(NO_MPI + "from psrt import *; print(len(__import__('psrt').__all__))") == (
        f"{len(psrt.__all__)}\n"
    )


def test_a_run_without_mpi():
    code = (
        "import psrt; run = psrt.run(psrt.TrainConfig(steps=3, hidden=(4,))); "
        "print(run.summary.mode, run.summary.steps, run.theta.size)"
    )
    assert python(NO_MPI + code) == f"serial 3 {64 * 4 + 4 + 4 * 10 + 10}\n"


def test_a_simulation_without_mpi():
    code = (
        "import psrt; run = psrt.simulate(psrt.TrainConfig(mode='async', steps=3, hidden=(4,)), "
        "workers=3); print([worker.clock for worker in run.workers])"
    )
    assert python(NO_MPI + code) == "[3, 3, 3]\n"


def test_the_version_can_be_read_without_importing():
    text = pathlib.Path(psrt.__file__).with_name("version.py").read_text(encoding="utf-8")
    [version] = re.findall(r'^__version__ = "(.+?)"$', text, re.MULTILINE)
    assert version == psrt.__version__
