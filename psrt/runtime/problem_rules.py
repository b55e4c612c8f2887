"""The rules of a problem, checked where that costs nothing: one line per broken rule.

Methods are checked before anything starts, and the gradient at the first step. The hot path checks
nothing: a wrong loss or batch shows by the ``TypeError`` that it raises.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sized
from typing import Any

import numpy as np

from psrt.config import TrainConfig
from psrt.core.arrays import Vector, read_only
from psrt.core.errors import ConfigError, users_place, users_traceback
from psrt.core.stats import COLUMNS
from psrt.data.keyed import whole_weight
from psrt.runtime.checksum import checksum
from psrt.runtime.named_arrays import tensors_of

METHODS = ("initial", "batches", "loss_and_grad", "evaluate")
#: A NaN that no arithmetic makes: what of a gradient has these bits was not written.
_UNWRITTEN = np.uint32(0x7FC0BEEF)
#: Columns of the metrics that no figure on held-out data may be called; accuracy and loss are two.
TAKEN = frozenset(
    (
        *("run", "epoch", "step", "test_loss", "seconds", "samples_per_second", "samples"),
        *("staleness_mean", "staleness_max", "bytes_sent", "bytes_received", "epoch_end"),
        *("evaluated_seconds", "gap_mean", "skew_max", "waiting_share", "consensus_distance"),
        *("measured_seconds", "more", *COLUMNS),
    )
)


def check_config(config: object) -> None:
    """Check that a config is one, not the problem or a dictionary.

    Raises:
        ConfigError: naming what was given.
    """
    if not isinstance(config, TrainConfig):
        raise ConfigError(
            f"the config is {_kind(config)}, expected a TrainConfig, and the problem after it"
        )


def check_methods(problem: object) -> None:
    """Check that a problem is an object with the methods that every problem has.

    Raises:
        ConfigError: naming those that are missing, or the class that was given for an object.
    """
    if isinstance(problem, type):
        raise ConfigError(f"the problem is the class {problem.__name__}, expected an object of it")
    missing = [f"{name}()" for name in METHODS if not callable(getattr(problem, name, None))]
    if missing:
        raise ConfigError(f"the problem, {_kind(problem)}, has no {' and no '.join(missing)}")


def sample_counter(problem: object) -> Callable[[Any], int]:
    """Return what counts the samples of a batch: its weight in a mean over workers.

    It is the problem's own ``samples(batch)`` where it has one, else the length of the batch, or of
    its first part if the batch is a tuple such as (x, y).

    The counter raises a ``ConfigError`` if there is nothing to count.
    """
    own: Callable[[Any], Any] | None = getattr(problem, "samples", None)
    if not callable(own):  # an attribute of the problem's own that has the name by chance
        own = None

    def count(batch: Any) -> int:
        try:
            if own is not None:
                return whole_weight(own(batch), "samples()")
            if isinstance(batch, tuple):
                return len(batch[0])
            if not isinstance(batch, dict | str):  # their length is that of something else
                return len(batch)
        except (TypeError, IndexError):
            pass
        raise ConfigError(
            f"batches() gave {_said(batch)}, whose samples cannot be counted: expected an array, a "
            "list, or a tuple of them; samples(batch) of the problem may count anything else"
        )

    return count


def not_iterable(batches: object) -> ConfigError:
    """Return the error for batches that cannot be gone through."""
    return ConfigError(f"batches() returned {_said(batches)}, expected an iterable of batches")


def uncounted(batches: object, epochs: float) -> ConfigError:
    """Return the error for a run that is to end within an epoch of batches that nobody counts."""
    where = "epoch() got no number of steps: epoch(steps=…)"
    if not isinstance(batches, Sized):
        where = f"batches() returned {_said(batches)}, which has no length"
    return ConfigError(
        f"--epochs {epochs:g} ends within an epoch, and {where}; give a whole number of epochs, or "
        "--steps"
    )


def nothing_trained(problem: object) -> ConfigError:
    """Return the error for a run in which no worker has taken a step."""
    own = getattr(problem, "nothing", None)  # of a loop of the user's own
    if isinstance(own, str):
        return ConfigError(own)
    return ConfigError(
        "nothing was trained: batches() gave no worker any batch; expected at least one"
    )


def not_a_loss(loss: object) -> ConfigError:
    """Return the error for a loss that is not a number."""
    hint = "; the gradient goes into out" if isinstance(loss, tuple) else ""
    return ConfigError(f"loss_and_grad() returned {_said(loss)}, expected the mean loss{hint}")


def not_matrices(matrices: object) -> ConfigError:
    """Return the error for matrices that are not three whole numbers each."""
    return ConfigError(
        f"matrices() returned {_said(matrices)}, expected whole numbers (start, rows, columns) of "
        "each matrix"
    )


def no_labels(problem: object) -> ConfigError:
    """Return the error for a problem whose samples cannot be assigned."""
    return ConfigError(
        f"the problem, {_kind(problem)}, has no labels() that returns the label of each sample, by "
        "which samples are partitioned; batches() then gets those of each step as fourth argument"
    )


def not_labels(labels: object) -> ConfigError:
    """Return the error for labels that are not whole numbers, one for each sample."""
    return ConfigError(
        f"labels() returned {_said(labels)}, expected a whole number for each sample"
    )


def check_takes_samples(problem: Any) -> None:
    """Check that batches of given samples can be asked for.

    Raises:
        ConfigError: if ``batches`` takes three arguments only.
    """
    try:
        inspect.signature(problem.batches).bind(0, 1, 0, [])
    except TypeError:
        raise ConfigError(
            "batches() takes no samples, expected (worker, workers, epoch, samples): a problem "
            "with labels() is given those of each step as fourth argument"
        ) from None
    except ValueError:  # without a signature, such as one written in C
        return


def mark_unwritten(gradient: Vector) -> None:
    """Fill a gradient with what nobody computes."""
    gradient.view(np.uint32).fill(_UNWRITTEN)


def check_written(gradient: Vector, by: str = "loss_and_grad()") -> None:
    """Check that all of a gradient was written since ``mark_unwritten``.

    Args:
        gradient: after that was called.
        by: what should have written it.

    Raises:
        ConfigError: naming the first element that was not.
    """
    left = np.flatnonzero(gradient.view(np.uint32) == _UNWRITTEN)
    if left.size:
        raise ConfigError(
            f"{by} left {left.size} of {gradient.size} elements of out unwritten, the "
            f"first is {left[0]}; expected the whole gradient there, as by out[:] = …"
        )


def first_not_finite(vector: Vector) -> int | None:
    """Return the place of the first element that is nan or infinite; None without any.

    It takes about as long as half a copy: a product with itself is finite if all elements are, but
    where large ones overflow, and only then is each looked at.
    """
    if math.isfinite(np.dot(vector, vector)):
        return None
    found = np.flatnonzero(~np.isfinite(vector))
    return int(found[0]) if found.size else None


def tensor_with(problem: object, vector: Vector, at: int) -> str:
    """Return the name of the tensor with an element of a vector (n,); empty without names.

    Args:
        problem: whose arrays are views of the vectors that it is given.
        vector: parameters or a gradient.
        at: the place of the element.
    """
    tensors = tensors_of(problem)
    named = {} if tensors is None else tensors(vector)
    element = vector[at : at + 1]
    for name, it in named.items():
        if isinstance(it, np.ndarray) and np.may_share_memory(it, element):
            return name
    return ""


def reading_only(loss_and_grad: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``loss_and_grad`` with a check that it leaves theta as it is.

    The check reads theta twice, so it is for the first gradient; it takes no memory. It looks as
    soon as the function returns: in a simulation other ranks act before a gradient's time has
    passed. The function raises a ``WrittenError`` where it was written to.
    """

    def checked(theta: Vector, batch: Any, out: Vector, *ready: None) -> Any:
        before = checksum(theta)
        loss = loss_and_grad(theta, batch, out, *ready)
        check_only_read(theta, before, "loss_and_grad()")
        return loss

    return checked


