"""A launcher's output, handed on as it comes but for what its mpirun adds when ranks end."""

from __future__ import annotations

import contextlib
import os
import select
import threading

from psrt.mpirun.boxes import Boxes

#: Seconds that what may be the beginning of a box is held back.
_IDLE_S = 0.05
#: Seconds in which what is left is handed on; a blocked terminal must not keep psrt from ending.
_LAST_S = 1.0
_MOST = 1 << 16


class Output:
    """One stream, from ``start`` to ``drain``. By a thread: whoever reads it may be slow."""

    def __init__(self, source: int, target: int, boxes: Boxes) -> None:
        """Begin.

        Args:
            source: the descriptor of what the launcher writes; it is closed.
            target: the descriptor that gets it.
            boxes: takes out what is to be left out.
        """
        self._source, self._target, self._boxes = source, target, boxes
        os.set_blocking(source, False)
        self._ended, self._end = os.pipe()
        self._thread = threading.Thread(target=self._run, name="psrt-output", daemon=True)
        self._thread.start()

    def drain(self) -> None:
        """Hand on what there is; the launcher has ended, and who has its stream as well may go on.

        It is done once, and no more is handed on.
        """
        os.write(self._end, b"!")
        self._thread.join(_LAST_S)

    def close(self, *, told: bool) -> None:
        """Hand on what is left; see ``Boxes.end``."""
        if self._thread.is_alive():
            return  # it is stuck
        self._write(self._boxes.end(told=told))
        os.close(self._source)
        os.close(self._ended)
        os.close(self._end)

    def _run(self) -> None:
        source, is_over = self._source, False
        while True:
            wait = _IDLE_S if self._boxes.waits else None
            ready, _, _ = select.select([source, self._ended], [], [], 0 if is_over else wait)
            if source in ready:
                data = os.read(source, _MOST)
                if not data:
                    return
                self._write(self._boxes.feed(data))
            elif is_over:
                return
            elif self._ended in ready:
                is_over = True
            else:
                self._write(self._boxes.idle())

    def _write(self, data: bytes) -> None:
        # Nobody may read it, or the disk be full: the launcher goes on all the same.
        with contextlib.suppress(OSError):
            while data:
                with contextlib.suppress(BlockingIOError):
                    data = data[os.write(self._target, data) :]
                    continue
                select.select([], [self._target], [])
