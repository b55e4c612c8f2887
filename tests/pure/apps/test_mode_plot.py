"""The plot of compare_modes.py: what is in which panel, and where."""

import sys

import pytest

from psrt.errors import ConfigError

pytest.importorskip("matplotlib")
from studies import mode_plot

pytestmark = pytest.mark.slow


@pytest.fixture
def draw(figures, tmp_path):
    """Draws rows and returns the figure, to look into."""

    def drawn(*rows, **options):
        path = tmp_path / "modes.png"
        mode_plot.draw(rows, path, target=0.95, **options)
        assert path.read_bytes().startswith(b"\x89PNG")
        return figures[-1]

    return drawn


def cell(mode, scenario="calm", standing="behind", times=(1.0, 1.5, 2.0), **fields):
    fastest, median, slowest = times
    return {
        "mode": mode, "scenario": scenario, "standing": standing, "fastest": fastest,
        "seconds_to_accuracy": median, "slowest": slowest, "worst_accuracy": 0.96,
        "staleness_mean": 0.5,
    } | fields  # fmt: skip


def texts(axes):
    return {(round(text.xy[1]), text.get_text()) for text in axes.texts}


def marks(axes):
    """The marks of a panel, by line: where, which shape, which colour."""
    return {
        line.get_ydata()[0]: (
            float(line.get_xdata()[0]), line.get_marker(), line.get_markerfacecolor()
        )
        for line in axes.lines
        if len(line.get_xdata())
    }  # fmt: skip


def ranges(axes):
    """The lines from the fastest to the slowest."""
    segments = [path for held in axes.collections for path in held.get_segments()]
    return {float(ys[0]): (float(xs[0]), float(xs[1])) for xs, ys in (s.T for s in segments)}


def test_a_panel_for_each_scenario_and_a_line_for_each_mode(draw):
    figure = draw(
        cell("sync"),
        cell("async", standing="first", times=(0.5, 0.6, 0.7)),
        cell("sync", "tail", times=(3.0, 4.0, 5.0)),
        cell("async", "tail", "tied", times=(0.5, 2.0, 3.0)),
        note="4 ranks",
    )
    calm, tail, _, _ = figure.axes
    assert [label.get_text() for label in calm.get_yticklabels()] == ["sync", "async"]
    assert (calm.get_title(), tail.get_title()) == ("calm", "tail")
    assert {y: mark[0] for y, mark in marks(calm).items()} == {0: 1.5, 1: 0.6}
    assert {y: mark[0] for y, mark in marks(tail).items()} == {0: 4.0, 1: 2.0}
    assert ranges(calm) == {0: (1.0, 2.0), 1: (0.5, 0.7)}
    assert texts(calm) == {(0, "1.5"), (1, "0.6")}
    assert calm.get_xlim() == tail.get_xlim()
    assert calm.get_xscale() == "log"
    assert "95 %" in figure.get_suptitle()
    assert "4 ranks" in figure.get_suptitle()


def test_standings_look_different_and_are_explained(draw):
    standings = ["first", "tied", "near", "behind", "never", "baseline"]
    figure = draw(*(cell(standing, standing=standing) for standing in standings))
    looks = [mark[1:] for mark in marks(figure.axes[0]).values()]
    assert len(set(looks)) == 6
    assert len(figure.legends[0].get_texts()) == 6
    few = draw(cell("a", standing="first"), cell("b"))
    assert [text.get_text() for text in few.legends[0].get_texts()] == ["fastest", "slower"]


def test_never_is_at_the_right_end(draw):
    figure = draw(
        cell("a", standing="first", times=(1.0, 1.0, 1.0)),
        cell("b", standing="never", times=(None, None, None)),
        cell("c", times=(1.5, 2.0, None)),
    )
    axes = figure.axes[0]
    end = marks(axes)[1][0]
    assert 2.0 < end < axes.get_xlim()[1]
    assert ranges(axes) == {0: (1.0, 1.0), 1: (end, end), 2: (1.5, end)}
    assert texts(axes) == {(0, "1"), (1, "never"), (2, "2")}


def test_the_price_is_where_it_is_the_highest(draw):
    figure = draw(
        cell("a", worst_accuracy=0.97, staleness_mean=0.25),
        cell("a", "tail", worst_accuracy=0.5, staleness_mean=2.0),
        cell("b"),
    )
    accuracy, staleness = figure.axes[-2:]
    assert ranges(accuracy) == {0: (50, 97), 1: (96, 96)}
    assert {y: mark[0] for y, mark in marks(accuracy).items()} == {0: 50, 1: 96}
    assert texts(accuracy) == {(0, "50.0"), (1, "96.0")}
    assert {y: mark[0] for y, mark in marks(staleness).items()} == {0: 2.0, 1: 0.5}
    assert texts(staleness) == {(0, "2.00"), (1, "0.50")}


def test_a_mode_that_is_not_in_a_scenario_is_left_out_there(draw):
    figure = draw(cell("serial", standing="baseline"), cell("a"), cell("a", "tail"))
    assert set(marks(figure.axes[1])) == {1}


def test_nothing_to_draw(draw):
    assert not any(marks(axes) for axes in draw().axes)
    figure = draw(cell("a", standing="never", times=(None, None, None)))
    assert texts(figure.axes[0]) == {(0, "never")}


def test_no_folder(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot write .*modes.png: No such file"):
        mode_plot.draw([cell("a")], tmp_path / "none" / "modes.png", target=0.95)


def test_no_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match="plots need matplotlib"):
        mode_plot.draw([cell("a")], tmp_path / "modes.png", target=0.95)
