import math
import sys

import pytest

from psrt.errors import ConfigError

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure

from psrt.report import plots


@pytest.fixture
def figures(monkeypatch):
    """The figures that were saved, to look into."""
    saved = []
    save = Figure.savefig

    def keep(figure, path, **options):
        saved.append(figure)
        save(figure, path, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return saved


def run(mode, straggler=False, **fields):
    defaults = {
        "seconds_to_accuracy": 1.5, "test_accuracy": 0.96, "staleness_mean": 0.5, "bytes_sent": 2e6
    }  # fmt: skip
    return {"mode": mode, "straggler": straggler} | defaults | fields


def lengths(axes):
    return [bar.get_width() for container in axes.containers for bar in container]


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_compare_modes(tmp_path, figures):
    path = tmp_path / "modes.png"
    rows = [
        run("sync"),
        run("async", seconds_to_accuracy=1.0, staleness_mean=2.25),
        run("sync", straggler=True, seconds_to_accuracy=None, test_accuracy=0.5),
        run("async", straggler=True, bytes_sent=3e6),
    ]
    plots.compare_modes(rows, path, target=0.95, note="digits")
    assert path.read_bytes().startswith(b"\x89PNG")
    [figure] = figures
    time, accuracy, staleness, sent = figure.axes
    assert [label.get_text() for label in time.get_yticklabels()] == ["sync", "async"]
    assert lengths(time) == [1.5, 1.0, 0.0, 1.5]
    assert texts(time) == ["1.5", "1", "never", "1.5"]
    assert "95 %" in time.get_xlabel()
    assert [list(line.get_xdata()) for line in accuracy.lines] == [[96, 96], [50, 96]]
    assert texts(staleness) == ["0.50", "2.25", "0.50", "0.50"]
    assert lengths(sent) == [2, 2, 2, 3]
    assert "digits" in figure.get_suptitle()
    assert [t.get_text() for t in figure.legends[0].get_texts()] == [
        "no straggler",
        "with a straggler",
    ]


def test_compare_modes_without_straggler_has_one_bar_per_mode(tmp_path, figures):
    rows = [run("serial", staleness_mean=None, bytes_sent=None), run("sync", test_accuracy=None)]
    plots.compare_modes(rows, tmp_path / "modes.png", target=0.95)
    time, accuracy, staleness, sent = figures[0].axes
    centres = [bar.get_y() + bar.get_height() / 2 for bar in time.containers[0]]
    assert centres == pytest.approx([0, 1])
    assert list(accuracy.lines[0].get_ydata()) == [0]
    assert (texts(staleness), texts(sent)) == (["–", "0.50"], ["–", "2"])
    assert figures[0].legends == []


def study(rate, workers, accuracy):
    return {"staleness_rate": rate, "workers": workers, "test_accuracy": accuracy}


def test_staleness_study(tmp_path, figures):
    path = tmp_path / "study.png"
    rows = [
        study("constant", 2, 0.5), study("constant", 1, 0.75), study("constant", 2, 1.0),
        study("inverse", 1, 0.875), study("inverse", 2, math.nan), study("inverse", 2, None),
    ]  # fmt: skip
    plots.staleness_study(rows, path, note="async")
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


def test_every_rate_looks_different(tmp_path, figures):
    rows = [study(f"rate {i}", 1, 0.9) for i in range(8)]
    plots.staleness_study(rows, tmp_path / "study.png")
    lines = [line for line in figures[0].axes[0].lines if line.get_label().startswith("rate")]
    assert len({line.get_color() for line in lines}) == 8
    assert len({line.get_marker() for line in lines}) == 8
    assert len({float(line.get_xdata()[0]) for line in lines}) == 8


def test_nothing_to_draw(tmp_path):
    plots.compare_modes([], tmp_path / "modes.png", target=0.95)
    plots.staleness_study([study("constant", 1, None)], tmp_path / "study.png")
    assert (tmp_path / "modes.png").exists()
    assert (tmp_path / "study.png").exists()


def test_no_folder(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot write .*modes.png: No such file"):
        plots.compare_modes([run("sync")], tmp_path / "none" / "modes.png", target=0.95)


def test_no_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match="plots need matplotlib"):
        plots.compare_modes([run("sync")], tmp_path / "modes.png", target=0.95)
