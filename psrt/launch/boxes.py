"""What an mpirun adds of its own when ranks end, in the stream that it hands on. Pure.

A job that fails is told by psrt in one line, or by a traceback; mpirun then has up to fifteen more.
What is not known here is handed on.
"""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass, field

_DASHES, _SHORT, _EQUALS = b"-" * 74 + b"\n", b"-" * 60 + b"\n", b"=" * 83 + b"\n"
_MPIRUN = (b"prterun", b"mpirun", b"mpiexec", b"prun")
#: How that begins which says no more than a status does: that a rank has ended the job.
_NOTHING_NEW = (
    _DASHES + b"MPI_ABORT was invoked on rank ",
    *(_DASHES + it + b" has exited due to process rank " for it in _MPIRUN),
    *(_DASHES + it + b" detected that one or more processes exited with non" for it in _MPIRUN),
)
#: What MPICH's mpirun and its daemons say of each other, a line each.
_DAEMONS = (b"[mpiexec@", b"[proxy:")
#: And that which says why, if nobody else does.
_REASONS = (
    *_DAEMONS,
    *(_DASHES + it + b" noticed that process rank " for it in _MPIRUN),
    _DASHES + b"PRTE has lost communication with a remote daemon.\n",
    _SHORT + b"A daemon failed to report back after being spawned.",
    _EQUALS + b"=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n",
    b"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: ",
)
#: And lines that say nothing new.
_LINES = (b"Abort(", b" more process")
#: In one of the first kind, that a rank has left without a word and without an error.
_LEFT = b"exiting\nimproperly"
_OPENINGS = (*_NOTHING_NEW, *_REASONS, *_LINES)
_LONGEST, _FIRST = max(map(len, _OPENINGS)), frozenset(it[0] for it in _OPENINGS)
#: All that begins so, to its end.
_WHOLE = re.compile(
    rb"-{74}\n[^-](?:.*\n)*?-{74}\n|-{60}\n[^-](?:.*\n)*?-{60}\n"
    rb"|={83}\n(?:=   .*\n)+={83}\n"
    rb"|YOUR APPLICATION TERMINATED .*\nThis typically .*\nPlease see the FAQ .*\n"
    rb"|\[(?:mpiexec|proxy:\d+)@[^\]\n]+\] \w+ \(.*\n"
    rb"|Abort\(-?\d+\) on node .*: application called MPI_Abort\(.*\n"
    rb"| more process(?:es have| has) sent help message help-mpi-api\.txt / mpi-abort\n"
)
#: What comes before them on a line, or is the empty line that MPICH begins with.
_BEFORE = re.compile(rb"(?:(?<=\n)|^)(?:\d+|\n)\Z")
#: The host whose daemon an mpirun has lost.
_LOST = re.compile(rb"Remote daemon: \[.*\] on node (\S+)|Remote host: +(\S+)")
#: More than any of these has, in bytes.
_MOST = 4096


@dataclass(eq=False, slots=True)
class Boxes:
    """Takes them out of a stream."""

    #: Gets the hosts whose daemon mpirun has lost, so that it ends the ranks of all.
    lost: list[str]
    _: KW_ONLY
    #: Hand all on.
    verbose: bool = False
    _unread: bytes = field(default=b"", init=False)
    #: Reasons that are told at the end if nobody else has told one.
    _reasons: bytes = field(default=b"", init=False)
    _after: bool = field(default=False, init=False)

    @property
    def waits(self) -> bool:
        """Whether what was not handed on may be the beginning of what is taken out."""
        return bool(self._unread)

    def feed(self, data: bytes) -> bytes:
        """Take the next part of the stream; return what is to be handed on now."""
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
        """Return what has only by chance begun as they do, when no more has come for a while."""
        if self._unread.startswith((*_NOTHING_NEW, *_REASONS)):
            return b""
        given, self._unread = self._unread, b""
        return given

    def end(self, *, told: bool) -> bytes:
        """Return what is left, and reasons if nobody has ``told`` one."""
        return self._unread + (b"" if told else self._reasons)

    def _opening(self) -> int:
        """Return where the first of them begins, or may."""
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
