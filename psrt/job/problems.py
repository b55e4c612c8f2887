"""The problem of a run: the data and model that a config names, and the first checks of it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from psrt.codec import Matrix
from psrt.collective.analysis.machine import DEFAULT_COSTS, MachineCosts, read_costs
from psrt.config import TrainConfig, check_data
from psrt.config.checks import flag
from psrt.config.dealing import IID, dealing_of
from psrt.core.arrays import AnyArray, Vector
from psrt.core.errors import ConfigError
from psrt.core.partition import Span
from psrt.data import Deal, dataset_size, deal, load_dataset
from psrt.model import MLP
from psrt.runtime.named_arrays import NamedShape, named_arrays
from psrt.runtime.own_loop import OwnLoop
from psrt.runtime.problem import Problem, Supervised, labels_of, own_optimizer
from psrt.runtime.problem_rules import check_methods
from psrt.runtime.timing_chain import TimingOnlyChain
from psrt.runtime.timing_only import TimingOnlyProblem

#: Features with a larger root mean square than this are reported: image bytes have about 80.
_LARGE = 30.0
#: The factor by which a loss may grow from the initial parameters to the last.
_GROWN = 10.0
#: The most workers for which a line has each one's numbers.
_SHOWN = 16


def supervised_problem(config: TrainConfig, *, workers: int) -> Supervised:
    """Load the config's data and build the model that fits it.

    Raises:
        ConfigError: if the data cannot be read, or the config does not fit it.
    """
    data = load_dataset(config.dataset, seed=config.seed)
    outputs = data.classes or data.y_train.shape[1]
    model = MLP(
        [data.x_train.shape[1], *config.hidden, outputs],
        activation=config.activation,
        loss=config.loss,
        batch_size=config.batch_size,
    )
    check_data(
        config,
        samples=len(data.x_train),
        parameters=model.n,
        workers=workers,
        classes=data.classes,
    )
    return Supervised(model, data, batch_size=config.batch_size, seed=config.seed)


def data_hint(problem: Problem | None) -> str:
    """Return advice for data on which the MLP will hardly learn; empty for other data."""
    if not isinstance(problem, Supervised) or problem.data.scale <= _LARGE:
        return ""
    return (
        f"data: the features of {problem.data.name} have a root mean square of "
        f"{problem.data.scale:.3g}; networks learn best where it is about 1: scale them"
    )


def loss_hint(problem: Problem | None, loss: float | None) -> str:
    """Return advice about a loss that has grown where it should fall.

    Args:
        problem: the trained problem.
        loss: on the test set, at the end; None if unknown.
    """
    if not isinstance(problem, Supervised) or loss is None or loss < 1:
        return ""
    before = problem.evaluate(problem.initial())["loss"]
    if loss <= _GROWN * before:
        return ""
    return (
        f"diverged: the test loss went from {before:.3g} to {loss:.3g}; try a smaller --lr, or "
        "scale the inputs"
    )


def timing_problem(
    config: TrainConfig,
    *,
    workers: int,
    parameters: int | None = None,
    samples: int | None = None,
    parts: Sequence[Span] = (),
    matrices: Sequence[Matrix] = (),
    dealt: bool = False,
) -> TimingOnlyProblem:
    """Return the stand-in for the config's problem if nothing is computed.

    If ``config.steps`` sets the length of the run, all steps are one epoch and the number of
    samples is not looked up; the data's shape is read only if the model's size depends on it.

    Args:
        config: resolved.
        workers: W.
        parameters: n; None takes that of the config's model.
        samples: of the data set, together with ``parameters``; None looks them up if needed.
        parts: the gradient's spans as they become ready, together with ``parameters``; without
            any, it comes as a whole.
        matrices: among the parameters, together with ``parameters``.
        dealt: whether each worker's number of samples is known, so that labels are not needed.

    Raises:
        ConfigError: as ``supervised_problem``, except for errors that only the numbers show.
    """
    if config.parallel is not None:
        return _timing_chain(config, workers)
    if config.partition != IID and not dealt:
        return _labelled_timing(config, workers, parameters, parts, matrices)
    by_steps = config.steps is not None and not _varies(config) and not dealt
    size, steps = config.batch_size, config.steps
    if parameters is not None and samples is not None:
        check_data(config, samples=samples, parameters=parameters, workers=workers)
        return TimingOnlyProblem(
            parameters, batch_size=size, samples=samples, spans=parts, matrices=matrices
        )
    if parameters is not None and by_steps:
        return TimingOnlyProblem(
            parameters, batch_size=size, steps=steps, spans=parts, matrices=matrices
        )
    samples, features, outputs = dataset_size(config.dataset, seed=config.seed)
    model = MLP([features, *config.hidden, outputs], batch_size=1)
    n = model.n if parameters is None else parameters
    spans = model.gradient_spans() if parameters is None else parts
    matrices = model.matrices() if parameters is None else matrices
    if by_steps:
        return TimingOnlyProblem(n, batch_size=size, steps=steps, spans=spans, matrices=matrices)
    check_data(config, samples=samples, parameters=n, workers=workers)
    return TimingOnlyProblem(n, batch_size=size, samples=samples, spans=spans, matrices=matrices)


def _varies(config: TrainConfig) -> bool:
    """Return whether the progress of an epoch decides when parameters are averaged."""
    return config.mode is not None and config.scheme.post_local_epoch > 0


def _timing_chain(config: TrainConfig, workers: int) -> TimingOnlyChain:
    """Return the stand-in for a model that is split into stages of the config's layers."""
    size, steps = config.batch_size, config.steps
    labels: AnyArray | None = None
    if config.partition != IID:
        data = load_dataset(config.dataset, seed=config.seed)
        samples, features, outputs, labels = data.samples, data.features, data.outputs, data.labels
    else:
        samples, features, outputs = dataset_size(config.dataset, seed=config.seed)
    model = MLP([features, *config.hidden, outputs], batch_size=1)
    if labels is None and steps is not None and not _varies(config):
        return TimingOnlyChain(model, batch_size=size, steps=steps)
    check_data(config, samples=samples, parameters=model.n, workers=workers)
    return TimingOnlyChain(model, batch_size=size, samples=samples, labels=labels)


