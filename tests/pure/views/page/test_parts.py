"""Charts draw the numbers they are given; a page asks for nothing, and no text becomes HTML."""

import base64
import hashlib
import json
import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, strategies

from psrt.views.page import assets, frame
from psrt.views.page.bars import bar_chart
from psrt.views.page.heat_map import heat_map
from psrt.views.page.lines import Line, line_chart
from psrt.views.page.parts import Code, Figure, Heading, Note, Section, Table
from psrt.views.page.scale import Scale
from psrt.views.page.thin import thin
from support.pages import Page

FINITE = strategies.floats(-1e300, 1e300)
NUMBERS = strategies.floats(allow_nan=True, allow_infinity=True)


@given(strategies.lists(FINITE, min_size=1, max_size=30), strategies.booleans())
def test_every_value_has_its_place_on_an_axis_whose_ticks_are_few(values, zero):
    scale = Scale.of(values, 0.0, 100.0, zero=zero)
    places = [scale(it) for it in values]
    assert all(-1e-6 <= it <= 100 + 1e-6 for it in places)
    for a, b in zip(sorted(values), sorted(values)[1:], strict=False):
        assert scale(a) <= scale(b)
    ticks = scale.ticks()
    width = scale.high / 2 - scale.low / 2
    assert len(ticks) <= 13
    assert all(scale.low - 1e-6 * width <= it <= scale.high + 1e-6 * width for it in ticks)
    assert ticks == sorted(set(ticks))


@given(
    strategies.lists(strategies.tuples(NUMBERS, NUMBERS), max_size=200), strategies.integers(4, 40)
)
def test_thinning_keeps_ends_and_peaks(points, most):
    x, y = np.array(points or np.zeros((0, 2))).reshape(-1, 2).T
    kept_x, kept_y = thin(x, y, most)
    known = sorted(
        (it for it in points if math.isfinite(it[0]) and math.isfinite(it[1])), key=lambda it: it[0]
    )
    assert len(kept_x) <= most
    assert set(zip(kept_x.tolist(), kept_y.tolist(), strict=True)) <= set(known)
    assert (kept_x[1:] >= kept_x[:-1]).all()
    if known:
        assert kept_x[0] == known[0][0]
        assert kept_x[-1] == known[-1][0]
        ys = [it[1] for it in known]
        assert (min(kept_y), max(kept_y)) == (min(ys), max(ys))


def test_a_line_is_drawn_where_its_numbers_are():
    x, y = np.arange(5.0), np.array([0.0, 3.0, 1.0, np.nan, 4.0])
    nothing = np.full(3, np.nan)
    for lines in ([], [Line("a", np.arange(3.0), nothing)]):
        assert line_chart("t", "step", "loss", lines, most=800) is None
    figure = line_chart("t", "step", "loss", [Line("a", x, y, 0)], most=800)
    (path,) = re.findall(r'<path d="M([^"]*)" fill="none"', figure.svg)
    drawn = np.array([point.split() for point in path.split("L")], float)
    assert len(drawn) == 4
    across, up = drawn.T
    known = np.isfinite(y)
    for got, true in ((across, x[known]), (-up, y[known])):
        share = (got - got.min()) / (got.max() - got.min())
        assert share == pytest.approx((true - true.min()) / (true.max() - true.min()), abs=1e-3)
    scale = Scale.of([1e-4, 1.0], 0, 100, log=True)
    assert [scale(it) for it in (1e-4, 1e-2, 1.0)] == [0, 50, 100]
    assert not Scale.of([0.0, 1.0], 0, 100, log=True).log
    assert figure.data["series"][0]["x"] == [0, 1, 2, 4]
    assert figure.data["series"][0]["y"] == [0, 3, 1, 4]


def test_bars_are_as_long_as_their_values():
    rows = [("a", [1.0, 2.0, 0.0]), ("b", [0.0, 0.5, 0.0])]
    figure = bar_chart("t", rows, ("x", "y", "z"), lambda it: f"{it:g} s")
    found = re.findall(
        r'<rect x="([\d.]+)"[^>]* width="([\d.]+)"[^>]*fill="var\(--s(\d)\)"', figure.svg
    )
    assert [style for _, _, style in found] == ["0", "1", "1"]
    lengths = [float(width) for _, width, _ in found]
    assert lengths == pytest.approx([lengths[0], 2 * lengths[0], 0.5 * lengths[0]], abs=0.2)
    assert float(found[1][0]) == pytest.approx(float(found[0][0]) + lengths[0], abs=0.2)
    assert figure.legend == [("x", 0), ("y", 1)]
    assert ">3 s<" in figure.svg


def test_a_cell_is_the_darker_the_more():
    values = np.array([[0.0, 1.0], [4.0, np.nan]])
    figure = heat_map("t", values, ["a", "b"], ["c", "d"], "row", "column", lambda it: f"{it:g}")
    paths = re.findall(
        r'<path d="([^"]*)" fill="var\(--heat\)" fill-opacity="([\d.]+)"', figure.svg
    )
    corners = {
        (float(x), float(y)): float(opacity)
        for path, opacity in paths
        for x, y in re.findall(r"M([\d.]+) ([\d.]+)h", path)
    }
    assert len(corners) == 2
    (upper_right, lower_left) = sorted(corners, key=lambda it: it[1])
    assert upper_right[0] > lower_left[0]
    assert corners[upper_right] == 0.25
    assert corners[lower_left] == 1.0
    # What is not known does not look like 0.
    (grey,) = re.findall(r'<path d="([^"]*)" fill="var\(--rule\)"', figure.svg)
    ((x, y),) = re.findall(r"M([\d.]+) ([\d.]+)h", grey)
    assert (float(x), float(y)) == (upper_right[0], lower_left[1])
    assert figure.caption == "The darkest is 4. Grey: no data."
    assert [f">{it}<" in figure.svg for it in "014"] == [True, True, True]
    known = heat_map("t", values[:1], ["a"], ["c", "d"], "", "", str)
    assert known.caption == "The darkest is 1.0."
    assert heat_map("t", np.full((1, 1), np.nan), ["0"], ["0"], "r", "c", str) is None


