"""``psrt predict``, against a forward pass in float64 that shares no code with psrt."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import psrt
from psrt.__main__ import main
from psrt.data import load_dataset
from support.cases import each

SIZES = "synthetic:6000x5x3"


def trained(out, **knobs):
    """Train an MLP on more samples than are computed at a time, and return the folder."""
    config = {"dataset": SIZES, "hidden": (7, 4), "epochs": 1, "activation": "tanh", **knobs}
    psrt.run(psrt.TrainConfig(out=str(out), **config))
    return str(out)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("runs") / "run")


def outputs(run, x):
    """Return the outputs of the network of tanh."""
    tensors, h = load_file(f"{run}/model.safetensors"), np.asarray(x, np.float64)
    for k in range(3):
        h = h @ tensors[f"layers.{k}.weight"] + tensors[f"layers.{k}.bias"]
        h = np.tanh(h) if k < 2 else h
    return h


def test_classes_and_probabilities_are_those_of_the_network(run, tmp_path, capsys):
    x = np.random.default_rng(0).normal(size=(9001, 5, 1))
    labels = outputs(run, x.reshape(-1, 5)).argmax(axis=1)
    labels[:900] = (labels[:900] + 1) % 3
    data, out = str(tmp_path / "data.npz"), str(tmp_path / "found.npz")
    np.savez(data, x_test=x[:2], x=x, y=labels)
    assert main(["predict", run, data, "-o", out]) == 0
    assert f"{out}: 9,001 samples, accuracy 0.9000, loss " in capsys.readouterr().out
    found = np.load(out)
    exact = np.exp(outputs(run, x.reshape(-1, 5)))
    np.testing.assert_allclose(found["p"], exact / exact.sum(axis=1, keepdims=True), atol=1e-5)
    assert (found["y"] == exact.argmax(axis=1)).mean() > 0.999  # but for what float32 makes equal
    np.savez(data, x_test=x[:3])
    assert main(["predict", run, data]) == 0
    out, err = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [int(row["y"]) for row in rows] == found["y"][:3].tolist()
    np.testing.assert_allclose([float(row["p2"]) for row in rows], found["p"][:3, 2], rtol=1e-3)
    assert err == ""


def test_without_data_it_is_the_runs_test_set(run, capsys):
    assert main(["predict", run]) == 0
    with open(f"{run}/summary.json") as file:
        summary = json.load(file)
    err = capsys.readouterr().err
    assert f"accuracy {summary['test_accuracy']:.4f}, loss {summary['test_loss']:.4g}" in err


def test_a_regression_has_outputs(tmp_path, capsys):
    data = load_dataset(SIZES, seed=0)
    targets = data.x_train[:, :2] @ np.ones((2, 2), np.float32)
    path = str(tmp_path / "data.npz")
    np.savez(path, x_train=data.x_train, y_train=targets, x_test=data.x_train, y_test=targets)
    run = trained(tmp_path / "run", dataset=path, loss="squared")
    assert main(["predict", run, "-o", str(tmp_path / "out.npz")]) == 0
    assert "accuracy" not in capsys.readouterr().out
    found = np.load(tmp_path / "out.npz")
    assert found.files == ["y"]
    np.testing.assert_allclose(found["y"], outputs(run, data.x_train), atol=1e-4)
    assert main(["predict", run]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("y0,y1\n")
    assert err.startswith("loss ")


X = np.zeros((4, 5))


@each(
    ("arrays", "line"),
    [
        ({"x": X[:, :3]}, "data.npz: x has 3 values per sample, expected 5 as in the training of"),
        (
            {"x": np.full_like(X, np.nan)},
            "data.npz: x is not finite in float32 at row 0, column 0",
        ),
        ({"z": X}, "data.npz: holds no array x or x_test, but z"),
        ({"x": X, "y": [0, 1, 2, 3]}, "data.npz: x: labels 0 to 3 for a model of 3 classes"),
        ({"x": X, "y": [0, 1]}, "data.npz: y has 2 rows for 4 samples"),
        ({"x": X, "y": X}, r"data.npz: x: targets are float32 \(4, 5\), expected class labels"),
        ({"x": X[0]}, r"data.npz: x must be \(samples, features\), got shape \(5,\)"),
        ({"x": X.astype(object)}, "data.npz: x holds Python objects, which psrt never unpickles"),
        ({}, "data.npz: holds no array x or x_test, but nothing"),
        (None, "cannot be read"),
    ],
)
def test_data_that_does_not_fit_is_one_line(run, tmp_path, monkeypatch, capsys, arrays, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.npz").unlink(missing_ok=True)
    if arrays is not None:
        np.savez("data.npz", **arrays)
    assert main(["predict", run, "data.npz"]) == 2
    (found,) = capsys.readouterr().err.splitlines()
    assert found.startswith("psrt: error: ")
    assert re.search(line, found), found


def test_runs_without_such_a_model_are_one_line(run, tmp_path, capsys):
    def said(*words):
        assert main(["predict", *map(str, words)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert "is not the folder of a run" in said(tmp_path)
    assert "expected the name of an .npz file" in said(run, "-o", "out.csv")
    assert "cannot write" in said(run, "-o", tmp_path / "no" / "out.npz")
    psrt.run(psrt.TrainConfig(out=str(tmp_path / "own"), epochs=1), Own())
    assert "has the arrays theta, expected those of the MLP" in said(tmp_path / "own")
    turned = {name: it.T.copy() for name, it in load_file(f"{run}/model.safetensors").items()}
    shutil.copytree(run, tmp_path / "torch")
    save_file(turned, tmp_path / "torch" / "model.safetensors")  # as torch has them
    assert "has the arrays layers." in said(tmp_path / "torch")
    (tmp_path / "own" / "model.safetensors").unlink()
    assert "has no model.safetensors: training has not reached its end" in said(tmp_path / "own")


class Own:
    """A problem that is not psrt's."""

    def initial(self):
        return np.zeros(3, np.float32)

    def batches(self, worker, workers, epoch):
        return [[0]]

    def loss_and_grad(self, theta, batch, out):
        out[:] = 1
        return 0.0

    def evaluate(self, theta):
        return {"loss": 0.0}
