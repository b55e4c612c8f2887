"""Habits of the source that have cost a run before, and the grids of tests that are one test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import psrt
from support.cases import each

SOURCES = sorted(Path(psrt.__file__).parent.rglob("*.py"))


def receives_from_anybody(source: str) -> list[int]:
    """Return the lines that receive a message from whoever may have sent one.

    MPICH over libfabric does not give such a receive what a probe for any source has seen: it
    blocks for ever. Probe, then receive from the source that the status names.
    """
    tree = ast.parse(source if "ANY_SOURCE" in source else "")
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("Recv", "Irecv", "Recv_init", "recv", "irecv")
        and "ANY_SOURCE" in ast.unparse(node)
    ]


def test_the_rule_finds_what_it_forbids() -> None:
    assert receives_from_anybody("\ncomm.Recv([data, MPI.BYTE], MPI.ANY_SOURCE, 1)") == [2]


#: Modules and calls that may run code out of what they read.
LOADERS = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
#: Calls of mpi4py that pickle: those of buffers begin with a capital.
PICKLING = {
    *("send", "ssend", "bsend", "isend", "issend", "ibsend", "recv", "irecv", "mrecv", "sendrecv"),
    *("bcast", "gather", "allgather", "scatter", "alltoall", "reduce", "allreduce", "scan"),
}  # fmt: skip
CALLS = PICKLING | {"eval", "exec", "load"}
#: What there is in a file of which any of this may be said.
SUSPECT = re.compile(rf"\b({'|'.join(LOADERS)})\b|\b({'|'.join(CALLS)})\(")


def runs_what_it_reads(source: str) -> list[int]:
    """Return the lines that may run code out of a file, or of what another rank has sent."""
    found = []
    for node in ast.walk(ast.parse(source if SUSPECT.search(source) else "")):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {getattr(node, "module", None), *(it.name for it in node.names)}
            found += [node.lineno] * bool(LOADERS & names)
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name not in CALLS:
                continue
            of = ast.unparse(node.func).rpartition(".")[0]
            unsafe = not of and name in ("eval", "exec")
            unsafe |= (
                name == "load" and "np" in of and "allow_pickle=False" not in ast.unparse(node)
            )
            unsafe |= name in PICKLING and of.rpartition(".")[2].lstrip("_") in ("comm", "node")
            found += [node.lineno] * unsafe
    return found


@pytest.mark.parametrize("rule", [receives_from_anybody, runs_what_it_reads])
def test_the_source_keeps_the_rule(rule) -> None:
    found = {path.name: rule(path.read_text()) for path in SOURCES}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_the_rule_finds_what_would_be_run() -> None:
    for line in (
        "import pickle",
        "from marshal import loads",
        "eval(text)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "self._comm.bcast(it)",
    ):
        assert runs_what_it_reads(f"\n{line}") == [2], line
    assert runs_what_it_reads("np.load(path, allow_pickle=False)\ncomm.Bcast(it)") == []


def test_all_cases_are_tried():
    seen = []

    @each("a", [1, 2])
    @each(("b", "c"), [(3, 4), (5, 6)])
    def test(a, b, c, fixture):
        seen.append((a, b, c, fixture))

    test(fixture="f")
    assert seen == [(1, 3, 4, "f"), (1, 5, 6, "f"), (2, 3, 4, "f"), (2, 5, 6, "f")]


@pytest.mark.parametrize("fails", [lambda: 1 // 0, lambda: pytest.fail("it was me")])
def test_what_fails_says_for_which_case(fails):
    @each("a", [1, 2, 3])
    @each("b", ["x"])
    def test(a, b):
        if a == 2:
            fails()

    with pytest.raises(BaseException) as caught:  # noqa: PT011 - one of them is pytest's own
        test()
    assert caught.value.__notes__ == ["with b = 'x'", "with a = 2"]


def test_a_grid_without_cases_is_refused():
    with pytest.raises(ValueError, match="no values of size"):
        each("size", [])
