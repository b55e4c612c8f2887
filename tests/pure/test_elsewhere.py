"""Rows of another package: each trains, is checked, repeated and explained as psrt's own are.

Over MPI they are tried in ``tests/e2e``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psrt
from support.elsewhere import JOB, ROWS, make_package
from support.launching import TIMEOUT_S, Launch

ROOT = Path(psrt.__file__).parents[1]


def test_a_row_of_another_package_trains_is_checked_repeated_and_explained(tmp_path):
    package = make_package(tmp_path)
    commands = {}
    for kind, (flags, explained) in ROWS.items():
        workers, out = 4 if kind == "pipeline" else 3, f"{kind}.run"
        line = f"simulate {flags} {JOB} --workers {workers} --out {out}"
        commands[kind] = line.split()
        commands[f"{kind}, checked"] = ["check", out]
        commands[f"{kind}, again"] = ["simulate", "--replay", out]
        commands[f"{kind}, reported"] = ["report", out, "-o", f"{kind}.html"]
        if explained:
            commands[f"{kind}, explained"] = ["explain", *explained.split()]
    launch = Launch(tmp_path, (), tmp_path)
    done = launch.one_after_another(0, commands, PYTHONPATH=f"{ROOT}:{package}")
    for name, it in zip(commands, done, strict=True):
        assert it.status == 0, (name, it)
        assert name[-5:] != "again" or "the same parameters to the bit" in it.stdout, (name, it)


def test_no_rank_looks_for_other_packages_whose_names_are_all_psrts():
    code = (
        "import sys; from psrt.cli.flags import parse_train; from psrt.config import resolve\n"
        "from psrt.collective.analysis.choose import choose\n"
        "from psrt.collective.analysis.pick import pick_sharded\n"
        "from psrt.collective.analysis.machine import DEFAULT_COSTS\n"
        "words = '--mode async --codec top-k:density=0.1 --optimizer adam --staleness-rate drop'\n"
        "resolve(parse_train(words.split()), ranks=3)\n"
        "for hosts in ([4], [1, 1], [2, 2]):\n"
        "    choose(hosts, 1 << 20, 4, DEFAULT_COSTS)\n"
        "    pick_sharded('auto', hosts, 1 << 20, DEFAULT_COSTS)\n"
        "assert 'importlib.metadata' not in sys.modules"
    )
    subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": f"{ROOT}"}, check=True, timeout=TIMEOUT_S
    )
