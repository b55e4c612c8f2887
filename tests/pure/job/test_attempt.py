"""One attempt at a job: what becomes of a launcher that does not end when it is asked to."""

import signal
import sys
import time

import pytest

from psrt.faults.parent import Parent
from psrt.job.attempt import attempt

#: A launcher that takes no signal, and has its parent asked to end.
DEAF = """\
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.kill(os.getppid(), signal.SIGTERM)
time.sleep(30)
"""


@pytest.mark.parametrize("seconds", [{"deaf_s": 20.0}, {"grace_s": 0.5}])
def test_a_launcher_that_does_not_hear_is_killed(seconds):
    begin = time.monotonic()
    parent = Parent(1, print, several_hosts=False)
    ended = attempt([sys.executable, "-c", DEAF], {}, parent, **seconds)
    assert (ended.returncode, ended.asked) == (-signal.SIGKILL, signal.SIGTERM)
    assert ended.status == 128 + signal.SIGTERM
    assert time.monotonic() - begin < 15


def test_the_end_of_a_launcher_is_seen_though_its_signal_is_lost(monkeypatch):
    monkeypatch.setattr(signal, "sigtimedwait", lambda watched, left: time.sleep(min(left, 20)))
    begin = time.monotonic()
    ended = attempt([sys.executable, "-c", ""], {}, Parent(1, print, several_hosts=False))
    assert ended.status == 0
    assert time.monotonic() - begin < 15
