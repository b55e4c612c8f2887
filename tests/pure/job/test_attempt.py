"""One attempt at a job: what becomes of a launcher that does not end when it is asked to."""

import json
import signal
import subprocess
import sys
import time

import pytest

from psrt.faults.parent import Parent
from psrt.faults.processes import state_of
from psrt.job.attempt import attempt
from psrt.job.signals import Signals
from support.launching import TIMEOUT_S

#: A launcher that takes no signal, and has its parent asked to end.
DEAF = """\
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.kill(os.getppid(), signal.SIGTERM)
time.sleep(1000)
"""


#: A process of its own, since signals are for any thread of a process that does not block them.
KILLING = """\
import json, sys
from psrt.faults.parent import Parent
from psrt.job.attempt import attempt
parent = Parent(1, print, several_hosts=False)
ended = attempt([sys.executable, "-c", sys.argv[1]], {}, parent, **json.loads(sys.argv[2]))
print(ended.returncode, ended.asked, ended.status)
"""


def is_killed(deaf, **how):
    words = [sys.executable, "-c", KILLING, deaf, json.dumps(how)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    assert done.stdout.split() == [str(-signal.SIGKILL), str(int(signal.SIGTERM)), "143"]


@pytest.mark.parametrize("seconds", [{"deaf_s": 20.0}, {"grace_s": 0.5}])
def test_a_launcher_that_does_not_hear_is_killed(seconds):
    is_killed(DEAF, **seconds)


def test_the_end_of_a_launcher_is_seen_though_its_signal_is_lost(monkeypatch):
    monkeypatch.setattr(Signals, "wait", lambda self, left: time.sleep(min(left, 200)))
    begin = time.monotonic()
    ended = attempt([sys.executable, "-c", ""], {}, Parent(1, print, several_hosts=False))
    assert ended.status == 0
    assert time.monotonic() - begin < 100


#: A launcher whose ranks save when they are asked to, or do not; its parent is asked to end.
ASKED = """\
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(int(sys.argv[1])) if sys.argv[1] else None)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
while True:
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(1)
"""
#: A process of its own, since signals are for any thread of a process that does not block them. A
#: rank was heard: its launcher has somebody to pass signals on to.
ASKING = """\
import sys
from psrt.faults.parent import Parent
from psrt.job.attempt import attempt
from psrt.job.signals import Signals
parent = Parent(1, print, several_hosts=False)
parent.heard_at = 0.0
ended = attempt([sys.executable, "-c", *sys.argv[1:]], {}, parent, deaf_s=20.0, saves=True)
print(ended.status, ended.asked)
"""


@pytest.mark.parametrize(
    ("answer", "told"),
    [("8", "8 None"), ("0", "0 None"), ("5", "143 15"), ("", "143 15")],
)
def test_a_job_that_saves_is_asked_to_and_then_told(answer, told):
    words = [sys.executable, "-c", ASKING, ASKED, answer]
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.stdout.strip(), done.returncode) == (told, 0), done.stderr


#: A launcher that hangs with what it has started, and takes no signal.
HANGS = """\
import signal, subprocess, sys, time
from psrt.faults.parent import parent_of_this
from psrt.faults.roster import this_process
signal.signal(signal.SIGTERM, signal.SIG_IGN)
parent_of_this().watch(this_process(1))
print(subprocess.Popen(["sleep", "97"]).pid, flush=True)
time.sleep(98)
"""
#: A process of its own, since all that it has started is ended.
STALLING = """\
import sys
import psrt.job.attempt as it
from psrt.faults.parent import Parent
it._OVER_S = 0.3
parent = Parent(1, print, several_hosts=False)
ended = it.attempt([sys.executable, "-c", sys.argv[1]], {}, parent, saves=True,
                   stall=lambda: "hangs" if parent.heard_at is not None else None)
print(ended.stalled, ended.returncode, ended.asked)
"""


def test_an_attempt_that_stalls_is_ended_with_what_it_has_started():
    words = [sys.executable, "-c", STALLING, HANGS]
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    pid, *ended = done.stdout.split()  # and nothing else: no rank is blamed
    assert ended == ["hangs", str(-signal.SIGKILL), "None"]
    assert state_of(int(pid)) in "ZX"  # there is perhaps nobody who takes note of its end


def test_a_deaf_launcher_that_is_asked_to_save_is_killed():
    """MPICH's may lose the signal in its first second, in which there is nothing to save."""
    deaf = DEAF.replace("SIG_IGN)", "SIG_IGN); signal.signal(signal.SIGUSR1, signal.SIG_IGN)")
    is_killed(deaf, deaf_s=20.0, saves=True)


#: A launcher that has its parent stopped and continued, and sends it what is no order to end.
STOPS = """\
import os, signal, sys, time
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
for number in (0, signal.SIGWINCH, signal.SIGUSR1, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCHLD):
    if number:
        os.kill(os.getppid(), number)
    for _ in range(2):
        os.kill(os.getppid(), signal.SIGSTOP)
        time.sleep(0.05)
        os.kill(os.getppid(), signal.SIGCONT)
        time.sleep(0.01)
sys.exit(7)
"""
#: Looks after a launcher in waits that are over while it is stopped.
CONTINUED = """\
import sys
import psrt.job.attempt as it
from psrt.faults.parent import Parent
it._LONGEST_S = 0.02
ended = it.attempt([sys.executable, "-c", *sys.argv[2:]], {}, Parent(1, print, several_hosts=False),
                   saves=sys.argv[1] == "saves")
print(ended.status, ended.asked)
"""


@pytest.mark.parametrize("saves", ["saves", ""])
def test_a_launcher_that_was_stopped_and_continued_goes_on(saves):
    """What a wait tells that a stop has interrupted is no signal."""
    words = [sys.executable, "-c", CONTINUED, saves, STOPS]
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.stdout.strip(), done.returncode) == ("7 None", 0), done.stderr
