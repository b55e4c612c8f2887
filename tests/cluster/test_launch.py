"""``psrt launch`` and ``psrt doctor`` on hosts: a hostfile and nothing else, with either MPI."""

import json
import signal
import time

import pytest

from support.hosts import VENDORS
from support.launching import MEETS, ROOT, TIMEOUT_S

#: A job in which something happens to one rank, or to the host of one.
FAULTY = ROOT / "apps" / "studies" / "faulty_job.py"
#: One format for either MPI, with all that may stand in it.
HOSTFILE = "# two hosts\nnode01 slots=2\nnode02:1   # the small one\n"
WHO = """\
import os, platform, sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
comm.Barrier()
sys.stdout.write(f"{comm.rank} of {comm.size} on {platform.node()}: {os.environ['MINE']}\\n")
comm.Barrier()
sys.exit(int(sys.argv[1]))
"""
WAITS = """\
import sys, time
from mpi4py import MPI
sys.stdout.write("ready\\n")  # in one piece
sys.stdout.flush()
time.sleep(100)
"""


@pytest.fixture
def launch(hosts, vendor):
    """Return what runs ``psrt launch`` on the first host."""
    (hosts.folder / "my hosts").write_text(HOSTFILE)
    psrt = VENDORS[vendor] / "bin" / "psrt"

    def run(*words, start=False, hostfile="my hosts", **more):
        line = (psrt, "launch", "--hostfile", hostfile, *words)
        # The hosts share the machine's cores, which Open MPI cannot know.
        more = {"OMPI_MCA_mpi_yield_when_idle": "1", **more}
        return (hosts.start if start else hosts.run)(hosts.names[0], *line, **more)

    return run


def test_any_script_and_training_on_the_hosts_of_a_hostfile(hosts, launch, vendor, bits):
    (hosts.folder / "who.py").write_text(WHO)
    done = launch("--env", "MINE=a b;c", "who.py", 0)
    assert done.status == 0, done.stderr
    names = ("node01", "node01", "node02")
    said = [f"{rank} of 3 on {name}: a b;c" for rank, name in enumerate(names)]
    assert sorted(filter(None, done.stdout.splitlines())) == said
    done = launch("--interface", "eth0", "--env", "MINE=", "who.py", 7)
    assert done.status == 7, done.stderr
    out = hosts.folder / f"launched-{vendor}"
    done = launch("train", "--mode", "sync", "--epochs", 1, "--out", out, "--record")
    assert done.status == 0, done.stderr
    assert json.loads((out / "summary.json").read_text())["workers"] == 2
    assert bits(out)


def test_a_script_of_torchrun_finds_all_ranks_and_hosts(hosts, launch):
    (hosts.folder / "meets.py").write_text(MEETS)
    done = launch("--interface", "eth0", "meets.py")
    assert done.status == 0, done.stderr
    said = ["0 3 0 2 0 eth0 node01", "1 3 1 2 0 eth0 node01", "2 3 0 1 1 eth0 node02"]
    assert sorted(done.stdout.splitlines()) == said
    done = launch("--gpus", "--env", "CUDA_VISIBLE_DEVICES=5", "meets.py")
    assert done.status == 2, done.stderr
    (line,) = done.errors
    assert "host node01 has 2 ranks and 1 GPU, by CUDA_VISIBLE_DEVICES=5" in line
    assert line.endswith("(on rank 0)")


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_rank_is_left_on_any_host(hosts, launch, number):
    (hosts.folder / "waits.py").write_text(WAITS)
    process = launch("waits.py", start=True)
    for _ in range(3):
        assert process.stdout.readline() == "ready\n"
    (launcher,) = (
        pid for pid in hosts.own(hosts.names[0], "/proc").iterdir()
        if pid.name.isdecimal() and b"psrt\0launch" in (pid / "cmdline").read_bytes()
    )  # fmt: skip
    hosts.run(hosts.names[0], "kill", f"-{int(number)}", launcher.name)
    process.communicate(timeout=TIMEOUT_S)
    if number != signal.SIGKILL:
        assert process.returncode == 128 + number
    nobody_is_left(hosts, "waits.py")


def nobody_is_left(hosts, script=FAULTY.name, seconds=300):
    deadline = time.monotonic() + seconds
    while any(script in line for name in hosts.names for line in hosts.processes(name)):
        assert time.monotonic() < deadline, [hosts.processes(name) for name in hosts.names]
        time.sleep(0.1)


def until_it_trains(hosts, process):
    while not (hosts.folder / "trains").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    (hosts.folder / "trains").unlink()


@pytest.mark.one_in(1000)
@pytest.mark.parametrize(("rank", "host"), [(2, "node02"), (1, "node01")])
def test_a_rank_that_dies_is_named_and_nobody_is_left(hosts, launch, rank, host):
    done = launch(FAULTY, "--mode", "async", "--phase", "gradient", "--rank", rank)
    assert done.status == 5, done.stderr
    (line,) = done.errors
    assert f"worker {rank - 1} (rank {rank}, {host}, pid" in line
    nobody_is_left(hosts)
    (hosts.folder / "trains").unlink()


