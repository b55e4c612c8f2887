"""Filters mpirun's own messages about ranks that ended out of the stream that it forwards. Pure.

psrt reports a failed job in one line, or with a traceback; mpirun adds up to fifteen lines. Text
that is not recognized here is forwarded.
"""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass, field

_DASHES, _SHORT, _EQUALS = b"-" * 74 + b"\n", b"-" * 60 + b"\n", b"=" * 83 + b"\n"
_MPIRUN = (b"prterun", b"mpirun", b"mpiexec", b"prun")
#: Beginnings of messages that say no more than a status: that a rank has ended the job.
_NOTHING_NEW = (
    _DASHES + b"MPI_ABORT was invoked on rank ",
    *(_DASHES + it + b" has exited due to process rank " for it in _MPIRUN),
    *(_DASHES + it + b" detected that one or more processes exited with non" for it in _MPIRUN),
)
#: Lines of MPICH's mpirun and its daemons about each other.
_DAEMONS = (b"[mpiexec@", b"[proxy:")
#: Beginnings of messages that give the reason, which is shown if nothing else reports one.
_REASONS = (
    *_DAEMONS,
    *(_DASHES + it + b" noticed that process rank " for it in _MPIRUN),
    _DASHES + b"PRTE has lost communication with a remote daemon.\n",
    _SHORT + b"A daemon failed to report back after being spawned.",
    _EQUALS + b"=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n",
    b"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: ",
)
#: Beginnings of lines that say nothing new.
_LINES = (b"Abort(", b" more process")
#: In a message of the first kind: a rank has exited silently and without an error.
_LEFT = b"exiting\nimproperly"
_OPENINGS = (*_NOTHING_NEW, *_REASONS, *_LINES)
_LONGEST, _FIRST = max(map(len, _OPENINGS)), frozenset(it[0] for it in _OPENINGS)
#: Whole messages, from such a beginning to the end.
_WHOLE = re.compile(
    rb"-{74}\n[^-](?:.*\n)*?-{74}\n|-{60}\n[^-](?:.*\n)*?-{60}\n"
    rb"|={83}\n(?:=   .*\n)+={83}\n"
    rb"|YOUR APPLICATION TERMINATED .*\nThis typically .*\nPlease see the FAQ .*\n"
    rb"|\[(?:mpiexec|proxy:\d+)@[^\]\n]+\] \w+ \(.*\n"
    rb"|Abort\(-?\d+\) on node .*: application called MPI_Abort\(.*\n"
    rb"| more process(?:es have| has) sent help message help-mpi-api\.txt / mpi-abort\n"
)
#: What may precede them on a line, or the empty line with which MPICH begins.
_BEFORE = re.compile(rb"(?:(?<=\n)|^)(?:\d+|\n)\Z")
#: The host whose daemon mpirun has lost.
_LOST = re.compile(rb"Remote daemon: \[.*\] on node (\S+)|Remote host: +(\S+)")
#: Bytes; longer than any of these messages.
_MOST = 4096


@dataclass(eq=False, slots=True)
class Boxes:
    """Removes such messages from a stream."""

    #: Receives the hosts whose daemon mpirun has lost, after which it ends all ranks.
    lost: list[str]
    _: KW_ONLY
    #: Whether to forward everything.
    verbose: bool = False
    _unread: bytes = field(default=b"", init=False)
    #: Reasons that are shown at the end if nothing else has reported one.
    _reasons: bytes = field(default=b"", init=False)
    _after: bool = field(default=False, init=False)

    @property
    def waits(self) -> bool:
        """Whether the text held back may be the beginning of a message that is removed."""
        return bool(self._unread)

    def feed(self, data: bytes) -> bytes:
        """Take the next part of the stream; return what to forward now."""
        self._unread += data
        given = b""
        while self._unread:
            if self._after:  # a byte 0, with which Open MPI ends some
                self._unread = self._unread.lstrip(b"\0")
                self._after = not self._unread
            at = self._opening()
            given, self._unread = given + self._unread[:at], self._unread[at:]
            whole = _WHOLE.match(self._unread)
            if whole is not None:
                text = whole[0]
                if not self.verbose and text.startswith((b" ", b"=")):
                    given = _BEFORE.sub(b"", given)
                given += self._taken(text)
                self._unread = self._unread[whole.end() :]
            elif not self._may_become_one():
                given, self._unread = given + self._unread[:1], self._unread[1:]
            else:
                break
        return given

    def idle(self) -> bytes:
        """Return held text that only looks like a message, when no more has come for a while."""
        if self._unread.startswith((*_NOTHING_NEW, *_REASONS)):
            return b""
        given, self._unread = self._unread, b""
        return given

    def end(self, *, told: bool) -> bytes:
        """Return the rest, and the reasons unless one was ``told`` already."""
        return self._unread + (b"" if told else self._reasons)

    def _opening(self) -> int:
        """Return where the first message begins, or may begin."""
        unread = self._unread
        found = [at for it in _OPENINGS if (at := unread.find(it)) >= 0]
        for at in range(max(0, len(unread) - _LONGEST), len(unread)):
            if unread[at] in _FIRST and any(it.startswith(unread[at:]) for it in _OPENINGS):
                found.append(at)
                break
        return min(found, default=len(unread))

    def _may_become_one(self) -> bool:
        unread = self._unread
        if unread.startswith(_OPENINGS):
            is_over = unread.startswith((*_LINES, *_DAEMONS)) and b"\n" in unread
            return len(unread) < _MOST and not is_over
        return any(it.startswith(unread) for it in _OPENINGS)

    def _taken(self, text: bytes) -> bytes:
        found = _LOST.search(text)
        if found is not None:
            self.lost.append((found[1] or found[2]).decode(errors="replace"))
        if self.verbose:
            return text
        if text.startswith(_REASONS) or _LEFT in text:
            self._reasons += text
        self._after = True
        return b""
