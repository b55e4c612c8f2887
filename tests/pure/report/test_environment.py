from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np

from psrt.report import Summary
from psrt.report import environment as module
from psrt.report.environment import WORDS, ended, environment
from psrt.report.environment import environment_differences as differences
from psrt.report.environment import environment_rows as rows


def test_a_run_says_when_where_and_by_what_it_was_made(monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    found = ended(environment("Open MPI 5.0"))
    assert set(WORDS) < set(found)
    assert found["started"] <= found["ended"]
    assert found["argv"] == sys.argv
    assert (found["numpy"], found["mpi"]) == (np.__version__, "Open MPI 5.0")
    assert found["blas_variables"]["OPENBLAS_CORETYPE"] == "Haswell"
    assert all(found[name] for name in ("blas", "host", "processor", "folder"))
    assert "secret" not in json.dumps(found)


def test_the_commit_is_that_of_the_folder_and_says_if_files_differ_from_it(tmp_path):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    assert module._commit(str(tmp_path)) == ""
    (tmp_path / "train.py").write_text("1")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    module._commit.cache_clear()
    commit = module._commit(str(tmp_path))
    assert len(commit) == 40
    (tmp_path / "train.py").write_text("2")
    module._commit.cache_clear()
    assert module._commit(str(tmp_path)) == f"{commit} with changes"


def test_what_differs_is_a_phrase_each_and_steers_no_terminal():
    here = environment("")
    assert differences(here, ended(here)) == []
    there = here | {"processor": "Z80\x1b[2J", "argv": ["other"]}
    (phrase,) = differences(here, there)
    assert phrase == f"processor {here['processor']} instead of Z80?[2J"
    assert differences(here, {}) == [], "of which nothing is known"
    assert dict(rows({"argv": ["a", "b"]})) == {"command": "a b"}


def test_it_is_kept_and_is_no_difference_between_runs(summary):
    told = dataclasses.replace(summary, environment=environment(""))
    assert told == summary
    assert Summary.from_json(told.to_json()).environment == told.environment
    assert os.getcwd() == told.environment["folder"]
