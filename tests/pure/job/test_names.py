"""Names for the arrays of a numpy problem: in files, errors, reports, and a codec of matrices."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import psrt
from psrt.views.report.page import page_of
from support.cases import each

#: Three arrays in 26 parameters, a kernel of three axes first.
NAMED = [("kernel", (2, 3, 3)), ("b", [2]), ("w", (2, 3))]


class Cubes:
    """Least squares of 26 parameters, whose gradient may have a nan in one."""

    names_and_shapes = NAMED

    def __init__(self, nan_at=None):
        self.nan_at = nan_at

    def initial(self):
        return np.arange(26, dtype=np.float32)

    def batches(self, worker, workers, epoch):
        return [np.ones((1, 26), np.float32)] * 3

    def loss_and_grad(self, theta, batch, out):
        out[:] = 0.1 * theta
        if self.nan_at is not None:
            out[self.nan_at] = np.nan
        return float(theta @ theta) / 20

    def evaluate(self, theta):
        return {"loss": float(theta @ theta)}


class ByMethod(Cubes):
    def names_and_shapes(self):
        return iter(NAMED)


CONFIG = {"lr": 0.1, "epochs": 1}


@pytest.mark.parametrize("kind", [Cubes, ByMethod])
def test_a_runs_file_has_the_arrays_and_load_returns_them(tmp_path, kind):
    out = tmp_path / "run"
    run = psrt.run(psrt.TrainConfig(out=str(out), **CONFIG), kind())
    for found in (load_file(out / "model.safetensors"), psrt.load(out)):
        assert {name: it.shape for name, it in found.items()} == {
            name: tuple(shape) for name, shape in NAMED
        }
        parts = [found[name].reshape(-1) for name, _ in NAMED]
        np.testing.assert_array_equal(np.concatenate(parts), run.theta)
    assert psrt.load(str(out / "model.safetensors")).keys() == found.keys()
    page = page_of([str(out)], check=False)
    for cell in ("kernel", "2 × 3 × 3", "Arrays of model.safetensors"):
        assert cell in page


def test_an_epoch_has_the_arrays_of_the_file(tmp_path):
    epochs = []
    config = psrt.TrainConfig(**CONFIG, out=str(tmp_path))
    psrt.run(config, Cubes(), on_epoch=epochs.append)
    there = psrt.load(tmp_path)
    found = epochs[-1].tensors
    assert {name: it.shape for name, it in found.items()} == {
        n: it.shape for n, it in there.items()
    }
    for name, it in there.items():
        np.testing.assert_array_equal(found[name], it)


def test_a_model_without_names_is_theta_and_no_file_is_one_line(tmp_path):
    class Bare(Cubes):
        names_and_shapes = None

    config = psrt.TrainConfig(out=str(tmp_path / "run"), **CONFIG)
    run = psrt.run(config, Bare())
    (theta,) = psrt.load(tmp_path / "run").values()
    np.testing.assert_array_equal(theta, run.theta)
    (tmp_path / "bad").write_bytes(b"no tensors")
    for name, why in (("none", "No such file"), ("bad", "header")):
        with pytest.raises(psrt.ConfigError, match=rf"{name}: cannot be read: .*{why}"):
            psrt.load(tmp_path / name)


@each(("at", "name"), [(0, "kernel"), (17, "kernel"), (18, "b"), (20, "w"), (25, "w")])
def test_an_error_names_the_array(at, name):
    for trained in (
        lambda: psrt.run(psrt.TrainConfig(**CONFIG), Cubes(at)),
        lambda: psrt.simulate(psrt.TrainConfig(mode="sync", **CONFIG), Cubes(at), workers=2),
    ):
        with pytest.raises(psrt.DivergedError, match=rf"\b{name}\b"):
            trained()


def test_a_low_rank_codec_finds_the_matrices():
    """As where the problem has them itself, all axes but the last as rows."""
    found = {}
    for matrices in (None, ((0, 6, 3), (20, 2, 3)), ((0, 13, 2),)):
        problem = Cubes()
        if matrices is not None:
            problem.matrices = lambda given=matrices: given
        config = psrt.TrainConfig(mode="allreduce", codec="low-rank:rank=1", steps=3, lr=0.1)
        run = psrt.simulate(config, problem, workers=2)
        found[matrices] = run.summary.bytes_sent, run.theta.tobytes()
    by_names, same, other = found.values()
    assert by_names == same
    assert by_names[0] != other[0]


@each(
    ("given", "line"),
    [
        ([("a", (5, 5))], r"end with a at element 25, expected 26: the last 1 parameters have no"),
        ([], "end with nothing at element 0, expected 26"),
        ([("a", (20,)), ("b", (7,))], r"b of shape \(7,\) ends at element 27, expected at most 26"),
        ([("a", 13), ("a", 13)], "a is there twice, expected different names"),
        ([("", (26,))], "'' is no name of an array, expected a text"),
        ([(3, (26,))], "3 is no name of an array"),
        ([("a", (-26,))], "expected a pair of name and shape for each array"),
        ([("a", 2.5)], "expected a pair of name and shape"),
        (["abc"], "expected a pair of name and shape"),
        (7, "names_and_shapes gives 7, expected a pair of name and shape"),
    ],
)
def test_names_that_do_not_fit_are_one_line_before_training(tmp_path, given, line):
    problem = Cubes()
    problem.names_and_shapes = given
    problem.loss_and_grad = None.__ne__
    with pytest.raises(psrt.ConfigError, match=line):
        psrt.run(psrt.TrainConfig(out=str(tmp_path / "run"), **CONFIG), problem)
    assert not (tmp_path / "run").exists()


def test_the_page_of_a_file_with_anything_for_a_shape(tmp_path):
    psrt.run(psrt.TrainConfig(out=str(tmp_path / "run"), **CONFIG), Cubes())
    many = {f"array {k}": np.zeros(k % 3, np.float32) for k in range(150)}
    save_file(many, tmp_path / "run" / "model.safetensors")
    assert "the first 100 of 150" in page_of([str(tmp_path / "run")], check=False)
    header = b'{"a": {"shape": "x"}}'
    (tmp_path / "run" / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert "not a file of tensors" in page_of([str(tmp_path / "run")], check=False)
