"""A replay among ranks: rank 0 has read the recorded run and tells the others what they need."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from psrt.config import TrainConfig
from psrt.errors import ConfigError
from psrt.history.replay import COLUMNS, Script
from psrt.job.replay import Replay
from psrt.launchers import start_line
from psrt.mpi.agreement import send_text

_TAG = 5
#: Messages of a script that are sent at once.
_CHUNK = 1 << 20


def replay_of(config: TrainConfig, ranks: int, *, named: bool) -> Replay | None:
    """Return the run that the config is to repeat, None if there is none; at rank 0.

    Args:
        config: need not be resolved.
        ranks: of the job.
        named: whether the launcher said which ranks are servers and which are workers.

    Raises:
        ConfigError: if that run cannot be repeated, or not by these ranks.
    """
    if config.replay is None:
        return None
    if named:
        raise ConfigError(
            "--replay has no meaning with psrt server and psrt worker, it knows who is who: "
            + start_line((ranks, f"-m psrt train --replay {config.replay}"))
        )
    replay = Replay(config.replay)
    replay.check_ranks(ranks)
    return replay


def hand_out(
    comm: MPI.Comm, replay: Replay | None, servers: Sequence[int]
) -> tuple[str | None, Script | None]:
    """Tell every rank of a recorded run what it has to repeat; collective.

    The run's folder need not be there on any other rank than 0.

    Args:
        comm: the ranks of the job.
        replay: of the run; at rank 0.
        servers: rank of each server, by shard.

    Returns:
        The all-reduce of the extras where ``auto`` chose it, and at a server its shard's script.
    """
    extras = send_text(comm, "" if replay is None else replay.extras or "")
    mine: Script | None = None
    for shard, rank in enumerate(servers):
        if comm.rank == 0:
            assert replay is not None
            script = replay.scripts[shard]
            if rank == 0:
                mine = script
            else:
                _send(comm, script.rows, rank)
        elif comm.rank == rank:
            mine = Script(shard, _receive(comm))
    return extras or None, mine


def _send(comm: MPI.Comm, rows: np.ndarray, rank: int) -> None:
    comm.Send(np.array([len(rows)], np.int64), rank, _TAG)
    for at in range(0, len(rows), _CHUNK):
        comm.Send(rows[at : at + _CHUNK], rank, _TAG)


def _receive(comm: MPI.Comm) -> np.ndarray:
    length = np.empty(1, np.int64)
    comm.Recv(length, 0, _TAG)
    rows = np.empty((int(length[0]), len(COLUMNS)), np.int64)
    for at in range(0, len(rows), _CHUNK):
        comm.Recv(rows[at : at + _CHUNK], 0, _TAG)
    return rows
