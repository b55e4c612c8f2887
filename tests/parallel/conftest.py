"""Every rank runs every test, in step: what fails on one rank fails on all, none is left waiting.

After each phase of a test the ranks tell each other how it went. A rank that nobody answers says
so and ends the job: it cannot hang. Rank 0 alone writes the usual report, with what the other
ranks have to say in it.
"""

import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np
import pytest

#: Longest that a rank waits for the others after a phase of a test, in seconds.
PATIENCE_S = float(os.environ.get("PSRT_TEST_PATIENCE_S", "60"))
_PASSED, _SKIPPED, _FAILED = range(3)
_OUTCOMES = {"passed": _PASSED, "skipped": _SKIPPED, "failed": _FAILED}
_AGREED_STATUS = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)

#: From here on ranks are many for a small machine, and tests leave out what fewer ranks show.
MANY = 5
#: Layout → the host that a rank counts as being on (None: where it is), the fewest ranks that
#: make a difference, and the most on which it is worth its time.
LAYOUTS = {
    "one-host": (lambda rank: None, 1, 64),
    "pairs": (lambda rank: rank // 2, 3, MANY - 1),
    "threes": (lambda rank: rank // 3, 4, 64),
    "apart": (lambda rank: rank, 2, MANY - 1),
}


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    if not config.getoption("--with-mpi"):
        return
    from psrt.mpi.start import world

    ranks = _Ranks(world().Dup())
    config.pluginmanager.register(ranks, "ranks")
    if ranks.comm.rank:
        # The reporter, which is made after this, writes to what is stdout now.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session):
    """Leave out pytest-mpi's closing section: a screenful, and with a NUL in it."""
    for plugin in session.config.pluginmanager.get_plugins():
        if type(plugin).__module__ == "pytest_mpi":
            plugin._is_testing_mpi = False


def pytest_ignore_collect(collection_path, config):
    """Leave these modules, which start MPI, alone where there are no ranks."""
    alone = not config.getoption("--with-mpi")
    return True if alone and collection_path.name.startswith("test_") else None


class _Ranks:
    """The plugin that keeps the ranks in step."""

    def __init__(self, comm):
        self.comm = comm
        self.broken = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        self._agree(report)
        return report

    def pytest_collectreport(self, report):
        if report.failed:
            self.broken.append(str(report.longrepr))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session, exitstatus):
        """End the job if this rank stops for a reason that the others do not know."""
        if exitstatus in _AGREED_STATUS:
            return
        if self.comm.rank:
            time.sleep(1.0)  # if rank 0 has the same reason its report says it better
        self._abort(f"pytest ended with status {exitstatus:d}", *self.broken)

    def _agree(self, report):
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

    def _texts(self, text, where):
        """Return what each rank has to say, those with nothing left out."""
        data = np.frombuffer(text.encode(), np.uint8)
        sizes = np.empty(self.comm.size, np.int64)
        self._wait(self.comm.Iallgather(np.array([data.size], np.int64), sizes), where, text)
        whole = np.empty(sizes.sum(), np.uint8)
        self._wait(self.comm.Iallgatherv(data, [whole, sizes]), where, text)
        parts = np.split(whole, np.cumsum(sizes)[:-1])
        return [(rank, bytes(part).decode()) for rank, part in enumerate(parts) if part.size]

    def _wait(self, request, where, text):
        deadline = time.monotonic() + PATIENCE_S
        pause = 1e-5
        while not request.Test():
            if time.monotonic() > deadline:
                self._abort(f"no answer from other ranks within {PATIENCE_S:g} s at {where}", text)
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)

    def _abort(self, *lines):
        rank = self.comm.rank
        for line in "\n".join(filter(None, lines)).splitlines():
            print(f"[rank {rank}] {line}", file=sys.__stderr__, flush=True)
        self.comm.Abort(1)


@pytest.fixture
def comm(request):
    """All ranks, on a communicator of the test's own."""
    from psrt.mpi.start import world

    comm = world().Dup()
    yield comm
    if not request.session.testsfailed:
        comm.Free()


@pytest.fixture
def shared_folder(comm):
    """A new folder, the same on all ranks.

    Not pytest's ``tmp_path``: its clean-up stumbles over what other ranks clean up.
    """
    from psrt.mpi.agreement import send_text

    name = tempfile.mkdtemp() if comm.rank == 0 else ""
    path = Path(send_text(comm, name))
    yield path
    if comm.rank == 0:
        shutil.rmtree(path)


@pytest.fixture(params=LAYOUTS)
def host(request, comm):
    """The number of the host that this rank counts as being on, for every layout in turn."""
    host_of, fewest, most = LAYOUTS[request.param]
    if comm.size < fewest:
        pytest.skip(f"{comm.size} ranks make no such layout")
    if comm.size > most:
        pytest.skip("seen on fewer ranks")
    return host_of(comm.rank)


@pytest.fixture
def enough_on_few(comm):
    """Return what skips the rest of a test that is much the same on any number of ranks."""

    def skip():
        if comm.size >= MANY:
            pytest.skip("seen on fewer ranks")

    return skip


@pytest.fixture
def open_group(comm):
    """Return what makes a group; it is closed afterwards, by itself where it is broken."""
    from psrt.errors import PsrtError
    from psrt.mpi.group import Group

    groups = []

    def made(**options):
        groups.append(Group(comm, **({"timeout_s": 20.0} | options)))
        return groups[-1]

    yield made
    for group in groups:
        with contextlib.suppress(PsrtError):
            group.close()


@pytest.fixture
def same_bits(comm):
    """Return what tells whether all ranks hold the same bytes, to all of them alike."""

    def same(array):
        mine = np.frombuffer(hashlib.sha256(np.ascontiguousarray(array)).digest(), np.uint8)
        digests = np.empty((comm.size, mine.size), np.uint8)
        comm.Allgather(mine, digests)
        return bool((digests == digests[0]).all())

    return same
