"""What goes together with a model that is cut: found by trying, of a tiny job that is set up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from psrt.config import TrainConfig
from psrt.errors import ConfigError
from psrt.job.setup import set_up
from psrt.job.virtual import VirtualLauncher

#: Knobs of a ``TrainConfig``.
Knobs = dict[str, Any]

#: A job with enough layers for two stages of two chunks each.
TINY: Final[Knobs] = {
    "dataset": "synthetic:40x12x4",
    "hidden": (16, 12, 8),
    "batch_size": 4,
    "steps": 3,
    "lr": 0.02,
    "out": "run",
    "overwrite": True,
}
_CODED: Final[Knobs] = {"codec": "int8", "codec_everywhere": True}
_GOSSIP: Final[Knobs] = {"mode": "gossip"}
_LOCAL: Final[Knobs] = {"mode": "local-sgd", "local_steps": 2}
_SERVED: Final[Knobs] = _LOCAL | {"servers": 2}
#: Flags, as a user types them, and their knobs; without a mode it is all-reduce.
ROWS: Final[Mapping[str, Knobs]] = {
    "serial": {"mode": "serial"},
    "allreduce": {"mode": "allreduce"},
    "--shard optimizer": {"shard": "optimizer"},
    "--shard gradients": {"shard": "gradients"},
    "--shard gradients --defer-weights": {"shard": "gradients", "defer_weights": True},
    "--shard parameters": {"shard": "parameters"},
    "--shard parameters --defer-weights": {"shard": "parameters", "defer_weights": True},
    "--codec": _CODED,
    "--clip-norm": {"clip_norm": 0.5},
    "--check-every": {"check_every": 1},
    "--recompute": {"recompute": True},
    "--defer-weights": {"defer_weights": True},
    "--inject": {"inject": ("1:delay:0.01",)},
    "--partition": {"partition": "dirichlet:0.4"},
    "--record": {"record": True},
    "--replay": {"replay": "run", "out": None, "overwrite": False},
    "local-sgd": _LOCAL,
    "local-sgd --codec": _LOCAL | _CODED,
    "local-sgd --clip-norm": _LOCAL | {"clip_norm": 0.5},
    "local-sgd --fragments": _LOCAL | {"fragments": 2, "sync_delay": 1},
    "local-sgd --fragments --codec": _LOCAL | _CODED | {"fragments": 2, "sync_delay": 1},
    "local-sgd --servers": _SERVED,
    "local-sgd --servers --codec": _SERVED | _CODED,
    "sync": {"mode": "sync"},
    "sync --backup": {"mode": "sync", "backup": 1},
    "sync --codec": {"mode": "sync"} | _CODED,
    "sync --codec --codec-reply": {"mode": "sync", "codec_reply": "int8"} | _CODED,
    "sync --clip-norm": {"mode": "sync", "clip_norm": 0.5},
    "async": {"mode": "async"},
    "async --codec": {"mode": "async"} | _CODED,
    "ssp": {"mode": "ssp", "staleness": 1},
    "softsync": {"mode": "softsync", "softsync": 2},
    "easgd": {"mode": "easgd", "local_steps": 2},
    "easgd --codec": {"mode": "easgd", "local_steps": 2} | _CODED,
    "easgd --asynchronous": {"mode": "easgd", "local_steps": 2, "asynchronous": True},
    "gossip": _GOSSIP,
    "gossip --order adapt-then-combine": _GOSSIP | {"order": "adapt-then-combine"},
    "gossip --push-sum": _GOSSIP | {"push_sum": True},
    "gossip --gradient-tracking": _GOSSIP | {"gradient_tracking": True},
    "gossip --codec": _GOSSIP | _CODED,
    "gossip --clip-norm": _GOSSIP | {"clip_norm": 0.5},
    "gossip --asynchronous": _GOSSIP | {"asynchronous": True},
    "gossip --by-host": _GOSSIP | {"by_host": True},
}
#: Two copies of a model that is cut in one way each. Micro-batches are those of the copies alone.
COLUMNS: Final[Mapping[str, Knobs]] = {
    "data": {"parallel": "data:2", "micro_batches": 2},
    **{
        name: {"parallel": "data:2,pipeline:2", "pipeline_schedule": name}
        | ({} if name == "pipedream" else {"micro_batches": 2})
        for name in ("sequential", "gpipe", "1f1b", "interleaved:2", "zero-bubble", "pipedream")
    },
    "tensor": {"parallel": "data:2,tensor:2", "micro_batches": 2},
}
#: The last column: a cut of which this is asked of ``psrt simulate``.
SIMULATED: Final = "1f1b"


def knobs_of(row: str, column: str) -> Knobs:
    """Return the knobs of a job; ``row`` is in ``ROWS`` and ``column`` in ``COLUMNS``."""
    return TINY | COLUMNS[column] | ROWS[row]


def workers_of(column: str) -> int:
    """Return how many workers the job of a column has."""
    axes = TrainConfig(parallel=COLUMNS[column]["parallel"]).axes
    return axes.data * axes.cells


def refusal(row: str, column: str, *, simulated: bool = False) -> str:
    """Return the line by which a job is refused, "" if it is accepted; nothing is trained.

    Args:
        row: in ``ROWS``.
        column: in ``COLUMNS``.
        simulated: whether it is asked of a simulation.
    """
    workers = workers_of(column)
    launcher = (VirtualLauncher if simulated else _OverMpi)(workers, seed=0)
    try:
        config = TrainConfig(**knobs_of(row, column))
        launcher.ranks_of(config)
        if config.replay is not None:  # that of a run which could be recorded
            config = replace(config, replay=None, record=True, out=TINY["out"])
        set_up(launcher, config)
    except ConfigError as error:
        return str(error)
    return ""


class _OverMpi(VirtualLauncher):
    """What is asked of ranks on one host, of which none is started."""

    simulated = False

    def _check_cut(self, config: TrainConfig) -> None:
        """Refuse nothing: that is of virtual time."""
