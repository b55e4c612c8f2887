"""What the MLP of a run predicts, from the run's files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from psrt.config import TrainConfig
from psrt.core.arrays import AnyArray, FloatArray
from psrt.core.errors import ConfigError
from psrt.data.samples import Samples, load_samples
from psrt.model import MLP
from psrt.report.files import MODEL
from psrt.report.model_file import load
from psrt.views.runs.folder import read_run

#: Rows that are computed at a time.
_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of N samples."""

    #: (N,) int64, the classes; or (N, k) float32, the outputs of a model of the squared loss.
    y: AnyArray
    #: (N, classes) float32, the probabilities; None with the squared loss.
    p: FloatArray | None
    #: The mean loss, where the answers are known.
    loss: float | None
    #: The fraction of right classes, where the labels are known.
    accuracy: float | None


def predict(run: str | Path, source: str | None = None) -> Prediction:
    """Return what the model of a run predicts.

    Args:
        run: its folder.
        source: of the samples, as for ``load_samples``; None takes the run's own dataset.

    Raises:
        ConfigError: if the run has no model, or not an MLP of psrt's, or its samples cannot be read
            or do not fit the model.
    """
    config = read_run(run).config
    path = Path(run) / MODEL
    if not path.exists():
        raise ConfigError(f"{run} has no {MODEL}: training has not reached its end")
    arrays = load(path)
    model = _mlp(config, arrays)
    if model is None:
        raise ConfigError(
            f"{path} has the arrays {', '.join([*arrays][:4])}, expected those of the MLP that "
            "psrt train trains; psrt.load reads those of a model of your own"
        )
    samples = load_samples(config.dataset if source is None else source, seed=config.seed)
    if samples.x.shape[1] != model.sizes[0]:
        raise ConfigError(
            f"{samples.name} has {samples.x.shape[1]} values per sample, expected "
            f"{model.sizes[0]} as in the training of {run}"
        )
    theta = np.empty(model.n, np.float32)
    for name, view in model.tensors(theta).items():
        view[...] = arrays[name]
    return _of(model, theta, samples)


def _mlp(config: TrainConfig, arrays: dict[str, AnyArray]) -> MLP | None:
    """Return the MLP of a config with these arrays; None if they are of another model."""
    last = f"layers.{len(config.hidden)}.bias"
    try:
        sizes = [arrays["layers.0.weight"].shape[0], *config.hidden, arrays[last].size]
    except (KeyError, IndexError):
        return None
    model = MLP(sizes, activation=config.activation, loss=config.loss, batch_size=_ROWS)
    expected = model.tensors(np.empty(model.n, np.float32))
    shapes, found = (
        {name: (it.shape, it.dtype) for name, it in tensors.items()}
        for tensors in (expected, arrays)
    )
    return model if shapes == found else None


def _of(model: MLP, theta: FloatArray, samples: Samples) -> Prediction:
    outputs = model.outputs(theta, samples.x)
    loss = accuracy = None
    if samples.y is not None:
        try:
            loss, accuracy = model.evaluate(theta, samples.x, samples.y)
        except ConfigError as error:
            raise ConfigError(f"{samples.name}: {error}") from None
    if model.loss_name == "squared":
        return Prediction(outputs, None, loss, accuracy)
    p = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return Prediction(outputs.argmax(axis=1), p, loss, accuracy)
