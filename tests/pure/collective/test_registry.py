"""One row says all there is of a schedule: nobody else knows its name, and adding one is a row."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import psrt
from psrt.collective.registry import ALGORITHMS, PLUS

PACKAGE = Path(psrt.__file__).parent
GUIDE = PACKAGE.parent / "CONTRIBUTING.md"
NAMES = {*ALGORITHMS, *(PLUS + name for name in ALGORITHMS)}
#: Where names are listed by right: the rows, the benches, which say what they measure, and rules
#: of the checker, which shares no code with the run; graphs of ranks may have the same names.
FREE = (
    *("collective/registry.py", "bench/", "topology/"),
    *("history/check/fragments.py", "history/check/mixing.py", "history/check/summary.py"),
)


def names_in(source: str) -> list[tuple[int, str]]:
    """Return the lines that name an all-reduce, and the name.

    The root of a phase is called by the same word as one of them, as a key or an argument.
    """
    tree = ast.parse(source)
    words = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict | ast.Call)
        for child in (*getattr(node, "keys", ()), *getattr(node, "args", ()))
    }
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in NAMES
        if not (node.value == "root" and id(node) in words)
    ]


def test_no_all_reduce_is_named_outside_its_row():
    assert all((PACKAGE / path).exists() for path in FREE)
    found = {
        path: lines
        for file in sorted(PACKAGE.rglob("*.py"))
        if not (path := file.relative_to(PACKAGE).as_posix()).startswith(FREE)
        if (lines := names_in(file.read_text()))
    }
    assert found == {}


def test_the_rule_finds_what_it_forbids():
    source = 'if name == "ring" or name in ["node+tree", "root"]:\n    f("root", root={"root": 1})'
    assert [name for _, name in names_in(source)] == ["ring", "node+tree", "root"]


#: Proved and priced for every size, in the closed form as on the clocks.
SHOWN = """
from psrt.collective import ALGORITHMS
from psrt.collective.analysis.cost import price
from psrt.collective.analysis.proof import prove
from psrt.collective.costs import LinkCosts

row, costs = ALGORITHMS["chain"], LinkCosts(3.0, 0.5, 0.25)
for size in range(1, 9):
    for n in (0, 1, 7, 20):
        prove(row.spec(size, n), row.plan(size, n))
        found = price(row.plan(size, n), 4, costs).seconds
        assert abs(found - row.seconds(size, 4 * n, costs)) < 1e-9, (size, n)
"""


@pytest.mark.parametrize("laws", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_an_algorithm_is_added_as_the_guide_says(tmp_path, laws):
    """One file and one row: proved, priced, explained, offered, run."""
    shutil.copytree(PACKAGE, tmp_path / "psrt", ignore=shutil.ignore_patterns("__pycache__"))
    [text] = re.findall(
        r"^### An all-reduce: (.*?)^###", GUIDE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert len(text.splitlines()) <= 27
    path = re.search(r"`(psrt/\S+\.py)`", text)[1]
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    (tmp_path / path).write_text(code)
    registry = tmp_path / "psrt/collective/registry.py"
    module = path.removesuffix(".py").replace("/", ".")
    functions = re.findall(r"def (\w+)", code)
    imports = f"from {module} import {', '.join(functions)}\n"
    row = re.search(r"^`(Algorithm\(.*\),)`$", text, re.MULTILINE)[1]
    rows = registry.read_text().replace(
        "from psrt.collective.schedules", f"{imports}from psrt.collective.schedules", 1
    )
    registry.write_text(
        rows.replace("    for algorithm in (\n", f"    for algorithm in (\n{row}\n")
    )

    def run(*command):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    if not laws:
        run("-c", SHOWN)
        assert "chain, an all-reduce of 4 ranks" in run("-m", "psrt", "explain", "chain")
        small = ["--workers", "3", "--steps", "4", "--dataset", "synthetic:300x4x2"]
        train = ["-m", "psrt", "simulate", "--mode", "allreduce", "--allreduce", "chain"]
        assert "chain" in run(*train, *small)
        return
    shown = run("-m", "psrt", "show", "--mode", "allreduce", "--allreduce", "node+chain")
    assert 'allreduce = "node+chain"' in shown
    # And all laws try it, without a word in them.
    for name in (".pytest.ini", "tests/conftest.py", "tests/laws", "tests/support"):
        source, to = PACKAGE.parent / name, tmp_path / name
        to.parent.mkdir(exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, to)
    words = ("-k", "chain", "-m", "not exhaustive and not soak")
    told = run("-m", "pytest", "-p", "no:xdist", *words, "-v", "tests/laws")
    assert int(re.search(r"(\d+) passed", told)[1]) > 4
