"""Scripts for other launchers, as docs/launch.md prints them, under ``psrt launch``."""

import re

import pytest

from support.launching import ROOT

BLOCKS = re.compile(r"^```py(?:thon)?\n# (\w+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SCRIPTS = dict(BLOCKS.findall((ROOT / "docs/launch.md").read_text(encoding="utf-8")))


def said(launch, name):
    (launch.folder / name).write_text(SCRIPTS[name])
    done = launch.psrt("launch", "-n", 2, name)
    assert done.status == 0, done.stderr
    return sorted(done.stdout.splitlines())


def test_a_script_of_torchrun_averages_gradients(launch):
    lines = said(launch, "ddp.py")
    ranks, norms = zip(*(line.split(": ") for line in lines), strict=True)
    assert ranks == ("rank 0 of 2", "rank 1 of 2")
    assert norms[0] == norms[1]


@pytest.mark.parametrize("package", ["accelerate", "lightning"])
def test_scripts_of_other_packages(launch, package):
    """Where they are installed: nothing of psrt needs them."""
    pytest.importorskip(package)
    (name,) = (it for it in SCRIPTS if f"import {package}" in SCRIPTS[it] or package in it)
    (line,) = (it for it in said(launch, name) if "loss" in it)
    assert re.fullmatch(r"2 ranks, 32 steps, loss \d\.\de-0[3-9]", line)
