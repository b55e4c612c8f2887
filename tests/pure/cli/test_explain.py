"""psrt explain: what its words and flags lead to, and one line for every mistake."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from psrt.cli import explain
from psrt.codec.table import TABLE
from psrt.collective import SCHEDULES
from psrt.collective.analysis.machine import DEFAULT_COSTS
from psrt.errors import ConfigError

EXAMPLE = "A,17,11,1,9\nB,5,13,23,14\nC,3,6,10,8\nD,12,7,2,12\n"


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "example.csv"
    path.write_text(EXAMPLE)
    return str(path)


@pytest.fixture
def ran(capsys):
    def run(*argv):
        assert explain.main(argv) == 0
        return capsys.readouterr().out

    return run


def refusal(*argv):
    with pytest.raises(ConfigError) as caught:
        explain.main(argv)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_help_names_everything(ran):
    text = ran("--help")
    for name in (*SCHEDULES, *explain.TIMELINES, *TABLE, "codec", "gossip", "pipeline", "compare"):
        assert f" {name}" in text
    assert ran("-h") == text


@pytest.mark.parametrize(
    "argv",
    [
        *("--help", "ring --help", "ssp --help", "codec --help", "gossip --help"),
        *("pipeline --help", "pipeline compare --help", "compare --help"),
    ],
)
def test_help_needs_neither_numpy_nor_mpi(argv):
    code = (
        "import sys; from psrt.__main__ import main\n"
        f"try: main(['explain', *{argv.split()}])\n"
        "except SystemExit: pass\n"
        "print(*{'numpy', 'mpi4py', 'matplotlib'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: psrt explain ")
    assert done.stderr == "\n"


@pytest.mark.parametrize("what", SCHEDULES)
def test_every_collective(ran, what):
    assert ran(what, "--ranks", "3").startswith(what)
    assert json.loads(ran(what, "--ranks", "3", "--json"))["name"] == what


@pytest.mark.parametrize("what", explain.TIMELINES)
def test_every_mode(ran, what):
    assert ran(what, "--steps", "3").startswith(what)
    assert json.loads(ran(what, "--steps", "3", "--json"))["mode"] == what


def test_a_switch_of_a_mode(ran):
    usual, eager, lazy = (
        ran("local-sgd", *flags, "--json") for flags in ((), ("--eager",), ("--no-eager",))
    )
    assert eager != usual == lazy


def test_defaults(ran):
    text = ran("ring")
    assert "4 ranks: A B C D\n" in text
    assert "vector: 1 MiB = 262144 float32" in text
    assert ran("ring", "--ranks", "4", "--bytes", "1M", "--op", "sum") == text


def test_an_example(ran, path):
    text = ran("ring", "--values", path, "--order", "A,B,D,C")
    assert "chunk 3: 8 → 17 → 31 → 43\nall ranks end with (37, 37, 36, 43)\n" in text
    assert "all ranks end with (3, 6, 1, 8)\n" in ran("tree", "--values", path, "--op", "min")


def test_an_example_for_programs(ran, path):
    found = json.loads(ran("ring", "--values", path, "--order", "A,B,D,C", "--json"))
    assert found["order"] == [0, 1, 3, 2]
    assert found["result"][2]["3"] == {"of": [0, 1, 2, 3], "values": [43]}


def test_numbers_that_json_does_not_know(ran, tmp_path):
    (tmp_path / "a.csv").write_text("A,1e200\nB,1e200\n")
    found = json.loads(ran("tree", "--values", str(tmp_path / "a.csv"), "--op", "prod", "--json"))
    assert found["result"][0]["0"]["values"] == [None]


def test_an_order_without_an_example(ran):
    assert "ring: C → A → B → C\n" in ran("ring", "--ranks", "3", "--order", "C,A,B")


def test_a_root(ran):
    text = ran("broadcast", "--ranks", "3", "--root", "C")
    assert "  root: C\n" in text
    assert "all ranks end with C in vector\n" in text


def test_costs(ran, tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(DEFAULT_COSTS.to_json())
    assert ran("tree", "--machine-costs", str(path)) == ran("tree")
    assert "at α = 3 µs a message" in ran("tree", "--machine-costs", str(path), "--link", "inside")
    given = ("--alpha", "1", "--beta", "2e-9", "--gamma", "0")
    assert "at α = 1 s a message, β = 2 ns/byte on the wire, γ = 0 ns" in ran("tree", *given)


def test_everything(ran):
    assert "--all prints them" in ran("ring", "--ranks", "40")
    assert "--all" not in ran("ring", "--ranks", "40", "--all")


@pytest.mark.parametrize("what", ["ring", "ssp"])
def test_a_drawing(ran, tmp_path, what):
    path = tmp_path / "a.svg"
    assert ran(what, "--svg", str(path)) == ran(what)
    assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_knobs_of_a_mode(ran):
    found = ran("ssp", "--workers", "3", "--staleness", "1", "--steps", "5", "--slow", "2:4")
    assert found.startswith(
        "ssp (staleness 1) · 3 workers, 1 server · 5 steps each · worker 2 takes 4 × as long\n"
    )
    assert ran("sync", "--slow", "none", "--servers", "2").startswith(
        "sync · 4 workers, 2 servers · 8 steps each\n"
    )
    assert ran("local-sgd").startswith("local-sgd (8 local steps) · 4 workers · 16 steps")
    late = ran("local-sgd", "--fragments", "2", "--sync-delay", "3")
    assert " · 16 steps each · 2 fragments · averages taken 3 steps later · worker 1" in late
    assert " · 16 steps each · eager · worker 1" in ran("local-sgd", "--eager")
    assert ran("async", "--workers", "1").startswith("async · 1 worker, 1 server · 8 steps each\n")
    assert ran("sync", "--seed", "1") != ran("sync")


def test_help_of_a_mode_has_the_knobs_it_uses(capsys):
    with pytest.raises(SystemExit):
        explain.main(["ssp", "--help"])
    text = capsys.readouterr().out
    assert "--staleness N" in text
    assert "--softsync" not in text


def test_compare(ran):
    text = ran("compare", "--ranks", "4", "--bytes", "1K:1M")
    assert "4 ranks\n" in text
    found = json.loads(ran("compare", "--ranks", "4", "--bytes", "1K:1M", "--json"))
    assert {row["ranks"] for row in found["rows"]} == {4}
    slow = ran("compare", "--ranks", "4", "--bytes", "1K:1M", "--alpha", "1")
    assert "α = 1 s a message" in slow


def test_compare_plots(ran, monkeypatch):
    import psrt.explain.compare as module

    calls = []
    monkeypatch.setattr(module, "plot", lambda found, path: calls.append((found.ranks, path)))
    ran("compare", "--ranks", "2:8", "--bytes", "1K", "--plot", "a.png")
    assert calls == [((2, 4, 8), "a.png")]


PLAYED = ["ring", "pipeline", "ssp --steps 2", "sync --shards-per-server 2", "gossip", "codec sign"]


@pytest.mark.parametrize("what", PLAYED)
def test_html_writes_a_page_and_says_where(what, ran, tmp_path, capsys):
    page = tmp_path / "a.html"
    text = ran(*what.split(), "--html", str(page))
    assert text.startswith(ran(*what.split()))
    assert re.search(rf"\n{re.escape(str(page))}: \d+ steps, [0-9.]+ KiB; open it in a brow", text)
    assert page.read_text().startswith("<!doctype html>")
    # What programs read is the document alone.
    assert explain.main([*what.split(), "--html", str(page), "--overwrite", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["format"].startswith("psrt explain ")
    assert err.endswith("open it in a browser\n")


@pytest.mark.parametrize("what", PLAYED)
def test_a_page_that_is_there_is_replaced_if_asked(what, tmp_path):
    page = tmp_path / "a.html"
    page.write_text("mine")
    assert refusal(*what.split(), "--html", str(page)) == (
        f"{page} is there already; --overwrite replaces it, --html names another"
    )
    assert page.read_text() == "mine"


def test_pages_need_an_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    page = tmp_path / "a.html"
    assert refusal("ring", "--html", str(page)) == (
        "pages need jinja2, psrt's extra report: pip install 'jinja2>=3.1'"
    )
    assert not page.exists()


def test_a_reader_that_has_seen_enough():
    command = f"{shlex.quote(sys.executable)} -m psrt explain ring --ranks 64 --all"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} | head -1"], capture_output=True, text=True
    )
    assert done.stdout.startswith("ring, an all-reduce of 64 ranks")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("what", ["ring --svg", "ssp --svg", "compare --plot"])
def test_what_cannot_be_written_is_found_before_the_work(what, monkeypatch):
    def working(*args, **more):
        raise AssertionError("it has begun")

    for function in ("timeline.run", "compare.compare", "explanation.explain"):
        monkeypatch.setattr(f"psrt.explain.{function}", working)
    assert refusal(*what.split(), ".") == "cannot write .: Is a directory"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("", "explain what? for example: psrt explain ring"),
        ("--ranks 4 ring", "explain what? for example: psrt explain ring"),
        ("rnig", "cannot explain 'rnig' (did you mean ring?), only butterfly, "),
        ("rign", "cannot explain 'rign' (did you mean ring?), only butterfly, "),
        ("serial", "cannot explain 'serial'"),
        ("sgin", "cannot explain 'sgin' (did you mean codec sign?), only butterfly, "),
        ("ring 4", "unexpected argument '4'"),
        ("ring --rank 4", "unknown flag --rank (did you mean --ranks?)"),
        ("ring --ranks", "--ranks: expected one argument"),
        ("ring --ranks four", "ranks must be a whole number, got 'four'"),
        ("ring --ranks 0", "ranks must be at least 1, got 0"),
        ("ring --ranks 257", "ranks must be at most 256, got 257"),
        ("segmented-ring --ranks 64 --bytes 8G", "takes more than 200000 steps"),
        ("ring --bytes 1X", "bytes must be a number of bytes such as 64K, 1M or 1G, got '1X'"),
        ("ring --bytes 7", "bytes must be a multiple of 4, for float32, got 7"),
        ("ring --op avg", "op must be one of sum, mean, min, max, prod, and, or, xor, got 'avg'"),
        ("tree --order A,B,C,D", "order has no effect with tree; only ring has one to choose"),
        ("ring --order A,B", "order leaves out C, D, expected every rank once"),
        (
            "ring --root A",
            "root has no effect with ring; broadcast, reduce, scatter, gather have one to choose",
        ),
        ("reduce --root Z", "root names 'Z', the ranks are A, B, C, D"),
        ("ring --json --all", "--json is always complete; leave --all out"),
        ("ring --alpha fast", "alpha must be a finite number, got 'fast'"),
        ("ring --beta -1", "beta must be at least 0, got -1"),
        ("ring --gamma nan", "gamma must be a finite number, got 'nan'"),
        ("ring --link insid", "got 'insid' (did you mean inside?)"),
        ("ring --machine-costs none.json", "none.json: cannot be read: No such file or directory"),
        ("ring --values none.csv", "none.csv: cannot be read: No such file or directory"),
        ("ring --svg none/a.svg", "cannot write none/a.svg: No such file or directory"),
        ("tree --ranks 40 --svg a.svg", "svg draws at most 32 ranks, got 40"),
        ("ssp --stalness 2", "unknown flag --stalness (did you mean --staleness?)"),
        ("ssp --staleness two", "staleness must be a whole number, got 'two'"),
        ("async --staleness 2", "--staleness 2 has no effect with --mode async"),
        ("sync --backup 4", "--backup 4 leaves no worker to wait for, there are 4"),
        ("sync --workers 0", "workers must be at least 1, got 0"),
        ("sync --steps 201", "steps must be at most 200, got 201"),
        ("sync --slow 9:2", "slow names worker 9 that does not exist, the last is 3"),
        ("sync --servers 65", "65 shards of 64 parameters: each must own at least one"),
        ("sync --mode async", "unknown flag --mode"),
        ("allreduce --allreduce mpi", "all-reduce mpi needs MPI"),
        ("compare --ranks 8:2", "ranks '8:2' end before they begin"),
        ("compare --bytes x", "bytes must be a number of bytes"),
        ("compare --svg a.svg", "unknown flag --svg"),
        ("ring --svg .", "cannot write .: Is a directory"),
        ("ring --html none/a.html", "cannot write none/a.html: No such file or directory"),
        ("ring --html a.svg", "--html a.svg: a page ends in .html"),
        ("ring --overwrite", "--overwrite replaces the file of --html, which is not given"),
        ("ring --ranks 33 --html a.html", "html plays at most 32 ranks, got 33"),
        ("ssp --svg none/a.svg", "cannot write none/a.svg: No such file or directory"),
        ("compare --plot .", "cannot write .: Is a directory"),
        ("compare --plot none/a.png", "cannot write none/a.png: No such file or directory"),
        ("compare --plot a", "cannot write a: its ending must name a format: "),
        ("compare --plot a.doc", "cannot write a.doc: its ending must name a format: "),
    ],
)
def test_what_will_not_do(argv, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert words in refusal(*argv.split())
    assert capsys.readouterr().out == ""
    assert not list(tmp_path.iterdir())


def test_costs_that_are_none(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text("{}")
    assert refusal("ring", "--machine-costs", str(path)).startswith(f"{path}: ")


@pytest.mark.parametrize("flag", ["--ranks", "--bytes"])
def test_an_example_says_itself_how_large_it_is(path, flag):
    expected = f"the numbers of {path} set ranks and size: leave --ranks and --bytes out"
    assert refusal("ring", "--values", path, flag, "4") == expected


def test_an_order_is_by_the_names_of_the_example(path):
    assert "order names 'E'" in refusal("ring", "--values", path, "--order", "A,B,C,E")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("pipeline gpipe", "a schedule is given by --pipeline-schedule gpipe"),
        ("pipeline interleaved:2", "a schedule is given by --pipeline-schedule interleaved:2"),
        ("pipeline gpip", "cannot explain pipeline 'gpip' .did you mean gpipe"),
        ("pipeline --stages 2,1", "here it is their number, --stages 2"),
        ("pipeline compare --stages 2,1", "here it is their number, --stages 2"),
    ],
)
def test_what_is_nearly_right_of_a_pipeline_is_put_right(argv, message):
    with pytest.raises(ConfigError, match=message):
        explain.main(argv.split())
