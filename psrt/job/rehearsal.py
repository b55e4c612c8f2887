"""Finds the number of shards per server with ``--tune``: by short runs that leave nothing behind.

Shards cannot change while a run trains: servers' memory, their versions, and the history are made
for them. So before it, the real ranks take a few steps with each candidate, with the real model and
data, the same messages and updates. Then everything is as it was: parameters and optimizers are
made again, batches start from the beginning, and a problem with a state gets it back. So the run
that follows is the one that ``--shards-per-server K`` makes, to the bit where its mode has bits.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from psrt.checkpoint import from_text, to_text
from psrt.core.errors import ConfigError
from psrt.core.progress import PROGRESS
from psrt.core.units import time_text
from psrt.job.launcher import Launcher
from psrt.job.plan import chosen, layout_of
from psrt.job.setup import Setup
from psrt.job.shards import ShardChoice
from psrt.runtime.own_loop import OwnLoop
from psrt.sync.tuning import ROUNDS, Use, fastest

#: Pushes of a worker with each candidate.
_PUSHES = 2 * ROUNDS


async def rehearsed(
    launcher: Launcher, setup: Setup, run: Callable[[Setup], Awaitable[float]]
) -> Setup:
    """Return a job with the number of shards with which its steps were shortest; collective.

    Args:
        launcher: of this process.
        setup: of the job, with the candidates in its plan.
        run: runs all roles of such a job to their end; returns the seconds of a step of a worker
            of this process, 0 at one without.

    Raises:
        ConfigError: on every rank, if this job cannot be rehearsed.
    """
    problem: Any = setup.problem
    with launcher.agree():
        if isinstance(problem, OwnLoop):
            raise ConfigError(
                "--tune is not possible with servers in a loop of your own, which psrt cannot "
                "rehearse; give --shards-per-server"
            )
        if launcher.disturbed:
            raise ConfigError("--tune is not possible with servers and faults, which would strike")
    state = getattr(problem, "state", None)
    before = to_text(state()) if callable(state) else None
    values, seconds = setup.plan.tries, []
    with PROGRESS.doing("tuning"):
        # Once more with the first one, before: caches and pages are cold.
        for value in (values[0], *values):
            mine = await run(_with_shards(setup, value))
            each = [it for it in map(float, launcher.tell_first(repr(mine))) if it]
            mean = json.dumps(sum(each) / len(each) if each else 0.0)
            seconds.append(float(launcher.share(mean)))
            if before is not None:
                problem.load_state(from_text(before))
    del seconds[0]
    best = fastest(values, seconds)
    took = ", ".join(
        f"{time_text(it)} with {each}" for each, it in zip(values, seconds, strict=True)
    )
    uses = [Use(0, *it) for it in zip(values, seconds, strict=True)]
    found = _with_shards(setup, best, f"a step took {took}")
    return replace(
        found, config=replace(found.config, **_length(setup)), tried=(*uses, Use(0, best, None))
    )


def _length(setup: Setup) -> dict[str, Any]:
    return {name: getattr(setup.config, name) for name in ("steps", "epochs")}


def _with_shards(setup: Setup, shards: int, why: str = "") -> Setup:
    """Return a job with that many shards per server, and the length of a rehearsal."""
    plan = replace(setup.plan, shards=ShardChoice(shards, why), tries=())
    steps = _PUSHES * setup.config.scheme.local_steps
    config = chosen(replace(setup.config, steps=steps, epochs=None), plan)
    servers, workers = setup.role_map.server_ranks, setup.role_map.workers
    layout = layout_of(
        config, plan, setup.problem, hosts=setup.hosts, servers=servers, workers=workers
    )
    return replace(setup, config=config, plan=plan, role_map=layout.role_map)
