"""A collective as text, document and drawing: all of a small one, and what is left out."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from psrt.collective import SCHEDULES
from psrt.views.explain.inputs import Example
from psrt.views.explain.output import FORMAT, as_document, as_text
from psrt.views.film.collective import film_of
from psrt.views.film.drawing import draw
from support.cases import each
from support.explanations import EXAMPLE, explained

RING = """\
ring, an all-reduce of 3 ranks: A B C
  {summary}
  vector: 24 B = 6 float32, chunks 0–2 of 2 elements
  Σ is the sum of all 3

round 1
  A → B: chunk 0 (A)   B holds A+B
  B → C: chunk 1 (B)   C holds B+C
  C → A: chunk 2 (C)   A holds A+C

round 2
  A → B: chunk 2 (A+C)   B holds A+B+C = Σ
  B → C: chunk 0 (A+B)   C holds A+B+C = Σ
  C → A: chunk 1 (B+C)   A holds A+B+C = Σ

round 3
  A → B: chunk 1 (Σ)   B holds Σ
  B → C: chunk 2 (Σ)   C holds Σ
  C → A: chunk 0 (Σ)   A holds Σ

round 4
  A → B: chunk 0 (Σ)   B holds Σ
  B → C: chunk 1 (Σ)   C holds Σ
  C → A: chunk 2 (Σ)   A holds Σ

all ranks end with A+B+C = Σ in chunks 0–2

wires     3 of the 6 from one rank to another
messages  12, 4 per rank

                            this one   least   ratio   in time   at least
rounds                             4       2    2.00      4 ms       2 ms
bytes of the busiest rank       32 B    32 B    1.00     32 µs      32 µs
bytes it combines               16 B    16 B    1.00    1.6 µs     1.6 µs
time                         4.03 ms    2 ms    2.02
at α = 1 ms per message, β = 1e+03 ns/byte on the wire, γ = 100 ns/byte combined"""


def test_a_ring_of_three():
    assert as_text(explained("ring", 3, 6)) == RING.format(summary=SCHEDULES["ring"].summary)


def test_what_is_left_out_is_said_and_can_be_had():
    shown = explained("ring", 30, 30)
    text, whole = as_text(shown), as_text(shown, everything=True)
    assert len(text.splitlines()) < 80
    assert "… rounds 4 to 56 with 1590 steps are left out; --all prints them" in text
    assert "  … and 24 more; --all prints them" in text
    assert len(re.findall(" → ", whole)) == 58 * 30
    assert "left out" not in whole
    text = as_text(explained("butterfly", 128, 1))  # of few rounds, which are long
    assert len(text.splitlines()) < 140
    assert "more; --all prints them" in text
    assert "  0 → 1: vector (0)   1 holds 0+1\n" in text


@each("size", [1, 2, 5, 8])
@each("name", SCHEDULES)
def test_everything_can_be_written(name, size):
    text = as_text(explained(name, size, 40))
    assert text.startswith(name)
    assert ("\nnothing to send\n" in text) == (size == 1)
    assert not re.search(r"[ \t]+$", text, re.MULTILINE)
    assert "None" not in text


def test_the_document_of_a_ring_of_two():
    document = as_document(explained("ring", 2, 4))
    totals, rounds = document.pop("totals"), document.pop("rounds")
    own = [{"of": [0], "values": None}], [{"of": [1], "values": None}]
    both = {"of": [0, 1], "values": None}
    for number, combine, carries in ((0, True, own), (1, False, ([both], [both]))):
        sent = (0, 1) if combine else (1, 0)
        assert rounds[number] == {"round": number + 1, "steps": [
            {
                "from": rank, "to": 1 - rank, "send": [sent[rank]], "receive": [sent[rank]],
                "combine": combine, "carries": carries[rank], "before": own[1 - rank],
                "after": [both],
            }
            for rank in (0, 1)
        ]}  # fmt: skip
    assert document == {
        "format": FORMAT, "name": "ring", "kind": "all-reduce", "op": "sum", "ranks": ["A", "B"],
        "order": None, "root": None, "elements": 4, "itemsize": 4, "workspace": 0,
        "chunks": [[0, 2], [2, 4]], "start": [own[0] * 2, own[1] * 2],
        "result": [{"0": both, "1": both}] * 2,
    }  # fmt: skip
    assert totals == {
        "rounds": 2, "messages": 4, "wires": 2, "bytes_sent": [16, 16],
        "bytes_received": [16, 16], "bytes_combined": [8, 8],
        "seconds": pytest.approx(2e-3 + 16e-6 + 8e-7),
        "costs": {"alpha": 1e-3, "beta": 1e-6, "gamma": 1e-7},
        "least": {"rounds": 1, "bytes_moved": 16.0, "bytes_combined": 8.0, "seconds": 1e-3},
        "ratio": pytest.approx(2.0168),
    }  # fmt: skip
    assert len(rounds) == 2


SVG = "{http://www.w3.org/2000/svg}"


def shapes(canvas):
    root = ElementTree.fromstring(canvas.as_text())
    return root, list(root)


def texts(canvas):
    return [shape.text for shape in shapes(canvas)[1] if shape.tag == f"{SVG}text"]


@each("size", [1, 3, 8])
@each("name", SCHEDULES)
def test_everything_is_inside_and_every_message_has_its_arrow(name, size):
    shown = explained(name, size, size * 4)
    canvas = draw(film_of(shown))
    root, found = shapes(canvas)
    width, height = float(root.get("width")), float(root.get("height"))
    for shape in found:
        for key in ("x", "x1", "x2", "cx"):
            assert 0 <= float(shape.get(key, 0)) <= width
        for key in ("y", "y1", "y2", "cy"):
            assert 0 <= float(shape.get(key, 0)) <= height
        if shape.tag == f"{SVG}rect" and shape.get("width") != "100%":
            assert float(shape.get("x")) + float(shape.get("width")) <= width + 0.1
            assert float(shape.get("y")) + float(shape.get("height")) <= height + 0.1
    heads = [shape for shape in found if shape.tag == f"{SVG}polygon"]
    assert len(heads) == shown.totals.price.messages


def test_a_mean_is_shown_divided_and_a_result_where_one_counts():
    svg = draw(film_of(explained("ring", example=EXAMPLE, op="mean"))).as_text()
    assert svg.count(">9.25</text>") == 8  # 37 / 4, two chunks of it on each rank
    assert "the sum of all" in svg
    assert "result" in texts(draw(film_of(explained("reduce-scatter", 3))))
    assert "result" not in texts(draw(film_of(explained("ring", 3))))


def test_names_are_escaped_and_what_ranks_do_alone_is_drawn():
    example = Example(("<a>", "b&c"), ((1,), (2,)))
    assert {"<a>", "b&c"} <= set(texts(draw(film_of(explained("tree", example=example)))))
    assert {"w0", "0 += w0"} <= set(texts(draw(film_of(explained("naive", 2)))))
