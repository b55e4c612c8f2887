"""Habits of the source that have cost a run before, and the grids of tests that are one test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import psrt
from psrt.codec import CODECS
from psrt.collective import ALGORITHMS
from psrt.config.modes import MODES
from psrt.optim import OPTIMIZERS, STALENESS_RATES
from psrt.optim.table import OUTER_STEPS, SCHEDULES
from psrt.pipeline import PIPELINES
from psrt.topology.names import TOPOLOGIES
from support.cases import each

ROOT = Path(psrt.__file__).parent
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


#: Rule → files that may break it, with how often, and why.
ALLOWED = {
    # Methods that pack events, as dataclasses make theirs: of what kinds declare, and of no input.
    runs_what_it_reads: {"log.py": 1},
}


@pytest.mark.parametrize("rule", [receives_from_anybody, runs_what_it_reads])
def test_the_source_keeps_the_rule(rule) -> None:
    found = {path.name: len(rule(path.read_text())) for path in SOURCES}
    assert {name: count for name, count in found.items() if count} == ALLOWED.get(rule, {})


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


#: File → the registries that it has the rows of.
ROWS = {
    "codec/table.py": [CODECS],
    "collective/registry.py": [ALGORITHMS],
    "config/modes.py": [MODES],
    "optim/table.py": [OPTIMIZERS, OUTER_STEPS, SCHEDULES, STALENESS_RATES],
    "pipeline/registry.py": [PIPELINES],
    "topology/names.py": [TOPOLOGIES],
}
#: What is called as a row is, and is none: a column of the metrics and a field of many a drawing.
ELSEWHERE = {"step"}
_KNOB = {"allreduce": "the knob of a run, not its mode"}
#: File → the names that it may say, and why.
BY_RIGHT: dict[str, dict[str, str]] = {
    "bench/allreduce_rows.py": dict.fromkeys(
        ("ring", "segmented-ring", "double-tree", "butterfly", "halving-doubling"),
        "what has a turn in every round, and between hosts",
    ),
    "bench/codec.py": dict.fromkeys(
        ("threshold", "qsgd", "ternary", "ternary-base3", "sign", "top-k", "random-k"),
        "errors as they were published, which no row is to say of itself",
    ),
    "bench/codec_limits.py": dict.fromkeys(
        ("sync", "allreduce", "ring", "naive", "all-pairs"), "the job that is priced"
    ),
    "bench/fit.py": {"constant": "the heading of a column"},
    "cli/bench.py": {"allreduce": "a benchmark"},
    "cli/completion.py": {"gossip": "what psrt explain is called with"},
    "cli/explain.py": {"gossip": "what psrt explain is called with", "root": "a flag"},
    "cli/like.py": _KNOB,
    "codec/dgc.py": {"momentum": "what it keeps"},
    "codec/table.py": {"momentum": "a knob"},
    "config/checks.py": {"momentum": "a knob"},
    "config/faults.py": {"full": "a fault of a disk"},
    "config/former.py": dict.fromkeys(("power", "momentum", "threshold", "softsync"), "knobs"),
    "config/names.py": {
        "sequential": "an order of fragments", "1f1b": "where nobody chooses a schedule",
    },
    "config/resolve.py": {"allreduce": "where nobody chooses, of a model that is cut"},
    "config/train.py": {**_KNOB, "sync": "what users of other tools call the knob"},
    "doctor/gather.py": {"serial": "what one rank is called"},
    "history/check/contract.py": _KNOB,
    "history/check/frames.py": {"momentum": "a knob"},
    "history/check/steps.py": {"constant": "what a header says that names none"},
    "history/check/summary.py": _KNOB,
    "history/differences.py": _KNOB,
    "history/header.py": _KNOB,
    "job/checkpoints.py": _KNOB,
    "job/recorded.py": _KNOB,
    "mpi/arguments.py": {"float16": "of numpy"},
    "simulation/distributions.py": dict.fromkeys(("constant", "exponential"), "distributions"),
    "trainer/parameter_server.py": {"async": "where nobody chooses"},
    "views/explain/output.py": {"root": "a field of its JSON"},
    "views/runs/comparison.py": _KNOB,
    "views/trace/spans.py": {"drop": "an event"},
}  # fmt: skip


def names_said(source: str, names: set[str]) -> set[str]:
    """Return the names that are there as texts, but for the row that a class says to be its own."""
    tree = ast.parse(source if any(it in source for it in names) else "")
    own = {
        id(it)
        for a_class in ast.walk(tree)
        if isinstance(a_class, ast.ClassDef)
        for node in a_class.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "row"
        for it in ast.walk(node.value)
    }
    texts = [it for it in ast.walk(tree) if isinstance(it, ast.Constant) and id(it) not in own]
    said = {it.value.removeprefix("node+") for it in texts if isinstance(it.value, str)}
    return said & names


def test_no_row_is_named_outside_of_its_registry():
    """What is asked of a row by its name is asked of no row of another package."""
    every = {name for registries in ROWS.values() for rows in registries for name in rows.own}
    found = {}
    for path in SOURCES:
        file = path.relative_to(ROOT).as_posix()
        names = every - {name for rows in ROWS.get(file, ()) for name in rows.own} - ELSEWHERE
        if said := names_said(path.read_text(encoding="utf-8"), names):
            found[file] = said
    assert found == {file: {*names} for file, names in BY_RIGHT.items()}


def test_the_rule_finds_a_name():
    source = (
        'class It:\n    row = CODECS["sign"]\n\nif name == "node+ring" or name in ("adam",): ...'
    )
    assert names_said(source, {"sign", "ring", "adam", "tree"}) == {"ring", "adam"}


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
