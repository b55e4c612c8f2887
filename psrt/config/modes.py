"""The names a knob may take: modes, optimizers, rates. Data only, imported by all of the config."""

from __future__ import annotations

from typing import Final

#: Modes whose updates are applied by servers; they need a server and a worker.
SERVER_MODES: Final = ("sync", "async", "ssp", "softsync")

#: Every mode, as ``--mode`` spells it.
MODES: Final = ("serial", *SERVER_MODES, "local-sgd", "allreduce")

#: Modes that apply a gradient later than it was computed, so that its staleness can matter.
STALE_MODES: Final = ("async", "ssp", "softsync")

#: Where the servers are put among the ranks.
PLACEMENTS: Final = ("spread", "first", "last")

#: Schedules of an all-reduce; ``mpi`` is the library's own.
ALLREDUCE_NAMES: Final = ("ring", "tree", "butterfly", "mpi")

#: Staleness-aware learning rates.
STALENESS_RATE_NAMES: Final = (
    "constant",
    "inverse",
    "mean-inverse",
    "power",
    "exponential",
    "drop",
    "delay-compensated",
    "gap-aware",
)

#: Optimizers and the learning rate each starts from when none is given.
DEFAULT_LR: Final = {
    "sgd": 0.1,
    "momentum": 0.05,
    "nesterov": 0.05,
    "adagrad": 0.02,
    "adam": 0.002,
    "adamw": 0.002,
}
OPTIMIZER_NAMES: Final = tuple(DEFAULT_LR)

ACTIVATION_NAMES: Final = ("relu", "tanh", "gelu")
LOSS_NAMES: Final = ("cross-entropy", "squared")
SCHEDULE_NAMES: Final = ("constant", "step", "cosine")
