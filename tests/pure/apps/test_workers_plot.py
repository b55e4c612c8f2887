import math
import sys

import pytest

from psrt.errors import ConfigError

pytest.importorskip("matplotlib")
from studies import workers_plot


def study(rate, workers, accuracy):
    return {"staleness_rate": rate, "workers": workers, "test_accuracy": accuracy}


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


def test_every_rate_looks_different(tmp_path, figures):
    rows = [study(f"rate {i}", 1, 0.9) for i in range(8)]
    workers_plot.draw(rows, tmp_path / "study.png")
    lines = [line for line in figures[0].axes[0].lines if line.get_label().startswith("rate")]
    assert len({line.get_color() for line in lines}) == 8
    assert len({line.get_marker() for line in lines}) == 8
    assert len({float(line.get_xdata()[0]) for line in lines}) == 8


def test_nothing_to_draw(tmp_path):
    workers_plot.draw([study("constant", 1, None)], tmp_path / "study.png")
    assert (tmp_path / "study.png").exists()


def test_no_folder(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot write .*study.png: No such file"):
        workers_plot.draw([study("constant", 1, 0.5)], tmp_path / "none" / "study.png")


def test_no_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match="plots need matplotlib"):
        workers_plot.draw([study("constant", 1, 0.5)], tmp_path / "study.png")
