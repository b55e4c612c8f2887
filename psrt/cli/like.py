"""``psrt simulate --like RUN``: the config of a recorded run, where flags do not say otherwise."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from psrt.cli.flags import LENGTHS, values_of
from psrt.collective import ALGORITHMS
from psrt.collective.registry import AUTO, LIBRARY, NODE
from psrt.config import TrainConfig
from psrt.config.checks import first_miss
from psrt.config.knobs import knobs_of
from psrt.config.modes import MODES, Servers
from psrt.errors import ConfigError
from psrt.history import Header, History, Kind, read_history

#: All-reduces whose sums are known to virtual time if it is told how long they take.
_KNOWN = (AUTO, NODE, LIBRARY, *ALGORITHMS)
#: Flags after which the model may be another one than the run's.
_MODEL = ("hidden", "dataset")
#: Flags that change how many samples a step of all workers takes.
_STEP = ("workers", "batch_size")


@dataclass(frozen=True, slots=True)
class Like:
    """What a simulation like a recorded run is, as far as flags do not say otherwise."""

    #: Not resolved.
    config: TrainConfig
    #: Workers of the run.
    workers: int
    #: n and samples of its data, without numerics; None is those of the config's model and data.
    parameters: int | None = None
    samples: int | None = None


def read_like(namespace: argparse.Namespace) -> Like:
    """Return what the run that ``--like`` names was like.

    A run of ``psrt.run`` may have had a model and data that no flags describe. Neither is needed
    where nothing is computed: the history says how long its epochs were.

    Raises:
        ConfigError: if it has no history, or for flags that will not do; one line.
    """
    given = vars(namespace)
    history = read_history(given["like"])
    header, config = history.header, config_like(history.header, namespace)
    workers = len(header.workers)
    if given.get("numerics"):
        _check_model(config, header)
        return Like(config, workers)
    if any(name in given for name in _MODEL):
        return Like(config, workers)
    samples = samples_of(history)
    if config.steps is not None and any(name in given for name in _STEP):
        samples = None  # which may be less than a step of more
    elif samples is None and config.epochs is not None and "epochs" not in given:
        steps = max(int(events["clock"].max(initial=0)) for events in history.workers)
        config = replace(config, epochs=None, steps=max(1, steps))
    return Like(config, workers, header.n, samples)


def samples_of(history: History) -> int | None:
    """Return how many samples an epoch of a run had, None where none came to its end."""
    header = history.header
    total, over = 0, header.knob("epochs", 0) >= 1
    full = header.knob("batch_size", 0)
    for events in history.workers:
        kinds = events["kind"]
        kind = Kind.STEP if (kinds == Kind.STEP).any() else Kind.PUSH
        steps = events[(kinds == kind) & (events["shard"] <= 0)]
        first = steps["progress"] < 1.0
        total += int(steps["samples"][first].sum())
        # What is left over at the end of an epoch makes a smaller batch.
        smaller = (steps["samples"] > 0) & (steps["samples"] < full)
        over = over or not first.all() or bool(smaller.any())
    return total if over and total else None


def _check_model(config: TrainConfig, header: Header) -> None:
    """Raise unless the config's model has as many parameters as that of the run."""
    from psrt.job.build import timing_problem

    n = timing_problem(config, workers=len(header.workers)).n
    if n != header.n:
        raise ConfigError(
            f"the run trained {header.n} parameters, which is not the model of its config with "
            f"{n}: it can be simulated without numerics only"
        )


def config_like(header: Header, namespace: argparse.Namespace) -> TrainConfig:
    """Return the config of a simulation like a recorded run.

    Knobs of the run that have no meaning with what the flags say are left out: a run of another
    mode has its own.

    Args:
        header: of the recorded run.
        namespace: the flags, parsed.

    Raises:
        ConfigError: one line for anything that will not do.
    """
    given = values_of(namespace)
    if "replay" in given:
        raise ConfigError("give --like or --replay, not both")
    # What slowed the run down is in its times.
    values = {
        name: header.config[name]
        for name, knob in knobs_of(TrainConfig).items()
        if knob.of_run and not knob.real_time and header.config.get(name) is not None
    }
    if header.algorithm is not None:
        values["allreduce"] = header.algorithm if header.algorithm in _KNOWN else AUTO
    if any(name in given for name in LENGTHS):
        values = {name: value for name, value in values.items() if name not in LENGTHS}
    if "optimizer" in given and given["optimizer"] != values.get("optimizer"):
        values.pop("lr", None)  # a good one for another optimizer
    return TrainConfig(**_meaningful(values, given))


def _meaningful(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is given, and of ``values`` what has a meaning beside it."""
    kept = {**values, **given}
    mode = MODES[kept["mode"]]
    fixed = mode.servers is not Servers.OPTIONAL
    if "servers" not in given and fixed and bool(kept.get("servers")) != mode.needs_servers:
        kept.pop("servers", None)
    # What depends on a knob that is dropped is dropped after it.
    knobs = knobs_of(TrainConfig)
    for name in knobs:
        if name in kept and name not in given and first_miss(knobs, name, kept.get):
            del kept[name]
    return kept
