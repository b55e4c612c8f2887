"""Memory that the ranks of one host share; only this file allocates it."""

from __future__ import annotations

import mmap

from mpi4py import MPI

from psrt.core.units import size_text

#: Alignment of each rank's part, in bytes: a page.
PAGE = 4096


class SharedMemory:
    """A part for each rank of a host, visible to all of them. Collective to make and to free."""

    def __init__(self, node: MPI.Intracomm, nbytes: int) -> None:
        """Allocate; the initial contents are undefined.

        Args:
            node: the ranks of this host.
            nbytes: of this rank's part, rounded up to pages; ranks may differ.

        Raises:
            MemoryError: if the host has too little shared memory.
        """
        nbytes = max(1, -(-nbytes // PAGE)) * PAGE
        self._window: MPI.Win | None = None
        #: Local rank → its bytes.
        self.parts: list[memoryview]
        if node.size == 1:
            # No peer, so no window: Open MPI would print a line about missing UCX for each window
            # if mpi4py was imported before psrt. The pages are freed with the last view of them.
            pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self.parts = [memoryview(pages)]
            return
        try:
            self._window = window = MPI.Win.Allocate_shared(nbytes, 1, comm=node)
        except MPI.Exception as error:  # of any class: MPI has no error class for a full /dev/shm
            raise MemoryError(
                f"MPI allocates no {size_text(nbytes)} that {node.size} ranks share ({error}): "
                "enlarge /dev/shm, or turn shared memory off: psrt train --no-shared-memory"
            ) from error
        window.Lock_all(MPI.MODE_NOCHECK)
        self.parts = [memoryview(window.Shared_query(r)[0]) for r in range(node.size)]  # type: ignore[arg-type]

    def fence(self) -> None:
        """Order this rank's stores and loads around this point."""
        # MPI_Win_sync is a full memory barrier in Open MPI and MPICH. It is valid only in an access
        # epoch, hence the Lock_all above, which takes no lock (MODE_NOCHECK).
        if self._window is not None:
            self._window.Sync()

    def free(self) -> None:
        """Free the memory; views of it must not be used afterwards."""
        self.parts.clear()
        if self._window is not None:
            self._window.Unlock_all()
            self._window.Free()
            self._window = None
