"""Pictures of the studies: what is in which panel, and where."""

import math
import sys
from functools import partial

import pytest
import staleness_study
from studies import mode_plot, softsync, softsync_plot, workers, workers_plot

from psrt.errors import ConfigError

pytest.importorskip("matplotlib")


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


@pytest.mark.exhaustive
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


def study(rate, workers, accuracy):
    return {"staleness_rate": rate, "workers": workers, "test_accuracy": accuracy}


@pytest.mark.exhaustive
def test_staleness_study(tmp_path, figures):
    path = tmp_path / "study.png"
    rows = [
        study("constant", 2, 0.5), study("constant", 1, 0.75), study("constant", 2, 1.0),
        study("inverse", 1, 0.875), study("inverse", 2, math.nan), study("inverse", 2, None),
    ]  # fmt: skip
    workers_plot.draw(rows, path, note="async")
    assert path.read_bytes().startswith(b"\x89PNG")
    [axes] = figures[0].axes
    lines = {line.get_label(): line for line in axes.lines if line.get_label()[0] != "_"}
    assert list(lines) == ["constant", "inverse", "diverged"]
    assert list(lines["constant"].get_ydata()) == [75, 75]
    assert list(lines["constant"].get_xdata()) == pytest.approx([1, 2], rel=0.1)
    assert list(lines["inverse"].get_ydata()) == [87.5]
    spans = [segment[:, 1].tolist() for segment in axes.collections[0].get_segments()]
    assert spans == [[75, 75], [50, 100]]
    crosses = [line.get_xdata() for line in axes.lines if line.get_marker() == "x"]
    assert [list(xs) for xs in crosses if len(xs)] == [pytest.approx([2], rel=0.1)]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "2"]


def test_no_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for draw in (workers_plot.draw, softsync_plot.draw, partial(mode_plot.draw, target=0.95)):
        with pytest.raises(ConfigError, match="plots need matplotlib"):
            draw([], tmp_path / "study.png")


@pytest.fixture
def no_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.mark.parametrize(("words", "study"), [((), softsync), (("--study", "workers"), workers)])
def test_that_there_will_be_no_plot_is_said_before_the_work(
    words, study, tmp_path, no_matplotlib, monkeypatch, capsys
):
    def work(*_):
        raise ConfigError(capsys.readouterr().out)

    monkeypatch.setattr(study, "row_of", work)
    with pytest.raises(ConfigError) as said:
        staleness_study.main([*words, "--out", str(tmp_path)])
    assert str(said.value) == "no plot: plots need matplotlib: pip install matplotlib\n"


def test_a_picture_that_cannot_be_drawn_is_refused_before_a_run_is_read(no_matplotlib, tmp_path):
    with pytest.raises(ConfigError, match="pip install"):
        staleness_study.main(["--run", str(tmp_path / "nowhere")])
