"""Rows of another package over MPI: each trains, and resumes as psrt's own do, to the same bits."""

from __future__ import annotations

import json

from support.elsewhere import JOB, ROWS, make_package
from support.launching import ROOT

#: Kinds of rows whose jobs end as chance has it, in whose order pushes come.
BY_CHANCE = ("rate", "mode")


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text())


def test_a_row_of_another_package_trains_and_resumes(launch):
    path = {"PYTHONPATH": f"{ROOT}:{make_package(launch.folder)}"}
    trains, checks = {}, {}
    for kind, (flags, _) in ROWS.items():
        first, again = f"{kind}.run", f"{kind}.again"
        line = f"train {flags} {JOB} --checkpoint-every 2 --keep 9 --out {first}"
        trains[first] = line.split()
        words = ["--resume", f"{first}/checkpoints/00000002", "--out", again]
        trains[again] = ["train", *words]
        checks |= {f"{it}, checked": ["check", it] for it in (first, again)}
    done = launch.one_after_another(4, trains, **path)
    done += launch.one_after_another(0, checks, **path)
    for name, it in zip([*trains, *checks], done, strict=True):
        assert it.status == 0, (name, it)
    for kind in ROWS:
        first, again = (summary_of(launch.folder / f"{kind}.{it}") for it in ("run", "again"))
        assert again["steps"] == first["steps"] == 4, kind
        if kind not in BY_CHANCE:
            assert again["parameters_sha256"] == first["parameters_sha256"], kind