def _labelled_timing(
    config: TrainConfig,
    workers: int,
    parameters: int | None,
    parts: Sequence[Span],
    matrices: Sequence[Matrix],
) -> TimingOnlyProblem:
    """Return the stand-in whose samples are partitioned by the labels of the config's data."""
    data = load_dataset(config.dataset, seed=config.seed)
    model = MLP([data.features, *config.hidden, data.outputs], batch_size=1)
    n = model.n if parameters is None else parameters
    check_data(config, samples=data.samples, parameters=n, workers=workers)
    return TimingOnlyProblem(
        n,
        batch_size=config.batch_size,
        samples=data.samples,
        labels=data.labels,
        spans=model.gradient_spans() if parameters is None else parts,
        matrices=model.matrices() if parameters is None else matrices,
    )


def dealt_out(config: TrainConfig, problem: Problem, *, workers: int) -> Deal | None:
    """Return the samples of each worker by ``config.partition``; None with ``iid``.

    Raises:
        ConfigError: if the problem has no labels, or the data cannot be partitioned like that.
    """
    asked = dealing_of(config.partition)
    if asked is None:
        return None
    try:
        return deal(
            labels_of(problem),
            workers=workers,
            rule=asked.rule,
            number=asked.number,
            batch_size=config.batch_size,
            seed=config.seed,
        )
    except ConfigError as error:
        raise ConfigError(f"--partition {config.partition}: {error}") from None


def deal_text(deal: Deal) -> str:
    """Return in words the samples and labels of each worker; for many workers, the range.

    >>> deal_text(Deal.sized([(3, 2), (1, 1)], batch_size=2))
    'samples per worker 3, 1; labels per worker 2, 1'
    """
    rows = zip(("samples", "labels"), zip(*deal.rows, strict=True), strict=True)
    return "; ".join(f"{name} per worker {_spread(numbers)}" for name, numbers in rows)


def _spread(numbers: Sequence[int]) -> str:
    if len(numbers) <= _SHOWN:
        return ", ".join(map(str, numbers))
    return f"{min(numbers)} to {max(numbers)}, {sum(numbers) / len(numbers):.3g} on average"


