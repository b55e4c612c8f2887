"""Finds the value of a knob with ``--tune``: by short runs that leave nothing behind.

Shards cannot change while a run trains, and other buckets or periods would be other sums. So before
it, the real ranks take a few steps with each candidate, with the real model and data, the same
messages and updates. Then everything is as it was: parameters and optimizers are made again,
batches start from the beginning, and a problem with a state gets it back. So the run that follows
is the one that has the choice given, to the bit where its mode has bits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from psrt.config.tuning import PERIOD, tuned_knob, with_tuned
from psrt.core.errors import ConfigError
from psrt.core.progress import PROGRESS
from psrt.history.header import Tried
from psrt.job.launcher import Launcher
from psrt.job.plan import layout_of
from psrt.job.setup import Setup
from psrt.job.shards import ShardChoice
from psrt.rows.knobs import dashed
from psrt.runtime.own_loop import OwnLoop
from psrt.sync.tuning import fastest, fewest_averages

#: Rounds of a rehearsal: updates, pushes of a worker, or averages.
_ROUNDS: Final = 8


async def rehearsed(
    launcher: Launcher, setup: Setup, run: Callable[[Setup], Awaitable[list[float]]]
) -> Setup:
    """Return a job with the value with which its steps were shortest; collective.

    Args:
        launcher: of this process.
        setup: of the job, with the candidates in its plan.
        run: runs all roles of such a job to their end, and gives problems their states back;
            returns the seconds of a step of each worker of this process.

    Raises:
        ConfigError: on every rank, if this job cannot be rehearsed.
    """
    mode, values = setup.config.scheme, setup.plan.tries
    knob = tuned_knob(mode, setup.config.servers)
    with launcher.agree():
        if isinstance(setup.problem, OwnLoop):
            raise ConfigError(
                "--tune is not possible in a loop of your own, which psrt cannot rehearse; give "
                f"{dashed(knob)}"
            )
    launcher.rehearses, took = True, dict.fromkeys(values, math.inf)
    with PROGRESS.doing("tuning"):
        # All twice, the shorter one counts: caches are cold at first, and others use the machine.
        for value in (*values, *values):
            one = _with(setup, value)
            steps = _ROUNDS * one.config.scheme.local_steps
            short = replace(one.config, steps=steps, epochs=None, survive=None)
            mine = await run(replace(one, config=short))
            came = map(json.loads, launcher.tell_first(json.dumps(mine)))
            each = [seconds for its in came for seconds in its]
            took[value] = min(took[value], sum(each) / max(len(each), 1))
    launcher.rehearses = False
    times = json.loads(launcher.share(json.dumps([*took.values()])))
    tuned: list[Tried] = [*zip(values, times, strict=True)]
    if knob == PERIOD:
        best = fewest_averages(values, times, most=mode.local_steps)
        if mode.local_steps not in values:
            tuned.append((mode.local_steps, None))
    else:
        best = fastest(values, times)
    return replace(_with(setup, best), tuned=tuple(tuned))


def _with(setup: Setup, value: int) -> Setup:
    """Return a job with a value of its knob."""
    config, plan = setup.config, replace(setup.plan, tries=())
    config = replace(config, **with_tuned(config.scheme, config.servers, value))
    if plan.shards is not None:
        plan = replace(plan, shards=ShardChoice(value, "--tune found it best"))
    servers, workers = setup.role_map.server_ranks, setup.role_map.workers
    layout = layout_of(
        config, plan, setup.problem, hosts=setup.hosts, servers=servers, workers=workers
    )
    return replace(setup, config=config, plan=plan, **layout._asdict())
