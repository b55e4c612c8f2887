"""Signals to this process, one after another, with their origin. Linux only, as its callers."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import struct
from collections.abc import Iterable
from types import TracebackType
from typing import NamedTuple

#: ``signalfd_siginfo``: number, error, code, and unused fields.
_INFO = struct.Struct("=Iii116x")
#: ``si_code`` of a signal that the terminal sent, to every process in the foreground.
_FROM_TERMINAL = 0x80
#: Bytes of a ``sigset_t``, and more.
_SET = 128


class Heard(NamedTuple):
    """A signal that has arrived."""

    number: int
    #: Whether the terminal sent it, to every process in the foreground.
    from_terminal: bool


class Signals:
    """Blocks signals while the context lasts, in which they are waited for.

    By a descriptor, not ``signal.sigtimedwait``: if that times out while this process is stopped,
    it returns uninitialized memory.
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        """Block them; signals that were ignored when this process was started stay ignored."""
        self._numbers = {it for it in numbers if signal.getsignal(it) is not signal.SIG_IGN}
        #: The mask that this process had before.
        self.before: set[int] = set()
        self._file = -1

    def __enter__(self) -> Signals:
        self.before = set(signal.pthread_sigmask(signal.SIG_BLOCK, self._numbers))
        libc = ctypes.CDLL(None, use_errno=True)
        mask = ctypes.create_string_buffer(_SET)
        libc.sigemptyset(mask)
        for number in self._numbers:
            libc.sigaddset(mask, int(number))
        self._file = libc.signalfd(-1, mask, os.O_CLOEXEC | os.O_NONBLOCK)
        if self._file < 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, self.before)
            raise OSError(ctypes.get_errno(), "signalfd")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._file)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.before)

    def wait(self, timeout_s: float) -> Heard | None:
        """Return the next signal; None if none arrives in time."""
        select.select([self._file], [], [], timeout_s)
        with contextlib.suppress(BlockingIOError):
            number, _, code = _INFO.unpack(os.read(self._file, _INFO.size))
            return Heard(number, code == _FROM_TERMINAL)
        return None
