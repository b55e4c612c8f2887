"""Ranks that run the same tests in step: what fails on one fails on all, none is left waiting.

After each phase of a test the ranks tell each other how it went. A rank that nobody answers says
so and ends the job: it cannot hang. Rank 0 alone writes the usual report, with what the other
ranks have to say in it.
"""

from __future__ import annotations

import os
import sys
import time
import zlib
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from psrt.faults.vitals import HERE

if TYPE_CHECKING:
    from mpi4py import MPI

#: Longest that a rank waits for the others after a phase of a test, in seconds.
PATIENCE_S = float(os.environ.get("PSRT_TEST_PATIENCE_S", "60"))
_PASSED, _SKIPPED, _FAILED = range(3)
_OUTCOMES = {"passed": _PASSED, "skipped": _SKIPPED, "failed": _FAILED}
_AGREED_STATUS = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)


class Ranks:
    """The plugin that keeps the ranks in step."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.broken: list[str] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: Any
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        self._agree(report)
        return report

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.broken.append(str(report.longrepr))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """End the job if this rank stops for a reason that the others do not know."""
        if exitstatus in _AGREED_STATUS:
            return
        if self.comm.rank:
            time.sleep(1.0)  # if rank 0 has the same reason its report says it better
        self._abort(f"pytest ended with status {exitstatus:d}", *self.broken)

    def _agree(self, report: pytest.TestReport) -> None:
        """Make the outcome of this phase the same on every rank."""
        where = f"{report.nodeid} ({report.when})"
        mine = np.array([_OUTCOMES[report.outcome], zlib.crc32(where.encode())], np.int64)
        all_of_them = np.empty((self.comm.size, 2), np.int64)
        text = str(report.longrepr) if report.failed else ""
        self._wait(self.comm.Iallgather(mine, all_of_them), where, text)
        outcomes, places = all_of_them.T
        if (places != places[0]).any():
            self._abort(f"the ranks are at different tests; this one at {where}", text)
        if (outcomes == outcomes[0]).all() and outcomes[0] != _FAILED:
            return
        if not text:
            text = f"{report.outcome} here" if (outcomes != _FAILED).all() else ""
        texts = self._texts(text, where)
        report.outcome = "failed"
        report.longrepr = "\n".join(
            f"[rank {rank}] {line}" for rank, told in texts for line in told.splitlines()
        )

    def _texts(self, text: str, where: str) -> list[tuple[int, str]]:
        """Return what each rank has to say, those with nothing left out."""
        data = np.frombuffer(text.encode(), np.uint8)
        sizes = np.empty(self.comm.size, np.int64)
        self._wait(self.comm.Iallgather(np.array([data.size], np.int64), sizes), where, text)
        whole = np.empty(sizes.sum(), np.uint8)
        self._wait(self.comm.Iallgatherv(data, [whole, sizes]), where, text)
        parts = np.split(whole, np.cumsum(sizes)[:-1])
        return [(rank, bytes(part).decode()) for rank, part in enumerate(parts) if part.size]

    def _wait(self, request: MPI.Request, where: str, text: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        pause = 1e-5
        with HERE.blocked(where):  # for who watches: it does not compute
            while not request.Test():
                if time.monotonic() > deadline:
                    late = f"no answer from other ranks within {PATIENCE_S:g} s at {where}"
                    self._abort(late, text)
                time.sleep(pause)
                pause = min(2 * pause, 1e-3)

    def _abort(self, *lines: str) -> None:
        rank = self.comm.rank
        for line in "\n".join(filter(None, lines)).splitlines():
            print(f"[rank {rank}] {line}", file=sys.__stderr__, flush=True)
        self.comm.Abort(1)
