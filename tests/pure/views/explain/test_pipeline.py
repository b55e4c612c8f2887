"""Pipelines and topologies explained: text, document and drawing say what there is."""

from __future__ import annotations

import json
import re
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from psrt.cli import explain
from psrt.pipeline import PIPELINES, schedule_of
from psrt.topology import topology_of
from psrt.views.explain.gossip import explained as topology_explained
from psrt.views.explain.gossip_output import FORMAT as GOSSIP_FORMAT
from psrt.views.explain.gossip_output import draw as draw_topology
from psrt.views.explain.pipeline import compared, explained
from psrt.views.explain.pipeline_output import (
    COMPARE_FORMAT,
    FORMAT,
    as_document,
)
from psrt.views.film.drawing import draw
from psrt.views.film.pipeline import film_of
from psrt.views.film.text import lanes_text
from support.cases import each
from support.graphs import GRAPHS

ROOT = Path(__file__).parents[4]


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
    row, chunks = schedule_of(name).row, schedule_of(name).chunks
    found = explained(row, stages, micro_batches, chunks, deferred=deferred)
    text, said = lanes_text(film_of(found)), as_document(found)
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
        "time": "16 units, in which each stage computes for 12",
        "speedup": "2.25 over a single stage, if only the bubble costs time",
        "alive": "at most 3 2 1 activations by stage",
        "messages": "16: 8 activations, 8 gradients",
        "source": "Narayanan et al., SOSP 2019; ICML 2021 (2006.09503)",
    }


@each(("name", "stages", "micro_batches", "deferred"), CASES)
def test_the_drawing_has_every_pass_in_the_picture(name, stages, micro_batches, deferred):
    row, chunks = schedule_of(name).row, schedule_of(name).chunks
    found = explained(row, stages, micro_batches, chunks, deferred=deferred)
    canvas = draw(film_of(found))
    shapes = list(ElementTree.fromstring(canvas.as_text()))
    passes = [it.attrib for it in shapes if it.attrib.get("stroke") == "white"]
    weights = 1 if deferred else micro_batches
    assert len(passes) == stages * chunks * (2 * micro_batches + weights)
    # Three kinds of passes, and of chunks two shades of each.
    assert len({it["fill"] for it in passes}) == (6 if chunks > 1 else 3)
    taken = sorted((float(it["y"]), float(it["x"]), float(it["width"])) for it in passes)
    for (y, x, width), (next_y, next_x, _) in pairwise(taken):
        assert next_y > y or next_x >= x + width - 0.2


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


@each(("name", "chunks", "sizes"), [
    *((name, 1, (3, 4)) for name in ("gpipe", "1f1b", "zero-bubble", "pipedream")),
    ("sequential", 1, (3, 1)),
    ("interleaved", 2, (2, 3)),
])  # fmt: skip
def test_derivations_have_the_picture_that_is_explained(name, chunks, sizes):
    row = PIPELINES[name]
    pictured = timeline_of(import_module(row.order.__module__).__doc__ or "")
    assert pictured == timeline_of(lanes_text(film_of(explained(row, *sizes, chunks))))


# Topologies.


@each("name", [*GRAPHS, "random-regular:3"])
def test_the_document_is_the_topology(name, capsys):
    words = f"gossip --topology {name} --ranks 16 --bytes 100 --json"
    assert explain.main(words.split()) == 0
    found = json.loads(capsys.readouterr().out)
    due = topology_of(name, 16)
    assert found["format"] == GOSSIP_FORMAT
    for turn, graph, matrix in zip(found["period"], due.graphs, due.matrices, strict=True):
        assert {tuple(edge) for edge in turn["edges"]} == graph.edges
        np.testing.assert_array_equal(turn["matrix"], matrix)
    degree = [np.count_nonzero(np.sum(due.matrices, axis=0)[:, rank]) - 1 for rank in range(16)]
    assert found["sent"] == [100 * it / due.period for it in degree]
    assert found["all_reduce"] == 2 * 100 * 15 / 16
    assert found["gap"] == 1 - found["contraction"] == due.gap
    for it in found["rounds"]:
        assert 0 < it["simulated"] <= it["by_gap"]
    if found["colours"] is not None:
        assert all(
            found["colours"][i] != found["colours"][j]
            for turn in found["period"]
            for i, j in turn["edges"]
        )


