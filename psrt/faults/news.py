"""A watch that ends nobody: each rank learns who is busy and who is lost, and judges by itself.

So it is for communicators, whose callers may catch an error, and whose deadlines differ. Hub, line
and detector are those of a job.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from psrt.faults.detector import Verdict
from psrt.faults.hub import Caller, Hub
from psrt.faults.line import Line
from psrt.faults.watcher import AWAY, MISSED, Watcher


class News(Watcher):
    """What hub and line have in common here."""

    ends = False
    #: Ranks that say nothing, are not seen at work, or have died: since when, and in which words.
    lost: Mapping[int, tuple[float, str]] = {}
    #: When this thread was last awake.
    _awake_at = math.inf

    def busy_until(self) -> float:
        """Return when a rank was last busy or made progress, by ``time.monotonic``."""
        now = time.monotonic()
        if not self.watches:
            return -math.inf
        # A process that was stopped has old news, and waits for the next.
        return now if now - self._awake_at > AWAY * self.beat_s else self.got_on_at

    def late(self, ranks: frozenset[int], timeout_s: float) -> str:
        """Return who of some ranks is lost, in words; empty if none has been for the time-out."""
        before = time.monotonic() - timeout_s
        for rank, (since, text) in self.lost.items():
            if rank in ranks and since < before:
                told = timeout_s and since > -math.inf
                begin = f"no sign of life within {timeout_s:g} s (timeout_s): " if told else ""
                return begin + text
        return ""

    def _turn(self) -> None:
        self._awake_at = time.monotonic()
        super()._turn()


class NewsHub(News, Hub):
    """Rank 0's end."""

    #: Ranks that have died, and how.
    _died_so: Mapping[int, tuple[float, str]] = {}

    def hasten(self, timeout_s: float) -> None:
        """Beat as often as this deadline needs it, from now on."""
        if timeout_s < self.timeout_s:
            self._set_beat(timeout_s)
            self._beat_now()

    def _heard(self, caller: Caller, message: Mapping[str, Any]) -> bool:
        if caller.rank > 0 and "hasten" in message:
            self.hasten(float(message["hasten"]))
        return super()._heard(caller, message)

    def _act(self, verdict: Verdict) -> None:
        died = dict.fromkeys(verdict.ranks, (-math.inf, verdict.text))
        self._died_so = {**self._died_so, **died}
        self._beat_now()

    def _beat(self, now: float) -> None:
        with self._lock:
            self._detector.heard(0, self._condition(now), now)
            self._look_up(now)
            self.got_on_at, silent = self._detector.standing(now, MISSED * self.beat_s)
        self.lost = {**silent, **self._died_so}
        lost = {rank: [now - since, text] for rank, (since, text) in self.lost.items()}
        news = {"got on": now - self.got_on_at, "lost": lost, "within": self.timeout_s}
        self._send(news, droppable=True)


class NewsLine(News, Line):
    """Another rank's end."""

    def hasten(self, timeout_s: float) -> None:
        """Have all beat as often as this deadline needs it, from now on."""
        if timeout_s < self.timeout_s:
            self._set_beat(timeout_s)
            self._say({"hasten": timeout_s})

    def _heard(self, message: Mapping[str, Any]) -> None:
        super()._heard(message)
        if "got on" in message:
            now = self._heard_at
            # What takes long to arrive makes it later than it was, and never moves it back.
            self.got_on_at = max(self.got_on_at, now - float(message["got on"]))
            self.lost = {
                int(rank): (now - float(seconds), str(text))
                for rank, (seconds, text) in message["lost"].items()
            }
            if message["within"] < self.timeout_s:
                self._set_beat(float(message["within"]))

    @property
    def _patience_s(self) -> float:
        return MISSED * self.beat_s

    def _tell_of_the_first(self, *, how: int | None = None, silent: bool = False) -> None:
        if self._first_is_done:
            return
        since = self._heard_at if silent else -math.inf
        self.lost = {**self.lost, 0: (since, self._end_of_the_first(how, silent))}
        self._first_is_done = not silent
