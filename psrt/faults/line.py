"""Another rank's end of the lines: tells rank 0 what it does, and hears why the job is over."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time
from collections.abc import Mapping
from typing import Any

from psrt.core.errors import JobOverError
from psrt.faults.connection import MOST_TEXT, Address, not_for_children
from psrt.faults.detector import STATES, told_of
from psrt.faults.processes import Sight, exit_code, look, pidfds
from psrt.faults.roster import Roster, how_it_ended
from psrt.faults.vitals import Vitals
from psrt.faults.watcher import ENDS_WITHIN_S, LAST_S, MISSED, End, Tell, Watcher

#: How long ranks of other hosts leave it to those of rank 0's to tell that it has died.
_LATER_S = 0.4


class Line(Watcher):
    """Another rank's end."""

    def __init__(
        self,
        rank: int,
        address: Address,
        vitals: Vitals,
        *,
        timeout_s: float,
        roster: Roster,
        neighbours: Mapping[int, int],
        tell: Tell,
    ) -> None:
        """Connect, and begin to watch.

        Args:
            rank: of this process.
            address: of the hub.
            vitals: of this process.
            timeout_s: seconds that rank 0 may be silent.
            roster: has rank 0's entry.
            neighbours: the processes of this host that this one can look up, by rank.
            tell: as for the hub; called only if rank 0 cannot tell.

        Raises:
            OSError: if the hub cannot be reached, or does not answer.
        """
        connection = address.connect(timeout_s)
        connection.send({"secret": address.secret, "rank": rank})
        # It may have more callers than it can have files.
        first = list(connection.receive()) if connection.wait(timeout_s) else [None]
        if None in first:
            connection.close()
            raise ConnectionRefusedError("it does not answer")
        super().__init__(rank, roster.size, vitals, timeout_s, tell)
        self._connection = connection
        self._address = address
        self._roster = roster
        #: Seconds that rank 0 may be silent while its process runs.
        self._busy_s = float("inf")
        self._first_is_done = self._is_unwatched = False
        self._heard_at = time.monotonic()
        #: Rank 0's process while it is silent.
        self._first = Sight()
        self._lost_at = float("inf")
        self._pids = dict(neighbours)
        #: Processes that have ended: their ranks.
        self._ended: list[int] = []
        self._pidfds = pidfds(neighbours)
        #: Whether the others continue without this rank: it was stopped, and runs again. It must
        #: neither do anything nor end, for a launcher ends all ranks when one does.
        self.is_given_up = False
        #: See ``Hub.left_out``, as far as rank 0 has answered.
        self._left_out: dict[int, frozenset[int]] = {}
        self._selector.register(connection, selectors.EVENT_READ)
        for descriptor in self._pidfds:
            self._selector.register(descriptor, selectors.EVENT_READ)
        for message in first:
            self._heard(message or {})
        self._start()

    @property
    def watches(self) -> bool:
        """Whether rank 0 judges, so that waits may leave their deadline to it."""
        is_there = self._lost_at == float("inf") and not self._first_is_done
        return is_there and not self._is_unwatched and self._thread.is_alive()

    def set_timeouts(self, timeout_s: float, busy_s: float, stall_s: float) -> None:
        """Set what the job's config says; see ``Detector``."""
        self._busy_s = busy_s
        self._set_beat(timeout_s)
        self._beat_now()

    def fail(self, text: str, status: int) -> None:
        """Tell this rank's error, by rank 0 if it is there."""
        if not self.watches or not self._say({"failed": [status, text[-MOST_TEXT:]]}):
            self._tell(text, status)
            self._end(End(status))

    def ask_who_is_left_out(self, epoch: int) -> None:
        """Ask rank 0 which ranks are given no samples of an epoch."""
        self._say({"deals": epoch})

    def left_out(self, epoch: int) -> frozenset[int] | None:
        """Return these ranks; None while there is no answer."""
        return self._left_out.get(epoch)

    def say(self, to: int | None, words: Any) -> None:
        """Have another process hear something; see ``Watcher.say``."""
        self._say({"says": words, "to": to})

    def say_goodbye(self) -> None:
        """Tell that this rank has done its part."""
        self._say({"bye": 1})

    def close(self) -> None:
        """Stop watching: this rank has done its part."""
        self.say_goodbye()
        self._stop()
        self._connection.finish(time.monotonic() + LAST_S)
        self._connection.close()
        for descriptor in self._pidfds:
            os.close(descriptor)

    def _deadline(self) -> float:
        if self.over is not None or self._first_is_done:
            return float("inf")
        return self._lost_at + _LATER_S * (0 not in self._pids)

    def _at_deadline(self, now: float) -> None:
        # Here only if nothing reported how rank 0's process ended: it cannot be seen.
        self._tell_of_the_first(how=exit_code(self._pids[0]) if 0 in self._pids else None)

    def _take(self, key: selectors.SelectorKey) -> None:
        if key.fd in self._pidfds:
            self._ended.append(self._pidfds.pop(key.fd))
            self._selector.unregister(key.fd)
            os.close(key.fd)
            return
        for message in self._connection.receive():
            if message is None:
                self._lost_at = time.monotonic()
                if 0 in self._pids:  # at once: some launchers leave it a millisecond
                    self._at_deadline(self._lost_at)
                self._selector.unregister(self._connection)
                return
            self._heard(message)

    def _taken(self) -> None:
        ended, self._ended = self._ended, []
        for rank in ended:
            if rank:
                self._say({"died": [rank, exit_code(self._pids[rank])]})
            else:  # its socket may live on in a process that it has forked
                self._lost_at = min(self._lost_at, time.monotonic())

    def _heard(self, message: Mapping[str, Any]) -> None:
        self._heard_at, self._first = time.monotonic(), Sight()
        if "look up" in message:
            seen = {rank: look(int(pid)) for rank, pid in message["look up"].items()}
            self._say({"processes": seen})
        if "dealt" in message:
            epoch, *ranks = map(int, message["dealt"])
            self._left_out[epoch] = frozenset(ranks)
        if "gone" in message:
            self.vitals.dead = frozenset(map(int, message["dead"]))
            self.vitals.gone = frozenset(map(int, message["gone"]))
            if self.rank in self.vitals.gone:
                self.vitals.over = JobOverError(JobOverError.LATE)
                self.is_given_up = True
        if "says" in message:
            self._hear(message["says"])
        if "done" in message:
            self._first_is_done = True
        if "unwatched" in message:
            self._is_unwatched = True
        if "over" in message:
            self._end(End(int(message["over"])))

    @property
    def _patience_s(self) -> float:
        """For how long rank 0 may be silent before that is reported."""
        return self.timeout_s

    def _beat(self, now: float) -> None:
        if self.over is not None or self._first_is_done or self._is_unwatched:
            return
        silent_s = now - self._heard_at
        if silent_s > MISSED * self.beat_s and 0 in self._pids:
            self._first.seen(*look(self._pids[0]), now)
        may_work = self._first.may_work(now, self.timeout_s) and silent_s < self._busy_s
        if may_work and silent_s > MISSED * self.beat_s:
            self.got_on_at = now
        if silent_s > self._patience_s and not may_work:
            self._tell_of_the_first(silent=True)
        self._say(told_of(self._condition(now)), droppable=True)

    def _came_back(self, now: float) -> None:
        self._heard_at, self._first = now, Sight()

    def _tell_of_the_first(self, *, how: int | None = None, silent: bool = False) -> None:
        """Tell that rank 0 is dead or silent; one rank of each host does."""
        if self.over is not None or self._first_is_done or self._is_unwatched:
            return
        status = JobOverError.LATE if silent else JobOverError.DIED
        text = self._end_of_the_first(how, silent)
        if silent:
            text = f"no sign of life within {self.timeout_s:g} s (--timeout-s): {text}"
            self._say({"gave up": status})
        # The name of a socket can be taken only once, and goes with its process.
        self._claim = not_for_children(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        with contextlib.suppress(OSError):
            self._claim.bind(f"\0{self._address.name}-told")
            self._tell(f"psrt: error: {text}\n", status)
        self.ends_within_s = ENDS_WITHIN_S
        self._end(End(status))

    def _end_of_the_first(self, how: int | None, silent: bool) -> str:
        what = f"is {STATES.get(self._first.state, 'silent')}" if silent else how_it_ended(how)
        return f"{self._roster.name(0)} {what}"

    def _broke(self, why: str) -> None:
        self._say({"unwatched": 1})
        self._tell(f"psrt: rank {self.rank} is watched no longer ({why})\n")

    def _say(self, message: Mapping[str, Any], *, droppable: bool = False) -> bool:
        """Send a message to the hub; return whether it was there."""
        is_open = self._connection.send(message, droppable=droppable)
        return is_open and self._lost_at == float("inf")
