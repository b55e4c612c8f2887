"""``psrt simulate --like RUN``: the config of a recorded run, unless flags override it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

from psrt.cli.flags import values_of
from psrt.codec import Matrix
from psrt.collective import ALGORITHMS
from psrt.collective.registry import AUTO, LIBRARY, NODE
from psrt.config import TrainConfig
from psrt.config.dealing import IID
from psrt.config.knobs import knobs_of
from psrt.config.overriding import replaced
from psrt.core.errors import ConfigError
from psrt.core.partition import Span
from psrt.history import Header, History, Kind, read_history
from psrt.history.log import Events
from psrt.rows.knobs import accept

#: All-reduces that a simulation can perform if their time is known.
_KNOWN = (AUTO, NODE, LIBRARY, *ALGORITHMS)
#: Flags that may make the model differ from the run's.
_MODEL = ("hidden", "dataset")
#: Flags that change the number of samples in a step of all workers.
_STEP = ("workers", "batch_size")
#: Flags that change how samples are split among workers.
_DEAL = ("workers", "partition", "seed")


@dataclass(frozen=True, slots=True)
class Like:
    """A simulation that imitates a recorded run, unless flags override it."""

    #: Not resolved.
    config: TrainConfig
    #: Number of workers of the run.
    workers: int
    #: n, and number of samples of the data, without numerics; None takes those of the config.
    parameters: int | None = None
    samples: int | None = None
    #: Without numerics, the gradient's spans in the order in which they are ready.
    parts: tuple[Span, ...] = ()
    #: Without numerics, the matrices among the parameters.
    matrices: tuple[Matrix, ...] = ()
    #: Without numerics, by worker, the number of its samples and that of their labels.
    deal: tuple[tuple[int, int], ...] = ()


def read_like(namespace: argparse.Namespace) -> Like:
    """Return the simulation that imitates the run of ``--like``.

    A run of ``psrt.run`` may have had a model and data that flags cannot describe. Without numerics
    neither is needed: the length of an epoch follows from the history.

    Raises:
        ConfigError: if there is no history, or the flags are invalid; one line.
    """
    given = vars(namespace)
    history = read_history(given["like"])
    header, config = history.header, config_like(history.header, namespace)
    workers = len(header.workers)
    if not given.get("timing_only", True):
        _check_model(config, header)
        return Like(config, workers)
    if any(name in given for name in _MODEL):
        return Like(config, workers)
    full = batch_of(history)
    if "batch_size" not in given and not header.deal:  # with a partition no batch may be full
        config = replace(config, batch_size=full)
    samples = samples_of(history)
    deal: tuple[tuple[int, int], ...] = ()
    if config.partition != IID:
        if header.deal and not any(name in given for name in _DEAL):
            deal = header.deal
        else:
            _check_labels(config, header)
    elif not header.deal and config.steps is not None and any(name in given for name in _STEP):
        samples = None  # a step may need more than the run had
    elif samples is None and config.epochs is not None and "epochs" not in given:
        steps = max(int(events["clock"].max(initial=0)) for events in history.workers)
        config = replace(config, epochs=None, steps=max(1, steps))
    matrices = tuple(Matrix(*it) for it in header.matrices)
    return Like(config, workers, header.n, samples, parts_of(history), matrices, deal)


def _steps(events: Events) -> Events:
    """Return the events of one worker that mark its steps, one per step."""
    kinds = events["kind"]
    kind = Kind.STEP if (kinds == Kind.STEP).any() else Kind.PUSH
    steps: Events = events[(kinds == kind) & (events["shard"] <= 0)]
    return steps


def batch_of(history: History) -> int:
    """Return the samples of a full batch; a user's own problem defines its own batches."""
    largest = max(int(_steps(events)["samples"].max(initial=0)) for events in history.workers)
    return largest or history.header.knob("batch_size", 1)


