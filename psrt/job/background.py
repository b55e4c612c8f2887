"""A thread that is there before there is something to do. Knows nothing of what it does."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from queue import Queue


class Background:
    """Does one thing after the other, while whoever asked for it goes on.

    Starting a thread waits until that has had a core, which takes milliseconds where ranks keep all
    cores busy. Putting something into the queue of one that sleeps waits for nothing.
    """

    def __init__(self) -> None:
        """Start the thread."""
        self._queue: Queue[Callable[[], None] | None] = Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def do(self, what: Callable[[], None]) -> None:
        """Have something done, after all that was asked for before."""
        self._queue.put(what)

    def finish(self) -> None:
        """Wait until all is done."""
        self._queue.join()

    def close(self) -> None:
        """End the thread once all is done; nothing may be asked for any more."""
        self._queue.put(None)

    def _run(self) -> None:
        while (what := self._queue.get()) is not None:
            try:
                what()
            except Exception:  # a bug; who waits for this must not wait for ever
                traceback.print_exc()
            finally:
                self._queue.task_done()
