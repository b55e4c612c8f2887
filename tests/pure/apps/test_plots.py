"""Pictures of the studies: what is in which panel, and where."""

import pytest
from studies import mode_plot

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


@pytest.mark.exhaustive
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
    # Never is at the right end.
    never = cell("b", standing="never", times=(None, None, None))
    axes = draw(cell("a", standing="first"), never, cell("c", times=(1.5, 2.0, None))).axes[0]
    end = marks(axes)[1][0]
    assert 2.0 < end < axes.get_xlim()[1]
    assert ranges(axes) == {0: (1.0, 2.0), 1: (end, end), 2: (1.5, end)}
    assert texts(axes) == {(0, "1.5"), (1, "never"), (2, "2")}
