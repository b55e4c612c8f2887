"""Exchanges texts and errors between rank 0 and each other rank at the end of a job.

Without collectives, so that a rank that is gone blocks nobody. All other ranks make the same calls
in the same order.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from mpi4py import MPI

from psrt.core.errors import PsrtError
from psrt.faults.vitals import HERE
from psrt.mpi.agreement import from_bytes, from_text, to_bytes, to_text
from psrt.mpi.files import Wait
from psrt.mpi.lost import Living
from psrt.mpi.tags import STAR


@dataclass(eq=False, slots=True)
class Star:
    """Rank 0 and each other rank of a communicator."""

    #: The ranks.
    comm: MPI.Comm
    #: Waits of this rank, during which it learns which ranks are gone.
    wait: Wait

    def collect(self, text: str) -> dict[int, str]:
        """On rank 0, return the texts of all ranks that are not gone, by rank; {} elsewhere."""
        comm = self.comm
        if comm.rank:
            sent = self._send(text, 0)
            self.wait(lambda: MPI.Request.Testall(sent), lambda: "rank 0 to conclude")
            return {}
        texts = {0: text}
        for rank in range(1, comm.size):
            found = self._receive(rank)
            if found is not None:
                texts[rank] = found
        return texts

    def tell(self, text: str = "") -> str:
        """Return rank 0's text on every rank that is not gone."""
        comm = self.comm
        if comm.rank:
            return self._receive(0) or ""
        for rank in range(1, comm.size):
            if rank not in HERE.gone:
                self._wait_for(rank, partial(MPI.Request.Testall, self._send(text, rank)))
        return text

    @contextlib.contextmanager
    def raise_on_all(self, last: Callable[[], PsrtError | None] = lambda: None) -> Iterator[None]:
        """Make all ranks that are not gone leave this block in the same way; see ``agreement``.

        Args:
            last: called on rank 0 after all have reached the end of the block; returns the error to
                raise if there is no other.
        """
        mine: PsrtError | None = None
        try:
            yield
        except PsrtError as error:
            mine = error
        errors = self.collect(to_text(mine))
        if self.comm.rank == 0:
            final = last()
            if not any(errors.values()):
                mine, errors[0] = final, to_text(final)
        failed = min((rank for rank, error in errors.items() if error), default=0)
        failed, text = json.loads(self.tell(json.dumps([failed, errors.get(failed, "")])))
        if text:
            raise from_text(text, mine if failed == self.comm.rank else None)

    def _send(self, text: str, to: int) -> list[MPI.Request]:
        data = to_bytes(text)
        length = np.array([len(data)], np.int64)
        # mpi4py's requests keep their buffers alive.
        return [
            self.comm.Isend([part, MPI.BYTE], to, STAR) for part in (length.view(np.uint8), data)
        ]

    def _receive(self, source: int) -> str | None:
        """Receive a text; None if that rank is gone."""
        length = np.empty(1, np.int64)
        request = self.comm.Irecv([length.view(np.uint8), MPI.BYTE], source, STAR)
        if not self._wait_for(source, request.Test):
            return None
        data = bytearray(int(length[0]))
        request = self.comm.Irecv([data, MPI.BYTE], source, STAR)
        return from_bytes(data) if self._wait_for(source, request.Test) else None

    def _wait_for(self, rank: int, done: Callable[[], bool]) -> bool:
        """Wait until ``done()`` or the rank is gone; return whether it was done."""
        is_done, peer = False, Living()

        def over() -> bool:
            nonlocal is_done
            is_done = is_done or peer.finds(done)
            return is_done or rank in HERE.gone

        self.wait(over, lambda: f"rank {rank} to conclude")
        return is_done
