"""The hosts themselves: they are apart from one another, and nothing of them stays."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.hosts import Hosts
from support.launching import ROOT, TIMEOUT_S

#: Makes a host, says where its files are and the number of its first process, and waits.
SCRIPT = """
import sys, time
from support.hosts import Hosts
with Hosts(1) as hosts:
    print(hosts.folder.parent, hosts.own("node01", "").parts[2], flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _here(hosts):
    """Skip where there can be no hosts."""


def machine():
    """Return what hosts must leave alone."""
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    files = ("/proc/self/mountinfo", "/etc/hosts", "/etc/shadow", "/proc/sys/kernel/hostname")
    ssh = sorted(map(str, Path("/etc/ssh").iterdir()))
    return [links, *(Path(path).read_text() for path in files), *ssh]


def test_each_has_its_own(hosts):
    for number, name in enumerate(hosts.names, start=1):
        assert hosts.run(name, "hostname").stdout.strip() == name
        assert f"10.99.0.{number}/24" in hosts.run(name, "ip", "-br", "address").stdout
        for folder in ("/tmp", "/dev/shm", "/run"):
            hosts.run(name, "sh", "-c", f"echo {name} >{folder}/mine")
    for name in hosts.names:
        for folder in ("/tmp", "/dev/shm", "/run"):
            assert hosts.own(name, f"{folder}/mine").read_text().strip() == name
        (hosts.folder / "ours").write_text(name)
        assert hosts.run(name, "cat", hosts.folder / "ours").stdout == name


def test_each_reaches_the_others_by_ssh(hosts):
    for name in hosts.names:
        for other in hosts.names:
            assert hosts.run(name, "ssh", other, "hostname").stdout.strip() == other


def test_links_can_be_limited_cut_and_mended():
    with Hosts(2, rate="8mbit") as pair:
        one, two = pair.names
        sends = ["sh", "-c", f"head -c 1500000 /dev/zero | ssh {two} 'cat >/dev/null'"]

        def seconds():
            began = time.monotonic()
            assert pair.run(one, *sends).status == 0
            return time.monotonic() - began

        limited = seconds()
        assert limited > 1.2  # 1.5 s, less a burst
        pair.limit(None)
        # On a busy machine ssh itself may take a second, in both.
        assert min(seconds() for _ in range(3)) < limited - 0.7
        asks = ["ssh", "-o", "ConnectTimeout=1", "-o", "ConnectionAttempts=1", two, "hostname"]
        pair.cut_link(two)
        assert pair.run(one, *asks).status == 255
        pair.mend_link(two)
        assert pair.run(one, *asks).status == 0


def test_a_host_may_crash_and_come_back(hosts):
    last = hosts.names[-1]
    process = hosts.start(last, "sleep", "1000")
    deadline = time.monotonic() + 120
    while "sleep 1000" not in hosts.processes(last):
        assert time.monotonic() < deadline, hosts.processes(last)
        time.sleep(0.01)
    hosts.crash(last)
    process.communicate(timeout=TIMEOUT_S)
    hosts.boot(last)
    assert hosts.processes(last) == []
    assert hosts.run(hosts.names[0], "ssh", last, "hostname").stdout.strip() == last


def test_what_takes_too_long_is_ended_everywhere(hosts):
    first, second = hosts.names[:2]
    with pytest.raises(TimeoutError, match="ssh"):
        hosts.run(first, "ssh", second, "sleep 1000", timeout_s=1)
    assert [hosts.processes(name) for name in hosts.names] == [[], [], []]
    assert hosts.run(first, "ssh", second, "hostname").status == 0


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_stays_however_they_end(by):
    before = machine()
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    owner = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=variables,
    )
    folder, process = owner.stdout.readline().split()
    assert Path(folder).exists()
    owner.send_signal(by)
    owner.wait(10)
    owner.stdout.close()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{process}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{process}").exists()
    with Hosts(1):
        assert not Path(folder).exists()
    assert machine() == before
