"""Passes on a launcher's output as it comes, except for what mpirun adds when ranks end.

An mpirun does not report output that it could not write, and ends with 0. So if output may not fit,
as on a disk, it is passed on here, too, and an error of the target is kept.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import threading

from psrt.launch.boxes import Boxes

#: Seconds that a possible start of a box is held back.
_IDLE_S = 0.05
#: Seconds to pass on the rest; a blocked terminal must not keep psrt from ending.
_LAST_S = 1.0
_MOST = 1 << 16
#: Errors of a full target; others, such as of a closed terminal, mean that nobody reads.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Output:
    """One stream, from ``start`` to ``drain``. By a thread, since the reader may be slow."""

    def __init__(self, source: int, target: int, boxes: Boxes | None) -> None:
        """Set up.

        Args:
            source: the descriptor to read the launcher's output from; it is closed.
            target: the descriptor to write it to.
            boxes: removes mpirun's boxes; None removes nothing.
        """
        self._source, self.target, self._boxes = source, target, boxes
        #: The target's error if it is full; None if it took everything, or nobody reads it.
        self.refused: OSError | None = None
        os.set_blocking(source, False)
        self._ended, self._end = os.pipe()
        self._thread = threading.Thread(target=self._run, name="psrt-output", daemon=True)
        self._thread.start()

    def drain(self) -> None:
        """Pass on the rest, once the launcher has ended; other writers of its stream may continue.

        Only once: nothing is passed on afterwards.
        """
        os.write(self._end, b"!")
        self._thread.join(_LAST_S)

    def close(self, *, told: bool) -> None:
        """Pass on what is held back; see ``Boxes.end``."""
        if self._thread.is_alive():
            return  # the writer is stuck
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
        # The reader may be gone, or the disk full: the launcher continues anyway.
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
    """Return whether a descriptor may run out of room: a file or a device, but not a terminal."""
    try:
        mode = os.fstat(target).st_mode
        return stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and not os.isatty(target))
    except OSError:  # a closed descriptor
        return False
