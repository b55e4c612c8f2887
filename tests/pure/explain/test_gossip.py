"""A topology explained: the text, the document and the drawing say what the matrices are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from psrt.cli import explain
from psrt.errors import ConfigError
from psrt.explain.gossip import explained
from psrt.explain.gossip_output import FORMAT, MOST_DRAWN, as_text, draw
from psrt.topology import GRAPHS, topology_of
from support.cases import each


def document(capsys, *argv):
    assert explain.main(["gossip", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", [*GRAPHS, "random-regular:3"])
def test_the_document_is_the_topology(name, capsys):
    found = document(capsys, "--topology", name, "--ranks", "16", "--bytes", "100")
    due = topology_of(name, 16)
    assert found["format"] == FORMAT
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
        "spectral gap": "0.333, a round leaves at most 0.667 of a disagreement",
        "to halve it": "2 rounds by the gap, 1 in a simulation of random numbers",
        "to a millionth": "35 rounds by the gap, 33 in a simulation of random numbers",
        "bytes": "a rank sends 2 MiB a round, with 1 MiB of parameters; a ring all-reduce of "
        "ranks sends 1.67 MiB",
        "two colours": "0 2 4 | 1 3 5",
    }
    assert lines[-1].startswith("psrt train --mode gossip averages like this")


@each(
    ("name", "size", "more", "words"),
    [
        ("one-peer-exponential", 8, {}, "1, after a period of 3 rounds all have the mean"),
        ("exponential", 6, {"push_sum": True}, "of a disagreement in the long run"),
        ("exponential", 6, {}, "do not suffice: edges go one way"),
        ("torus", 9, {}, "do not suffice: ranks 1, 0, 2 are a cycle of 3"),
        ("ring", 40, {}, "--json prints M of 40 ranks"),
        ("full", 1, {}, "two colours     0\n"),
        ("star", 5, {}, "a rank sends 1 MiB to 4 MiB a round"),
        ("ring", 10, {"hosts": (3, 1, 2, 4)}, "a host sends 2 MiB a round, with 1 MiB of "
         "parameters; a ring all-reduce of hosts sends 1.5 MiB"),
        ("star", 6, {"hosts": (3, 1, 2)}, "on hosts of 3, 1, 2: host 0 and each other host"),
    ],
)  # fmt: skip
def test_what_is_said(name, size, more, words):
    text = as_text(explained(name, size, nbytes=1 << 20, **more))
    assert words in text
    assert max(map(len, text.splitlines())) <= 120


@each(
    ("name", "size", "more"),
    [(name, 8, {}) for name in ("ring", "exponential", "one-peer-exponential", "star", "full")]
    + [("torus", 12, {}), ("torus", 4, {}), ("hypercube", 64, {}), ("full", 1, {})]
    + [("ring", 2, {}), ("ring", 10, {"hosts": (3, 1, 2, 4)})],
)
def test_the_drawing_has_every_rank_edge_and_weight_in_the_picture(name, size, more):
    found = explained(name, size, nbytes=4, **more)
    canvas = draw(found)
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
    for it in parts:
        for key, most in [
            *((key, canvas.width) for key in ("x", "x1", "x2", "cx")),
            *((key, canvas.height) for key in ("y", "y1", "y2", "cy")),
        ]:
            assert -1 <= float(it.attrib.get(key, 0)) <= most + 1
    cells = [it for it in parts if it.tag.endswith("rect") and it.attrib.get("stroke") != "none"]
    assert len(cells) - 1 >= size * size * len(found.graphs) - 1


def test_a_drawing_goes_to_its_file(tmp_path, capsys):
    path = tmp_path / "graph.svg"
    assert explain.main(["gossip", "--topology", "star", "--ranks", "5", "--svg", str(path)]) == 0
    assert "gossip on star, 5 ranks" in capsys.readouterr().out
    assert path.read_text().startswith("<svg ")


@each(
    ("argv", "text"),
    [
        ("--ranks 0", "ranks must be at least 1, got 0"),
        ("--ranks 1025", "ranks must be at most 1024"),
        ("--ranks two", "ranks must be a whole number"),
        ("--hosts 2,0", "hosts must be at least 1, got 0"),
        ("--hosts 2,2 --ranks 4", "--hosts 2,2 says the number of ranks: leave --ranks out"),
        ("--hosts 2,2 --push-sum", "push-sum mixes ranks, not hosts"),
        ("--hosts 2,1,1 --topology one-peer-exponential", "hosts with 2, 1, 1 ranks cannot mix"),
        ("--topology rings", "rings: cannot be read"),
        ("--topology hypercube --ranks 6", "power of two of ranks, got 6; 4 or 8 would do"),
        ("--topology random-regular:8", "no connected graph of 8 ranks has 8 neighbours"),
        ("--ranks 65 --svg x.svg", f"svg draws at most {MOST_DRAWN} ranks, got 65"),
        ("--svg .", "cannot write .: Is a directory"),
        ("--bytes 1X", "bytes must be a number of bytes"),
        ("torus", "unexpected argument 'torus'"),
    ],
)
def test_bad_input(argv, text):
    with pytest.raises(ConfigError, match=re.escape(text)) as error:
        explain.main(["gossip", *argv.split()])
    assert "\n" not in str(error.value)


def test_a_topology_by_its_name_alone():
    with pytest.raises(ConfigError, match="did you mean gossip --topology torus"):
        explain.main(["torus"])
    with pytest.raises(ConfigError, match="did you mean gossip"):
        explain.main(["gosip"])


def test_the_figures_of_the_page():
    page = (Path(__file__).parents[3] / "docs/gossip.md").read_text(encoding="utf-8")
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
