"""psrt explain: what its words and flags lead to, and one line for every mistake."""

from __future__ import annotations

import json
import re
import sys

import pytest

from psrt.cli import explain
from psrt.collective.analysis.machine import DEFAULT_COSTS
from psrt.core.errors import ConfigError
from support.cases import each


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


def test_numbers_that_json_does_not_know(ran, tmp_path):
    (tmp_path / "a.csv").write_text("A,1e200\nB,1e200\n")
    found = json.loads(ran("tree", "--values", str(tmp_path / "a.csv"), "--op", "prod", "--json"))
    assert found["result"][0]["0"]["values"] == [None]


def test_a_root(ran):
    text = ran("broadcast", "--ranks", "3", "--root", "C")
    assert "  root: C\n" in text
    assert "all ranks end with C in vector\n" in text


def test_costs(ran, tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(DEFAULT_COSTS.to_json())
    assert ran("tree", "--machine-costs", str(path)) == ran("tree")
    assert "at α = 3 µs per message" in ran(
        "tree", "--machine-costs", str(path), "--link", "inside"
    )
    given = ("--alpha", "1", "--beta", "2e-9", "--gamma", "0")
    assert "at α = 1 s per message, β = 2 ns/byte on the wire, γ = 0 ns" in ran("tree", *given)


@each(("words", "first"), [
    ("ssp:staleness=1 --workers 3 --steps 5 --slow 2:4", "ssp (staleness 1) · 3 workers, "
     "1 server · 5 steps each · worker 2 takes 4 × as long\n"),
    ("sync --slow none --servers 2", "sync · 4 workers, 2 servers · 8 steps each\n"),
    ("local-sgd:eager=true", "local-sgd (8 local steps, eager) · 4 workers · 16 steps each · "
     "worker"),
    ("local-sgd:fragments=2,sync-delay=3", "local-sgd (8 local steps, fragments 2, "
     "sync-delay 3) · 4 workers · 16 steps each · worker 1"),
    ("async --workers 1", "async · 1 worker, 1 server · 8 steps each\n"),
])  # fmt: skip
def test_knobs_of_a_mode(ran, words, first):
    assert ran(*words.split()).startswith(first)


@pytest.mark.parametrize(
    "what",
    ["ring", "pipeline", "ssp --steps 2", "sync --shards-per-server 2", "gossip", "codec sign"],
)
def test_html_writes_a_page_and_says_where(what, ran, tmp_path, capsys):
    page = tmp_path / "a.html"
    page.write_text("mine")
    assert refusal(*what.split(), "--html", str(page)) == (
        f"{page} exists: give --overwrite to replace it, or another --html"
    )
    assert page.read_text() == "mine"
    page.unlink()
    text = ran(*what.split(), "--html", str(page))
    assert text.startswith(ran(*what.split()))
    assert re.search(rf"\n{re.escape(str(page))}: \d+ steps, [0-9.]+ KiB; open it in a brow", text)
    assert page.read_text().startswith("<!doctype html>")
    # What programs read is the document alone.
    assert explain.main([*what.split(), "--html", str(page), "--overwrite", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["format"].startswith("psrt explain ")
    assert err.endswith("open it in a browser\n")


def test_pages_need_an_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    page = tmp_path / "a.html"
    assert refusal("ring", "--html", str(page)) == (
        "pages need jinja2, psrt's extra report: pip install 'jinja2>=3.1'"
    )
    assert not page.exists()


@pytest.mark.parametrize("what", ["ring --svg", "ssp --svg", "compare --plot"])
def test_what_cannot_be_written_is_found_before_the_work(what, monkeypatch):
    def working(*args, **more):
        raise AssertionError("it has begun")

    for function in ("timeline.run", "compare.compare", "explanation.explain"):
        monkeypatch.setattr(f"psrt.views.explain.{function}", working)
    assert refusal(*what.split(), ".") == "cannot write .: Is a directory"


@pytest.mark.parametrize(("argv", "words"), [
    ("", "give what to explain, such as psrt explain ring"),
    ("rnig", "cannot explain 'rnig' (did you mean ring?), expected one of butterfly, "),
    ("gossip:variant=pairs", "cannot explain 'gossip:variant=pairs' (did you mean gossip?)"),
    ("ssp:stale=2", "mode ssp has no knob 'stale' (did you mean staleness?)"),
    ("ring --ranks 257", "ranks must be at most 256, got 257"),
    ("ring --bytes 7", "bytes must be a multiple of 4, for float32, got 7"),
    ("tree --order A,B,C,D", "order has no effect with tree, only with ring"),
    ("ring --json --all", "--json is always complete: leave --all out"),
    ("ring --link insid", "got 'insid' (did you mean inside?)"),
    ("sync:backup=4", "--mode sync:backup=4 leaves no worker to wait for, got 4"),
    ("sync --slow 9:2", "slow names worker 9, which does not exist; the last is 3"),
    ("ring --html a.svg", "--html a.svg: the name of a page must end in .html"),
    ("ring --overwrite", "--overwrite has no effect without --html"),
    ("all-to-all --ranks 16 --html a.html", "html would show 4096 chunks of all ranks, at most 2"),
    ("ring --ranks 33 --html a.html", "html and svg show at most 32 ranks, got 33"),
])  # fmt: skip
def test_what_will_not_do(argv, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert words in refusal(*argv.split())
    assert capsys.readouterr().out == ""
    assert not list(tmp_path.iterdir())
