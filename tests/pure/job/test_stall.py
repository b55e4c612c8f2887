"""When an attempt is ended from outside: by a clock of the test's own."""

import os
from types import SimpleNamespace

import pytest

from psrt.job.stall import Stall

START_S, TIMEOUT_S, BUSY_S = 300.0, 60.0, 3600.0


class Watched:
    """An attempt that is looked at every second."""

    def __init__(self, run):
        self.run, self.now = run, 1000.0
        self.parent = SimpleNamespace(heard_at=None, is_called=False, first_is_stopped=False)
        self.stall = Stall(
            self.parent, run, start_s=START_S, timeout_s=TIMEOUT_S, busy_s=BUSY_S,
            now=lambda: self.now,
        )  # fmt: skip

    def heard(self):
        self.parent.heard_at, self.parent.is_called = self.now, True

    def until_ended(self, most, each=lambda: None):
        """Return after how many seconds it is ended and why, or None if it is not."""
        for second in range(most):
            each()
            why = self.stall()
            if why is not None:
                return second, why
            self.now += 1
        return None


@pytest.fixture
def watched(tmp_path):
    return Watched(tmp_path / "run")


def test_a_launcher_that_hangs_before_there_is_a_rank(watched):
    assert watched.until_ended(1000) == (331, "no rank was there within 331 s")


def test_what_an_earlier_attempt_left_is_no_sign_of_life(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    assert Watched(tmp_path / "run").until_ended(1000) == (331, "no rank was there within 331 s")


def test_ranks_that_get_on_are_left_alone(watched):
    assert watched.until_ended(9000, watched.heard) is None


def test_ranks_that_are_not_heard_are_seen_by_their_files(watched, tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)

    def write():
        if watched.now % 3000 == 0:
            path = tmp_path / "run" / "checkpoints" / f"{watched.now}"
            path.touch()
            os.utime(path, ns=(0, int(2e18 + watched.now)))

    watched.now += 1900  # the first file comes in time
    watched.stall._began = watched.stall._changed_at = watched.now
    assert watched.until_ended(9000, write) is None
    found = watched.until_ended(9000)
    assert found is not None
    assert found[1].startswith("no sign of life for 36")


def test_rank_0_that_is_stopped_with_all_others(watched):
    watched.heard()
    watched.parent.first_is_stopped = True
    assert watched.until_ended(1000) == (61, "rank 0 was stopped for 61 s")


def test_rank_0_may_be_busy_with_one_thing(watched):
    watched.heard()
    assert watched.until_ended(9000) == (3661, "no sign of life for 3661 s")


def test_a_launcher_that_does_not_end_when_all_ranks_have(watched):
    watched.heard()
    watched.parent.is_called = False
    assert watched.until_ended(1000) == (331, "it had not ended after 331 s")