def check_only_read(theta: Vector, before: int, by: str) -> None:
    """Check that parameters have the checksum that they had before.

    Raises:
        WrittenError: if they were written to.
    """
    if checksum(theta) != before:
        raise WrittenError(f"{by} wrote to theta")


class WrittenError(ConfigError):
    """Parameters were written to by what should only read them; see ``wrote_to_theta``."""


def wrote_to_theta(error: ValueError, by: str, when: str = "") -> ConfigError | None:
    """Return what to raise where an error means that parameters were written to.

    Where theta is handed out, it is an array that cannot be written to, so numpy raises an error in
    the user's code. It does so for other such arrays, too, so the line has the place.

    Args:
        error: of the user's code, or a ``WrittenError``.
        by: what the user calls the code.
        when: the step and the worker, where there are any.

    Returns:
        None if the error means something else.
    """
    expected = "expected that it only reads it: the optimizer updates it"
    if isinstance(error, WrittenError):
        return ConfigError(f"{error}{when}, {expected}")
    if "read-only" not in str(error) or users_traceback(error) is None:
        return None
    return ConfigError(f"{by} wrote to theta{when}, {expected}; {error}: {users_place(error)}")


def evaluate(problem: Any, theta: Vector) -> dict[str, float]:
    """Return what a problem's ``evaluate`` finds of parameters.

    Raises:
        ConfigError: if it writes to them, or finds no figures.
    """
    try:
        return checked_figures(problem.evaluate(read_only(theta)))
    except ValueError as error:
        if (wrong := wrote_to_theta(error, "evaluate()")) is None:
            raise
        raise wrong from error


def checked_figures(figures: object) -> dict[str, float]:
    """Return what ``evaluate`` found.

    Raises:
        ConfigError: if it is no dictionary of numbers, or an accuracy is no share.
    """
    if not isinstance(figures, Mapping):
        raise ConfigError(
            f"evaluate() returned {_said(figures)}, expected a dict such as {{'loss': 0.3}}"
        )
    for name, value in figures.items():
        if not isinstance(name, str) or not name or name in TAKEN:
            raise ConfigError(
                f"evaluate() gives a figure the name {name!r}, expected text that is not already "
                "a column of the metrics"
            )
        if not _is_real(value):
            raise ConfigError(f"evaluate() gives {_said(value)} for {name}, expected a number")
    accuracy = figures.get("accuracy", 0.0)
    if accuracy < 0 or accuracy > 1:
        raise ConfigError(f"evaluate() gives an accuracy of {accuracy:g}, expected one in [0, 1]")
    return {name: float(it) for name, it in figures.items()}


def _is_real(value: Any) -> bool:
    """Return whether a value is one real number: Python's, numpy's, or a tensor's only one."""
    try:
        return not np.ndim(value) and np.asarray(value).dtype.kind in "biuf"
    except (TypeError, ValueError, RuntimeError):  # of a tensor that requires a gradient
        return False


def _said(value: object) -> str:
    """Return a value's type and, where it is short, the value."""
    if value is None:
        return "None"
    text = repr(value)
    return f"{_kind(value)}, {text}" if len(text) <= 20 else _kind(value)


def _kind(value: object) -> str:
    """Return the name of a value's type, with its article."""
    name = type(value).__name__
    article = "an" if name[0] in "aeioAEIO" or name == "ndarray" else "a"
    return f"{article} {name}"
