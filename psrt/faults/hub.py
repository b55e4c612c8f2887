"""Rank 0's end of the lines: hears all ranks, has the detector decide, and tells."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from psrt.core.errors import JobOverError
from psrt.faults.connection import Address, Connection
from psrt.faults.detector import Detector, Verdict, condition_of
from psrt.faults.listener import Listener
from psrt.faults.processes import exit_code, look
from psrt.faults.roster import Roster, names
from psrt.faults.vitals import Vitals
from psrt.faults.watcher import LAST_S, MISSED, End, Tell, Watcher

#: How long the hub waits for a lower rank to have failed, too, before it tells the first one's
#: error: where all fail alike, always the same one speaks.
_GRACE_S = 0.1


@dataclass(slots=True, eq=False)
class Caller:
    """A connection at the hub."""

    connection: Connection
    rank: int = -1
    said_goodbye: bool = False


class Hub(Watcher):
    """Rank 0's end: hears all ranks, decides, and tells."""

    def __init__(
        self,
        roster: Roster,
        vitals: Vitals,
        detector: Detector,
        *,
        tell: Tell,
        forgive: Callable[[Iterable[int]], None] = lambda _: None,
        live: Callable[[], None] | None = None,
    ) -> None:
        """Listen to this host; nobody is watched yet.

        Args:
            roster: the members as far as they are known; may grow.
            vitals: of this process.
            detector: decides.
            tell: called from another thread.
            forgive: called there with ranks that the others continue without.
            live: called there at each beat.
        """
        super().__init__(0, roster.size, vitals, detector.timeout_s, tell)
        self.roster = roster
        self._detector = detector
        self._forgive = forgive
        self._live = live
        #: Ranks whose processes have ended, and how, as far as it is known.
        self._ended: dict[int, int | None] = {}
        #: Errors that ranks have reported, and when the first came.
        self._failed: dict[int, End] = {}
        self._failed_at = float("inf")
        #: See ``spare``.
        self._spare: frozenset[int] = frozenset()
        self._together: Mapping[int, Collection[int]] = {}
        self._survives = False
        #: By epoch, the ranks that are given none of its samples; see ``left_out``.
        self.left_out_so_far: dict[int, frozenset[int]] = {}
        self._listener = Listener(self._selector, roster.size, Caller, self._heard)
        self._start()

    @property
    def address(self) -> Address:
        """Where the others find this hub."""
        return self._listener.address

    def listen_on_network(self) -> None:
        """Listen to other hosts as well, from the first rank on that is on one."""
        self._listener.listen_on_network()

    def watch(self, ranks: Iterable[int]) -> None:
        """Begin to watch over ranks that have connected, and rank 0."""
        with self._lock:
            self._detector.watch([0, *ranks], time.monotonic())

    def spare(
        self,
        ranks: Iterable[int],
        *,
        survives: bool = False,
        together: Mapping[int, Collection[int]] | None = None,
    ) -> frozenset[int]:
        """Declare which ranks the others can continue without from now on, if one of these stays.

        Args:
            ranks: of those that may stop responding or be stuck.
            survives: whether their processes may end, too; else a launcher, or MPI, ends all ranks
                when one has died.
            together: rank → those that can do nothing without it, itself included; None if each
                is alone.

        Returns:
            The ranks that they continue without already.
        """
        with self._lock:
            self._spare, self._survives = frozenset(ranks), survives
            self._together = together or {}
            return self.vitals.gone

    def left_out(self, epoch: int) -> frozenset[int]:
        """Return the ranks that are given no samples of an epoch, the same for all callers.

        They are those that were gone when the first rank asked, so that every sample of the epoch
        is somebody's, and nobody else's.
        """
        with self._lock:
            return self.left_out_so_far.setdefault(epoch, self.vitals.gone)

    def set_timeouts(self, timeout_s: float, busy_s: float, stall_s: float) -> None:
        """Set what the job's config says; see ``Detector``."""
        with self._lock:
            detector = self._detector
            detector.timeout_s, detector.busy_s, detector.stall_s = timeout_s, busy_s, stall_s
        self._set_beat(timeout_s)
        self._beat_now()

    def fail(self, text: str, status: int) -> None:
        """Tell rank 0's own error."""
        with self._lock:
            self._note_failure(0, End(status, text))
        if self._thread.is_alive():
            self.prod()
        else:
            self._tell(text, status)
            self.told = True

    def rest(self) -> None:
        """Judge nobody any more; every rank that is not gone has done its part."""
        with self._lock:
            for rank in range(self.roster.size):
                self._detector.ended(rank)

    def end(self, status: int) -> None:
        """End the job, of which everything has been reported."""
        self._finish(End(status))

    def close(self) -> None:
        """Stop watching; every rank has done its part."""
        self._send({"done": 1})
        self._stop()
        deadline = time.monotonic() + LAST_S
        for caller in self._listener.callers:
            caller.connection.finish(deadline)
            caller.connection.close()
        self._listener.close()

    @property
    def lines(self) -> int:
        """The number of ranks that are connected and have not said that their part is done."""
        callers = list(self._listener.callers)
        return sum(caller.rank > 0 and not caller.said_goodbye for caller in callers)

    def _deadline(self) -> float:
        return self._failed_at + _GRACE_S if self.over is None else float("inf")

    def _at_deadline(self, now: float) -> None:
        self._tell_failure(now)

    def _take(self, key: selectors.SelectorKey) -> None:
        lost = self._listener.take(key)
        if lost is not None and lost.rank > 0 and not lost.said_goodbye:
            self._ended.setdefault(lost.rank, None)

    def _heard(self, caller: Caller, message: Mapping[str, Any]) -> bool:
        """Take one message; return whether the connection stays open."""
        if caller.rank < 0:
            rank = message.get("rank")
            if not self._listener.knows(message) or not isinstance(rank, int):
                return False
            if not 0 < rank < self.roster.size:
                return False
            caller.rank = rank
            return caller.connection.send({"beat": 1})
        if caller.rank in self.vitals.gone:
            return True  # it is not asked any more
        now = time.monotonic()
        with self._lock:
            if "is" in message:
                self._detector.heard(caller.rank, condition_of(message), now)
            for rank, (state, cpu_s) in message.get("processes", {}).items():
                self._detector.looked_up(int(rank), str(state), float(cpu_s), now)
            if "failed" in message:
                self._note_failure(caller.rank, End(*message["failed"]))
        if "died" in message:
            rank, code = message["died"]
            if self._ended.get(int(rank)) is None:
                self._ended[int(rank)] = code
        if "deals" in message:
            epoch = int(message["deals"])
            return caller.connection.send({"dealt": [epoch, *sorted(self.left_out(epoch))]})
        if "says" in message:
            self._pass_on(message["to"], message["says"], caller.rank)
        if "gave up" in message:
            # This process was stopped; the others have reported so, and are ending.
            self._finish(End(int(message["gave up"])))
        if "bye" in message or "unwatched" in message:
            caller.said_goodbye = True
            self._detector.ended(caller.rank)
        return True

    def _taken(self) -> None:
        ended, self._ended = self._ended, {}
        for rank, code in ended.items():
            if self.over is None:  # else ranks end because the job does
                self._died(rank, code)
        self._tell_failure(time.monotonic())

    def _died(self, rank: int, code: int | None) -> None:
        member = self.roster[rank]
        if code is None and member is not None and 0 in self.roster.on_host_of(rank):
            code = exit_code(member.pid)
        verdict = self._detector.died(rank, code)
        if verdict is not None:
            self._act(verdict)

    def _beat(self, now: float) -> None:
        self._send({"beat": 1}, droppable=True)
        if self._live is not None:
            self._live()
        if self.over is not None:
            return
        with self._lock:
            self._detector.heard(0, self._condition(now), now)
            self._look_up(now)
            verdict = self._detector.judge(now)
        if verdict is not None:
            self._act(verdict)

    def _came_back(self, now: float) -> None:
        with self._lock:
            self._detector.excuse(now)

    def _look_up(self, now: float) -> None:
        """Find out what has become of the processes that are silent."""
        for rank in self._detector.quiet(now, MISSED * self.beat_s):
            member, neighbours = self.roster[rank], self.roster.on_host_of(rank)
            if member is None:
                continue
            if 0 in neighbours:
                self._detector.looked_up(rank, *look(member.pid), now)
            else:
                self._send({"look up": {rank: member.pid}}, neighbours, droppable=True)

    def _act(self, verdict: Verdict) -> None:
        if verdict.kind == "stall":
            self._tell(f"psrt: {verdict.text}\n")
            return
        is_dead = verdict.kind == "dead"
        if self._survives or not is_dead:
            lost = self._goes_on_without(verdict.ranks, is_dead)
            if lost:
                along = sorted(lost.difference(verdict.ranks))
                what = f" without {names(self.roster, along)}, too" if along else ""
                self._tell(f"psrt: {verdict.text}; the others continue{what}\n")
                return
        status = JobOverError.DIED if is_dead else JobOverError.LATE
        self._finish(End(status, f"psrt: error: {verdict.text}\n"))

    def _goes_on_without(self, ranks: Iterable[int], are_dead: bool) -> set[int]:
        """Continue without these ranks if possible; return them, and who needs them, or nobody."""
        with self._lock:
            ranks = {it for rank in ranks for it in self._together.get(rank, (rank,))}
            gone = self.vitals.gone.union(ranks)
            if 0 in gone or not self.vitals.gone < gone < self._spare:
                return set()
            self._detector.forget(ranks, time.monotonic())
            if are_dead:
                self.vitals.dead = self.vitals.dead.union(ranks)
            self.vitals.gone = gone
        self._send({"gone": sorted(gone), "dead": sorted(self.vitals.dead)})
        self._forgive(ranks)
        return ranks

    def say(self, to: int | None, words: Any) -> None:
        """Have another process hear something; see ``Watcher.say``."""
        self._send({"says": words}, None if to is None else (to,))

    def _pass_on(self, to: int | None, words: Any, source: int) -> None:
        """Have who is meant hear what a rank says."""
        if to is None:
            self._send({"says": words}, {*range(self.roster.size)} - {source})
        elif to:
            self.say(to, words)
        if not to:
            self._hear(words)

    def _note_failure(self, rank: int, end: End) -> None:
        if not self._failed:
            self._failed_at = time.monotonic()
        self._failed.setdefault(rank, end)

    def _tell_failure(self, now: float) -> None:
        """Tell the error of the lowest rank that has failed, once all have had time to."""
        with self._lock:
            if not self._failed or self.over is not None:
                return
            lowest = min(self._failed)
            end = self._failed[lowest]
        if lowest == 0 or now >= self._failed_at + _GRACE_S:
            self._finish(end)

    def _finish(self, end: End) -> None:
        """Tell why the job is over, and end it on every rank."""
        if self.over is None:
            # First: reporting may take until the launcher begins to end the ranks, and none should
            # be blamed for that.
            self._send({"over": end.status})
            self._end(end)
            self._tell(end.text, end.status)
            self.told = True

    def _broke(self, why: str) -> None:
        self._send({"unwatched": 1})
        self._tell(f"psrt: the ranks are watched no longer ({why}): each wait has its deadline\n")

    def _send(
        self,
        message: Mapping[str, Any],
        ranks: Iterable[int] | None = None,
        *,
        droppable: bool = False,
    ) -> None:
        for caller in list(self._listener.callers):
            if caller.rank > 0 and (ranks is None or caller.rank in ranks):
                caller.connection.send(message, droppable=droppable)  # closed: read next
