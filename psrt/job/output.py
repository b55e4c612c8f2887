"""A launcher's output, handed on as it comes but for what its mpirun adds when ranks end.

An mpirun says nothing of what it could not write, and ends with 0: where output may not fit, as on
a disk, it is handed on as well, and what the target refused is kept.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import threading

from psrt.launch.boxes import Boxes

#: Seconds that what may be the beginning of a box is held back.
_IDLE_S = 0.05
#: Seconds in which what is left is handed on; a blocked terminal must not keep psrt from ending.
_LAST_S = 1.0
_MOST = 1 << 16
#: Errors of what has no room; others, as of a terminal that is gone, are of nobody who reads.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Output:
    """One stream, from ``start`` to ``drain``. By a thread: whoever reads it may be slow."""

    def __init__(self, source: int, target: int, boxes: Boxes | None) -> None:
        """Begin.

        Args:
            source: the descriptor of what the launcher writes; it is closed.
            target: the descriptor that gets it.
            boxes: takes out what is to be left out; None leaves out nothing.
        """
        self._source, self.target, self._boxes = source, target, boxes
        #: Why the target took no more, as a full disk does; None if it did, or nobody reads it.
        self.refused: OSError | None = None
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
        if self._boxes is not None:
            self._write(self._boxes.end(told=told))
        os.close(self._source)
        os.close(self._ended)
        os.close(self._end)

    def _run(self) -> None:
        source, is_over = self._source, False
        while True:
            boxes = self._boxes
            wait = _IDLE_S if boxes is not None and boxes.waits else None
            ready, _, _ = select.select([source, self._ended], [], [], 0 if is_over else wait)
            if source in ready:
                data = os.read(source, _MOST)
                if not data:
                    return
                self._write(data if boxes is None else boxes.feed(data))
            elif is_over:
                return
            elif self._ended in ready:
                is_over = True
            elif boxes is not None:
                self._write(boxes.idle())

    def _write(self, data: bytes) -> None:
        # Nobody may read it, or the disk be full: the launcher continues all the same.
        try:
            while data and self.refused is None:
                with contextlib.suppress(BlockingIOError):
                    data = data[os.write(self.target, data) :]
                    continue
                select.select([], [self.target], [])
        except OSError as error:
            if error.errno in _FULL:
                self.refused = error


def may_be_full(target: int) -> bool:
    """Return whether a descriptor is of what may have no room: a file, or a device, no terminal."""
    try:
        mode = os.fstat(target).st_mode
        return stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and not os.isatty(target))
    except OSError:  # it is closed
        return False
