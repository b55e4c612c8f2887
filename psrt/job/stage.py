"""A job in virtual time before it begins: checked, with who is who and what is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from psrt.collective.analysis.machine import MachineCosts
from psrt.config import MODES, TrainConfig, resolve
from psrt.errors import ConfigError
from psrt.job.build import machine_costs, supervised_problem, timing_problem, wiring_for
from psrt.job.replay import Replay
from psrt.job.roles import assign_roles
from psrt.runtime.no_numbers import NoNumbers
from psrt.runtime.problem import Problem
from psrt.transport import Wiring
from psrt.transport.port import Vector

#: (worker, seconds) each: when it dies, without a word.
Crashes = Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Stage:
    """All that is known of a job in virtual time but for what things take."""

    #: Resolved.
    config: TrainConfig
    #: What is trained, by all workers in turn.
    problem: Problem
    #: (n,) the parameters to start from; empty without numerics.
    initial: Vector
    #: Who is who.
    wiring: Wiring
    #: What ``auto`` picks an all-reduce by.
    machine: MachineCosts
    #: Whether anything is computed.
    numerics: bool
    #: Who dies when.
    crashes: Crashes
    #: The run that is repeated, found to fit; None if there is none.
    replay: Replay | None


def set_up(
    config: TrainConfig,
    problem: Problem | None = None,
    *,
    workers: int,
    numerics: bool = True,
    parameters: int | None = None,
    samples: int | None = None,
    crashes: Crashes = (),
) -> Stage:
    """Check a job and resolve what it leaves open.

    Args:
        config: need not be resolved; its ``servers`` come on top of ``workers``.
        problem: what is trained; None makes the config's own MLP and data, or what stands for them.
        workers: W, at least 1.
        numerics: whether to compute; if not, ``problem`` is a ``NoNumbers``, or None.
        parameters: n, only without numerics; None is that of the config's model.
        samples: of the data, only without numerics; None is those of the config's data.
        crashes: who dies when.

    Raises:
        ConfigError: if the job cannot be.
    """
    replay = _replay(config, numerics=numerics, crashes=crashes)
    if replay is not None:
        config = replay.pinned(config)
    config, servers, ranks = _cast(config, workers)
    _check_crashes(crashes, workers)
    if numerics:
        problem = problem or supervised_problem(config, workers=workers)
        initial = np.asarray(problem.initial(), np.float32)
        n = initial.size
    else:
        problem = problem or timing_problem(
            config, workers=workers, parameters=parameters, samples=samples
        )
        assert isinstance(problem, NoNumbers), "there are no numbers to compute with"
        initial, n = problem.initial(), problem.n
    wiring = wiring_for(n, servers, ranks)
    if replay is not None:
        hosts = (0,) * wiring.size
        replay.check(config, wiring, initial=initial, problem=problem, hosts=hosts)
        config = replay.on_one_host(config)
    machine = machine_costs(config)
    return Stage(config, problem, initial, wiring, machine, numerics, tuple(crashes), replay)


def _replay(config: TrainConfig, *, numerics: bool, crashes: Crashes) -> Replay | None:
    """Return the run that the config is to repeat, None if there is none.

    Raises:
        ConfigError: if that run cannot be repeated, or not like this.
    """
    if config.replay is None:
        return None
    if not numerics:
        raise ConfigError("--no-numerics has no meaning with --replay, which is about the numbers")
    if crashes:
        raise ConfigError("--crash has no meaning with --replay: nobody died in that run")
    return Replay(config.replay)


def _cast(
    config: TrainConfig, workers: int
) -> tuple[TrainConfig, tuple[int, ...], tuple[int, ...]]:
    """Return the resolved config, the ranks of the servers and those of the workers.

    Raises:
        ConfigError: if the config does not fit so many workers.
    """
    if workers < 1:
        raise ConfigError(f"a job needs at least 1 worker, got {workers}")
    mode = MODES.get(config.mode or "")
    extra = 0 if mode is not None and mode.single else config.servers or 1
    count = resolve(config, ranks=workers + extra).servers or 0
    config = resolve(config, ranks=workers + count)
    placement = config.placement or "first"
    servers, ranks = assign_roles([0] * (workers + count), count, placement)
    return config, servers, ranks


def _check_crashes(crashes: Crashes, workers: int) -> None:
    for worker, _ in crashes:
        if not 0 <= worker < workers:
            raise ConfigError(
                f"crash names worker {worker} that is not there, the last is {workers - 1}"
            )
