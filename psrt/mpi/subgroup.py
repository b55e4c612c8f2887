"""Makes an MPI communicator of some ranks of another, called by these ranks only."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI

from psrt.core.errors import ProtocolError
from psrt.mpi.deadline import in_time

if TYPE_CHECKING:
    from psrt.mpi.collectives.executor import CollectiveExecutor

#: The most that MPI promises for a tag.
_MOST_TAG = 32767


def subgroup(
    executor: CollectiveExecutor, ranks: Sequence[int], name: str, timeout_s: float
) -> MPI.Intracomm:
    """Return a communicator of some ranks, numbered in this order; the caller frees it.

    MPI makes it in a call without a deadline. So the ranks call a roll first: a rank that does not
    come is named in an error, and so are ranks that make different groups.

    Args:
        executor: of all ranks.
        ranks: its members, this rank among them.
        name: what else must be the same on all of them.
        timeout_s: see ``in_time``.

    Raises:
        ProtocolError: if the members make different groups.
        TransportError: if one does not come within the deadline.
    """
    words = f"{list(ranks)} {name}"
    comm = executor.messages.comm
    _call_roll(executor, ranks, words)
    with in_time(executor.name, timeout_s, "makes a group"):
        everyone = comm.Get_group()
        group = everyone.Incl(ranks)
        made = comm.Create_group(group, zlib.crc32(words.encode()) & _MOST_TAG)
        group.Free()
        everyone.Free()
    return made


def _call_roll(executor: CollectiveExecutor, ranks: Sequence[int], words: str) -> None:
    """Meet in the first member, which answers with its own digest if all sent the same."""
    messages, me, first = executor.messages, executor.messages.comm.rank, ranks[0]
    mine = np.frombuffer(hashlib.blake2b(words.encode(), digest_size=16).digest(), np.uint8)
    found = {rank: np.zeros_like(mine) for rank in (ranks[1:] if me == first else [first])}
    tag = messages.most_tag
    if me != first:
        executor.start(messages.send(mine, first, tag)).wait()
    for heard in [executor.start(messages.receive(found[rank], rank, tag)) for rank in found]:
        heard.wait()
    same = all(np.array_equal(mine, theirs) for theirs in found.values())
    if me == first:
        answer = mine if same else np.zeros_like(mine)
        for told in [executor.start(messages.send(answer, rank, tag)) for rank in found]:
            told.wait()
    if not same:
        who = messages.names[me]
        raise ProtocolError(f"rank {who} makes the group {words.strip()}, other ranks another one")
