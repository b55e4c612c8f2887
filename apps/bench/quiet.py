"""Whether this machine does anything else: figures of a busy one are worth nothing.

Two things tell. The kernel counts what all processors do, and what this process and those that it
has waited for have done; the rest is of others, or taken by a hypervisor. And a product of matrices
that takes longer than at first has a slower core, whatever made it so.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from psrt.core.errors import ConfigError

#: How much longer a product may take than at first, and how often it is taken.
_SLOWER, _READINGS = 1.15, 25
#: Seconds of one look, and between two of them.
_LOOK_S, _AGAIN_S = 0.5, 5.0


class Ticks(NamedTuple):
    """CPU seconds of all processors since the machine started, and of this process's own work."""

    busy: float
    own: float
    at: float

    @classmethod
    def now(cls) -> Ticks:
        """Read them."""
        line = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0]
        user, nice, system, _, _, irq, softirq, steal, *_ = map(int, line.split()[1:])
        busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        usages = (
            resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        )
        return cls(busy, sum(it.ru_utime + it.ru_stime for it in usages), time.monotonic())

    def others(self, before: Ticks) -> float:
        """Return what others have used since then, in cores: 1 is all of one."""
        own = self.own - before.own
        return max(0.0, (self.busy - before.busy - own) / (self.at - before.at))


class Quiet:
    """Looks whether others use the machine, before and between measurements."""

    def __init__(self, most: float, *, patience: int = 6) -> None:
        """Begin.

        Args:
            most: what others may use, in cores.
            patience: looks until a busy machine is given up.
        """
        self._most, self._patience = most, patience
        rng = np.random.default_rng(0)
        self._matrix = rng.normal(size=(384, 384)).astype(np.float32)
        self._product_s()  # the first one starts threads, and finds memory
        self._first_s = self._product_s()

    def alone(self, work: Callable[[], float], done: str, *, counts: bool) -> float:
        """Return what a measurement finds while nobody else uses the machine.

        Args:
            work: the measurement; it is repeated if others have used the machine meanwhile.
            done: what has been measured, in words.
            counts: whether all of its processes are children of this one, which has waited for
                them; what others use meanwhile cannot be known otherwise.

        Raises:
            ConfigError: in a line, if the machine stays busy.
        """
        for _ in range(self._patience):
            self.wait(done)
            before = Ticks.now()
            found = work()
            used = Ticks.now().others(before) if counts else 0.0
            if used <= self._most:
                return found
        raise ConfigError(
            f"this machine is too busy to measure, other processes use {used:.0%} of a core during "
            f"each run: stopped after {done}"
        )

    def wait(self, done: str) -> None:
        """Return once the machine is quiet.

        Args:
            done: what has been measured, in words.

        Raises:
            ConfigError: in a line, if it stays busy.
        """
        for look in range(self._patience):
            why = self._busy()
            if why is None:
                return
            if look < self._patience - 1:
                time.sleep(_AGAIN_S)
        raise ConfigError(f"this machine is too busy to measure, {why}: stopped after {done}")

    def _busy(self) -> str | None:
        """Return what keeps the machine busy, None if nothing does."""
        before = Ticks.now()
        time.sleep(_LOOK_S)
        used = Ticks.now().others(before)
        if used > self._most:
            return f"other processes use {used:.0%} of a core, at most {self._most:.0%} may be used"
        slower = self._product_s() / self._first_s
        if slower > _SLOWER:
            return f"a product of matrices takes {slower:.2f} times what it took at first"
        return None

    def _product_s(self) -> float:
        """Return the seconds that a fixed product takes."""
        readings = []
        for _ in range(_READINGS):
            began = time.perf_counter()
            self._matrix @ self._matrix
            readings.append(time.perf_counter() - began)
        return median(readings)
