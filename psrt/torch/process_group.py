"""Makes process groups of torch over psrt: one of all ranks, and groups of fewer beside it."""

from __future__ import annotations

import importlib
import json
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch.distributed as dist

from psrt.core.errors import ConfigError
from psrt.faults.connection import addresses
from psrt.torch.communicator import Communicator
from psrt.torch.group import NAME, Group

#: The deadline of a call, unless torch's is shorter. torch's, which is half an hour unless the user
#: says otherwise, is that of calls that wait for busy ranks.
_TIMEOUT_S = 60.0
#: Seconds in which rank 0 must answer at one of its addresses.
_ANSWERS_WITHIN_S = 5.0

#: The communicator of the next group to be made, and whether the group closes it: torch passes no
#: argument on to ``make``.
_given: tuple[Any, bool] | None = None
#: The group of all ranks.
_world: Group | None = None


def init_process_group(communicator: Communicator | None = None) -> None:
    """Make the ranks of a communicator torch's own process group; collective.

    Then ``torch.distributed`` goes over psrt: collectives, messages between two ranks, groups of
    fewer ranks, and what uses them, such as ``DistributedDataParallel``, ``fully_shard``,
    ``torch.distributed.pipelining``, ``DTensor`` and checkpoints.

    It relies on parts of torch that may change (tested with 2.13).

    Args:
        communicator: must stay open as long as the group: call
            ``torch.distributed.destroy_process_group()`` before it is closed. None makes one of all
            ranks, which that call closes.

    Raises:
        ConfigError: if torch has a process group already.
    """
    global _given
    if dist.is_initialized():
        raise ConfigError("torch has a process group already: destroy_process_group() first")
    ranks = communicator or _all_ranks()
    _given = ranks, communicator is None
    try:
        dist.init_process_group(NAME, store=_store(ranks), rank=ranks.rank, world_size=ranks.size)
    finally:
        _given = None


def make(options: Any, _: Any) -> Group:
    """Return a group; called by torch, on its members.

    Raises:
        ConfigError: if it is not of all ranks, and psrt has no group of all.
    """
    members = list(options.global_ranks_in_group)
    is_whole = not members or len(members) == dist.get_world_size()
    rank, size = options.group_rank, options.group_size
    number = members[rank] if members else rank
    if members and _world is not None:
        ranks, closes = _world.ranks.group(members, options.group_id), True
    elif is_whole:
        ranks, closes = _given or (_all_ranks(options.timeout), True)
    else:
        raise ConfigError(
            f"rank {number}: psrt makes groups of fewer ranks only beside its group of all"
        )
    if (rank, size) != (ranks.rank, ranks.size):
        raise ConfigError(
            f"torch has rank {rank} of {size}, MPI has rank {ranks.rank} of {ranks.size}"
        )
    group = Group(options.store, ranks, number, closes=closes, ends=_forget)
    if is_whole:
        _remember(group)
    return group


def _remember(group: Group | None) -> None:
    global _world
    _world = group


def _forget(group: Group) -> None:
    if group is _world:
        _remember(None)


def _all_ranks(timeout: timedelta = timedelta(minutes=30)) -> Any:
    """Return a new communicator of all ranks of the job."""
    seconds = timeout.total_seconds()
    psrt = importlib.import_module("psrt")  # by name: psrt.torch itself imports no MPI
    return psrt.Communicator(timeout_s=min(seconds, _TIMEOUT_S), busy_timeout_s=seconds)


def _store(ranks: Communicator) -> Any:
    """Return a store of torch that all ranks share, for groups of other backends; collective."""
    store, text = None, b""
    if ranks.rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        text = json.dumps([addresses(), store.port]).encode()
    (length,) = ranks.broadcast(np.array([len(text)], np.int64))
    data = ranks.broadcast(np.frombuffer(text or bytes(length), np.uint8).copy())
    hosts, port = json.loads(bytes(data))
    store = store or dist.TCPStore(_reached(hosts, port), port, wait_for_workers=False)
    ranks.all_reduce(np.zeros(1))  # rank 0's ends with its group: not before all are connected
    return store


def _reached(hosts: Sequence[str], port: int) -> str:
    """Return the first address of rank 0's host that answers."""
    for host in hosts:
        try:
            socket.create_connection((host, port), timeout=_ANSWERS_WITHIN_S).close()
        except OSError:
            continue
        return host
    raise ConfigError(f"no address of rank 0 answers, of {', '.join(hosts)}")