def samples_of(history: History) -> int | None:
    """Return the number of samples in an epoch of a run; None if no epoch ended."""
    header = history.header
    if header.deal:
        return sum(size for size, _ in header.deal)
    total, over = 0, header.knob("epochs", 0) >= 1
    full = batch_of(history)
    for events in history.workers:
        steps = _steps(events)
        first = steps["progress"] < 1.0
        total += int(steps["samples"][first].sum())
        # Only the last batch of an epoch may be smaller, so a smaller one ends an epoch.
        smaller = (steps["samples"] > 0) & (steps["samples"] < full)
        over = over or not first.all() or bool(smaller.any())
    return total if over and total else None


def parts_of(history: History) -> tuple[Span, ...]:
    """Return the parts in which a run's gradient was computed, in order; empty for a single part.

    They are the layers if the config's model was trained; otherwise the spans of shards that were
    pushed before the end of a step.
    """
    from psrt.job.problems import timing_problem

    header = history.header
    whole, several = True, len(header.servers) > len(header.server_ranks)
    for events in history.workers if several else ():
        times = events["time"][events["kind"] == Kind.PUSH]
        # A worker may have died in the middle of its last step.
        times = times[: times.size - times.size % len(header.servers)]
        times = times.reshape(-1, len(header.servers))
        whole = whole and bool((times == times[:, :1]).all())
    if several and whole:
        return ()
    try:
        config = TrainConfig(**{name: header.config[name] for name in (*_MODEL, "seed")}, steps=1)
        problem = timing_problem(config, workers=1)
    except (ConfigError, KeyError):
        problem = None
    if problem is not None and problem.n == header.n:
        return problem.gradient_spans()
    return tuple(Span(*span) for span in header.spans[::-1]) if several else ()


def _check_labels(config: TrainConfig, header: Header) -> None:
    """Raise unless the labels of the run's samples come from the config's data."""
    from psrt.data import load_dataset
    from psrt.runtime.problem import fingerprint_of

    known = not header.numerics  # then there was no other problem
    if known or header.data_sha256 == fingerprint_of(
        load_dataset(config.dataset, seed=config.seed)
    ):
        return
    raise ConfigError(
        f"--partition {config.partition} needs the labels of the run's data, but --dataset is "
        "other data; use --partition iid, or the run's own partition, seed and number of workers"
    )


def _check_model(config: TrainConfig, header: Header) -> None:
    """Raise unless the config's model has the run's number of parameters."""
    from psrt.job.problems import timing_problem

    n = timing_problem(config, workers=len(header.workers)).n
    if n != header.n:
        raise ConfigError(
            f"the run trained {header.n} parameters, but the model of its config has {n}: use "
            "--timing-only"
        )


def config_like(header: Header, namespace: argparse.Namespace) -> TrainConfig:
    """Return the config of a simulation that imitates a recorded run.

    Knobs of the run that have no effect together with the flags are left out, such as those of
    its mode if a flag asks for another mode.

    Args:
        header: of the recorded run.
        namespace: the parsed flags.

    Raises:
        ConfigError: for invalid flags; one line.
    """
    given = values_of(namespace)
    if "replay" in given:
        raise ConfigError("--like and --replay cannot be combined: give one of them")
    # Injected delays are left out: the recorded times include them.
    values = {
        name: accept(name, knob, header.config[name])
        for name, knob in knobs_of(TrainConfig).items()
        if knob.of_run and not knob.real_time and header.config.get(name) is not None
    }
    if given.get("shards_per_server") == AUTO and "shards_per_server" in values:
        del given["shards_per_server"]  # use what the run has chosen
    if header.algorithm is not None:
        values["allreduce"] = header.algorithm if header.algorithm in _KNOWN else AUTO
    if "optimizer" in given and given["optimizer"].name != values["optimizer"].name:
        values.pop("lr", None)  # chosen for another optimizer
    if "codec" in given and values.get("error_feedback") == values["codec"].is_fed_back:
        del values["error_feedback"]  # it was the default: another codec has its own
    return TrainConfig(**replaced(values, given))
