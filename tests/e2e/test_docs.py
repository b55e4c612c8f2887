"""What the pages tell people to type works as printed: commands and Python, on this machine."""

import importlib.util
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: `make test-slurm` runs what this one has, on hosts.
BY_SLURM = "docs/cluster-job.md"
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
#: A script that others of its page import, or that commands start, has its name in its first line.
NAMED = re.compile(r"# (\w+\.py)\n")
BLOCK = re.compile(r"^```(sh|console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Commands that cannot be run here, or that other tests run, by how they begin.
ELSEWHERE = (
    *("make ", ". ", "export ", "pip ", "pre-commit ", "cd ", "apt-get "),
    *("module ", "srun ", "sbatch ", "salloc ", "squeue ", "scancel ", "ssh-"),
    *("mpirun --hostfile ", "psrt launch --hostfile ", "psrt plan --hosts "),
    *("python3 -m venv ", "env/bin/"),
    *("~/psrt-env/", "apptainer ", "mpirun -n 4 apptainer "),
)
#: Scripts whose work other tests do on smaller examples.
LONG = ("apps/compare_modes.py", "apps/staleness_study.py --out", "psrt bench")
#: Of what some blocks import and psrt does without; `make test-oracles` has it.
MISSING = [name for name in ("torch", "jax") if importlib.util.find_spec(name) is None]
#: What the examples in Python take for granted.
PRELUDE = f"""\
import sys; sys.path.insert(0, {str(ROOT / "apps")!r})
import numpy as np
from own_model import Logistic
problem = Logistic()
rng = np.random.default_rng(0)
x, u = rng.normal(size=(90, 6)).astype(np.float32), rng.normal(size=(30, 6)).astype(np.float32)
y, v = np.arange(90) % 3, np.arange(30) % 3
"""


def steps(page):
    """Return what a page has people run, in order: shell commands, and scripts in Python.

    Left out are those that import what is not installed here, and commands that start them.
    """
    found, without = [], list(LONG)
    for kind, text in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
        if kind == "python":
            if not any(f"import {name}\n" in text for name in MISSING):
                found.append((kind, text))
            elif named := NAMED.match(text):
                without.append(named[1])
            continue
        lines = text.replace("\\\n", " ").splitlines()
        if kind == "console":
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        lines = [re.sub(r"\s+#.*", "", line).strip() for line in lines]
        found += [
            ("sh", line)
            for line in lines
            if line
            and not line.startswith((*ELSEWHERE, "#"))
            and not any(w in line for w in without)
        ]
    return found


#: What a page needs as a whole that psrt does not.
NEEDS = {"docs/torch.md": "torch", "docs/jax.md": "jax"}
#: All pages but the README take longer than `make test` has time for.
MARKED = [
    pytest.param(
        page,
        marks=[
            *([] if page == "README.md" else [pytest.mark.exhaustive]),
            *([pytest.mark.skip(reason=f"no {NEEDS[page]}")] if NEEDS.get(page) in MISSING else []),
        ],
    )
    for page in PAGES
    if page != BY_SLURM and steps(page)
]


@pytest.fixture
def folder(launch):
    """An empty folder that has of the repository what the pages name."""
    for name in ("apps", "hostfiles"):
        (launch.folder / name).symlink_to(ROOT / name)
    return launch.folder


@pytest.mark.parametrize("page", MARKED)
def test_everything_runs_as_printed(launch, folder, page):
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        # `make install` writes this into the environment that it makes.
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    todo = steps(page)
    for number, (kind, text) in enumerate(todo):
        if kind == "sh":
            done = launch.command("bash", "-c", text, **environment)
        else:
            named = NAMED.match(text)
            script = folder / (named[1] if named else f"example{number}.py")
            script.write_text(PRELUDE + text, encoding="utf-8")
            if any(word == "sh" and script.name in line for word, line in todo[number + 1 :]):
                continue  # a command starts it
            on_ranks = "MPI.COMM_WORLD" in text or "psrt.Communicator()" in text
            done = launch.ranks(4, script) if on_ranks else launch.python(script)
        assert done.status == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, f"{text}\n{done.stderr}"


@pytest.mark.usefixtures("folder")
def test_the_flags_of_every_job_are_there(launch):
    """As far as they are checked before ranks start; but for what others of the page make."""
    lines = {line for page in PAGES for kind, line in steps(page) if kind == "sh"}
    commands = {
        line: ["launch", "--dry-run", *shlex.split(line)[2:]]
        for line in sorted(lines)
        if line.startswith("psrt launch ")
        and not re.search(r"[|><;&*]|runs/|--config| \w+\.py", line)
    }
    assert len(commands) >= 12
    assert len(MARKED) >= 6
    for line, done in zip(commands, launch.one_after_another(0, commands), strict=True):
        assert done.status == 0, (line, done.stderr)
