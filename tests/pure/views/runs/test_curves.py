"""psrt export svg: the curves of runs, and that the picture has them where its axes say."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from psrt.__main__ import main
from psrt.core.errors import ConfigError
from psrt.views.runs.curves import curves
from support.cases import each
from support.run_folders import CONFIG, record, write_run

SVG = "{http://www.w3.org/2000/svg}"


def of_seed(path, seed, losses, *, mode="2", step=2.0):
    """Write a run with these losses, a record every so many seconds."""
    run = write_run(path, 0, CONFIG.replace("=2", f"={mode}") + f"seed = {seed}\n")
    lines = [record(i, loss=it, seconds=step * i) for i, it in enumerate(losses, 1)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(it) + "\n" for it in lines))
    return run


@pytest.fixture
def runs(tmp_path):
    return [
        of_seed(tmp_path / "a,seed=1", 1, [4.0, 2.0, 1.0]),
        of_seed(tmp_path / "a,seed=2", 2, [2.0, 1.0, 1.0]),
        of_seed(tmp_path / "b", 1, [3.0, 3.0], mode="9"),
    ]


@each("x", [("epoch", 1), ("step", 10), ("samples", 1000), ("seconds", 2.0)])
def test_seeds_are_a_mean_in_a_band_and_others_are_alone(runs, x):
    name, unit = x
    first, other = curves(runs, name, "loss")
    assert (first.name, other.name) == ("a (2 seeds)", "b")
    np.testing.assert_allclose(first.x, unit * np.array([1, 2, 3]))
    np.testing.assert_allclose(first.y, [3.0, 1.5, 1.0])
    np.testing.assert_allclose(first.spread, [2**0.5, 0.5**0.5, 0.0])
    assert other.spread is None
    assert len(curves(runs, name, "loss", each=True)) == 3


def test_seeds_at_other_times_are_interpolated_where_all_have_points(tmp_path):
    runs = [
        of_seed(tmp_path / "1", 1, [4.0, 2.0], step=2.0),
        of_seed(tmp_path / "2", 2, [3.0, 1.0], step=3.0),
    ]
    (found,) = curves(runs, "seconds", "loss")
    np.testing.assert_allclose(found.x, [3.0, 4.0])
    np.testing.assert_allclose(found.y, [(3.0 + 3.0) / 2, (2.0 + 7 / 3) / 2])


def test_a_figure_is_at_the_time_of_its_evaluation(tmp_path):
    run = write_run(tmp_path / "a")
    line = record(1, accuracy=0.5, seconds=9.0, evaluated_seconds=3.0)
    (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    (found,) = curves([run], "seconds", "accuracy")
    assert (found.x.tolist(), found.y.tolist()) == ([3.0], [0.5])


def numbers(path):
    """Return the corners of a path."""
    return np.array(path.get("d").strip("Mz").replace("L", " ").split(), float).reshape(-1, 2)


def test_the_picture_has_each_curve_its_band_and_named_axes(runs, tmp_path, capsys):
    out = tmp_path / "c.svg"
    words = ["export", "svg", *map(str, runs), "--x", "samples", "-o", str(out)]
    assert main(words) == 0
    assert capsys.readouterr().out == f"{out}: 2 curves of 3 runs, loss by samples\n"
    root = ElementTree.fromstring(out.read_text())
    texts = [it.text for it in root.iter(f"{SVG}text")]
    assert {"loss", "samples", "a (2 seeds)", "b"} <= set(texts)
    paths = [*root.iter(f"{SVG}path")]
    bands = [numbers(it) for it in paths if it.get("fill") != "none"]
    lines = [numbers(it) for it in paths if it.get("fill") == "none"]
    assert [len(it) for it in bands] == [6]
    assert [len(it) for it in lines[:2]] == [3, 2]
    # One scale for all: 3.0 of the mean is as high as 3.0 of the other run, above 1.5.
    assert lines[0][0][1] == lines[1][0][1] < lines[0][1][1]
    assert lines[0][0][0] == lines[1][0][0] < lines[0][1][0] == lines[1][1][0]
    width, height = float(root.get("width")), float(root.get("height"))
    assert width == 600
    for it in (*bands, *lines):
        assert ((it >= 0) & (it <= [width, height])).all()
    assert main(words[:-2]) == 0
    assert capsys.readouterr().out == out.read_text()


@each(
    "case",
    [
        (["svg", "--y", "los"], "--y los: no such column (did you mean loss?); expected one of "),
        (["svg", "--y", "test_loss"], "--y test_loss: no run has a value of it"),
        (["svg", "--x", "hours"], "x must be one of seconds, samples, epoch, step, got 'hours'"),
        (["svg", "--to", "x"], "--to has no effect with svg: use -o FILE"),
        (["csv", "--y", "loss"], "--y has no effect with csv, only with svg"),
    ],
)
def test_what_cannot_be_drawn_is_a_line(runs, case, capsys):
    words, said = case
    assert main(["export", words[0], *map(str, runs), *words[1:]]) == 2
    assert capsys.readouterr().err.startswith(f"psrt: error: {said}")


def test_more_curves_than_can_be_distinguished_are_refused(tmp_path):
    runs = [of_seed(tmp_path / f"{i}", 1, [1.0], mode=f"{i}") for i in range(1, 23)]
    with pytest.raises(ConfigError, match="22 curves; at most 21 can be distinguished"):
        curves(runs, "seconds", "loss")
