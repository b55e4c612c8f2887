import sys

import pytest

from psrt.errors import ConfigError

pytest.importorskip("matplotlib")
from studies.softsync_plot import draw

pytestmark = pytest.mark.slow


def panels(figure):
    """Return the histograms from above, and what is beside them."""
    return sorted(figure.axes, key=lambda axes: (axes.get_position().x0, -axes.get_position().y0))


def run(n, rate, errors, histogram):
    return {
        "softsync": n, "staleness_rate": rate, "histogram": histogram,
        "test_error": errors[-1] if errors else None,
        "errors": [[epoch, error] for epoch, error in enumerate(errors, start=1)],
    }  # fmt: skip


ROWS = [
    run(1, "constant", [0.5, 0.04], [1, 8, 1]),
    run(1, "inverse", [0.5, 0.25], [1, 8, 1]),
    run(4, "constant", [], None),
    run(4, "inverse", [0.75, 0.125], [0, 0, 0, 1, 2, 0, 0, 0, 0, 1]),
    run(4, "inverse", [0.25, 0.0], [0] * 4 + [4]),
]


def test_one_histogram_for_each_n(tmp_path, figures):
    path = tmp_path / "study.png"
    draw(ROWS, path, note="digits")
    assert path.read_bytes().startswith(b"\x89PNG")
    one, four, _ = panels(figures[0])
    for axes, n, shares in ((one, 1, [10, 80, 10]), (four, 4, [12.5, 75, 12.5])):
        assert [bar.get_height() for bar in axes.patches] == shares
        assert [line.get_xdata()[0] for line in axes.lines] == [n, 2 * n]
        assert axes.get_title().startswith(f"n = {n}: ")
    assert "P(τ > 2n) = 0.1" in four.get_title()
    assert one.get_xlim() == four.get_xlim()
    assert one.get_xlim()[1] > 9
    assert "digits" in figures[0].get_suptitle()


def test_a_curve_for_each_n_and_rate(tmp_path, figures):
    draw(ROWS, tmp_path / "study.png")
    errors = panels(figures[0])[-1]
    curves = {line.get_label(): line for line in errors.lines}
    assert list(curves) == [
        "n = 1, constant", "n = 1, inverse", "n = 4, constant, 1 of 1 diverged", "n = 4, inverse",
    ]  # fmt: skip
    assert list(curves["n = 1, constant"].get_ydata()) == [50, 4]
    assert list(curves["n = 4, inverse"].get_xdata()) == [1, 2]
    assert list(curves["n = 4, inverse"].get_ydata()) == [50, 6.25]
    assert list(curves["n = 4, constant, 1 of 1 diverged"].get_ydata()) == []
    n, rate = (lambda line: line.get_color()), (lambda line: line.get_linestyle())
    first, second, _, last = curves.values()
    assert (n(first) == n(second), n(first) == n(last)) == (True, False)
    assert (rate(first) == rate(second), rate(second) == rate(last)) == (False, True)
    low, high = errors.get_ylim()
    assert low < 4
    assert high > 90


def test_equal_curves_show_their_marks_in_turns(tmp_path, figures):
    rows = [run(n, "constant", [0.9] * 40, [0, 1]) for n in (1, 15, 30)]
    draw(rows, tmp_path / "study.png")
    places = [line.get_markevery() for line in panels(figures[0])[-1].lines]
    assert len({start for start, _ in places}) == 3
    assert all(start < every for start, every in places)


def test_nothing_to_draw(tmp_path):
    draw([], tmp_path / "study.png")
    draw([run(1, "constant", [], None)], tmp_path / "study.png")
    draw([run(1, "constant", [0.0], [5])], tmp_path / "study.png")
    assert (tmp_path / "study.png").exists()


def test_the_same_rows_make_the_same_picture(tmp_path):
    for name in ("a.png", "b.png"):
        draw(ROWS, tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_no_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match="plots need matplotlib"):
        draw(ROWS, tmp_path / "study.png")
