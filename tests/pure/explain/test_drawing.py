"""Drawings: well-formed, with everything inside, an arrow per message and a box per chunk."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from psrt.collective import SCHEDULES
from psrt.errors import ConfigError
from psrt.explain.drawing import draw
from psrt.explain.inputs import Example
from psrt.explain.svg import Canvas
from support.cases import each
from support.explanations import EXAMPLE, explained

SVG = "{http://www.w3.org/2000/svg}"


def shapes(canvas):
    root = ElementTree.fromstring(canvas.as_text())
    return root, list(root)


def texts(canvas):
    return [shape.text for shape in shapes(canvas)[1] if shape.tag == f"{SVG}text"]


@each("size", [1, 2, 3, 5, 8, 16])
@pytest.mark.parametrize("name", list(SCHEDULES))
def test_everything_is_inside_and_every_message_has_its_arrow(name, size):
    shown = explained(name, size, size * 4)
    canvas = draw(shown)
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
    in_legend = sum(text in ("is combined", "is copied") for text in texts(canvas))
    assert len(heads) == shown.totals.price.messages + in_legend


def test_the_worked_example_shows_its_numbers():
    found = texts(draw(explained("ring", example=EXAMPLE, order=(0, 1, 3, 2))))
    assert [text for text in found if text in ("A", "B", "C", "D")] == ["A", "B", "C", "D"]
    for partial in (22, 34, 37, 20, 26, 12, 13, 36, 17, 31, 43):
        assert str(partial) in found


def test_a_mean_is_shown_divided():
    svg = draw(explained("ring", example=EXAMPLE, op="mean")).as_text()
    assert svg.count(">9.25</text>") == 8  # 37 / 4, two chunks of it on each rank
    assert ">result</text>" in svg
    assert "Σ: the sum of all" in svg


def test_columns_stand_in_the_order_of_the_ring():
    canvas = draw(explained("ring", example=EXAMPLE, order=(0, 1, 3, 2)))
    x = {
        shape.text: float(shape.get("x")) for shape in shapes(canvas)[1]
        if shape.tag == f"{SVG}text" and shape.text in set("ABCD")
    }  # fmt: skip
    assert sorted(x, key=x.__getitem__) == ["A", "B", "D", "C"]


def test_a_workspace_and_what_ranks_do_alone():
    found = texts(draw(explained("naive", 2)))
    assert {"locally", "w0", "0 += w0"} <= set(found)


def test_phases_end_with_what_counts():
    assert "result" in texts(draw(explained("reduce-scatter", 3)))
    assert "result" not in texts(draw(explained("ring", 3)))


def test_names_are_escaped():
    example = Example(("<a>", "b&c"), ((1,), (2,)))
    assert {"<a>", "b&c"} <= set(texts(draw(explained("tree", example=example))))


@pytest.mark.parametrize("size", [33, 100])
def test_too_many_ranks_for_a_drawing(size):
    with pytest.raises(ConfigError, match=f"^svg draws at most 32 ranks, got {size}$"):
        draw(explained("tree", size))


def test_what_cannot_be_written(tmp_path):
    canvas = Canvas(10, 10, "empty")
    canvas.save(str(tmp_path / "a.svg"))
    assert re.match("<svg ", (tmp_path / "a.svg").read_text())
    for path in (tmp_path, tmp_path / "none" / "a.svg", "a\0b"):
        with pytest.raises(ConfigError, match="cannot write "):
            canvas.save(str(path))
