"""The hosts themselves: they are apart from one another, and nothing of them stays."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.cases import also
from support.hosts import Hosts
from support.launching import ROOT

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


@pytest.mark.parametrize("by", [signal.SIGKILL, also(signal.SIGTERM)])
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
