"""What a process looks at now and then while its role trains, in a thread of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from threading import Event, Thread

#: Seconds between two looks.
LOOK_S = 0.25


class Looking(ABC):
    """Looks from ``start`` to ``close``; makes no call of MPI."""

    def __init__(self) -> None:
        self._over = Event()
        self._thread: Thread | None = None
        #: Somebody asks for a checkpoint, and to end the run after it.
        self._wants = self._wants_stop = False

    @abstractmethod
    def look(self) -> None:
        """Do what can be done now."""

    @property
    def _pause_s(self) -> float:
        """Seconds to the next look."""
        return LOOK_S

    def start(self) -> None:
        """Look from now on, in a thread."""
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more: all processes have finished."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._pause_s):
            self.look()

    def ask(self, *, stop: bool = False) -> None:
        """Have a checkpoint made soon; only sets a flag, so a signal's handler may call it.

        Args:
            stop: end the run after it.
        """
        self._wants_stop |= stop
        self._wants = True
