"""A thread that is started before it is needed. Knows nothing of its work."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from queue import Queue


class Background:
    """Runs queued calls one after another, while the caller continues.

    Starting a thread waits until it has had a core, which takes milliseconds if ranks keep all
    cores busy. Putting a call into the queue of a sleeping thread does not wait.
    """

    def __init__(self) -> None:
        """Start the thread."""
        self._queue: Queue[Callable[[], None] | None] = Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def do(self, what: Callable[[], None]) -> None:
        """Queue a call, to run after all earlier ones."""
        self._queue.put(what)

    def finish(self) -> None:
        """Wait until all calls are done."""
        self._queue.join()

    def close(self) -> None:
        """End the thread once all calls are done; nothing may be queued afterwards."""
        self._queue.put(None)

    def _run(self) -> None:
        while (what := self._queue.get()) is not None:
            try:
                what()
            except Exception:  # a bug, but the caller must not wait for ever
                traceback.print_exc()
            finally:
                self._queue.task_done()