def test_a_host_that_loses_power_is_named(hosts, launch):
    """Of an mpirun that has lost a host the status may be 0."""
    process = launch(FAULTY, start=True)
    until_it_trains(hosts, process)
    try:
        hosts.crash("node02")
        _, stderr = process.communicate(timeout=TIMEOUT_S)
    finally:
        hosts.boot("node02")
    assert process.returncode in (4, 5), stderr
    (line,) = (line for line in stderr.splitlines() if "psrt: error" in line)
    assert "(rank 2, node02, pid" in line
    nobody_is_left(hosts)


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("timeout_s", [5, 60])
def test_a_host_that_is_out_of_reach_is_named(hosts, launch, vendor, timeout_s):
    """By a rank, unless mpirun notices it earlier, and takes its other ranks down."""
    if vendor == "mpich" and timeout_s > 30:
        pytest.skip("its mpirun does not notice")
    process = launch(FAULTY, "--timeout-s", timeout_s, start=True)
    until_it_trains(hosts, process)
    try:
        hosts.cut_link("node02")
        _, stderr = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 4, stderr
        (line,) = (line for line in stderr.splitlines() if "psrt: error" in line)
        assert "(rank 2, node02, pid" in line
        nobody_is_left(hosts, seconds=40)  # also on the host that heard nothing of it
    finally:
        hosts.mend_link("node02")


@pytest.mark.one_in(1000)
def test_the_doctor_knows_hosts_and_the_way_between_them(hosts, launch):
    done = launch("doctor", "--json", "found.json", "--out", "/tmp/own")
    assert done.status == 0, done.stderr
    assert (
        "3 ranks on 2 hosts; psrt train would use them as sync, 1 server, 2 workers" in done.stdout
    )
    found = json.loads((hosts.folder / "found.json").read_text())
    assert [rank["host"] for rank in found["ranks"]] == ["node01", "node01", "node02"]
    assert [rank["sees_out"] for rank in found["ranks"]] == [True, True, False]
    assert [rank["networks"] for rank in found["ranks"]][2] == {"eth0": "10.99.0.2"}
    (pair,) = found["pairs"]
    assert (pair["ranks"], pair["error"]) == ([0, 2], "")
    assert pair["both_ways_s"] > pair["one_way_s"] / 4
    assert "node02 cannot see what node01 writes to /tmp/own" in done.stdout
    assert "fails" not in {finding["severity"] for finding in found["findings"]}


@pytest.mark.one_in(1000)
def test_the_doctor_names_hosts_that_do_not_reach_each_other(hosts, launch, vendor):
    """As behind a firewall that lets packets vanish."""
    (hosts.folder / "three").write_text("".join(f"{name}\n" for name in hosts.names))
    two, three = hosts.names[1:]
    entry = ("lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent")
    hosts.run(two, "ip", "neigh", "replace", "10.99.0.3", *entry)
    hosts.run(three, "ip", "neigh", "replace", "10.99.0.2", *entry)
    try:
        done = launch("doctor", "--timeout-s", 5, hostfile="three")
    finally:
        hosts.run(two, "ip", "neigh", "del", "10.99.0.3", "dev", "eth0")
        hosts.run(three, "ip", "neigh", "del", "10.99.0.2", "dev", "eth0")
    assert done.status != 0
    if vendor == "openmpi":
        assert done.status == 1
        assert "node02 and node03 cannot exchange messages: no answer within 5 s" in done.stdout
    else:  # whose MPI_Init connects every rank with every other
        assert "psrt: error: waited 5 s for MPI to start on every rank" in done.stderr


@pytest.mark.exhaustive
def test_the_doctor_names_what_keeps_ranks_from_starting_on_each_host(hosts, launch, vendor):
    one, two, three = hosts.names
    (hosts.folder / "odd").write_text(f"{one}:1\n{two}:2\n{three}:2\nghost:1\n10.99.0.99:1\n")
    hosts.sweep()  # of segments that killed ranks of MPICH have left: they would not fit
    try:
        smaller = hosts.run(two, "mount", "-o", "remount,size=16k", "/dev/shm")
        assert smaller.status == 0, smaller.stderr
        hosts.run(three, "mount", "-o", "remount,ro", "/tmp")
        done = launch("doctor", "--json", "found.json", hostfile="odd")
        (hosts.folder / "odd").write_text(f"{one}:1\n{two}:2\n{three}:2\n")
        hosts.run(two, "mount", "-t", "tmpfs", "tmpfs", VENDORS[vendor] / "bin")
        hosts.run(three, "sh", "-c", "kill $(cat /run/sshd.pid)")
        again = launch("doctor", hostfile="odd")
    finally:
        hosts.sweep()
    assert (done.status, again.status) == (1, 1), done.stderr + again.stderr
    found = json.loads((hosts.folder / "found.json").read_text())["findings"]
    whats = [it["what"] for it in found if it["severity"] == "fails"]
    assert [what.partition(":")[0] for what in whats] == [two, three, "ghost", "10.99.0.99"]
    for what, says in zip(
        whats, ("/dev/shm has 16 KiB", "Read-only", "not known here", "not answer"), strict=True
    ):
        assert says in what
    assert all(it["cure"] for it in found)
    said = " ".join(again.stdout.split())
    assert f"{two}: it has no {VENDORS[vendor]}/bin/python" in said
    assert f"{three}: nothing answers ssh there" in said
    assert said.count("cure ") == 2