def initial_parameters(problem: Problem) -> Vector:
    """Return the problem's initial parameters.

    Raises:
        ConfigError: if they are not a finite, flat, non-empty float32 vector.
    """
    check_methods(problem)
    initial = np.asarray(problem.initial())
    if initial.ndim != 1 or initial.dtype != np.float32 or not initial.size:
        raise ConfigError(
            f"initial() must return a flat float32 vector, got {initial.dtype} of shape "
            f"{initial.shape}"
        )
    if not np.isfinite(initial).all():
        raise ConfigError("the initial parameters are nan or infinite")
    return initial


def arrays_of(problem: Problem | None, n: int) -> list[NamedShape] | None:
    """Return the arrays of the n parameters, if the user's loop or the problem names them."""
    if isinstance(problem, OwnLoop):
        return [*problem.arrays]
    found = named_arrays(problem, n)
    return None if found is None else found.arrays()


def check_arrays(
    problem: Problem | None, n: int, rank: int, first: Sequence[Sequence[Any]] | None
) -> None:
    """Raise unless a rank's parameters have the arrays of rank 0's, since all form one vector.

    Args:
        problem: of the rank.
        n: the number of parameters.
        rank: its number.
        first: the result of ``arrays_of`` on rank 0, possibly from JSON.

    Raises:
        ConfigError: if they are not.
    """
    mine = arrays_of(problem, n)
    if mine is None or first is None:
        return
    for here, there in itertools.zip_longest(mine, first):
        if here is None or there is None or (here[0], [*here[1]]) != (there[0], [*there[1]]):
            raise ConfigError(
                f"the parameters differ between ranks: rank {rank} has {_array_text(here)} where "
                f"rank 0 has {_array_text(there)}"
            )


def _array_text(array: Sequence[Any] | None) -> str:
    return "no more" if array is None else f"{array[0]} of shape {(*array[1],)}".lstrip()


def with_own_optimizer(config: TrainConfig, problem: Problem | None) -> TrainConfig:
    """Return the config with the optimizer that a problem brings, if it does.

    Raises:
        ConfigError: if the config has knobs that this optimizer ignores, or cannot be run with it;
            or the run had such an optimizer, and the problem does not bring it.
    """
    own, given = own_optimizer(problem), config.optimizer
    if own is None:
        if given.is_brought:
            raise ConfigError(
                f"--optimizer {given}: the problem brings no optimizer, expected optimizer= of "
                "psrt.torch.Problem or psrt.Trainer"
            )
        return config
    usual, row = TrainConfig(), own.row
    known = (row.lr, given.lr if given.is_brought else None)
    config = replace(
        config,  # as it is in a run that is resumed or replayed
        optimizer=usual.optimizer if given.is_brought else given,
        lr=None if config.lr in known else config.lr,
    )
    for name in ("optimizer", "lr", "weight_decay", "schedule"):
        if (value := getattr(config, name)) != getattr(usual, name):
            shown = value if name in ("lr", "weight_decay") else str(value)
            raise ConfigError(f"{flag(name, shown)} has no effect: the problem has {row.called}")
    rate = config.staleness_rate
    if rate is not None and "max_lr" in rate.takes:
        raise ConfigError(
            f"--staleness-rate {rate} is not possible with {row.called}: it compares steps at one "
            "learning rate, of which groups and schedulers have several"
        )
    if config.parallel is not None:
        raise ConfigError(
            f"--parallel {config.parallel} is not possible with {row.called}, whose groups are of "
            "the whole model"
        )
    return replace(config, optimizer=row)


def check_optimizer(problem: Problem | None, rank: int, config: TrainConfig) -> None:
    """Check that a rank's problem brings the same optimizer as rank 0's.

    Raises:
        ConfigError: if it does not.
    """
    own = own_optimizer(problem)
    mine = None if own is None else own.row
    first = config.optimizer if config.optimizer.is_brought else None
    if problem is not None and mine != first:
        raise ConfigError(
            f"the optimizer differs between ranks: rank {rank} brings {mine or 'none'}, rank 0 "
            f"{first or 'none'}"
        )


def machine_costs(config: TrainConfig) -> MachineCosts:
    """Return the costs by which ``auto`` picks an all-reduce: the config's file, or the defaults.

    Raises:
        ConfigError: if the file cannot be read, or was not written by ``MachineCosts.to_json``.
    """
    if config.machine_costs is None:
        return DEFAULT_COSTS
    try:
        return read_costs(config.machine_costs)
    except ConfigError as error:
        raise ConfigError(f"--machine-costs {error}") from None
