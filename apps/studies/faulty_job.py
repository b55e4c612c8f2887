"""A job over MPI in which something happens to one of its ranks; ``faults.py`` and tests start it.

The rank sends itself a signal when it reaches a phase. In phase ``never`` nothing happens by
itself. Either way a worker writes a file ``trains`` into the current folder once it does.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np

import psrt
from psrt.mpi.start import world

PHASES = ("start", "initial", "batches", "gradient", "evaluate", "end", "never")
TRAINS = Path("trains")
#: Modes that have no server unless it is asked for.
_WITHOUT_SERVERS = ("allreduce", "local-sgd", "gossip")
#: Steps of a worker after which all surely train, and after which the signal comes.
_UNDER_WAY, _FALLS = 100, 150


def parsed() -> argparse.Namespace:
    """Return the flags."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", default="sync")
    parser.add_argument("--servers", type=int, help="default: 1 where the mode needs one")
    parser.add_argument("--phase", choices=PHASES, default="never")
    parser.add_argument("--rank", type=int, default=-1, help="whose phase it is")
    parser.add_argument("--how", default="SIGKILL", help="name of the signal")
    parser.add_argument("--timeout-s", type=float, default=60.0)
    parser.add_argument("--out")
    given = parser.parse_args()
    if given.servers is None:
        given.servers = int(given.mode.partition(":")[0] not in _WITHOUT_SERVERS)
    return given


GIVEN = parsed()
HERE = world().rank
#: Whether the job lasts until something happens to it that no worker does to itself.
LASTS = GIVEN.phase == "never" or (GIVEN.phase == "gradient" and GIVEN.rank < GIVEN.servers)


def reaches(phase: str) -> None:
    """Send the signal if it is time."""
    if (phase, HERE) == (GIVEN.phase, GIVEN.rank):
        os.kill(os.getpid(), getattr(signal, GIVEN.how))


class Problem:
    """Trains 1,000 parameters on nothing."""

    def __init__(self) -> None:
        self.steps = 0

    def initial(self) -> np.ndarray:
        """Return the parameters; called at rank 0."""
        reaches("initial")
        return np.zeros(1000, np.float32)

    def batches(self, worker: int, workers: int, epoch: int) -> list[np.ndarray]:
        """Return the batches of an epoch; called at workers."""
        reaches("batches")
        return [np.ones(2)] * (3000 if LASTS else 200)

    def loss_and_grad(self, theta: np.ndarray, batch: np.ndarray, out: np.ndarray) -> float:
        """Write a gradient; return a loss."""
        self.steps += 1
        if self.steps == _UNDER_WAY:
            TRAINS.touch()
        if self.steps == _FALLS:
            reaches("gradient")
        if LASTS:
            time.sleep(1e-3)
        out[:] = 0.001
        return 1.0

    def evaluate(self, theta: np.ndarray) -> dict[str, float]:
        """Return the test loss; called at rank 0."""
        reaches("evaluate")
        return {"loss": 0.0}


def falls_while_others_train() -> None:
    """Reach the training as a server, which computes nothing."""
    while not TRAINS.exists():
        time.sleep(0.02)
    reaches("gradient")


if GIVEN.servers > HERE:
    threading.Thread(target=falls_while_others_train, daemon=True).start()
reaches("start")
config = psrt.TrainConfig(
    mode=GIVEN.mode,
    servers=GIVEN.servers,
    epochs=3,
    timeout_s=GIVEN.timeout_s,
    out=GIVEN.out,
    overwrite=GIVEN.out is not None,
)
psrt.run(config, Problem())
reaches("end")
