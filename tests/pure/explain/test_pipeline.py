"""A pipeline explained: text, document, drawing and the page say what the schedule does."""

from __future__ import annotations

import json
import re
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from psrt.cli import explain
from psrt.errors import ConfigError
from psrt.explain.pipeline import compared, explained
from psrt.explain.pipeline_output import (
    COMPARE_FORMAT,
    FORMAT,
    as_document,
    as_text,
    compared_text,
    draw,
)
from psrt.pipeline import PIPELINES, pipeline_of
from support.cases import each

ROOT = Path(__file__).parents[3]


def document(capsys, *argv):
    assert explain.main(["pipeline", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def timeline_of(text):
    """Return by stage what is written in the columns of a text's bands."""
    rows: dict[int, list[str]] = {}
    for line in text.splitlines():
        if found := re.fullmatch(r" *stage (\d+) (.*)", line):
            rows.setdefault(int(found[1]), []).extend(found[2].split())
    return [rows[stage] for stage in range(len(rows))]


LETTERS = {"forward": "F", "backward-input": "B", "backward-weight": "W"}

CASES = (
    ("sequential", 3, 2, False),
    ("gpipe", 4, 8, False),
    ("gpipe", 3, 4, True),
    ("1f1b", 4, 8, False),
    ("interleaved:2", 4, 9, False),
    ("interleaved:3", 2, 4, True),
    ("zero-bubble", 4, 30, False),
    ("pipedream", 3, 5, False),
    ("1f1b", 1, 1, False),
)


@each(("name", "stages", "micro_batches", "deferred"), CASES)
def test_text_and_document_are_one_timeline(name, stages, micro_batches, deferred):
    row, chunks = pipeline_of(name)
    found = explained(row, stages, micro_batches, chunks, deferred=deferred)
    text, said = as_text(found), as_document(found)
    assert max(map(len, text.splitlines())) <= 118
    assert said["format"] == FORMAT
    for drawn, line in zip(timeline_of(text), said["lines"], strict=True):
        due = ["."] * said["units"]
        for run in line:
            m = "*" if run["micro_batch"] < 0 else run["micro_batch"]
            what = f"{m}{'abc'[run['chunk']] if chunks > 1 else ''}"
            for unit in range(run["start"], run["stop"]):
                kind = run["kind"]
                if kind == "backward":
                    kind = ("backward-input", "backward-weight")[unit - run["start"]]
                due[unit] = LETTERS[kind] + what
        assert drawn == due
    idle = sum(drawn.count(".") for drawn in timeline_of(text))
    assert said["bubble"] == pytest.approx(idle / (stages * said["units"]))
    assert f"{said['bubble']:.1%} of the time" in text
    sends = sum("send" in step["kind"] for steps in said["steps"] for step in steps)
    assert said["messages"] == sends
    assert f"{sends}: {sends // 2} activations, {sends // 2} gradients" in text
    assert said["staleness"] == ([2, 1, 0] if name == "pipedream" else None)


def test_the_text_of_1f1b(capsys):
    assert explain.main(["pipeline", "--stages", "3", "--micro-batches", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("1f1b, 3 stages, 4 micro-batches: one forward, one backward")
    assert lines[2:5] == [
        "stage 0  F0 F1 F2  .  . B0 W0 F3 B1 W1  . B2 W2  . B3 W3",
        "stage 1   . F0 F1  . B0 W0 F2 B1 W1 F3 B2 W2  . B3 W3  .",
        "stage 2   .  . F0 B0 W0 F1 B1 W1 F2 B2 W2 F3 B3 W3  .  .",
    ]
    facts = dict(re.split(r"  +", line, maxsplit=1) for line in lines[8:])
    assert facts == {
        "bubble": "25.0% of the time; (2P − 2)/(3M + 2P − 2)",
        "time": "16 units, of which each stage computes 12",
        "speedup": "2.25 over one stage that does all, by the bubble alone",
        "alive": "at most 3 2 1 activations by stage",
        "messages": "16: 8 activations, 8 gradients",
        "source": "Narayanan et al., SOSP 2019; ICML 2021 (2006.09503)",
    }


@each(
    ("name", "sizes", "deferred", "words"),
    [
        ("pipedream", (3, 8), False, "3 stages, 8 batches: "),
        ("pipedream", (3, 8), False, "2 1 0 updates by stage; kept: 3 2 1 versions by stage"),
        ("pipedream", (3, 8), False, "F3 forward of batch 3"),
        ("gpipe", (2, 1), False, "2 stages, 1 micro-batch: "),
        ("gpipe", (2, 3), True, "W* is one product of all micro-batches."),
        ("gpipe", (2, 3), False, "at most 3 activations in every stage"),
        ("interleaved:2", (2, 3), False, "Chunks are a to b, behind the number; a pass takes 1/2"),
        ("zero-bubble", (4, 30), False, "units 0 to "),
    ],
)
def test_what_is_said(name, sizes, deferred, words):
    row, chunks = pipeline_of(name)
    assert words in as_text(explained(row, *sizes, chunks, deferred=deferred))


@each(("name", "stages", "micro_batches", "deferred"), CASES)
def test_the_drawing_has_every_pass_in_the_picture(name, stages, micro_batches, deferred):
    row, chunks = pipeline_of(name)
    found = explained(row, stages, micro_batches, chunks, deferred=deferred)
    canvas = draw(found)
    shapes = list(ElementTree.fromstring(canvas.as_text()))
    passes = [it.attrib for it in shapes if it.attrib.get("stroke") == "white"]
    weights = 1 if deferred else micro_batches
    assert len(passes) == stages * chunks * (2 * micro_batches + weights)
    # Three kinds of passes, and of chunks two shades of each.
    assert len({it["fill"] for it in passes}) == (6 if chunks > 1 else 3)
    taken = sorted((float(it["y"]), float(it["x"]), float(it["width"])) for it in passes)
    for (y, x, width), (next_y, next_x, _) in pairwise(taken):
        assert next_y > y or next_x >= x + width - 0.2
    for it in shapes:
        for key, most in (("x", canvas.width), ("y", canvas.height)):
            if not it.attrib.get(key, "").endswith("%"):
                assert -1 <= float(it.attrib.get(key, 0)) <= most + 1


def test_a_drawing_goes_to_its_file(tmp_path, capsys):
    path = tmp_path / "pipeline.svg"
    assert explain.main(["pipeline", "--svg", str(path)]) == 0
    assert "1f1b, 4 stages, 8 micro-batches" in capsys.readouterr().out
    assert path.read_text().startswith("<svg ")


def test_the_comparison(capsys):
    assert explain.main(["pipeline", "compare", "--stages", "4"]) == 0
    text = capsys.readouterr().out
    rows = {re.split(r"  +", line)[0]: line.split() for line in text.splitlines()[3:15]}
    assert rows["sequential"][1:] == ["75.0%", "1.00", "96", "1", "48"]
    assert rows["1f1b"][1:] == ["20.0%", "3.20", "30", "4", "to", "1", "48"]
    assert rows["interleaved:2"][1:] == ["11.1%", "3.56", "27", "5.5", "to", "2.5", "112"]
    assert rows["zero-bubble"][1:] == ["11.1%", "3.56", "27", "4", "48"]
    assert rows["pipedream"][-3:] == ["3", "to", "0"]
    assert rows["gpipe, weights deferred"][3:] == ["20.0%", "3.20", "30", "8", "48"]
    assert len(rows) == 12
    assert explain.main(["pipeline", "compare", "--stages", "4", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["format"] == COMPARE_FORMAT
    assert [it["bubble"] for it in said["schedules"]] == [it.price.bubble for it in compared(4, 8)]


@each(
    ("argv", "text"),
    [
        ("--stages 0", "stages must be at least 1, got 0"),
        ("--stages 33", "stages must be at most 32"),
        ("--micro-batches 129", "micro-batches must be at most 128"),
        ("--micro-batches two", "micro-batches must be a whole number"),
        ("--pipeline-schedule gpipes", "no pipeline schedule 'gpipes', only sequential, gpipe"),
        ("--pipeline-schedule interleaved", "interleaved:V needs the number of chunks"),
        (
            "--pipeline-schedule pipedream --defer-weights",
            "weights of pipedream cannot be deferred",
        ),
        ("--svg .", "cannot write .: Is a directory"),
        ("gpipe", "a schedule is given by --pipeline-schedule gpipe"),
        ("compare --pipeline-schedule gpipe", "unknown flag --pipeline-schedule"),
        ("compare --stages 0", "stages must be at least 1, got 0"),
    ],
)
def test_bad_input(argv, text):
    with pytest.raises(ConfigError, match=re.escape(text)) as error:
        explain.main(["pipeline", *argv.split()])
    assert "\n" not in str(error.value)


def test_a_schedule_by_its_name_alone():
    with pytest.raises(ConfigError, match="did you mean pipeline --pipeline-schedule gpipe"):
        explain.main(["gpipe"])
    with pytest.raises(ConfigError, match="did you mean pipeline"):
        explain.main(["pipelin"])


# --- the pictures of derivations --------------------------------------------------------------


@each(
    ("name", "chunks", "sizes"),
    [
        *((name, 1, (3, 4)) for name in ("gpipe", "1f1b", "zero-bubble", "pipedream")),
        ("sequential", 1, (3, 1)),
        ("interleaved", 2, (2, 3)),
    ],
)
def test_derivations_have_the_picture_that_is_explained(name, chunks, sizes):
    row = PIPELINES[name]
    pictured = timeline_of(import_module(row.order.__module__).__doc__ or "")
    assert pictured == timeline_of(as_text(explained(row, *sizes, chunks)))


def test_the_page_has_what_is_explained():
    page = (ROOT / "docs/parallelism.md").read_text(encoding="utf-8")
    deferred = page.partition("### Deferred weights")[2].partition("\n## ")[0]
    assert timeline_of(deferred) == timeline_of(
        as_text(explained(PIPELINES["gpipe"], 3, 4, deferred=True))
    )
    assert compared_text(compared(4, 8)).split("\n\n")[1] in page
