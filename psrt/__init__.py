"""psrt: parameter-server and all-reduce training on MPI, in Python and numpy.

The public names are looked up on first use, so ``import psrt`` itself loads nothing, and none of
them needs MPI before a job on several ranks begins:

- ``TrainConfig``, with ``resolve``, ``from_toml`` and ``to_toml``: the configuration of a run;
- ``SSP`` and the other modes, ``TopK`` and the other codecs, ``Adam`` and the other optimizers,
  each with its knobs: ``TrainConfig(mode=SSP(staleness=2))`` is
  ``TrainConfig(mode="ssp:staleness=2")``;
- ``run``: trains, on all ranks of an MPI job or alone; returns a ``Run`` with its ``Summary`` and
  its list of ``Record``;
- ``Trainer``: the same in your own training loop, for numpy, torch and JAX;
- ``Epoch``: what ``on_epoch`` of these two gets after each epoch;
- ``ParameterServer``: named arrays on servers, pushed to and pulled from;
- ``Problem``: the protocol for a model and data of your own;
- ``Communicator``: all-reduce and its like on numpy arrays, without a trainer;
- ``simulate``: trains in virtual time, at ``SimulationCosts``; returns a ``SimulatedRun``;
- ``load``: the arrays of a trained model by name, from the files of a run;
- ``recorded_config``: the config that repeats a recorded run, over MPI or in virtual time;
- ``torch``, a subpackage: torch modules as problems, and averaged gradients for its optimizers;
- ``jax``, a subpackage: a JAX loss over any tree of parameters as a problem;
- ``PsrtError`` and its subclasses: the errors of all of these.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from psrt.core.vendors import has_room as _has_room
from psrt.core.vendors import is_one_of_several as _is_one_of_several
from psrt.core.vendors import on_one_host as _on_one_host
from psrt.core.vendors import settings as _settings
from psrt.core.version import __version__

if TYPE_CHECKING:
    from psrt import jax as jax
    from psrt import torch as torch
    from psrt.codec.table import (
        BFloat16,
        Demo,
        Dgc,
        Float4E3M0,
        Float8E4M3,
        Float8E5M2,
        Float16,
        Int8,
        LowRank,
        Nonzero,
        Qsgd,
        RandomK,
        Sign,
        Ternary,
        TernaryBase3,
        Threshold,
        TopK,
    )
    from psrt.config import TrainConfig, from_toml, resolve, to_toml
    from psrt.config.modes import (
        EASGD,
        SSP,
        AllReduce,
        Async,
        Gossip,
        LocalSGD,
        Serial,
        SoftSync,
        Sync,
    )
    from psrt.core.errors import (
        ConfigError,
        DivergedError,
        ProtocolError,
        PsrtError,
        ReplayError,
        TransportError,
    )
    from psrt.job.hooks import Epoch
    from psrt.job.local import run
    from psrt.job.recorded import recorded_config
    from psrt.job.result import Run
    from psrt.job.virtual import SimulatedRun, simulate
    from psrt.mpi.communicator import Communicator
    from psrt.optim.table import Adagrad, Adam, AdamW, Momentum, Nesterov, OuterNesterov
    from psrt.report import Record, Summary
    from psrt.report.model_file import load
    from psrt.runtime.problem import Problem
    from psrt.simulation import SimulationCosts
    from psrt.trainer import ParameterServer, Trainer

# MPI libraries read these when they start, so they are set before anything here can import mpi4py.
# In a program that imports mpi4py first, they come too late and do no harm.
os.environ.update(_settings(os.environ, tcp=not (_on_one_host(os.environ) and _has_room())))

if _is_one_of_several(os.environ):
    # psrt's own errors become one line, since each rank would show a traceback of mostly psrt's
    # frames. Any other error keeps its traceback and ends the other ranks, too.
    def _uncaught(kind: Any, error: Any, trace: Any, before: Any = sys.excepthook) -> None:
        uncaught = importlib.import_module("psrt.faults.uncaught")
        if kind.__module__ == "psrt.core.errors":
            uncaught.end(error)
        before(kind, error, trace)
        uncaught.end_others(error)

    sys.excepthook = _uncaught

__all__ = [
    "EASGD",
    "SSP",
    "Adagrad",
    "Adam",
    "AdamW",
    "AllReduce",
    "Async",
    "BFloat16",
    "Communicator",
    "ConfigError",
    "Demo",
    "Dgc",
    "DivergedError",
    "Epoch",
    "Float4E3M0",
    "Float8E4M3",
    "Float8E5M2",
    "Float16",
    "Gossip",
    "Int8",
    "LocalSGD",
    "LowRank",
    "Momentum",
    "Nesterov",
    "Nonzero",
    "OuterNesterov",
    "ParameterServer",
    "Problem",
    "ProtocolError",
    "PsrtError",
    "Qsgd",
    "RandomK",
    "Record",
    "ReplayError",
    "Run",
    "Serial",
    "Sign",
    "SimulatedRun",
    "SimulationCosts",
    "SoftSync",
    "Summary",
    "Sync",
    "Ternary",
    "TernaryBase3",
    "Threshold",
    "TopK",
    "TrainConfig",
    "Trainer",
    "TransportError",
    "__version__",
    "from_toml",
    "load",
    "recorded_config",
    "resolve",
    "run",
    "simulate",
    "to_toml",
]

#: Codecs and their knobs, for ``TrainConfig(codec=...)``.
_CODECS = (
    *("BFloat16", "Demo", "Dgc", "Float16", "Float4E3M0", "Float8E4M3", "Float8E5M2", "Int8"),
    *("LowRank", "Nonzero", "Qsgd", "RandomK", "Sign", "Ternary", "TernaryBase3", "Threshold"),
    "TopK",
)
#: Optimizers, and an outer step.
_OPTIMIZERS = ("Adagrad", "Adam", "AdamW", "Momentum", "Nesterov", "OuterNesterov")
#: Modes and their knobs, for ``TrainConfig(mode=...)``.
_MODES = (
    *("AllReduce", "Async", "EASGD", "Gossip", "LocalSGD", "SSP", "Serial", "SoftSync", "Sync"),
)
#: Public name → the module that defines it.
_HOME = {
    **dict.fromkeys(_MODES, "psrt.config.modes"),
    **dict.fromkeys(_CODECS, "psrt.codec.table"),
    **dict.fromkeys(_OPTIMIZERS, "psrt.optim.table"),
    **dict.fromkeys(("TrainConfig", "from_toml", "resolve", "to_toml"), "psrt.config"),
    **dict.fromkeys(
        (
            "ConfigError",
            "DivergedError",
            "ProtocolError",
            "PsrtError",
            "ReplayError",
            "TransportError",
        ),
        "psrt.core.errors",
    ),
    "Communicator": "psrt.mpi.communicator",
    "Epoch": "psrt.job.hooks",
    "load": "psrt.report.model_file",
    "recorded_config": "psrt.job.recorded",
    "run": "psrt.job.local",
    "Run": "psrt.job.result",
    **dict.fromkeys(("Record", "Summary"), "psrt.report"),
    "Problem": "psrt.runtime.problem",
    **dict.fromkeys(("SimulatedRun", "simulate"), "psrt.job.virtual"),
    "SimulationCosts": "psrt.simulation",
    **dict.fromkeys(("ParameterServer", "Trainer"), "psrt.trainer"),
}


#: Subpackages with dependencies of their own: not part of ``from psrt import *``.
_ADAPTERS = ("jax", "torch")

if not TYPE_CHECKING:  # a type checker would believe that every name exists

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first asked for (PEP 562)."""
        if name in _ADAPTERS:
            return importlib.import_module(f"psrt.{name}")
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_ADAPTERS])