def test_points_are_drawn_where_their_numbers_are():
    values = np.array([(10.0, 2.0), (10.0, 2.1), (1000.0, 1.0), (100.0, 4.0)])
    points = [
        Line(f"{x}", np.array([x]), np.array([y]), int(y), title=f"{x}") for x, y in values.tolist()
    ]
    figure = line_chart("t", "x", "y", points, most=4, log_x=True)
    circles = list(ElementTree.fromstring(figure.svg).iter("circle"))
    assert [it.findtext("title") for it in circles] == ["10.0", "10.0", "1000.0", "100.0"]
    assert [it.get("fill")[:8] for it in circles] == [f"var(--s{style}" for style in (2, 2, 1, 4)]
    x, y = np.array([[float(it.get(name)) for it in circles] for name in ("cx", "cy")])
    right, down = (x[2] - x[0]) / 2, y[2] - y[0]
    assert min(right, down) > 20
    assert x == pytest.approx(x[0] + right * (np.log10(values[:, 0]) - 1), abs=0.2)
    assert y == pytest.approx(y[0] - down * (values[:, 1] - 2), abs=0.3)
    assert figure.legend == [("10.0", 2), ("1000.0", 1), ("100.0", 4)]


def test_texts_in_charts_are_escaped():
    evil, x = """<img a="'">&lt;""", np.arange(3.0)
    figures = [
        line_chart(evil, evil, evil, [Line(evil, x, x, title=evil)], most=9),
        bar_chart(evil, [(evil, [1.0])], (evil,), lambda it: evil),
        heat_map(evil, np.ones((1, 1)), [evil], [evil], evil, evil, lambda it: evil),
    ]
    known = {"svg", "path", "line", "rect", "circle", "text", "title"}
    for figure in figures:
        drawn = ElementTree.fromstring(figure.svg)
        assert {it.tag for it in drawn.iter()} <= known
        assert evil in drawn.get("aria-label")
        assert [it.text for it in drawn.iter("text")].count(evil) >= 2


# --- the frame ----------------------------------------------------------------------------------

EVIL = "</script></style><img src=x onerror=alert(1)>\"'&{{ 7*7 }}{% raw %}\u2028\ud800\0"


def everywhere(text):
    """Return a page with a text wherever one can be."""
    series = [{"name": text, "style": 0, "x": [], "y": []}]
    data = {"x_name": text, "y_name": text, "series": series}
    parts = [
        Note(text), Note(text, "bad"), Heading(text, 1), Code(text, text),
        Table([(text, text)], (text, text), text, styles=[0]),
        Table([(text, text)], (text, text), text, folded=True),
        Figure(text, "<svg></svg>", [(text, 8)], text, data),
    ]  # fmt: skip
    return frame.render(text, text, [Section("one", text, parts)])


def test_no_text_becomes_html():
    page, other = Page(everywhere(EVIL)), Page(everywhere("plain"))
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in other.elements]
    assert not [name for _, attributes in page.elements for name in attributes if name[:2] == "on"]
    assert page.text.count("<img src=x onerror=alert(1)>") == other.text.count("plain")
    assert page.charts[0]["x_name"] == EVIL.replace("\ud800", "?")
    text = frame.embedded({"a": EVIL})
    assert not re.search("[<>&\u2028\u2029]", text), "it cannot end its script"
    assert json.loads(text) == {"a": EVIL}


def test_it_asks_for_nothing_and_its_policy_allows_its_own_scripts_and_no_connection():
    page = Page(everywhere("plain"))
    asks = ("src", "href", "srcset", "action", "data", "poster", "xlink:href")
    asked = [
        (tag, name, value)
        for tag, attributes in page.elements
        for name, value in attributes.items()
        if name in asks
    ]
    assert asked == [("a", "href", "#one")]
    (styles,) = re.findall(r"<style>(.*?)</style>", page.html, re.DOTALL)
    assert not re.search(r"url\(|@import", styles)
    (policy,) = [
        attributes["content"]
        for tag, attributes in page.elements
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert "connect-src" not in rules
    run = [text for kind, text in page.scripts if kind is None]
    assert len(run) == 2
    sums = [base64.b64encode(hashlib.sha256(it.encode()).digest()).decode() for it in run]
    assert rules["script-src"] == " ".join(f"'sha256-{it}'" for it in sums)


def test_what_others_wrote_is_as_they_published_it():
    for name, digest in assets.SHA256.items():
        data = (assets.VENDOR / name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == digest
    assert f"uPlot (v{assets.UPLOT})" in (assets.VENDOR / "uPlot.iife.min.js").read_text()
    assert {it.name for it in assets.VENDOR.iterdir()} == {
        *assets.SHA256, "uPlot.LICENSE", "README.md",
    }  # fmt: skip
