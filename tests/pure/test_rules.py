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
    "bench/allreduce_rows.py": {
        **dict.fromkeys(
            ("ring", "segmented-ring", "double-tree", "butterfly", "halving-doubling"),
            "what has a turn in every round, and between hosts",
        ),
        "plain": "an array, not of a window",
    },
    "planning/families.py": dict.fromkeys(
        ("int8", "float16", "top-k", "one-peer-exponential"),
        "one of each kind that a short run stands for",
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
        "plain": "a variant of gossip",
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
    "planning/candidates.py": _KNOB,
    "simulation/distributions.py": dict.fromkeys(("constant", "exponential"), "distributions"),
    "trainer/parameter_server.py": {"async": "where nobody chooses"},
    "views/explain/output.py": {"root": "a field of its JSON"},
    "views/page/parts.py": {"plain": "a tone"},
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


#: A phrase that readers stumbled over, as a regular expression → what the field says.
PHRASES = {
    r"(?:go|goes|going|went|gone) on(?! an error)": "resume, continue, keep running",
    r"so many": "the number of N; N; that many",
    r"so much (?:for|each|a row|and)": "a cost per",
    r"(?:\d|one|frame|line|shards?|\}) a (?:server|host|worker|rank|node|value|round)": "per",
    r"(?<!for\s)(?<!with\s)(?<!to\s)(?<!\{)whom(?!:)": "who; which rank",
    r"untold": "unreported",
    r"(?:is|are|was|were|be|been|being|has|have|had|nobody|not) told": "reported, notified, known",
    r"whoever": "any rank that; the caller",
    r"weaken(?:s|ed)?(?= (?:a|the|none|by|gradients))": "scale down",
    r"cuts? (?:into|across)": "split into, split across",
    r"models? (?:that )?(?:is|are) cut": "a model that is split",
    r"(?:rank|worker|server|shard|role|run|owner|job|each|who)s? (?:is|are) to \w+": "should",
    r"no rank is to|is no rank to": "no rank should",
    r"strangers?": "an untrusted source",
    r"(?:brings?|brought|goes?|comes?|came) along": "is included, is sent with it",
    r"brings? an MPI": "installs its own MPI",
    r"(?:falls?|fell|fallen|falling) silent": "stops responding",
    r"who is late": "stragglers",
    r"(?:gets?|getting) on(?! an?)": "makes progress",
    r"what led to": "the last events before",
    r"(?:modes?|runs?|gossip|servers|averages) in rounds": "synchronous",
    r"to the same bits": "bit-identically",
    r"shares? no code with": "is independent of",
    r"of (?:theirs|ours)": "their, our",
    r"taken (?:to be|for) (?:dead|a death|stuck)": "declared dead",
    r"(?:deals?|dealt|dealing)(?: \w+)? out": "distribute, partition",
    r"(?:shares?|shared|sharing)(?: \w+){0,2} out": "shard, divide among",
    r"passed over": "skipped, ignored",
    r"(?:stands?|stood|standing) still": "is frozen, is suspended",
    r"without a word|no word (?:of|from)": "silently; no message from",
    r"(?:holds?|held|holding)(?: [\w`'-]+){0,4} against": "check against, compare with",
    r"(?:that|which|what) (?:is|are|was|were) (?-i:none)": "that is not one; invalid",
    r"(?:is|are|be) (?-i:none) of": "is not one of",
    r"(?:that|which|what|who) (?:is|are|was|were) no (?!more|longer|larger|further)\w+": "is not a",
    r"of one's own": "of your own",
    r"but for": "except for",
    r"(?<=[.:;#(]\s)who (?:goes|asks|answers|joins|stays|refuses|calls|stops|hands|leaves|tells)"
    r"|(?<=[.:;#(]\s)who is (?:gone|missed|taken|cut|late|done)": "the rank that",
    r"(?:all|what) there is(?! to be)": "everything; all N",
    r"under way": "in flight (messages); in progress (runs)",
    r"yardstick": "baseline",
    r"out of turn": "out of order",
    r"(?:is|are) through(?! (?:the|a|shared))": "has finished",
    r"dear(?:er|est)? (?:stage|ones?|than|is|small|a row|products)": "expensive; the slowest",
    r"(?:as|equally|are) dear": "as expensive",
    r"(?:puts?|putting) aside": "buffered, deferred",
    r"(?:lets?|letting) go": "free, release",
    r"let something": "the verb first",
    r"of one moment": "at the same time",
    r"one behind (?:another|the other)": "one after another",
    r"of before": "older",
    r"anew": "again, from scratch",
    r"too (?:few|small|little) to be": "too small to split",
    r"is said (?:of|where|behind|about|here)|what is said": "reported",
    r"the dead(?! (?:ranks?|workers?|servers?|hosts?|nodes?|ones?|peers?|process))": "dead ranks",
    r"(?:that|those) of --\w+": "name the thing again",
    r"moves? towards": "is pulled towards",
    r"reckons? with": "account for",
    r"(?:comes?|came) to (?:an?|the|that|this) (?:clock|step|checkpoint|end|cut|round)": "reach",
    r"sees? to (?:it|what)": "make sure; progress",
    r"(?:do|does|did|doing) without": "does not need",
    r"not alike": "non-IID",
    r"in the place of": "instead of",
    r"more so the": "split the sentence",
}  # fmt: skip
#: A space in a phrase, or where one line of a comment, a text or a page ends and the next begins.
_GAP = r'(?: +|[ \t]*"?\n[ \t]*(?:#:? ?|[fr\0]*")?)'
_WANTED = [
    (re.compile(rf"\b(?:{phrase.replace(' ', _GAP)})\b", re.IGNORECASE), better)
    for phrase, better in PHRASES.items()
]
_PROSE = re.compile(r'"""[\s\S]*?"""|"(?:\\.|[^"\\\n])*"|#[^\n]*')
_REPOSITORY = ROOT.parent
WRITTEN = {
    "pages": [it for name in ("*.md", "docs/*.md", "docs/*.rst") for it in _REPOSITORY.glob(name)],
    "psrt": SOURCES,
    "apps": [*_REPOSITORY.glob("apps/**/*.py"), *_REPOSITORY.glob("docs/*.py")],
}  # fmt: skip


def prose_of(source: str) -> str:
    """Return a source with its comments and texts, and nothing else but white space, in place."""
    parts, at = [], 0
    for it in _PROSE.finditer(source):
        parts += [re.sub(r"\S+", "\0", source[at : it.start()]), it[0]]
        at = it.end()
    return "".join(parts)


def stumbled_over(text: str) -> list[str]:
    """Return the phrases of a text that have a better one, with their lines."""
    return [
        f"{text.count(chr(10), 0, it.start()) + 1}: {it[0]!r}: {better}"
        for phrase, better in _WANTED
        for it in phrase.finditer(text)
    ]


@pytest.mark.parametrize("where", WRITTEN)
def test_words_are_the_fields(where):
    found = []
    for path in WRITTEN[where]:
        text = path.read_text(encoding="utf-8")
        lines = stumbled_over(prose_of(text) if path.suffix == ".py" else text)
        found += [f"{path.relative_to(_REPOSITORY)}:{line}" for line in lines]
    assert not found, "\n".join(found)


def test_the_rule_finds_a_phrase():
    source = 'goes_on = 1  # A run goes\n# on.\nwhoever = print("so "\n    f"many", whoever)\n'
    found = stumbled_over(prose_of(source))
    assert [line.partition(":")[0] for line in found] == ["1", "3"]
    assert stumbled_over("Who waits for whom? It goes on an error.") == []