def test_the_text_of_a_ring(capsys):
    assert explain.main(["gossip", "--ranks", "6"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "gossip on ring, 6 ranks: rank i and rank i + 1"
    assert lines[4:7] == [
        "   M   0   1   2   3   4   5",
        "   0 1/3 1/3   .   .   . 1/3",
        "   1 1/3 1/3 1/3   .   .   .",
    ]
    facts = dict(re.split(r"  +", line, maxsplit=1) for line in lines[12:18])
    assert facts == {
        "weights": "rows and columns add up to 1, symmetric; all ranks connected",
        "spectral gap": "0.333: a round leaves at most 0.667 of the disagreement",
        "to halve it": "2 rounds by the gap, 1 in a simulation of random numbers",
        "to a millionth": "35 rounds by the gap, 33 in a simulation of random numbers",
        "bytes": "a rank sends 2 MiB per round, for 1 MiB of parameters; in a ring all-reduce of "
        "ranks it sends 1.67 MiB",
        "two colours": "0 2 4 | 1 3 5",
    }
    assert lines[-1].startswith("psrt train --mode gossip averages like this")


@each(
    ("name", "size", "more"),
    [(name, 8, {}) for name in ("ring", "one-peer-exponential", "star", "full")]
    + [("torus", 12, {}), ("full", 1, {}), ("ring", 10, {"hosts": (3, 1, 2, 4)})],
)
def test_the_drawing_has_every_rank_edge_and_weight_in_the_picture(name, size, more):
    found = topology_explained(name, size, nbytes=4, **more)
    canvas = draw_topology(found)
    root = ElementTree.fromstring(canvas.as_text())
    parts = [element for element in root if not element.tag.endswith("title")]
    circles = [it.attrib for it in parts if it.tag.endswith("circle")]
    assert len(circles) == sum(graph.size for graph in found.graphs)
    assert len({(it["cx"], it["cy"]) for it in circles}) == len(circles)
    heads = sum(it.tag.endswith("polygon") for it in parts)
    one_way = sum((j, i) not in graph.edges for graph in found.graphs for i, j in graph.edges)
    assert heads == one_way
    pairs = sum(len({frozenset(edge) for edge in graph.edges}) for graph in found.graphs)
    lines = sum(it.tag.endswith("line") for it in parts)
    around = {("torus", 12): 7}.get((name, size), 0)  # these are cut into two
    assert lines == pairs + around
    for it in circles:
        assert 0 < float(it["cx"]) < canvas.width
        assert 0 < float(it["cy"]) < canvas.height
    cells = [it for it in parts if it.tag.endswith("rect") and it.attrib.get("stroke") != "none"]
    assert len(cells) - 1 >= size * size * len(found.graphs) - 1


def test_the_figures_of_the_page():
    page = (Path(__file__).parents[4] / "docs/gossip.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| 16 \| (.*?) \| (.*?) \| (.*?) \| (.*?) \| (.*?) \| (.*?) \|", page, re.M
    )
    assert len(rows) == 5
    for names, gap, *said in rows:
        for at, name in enumerate(re.findall("`(.*?)`", names)):
            found = topology_of(name, 16)
            assert f"{found.gap:.3g}" == gap.split(" ")[0]
            rounds = [
                count
                for share in (0.5, 1e-6)
                for count in (found.rounds_to(share), found.simulated_rounds(share))
            ]
            assert rounds == [int(it.split(", ")[min(at, it.count(", "))]) for it in said]
