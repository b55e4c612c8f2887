"""What is lost of a job on three hosts: it starts again by --restarts."""

import functools
import json
import re
import time

import pytest

from psrt.checkpoint import Checkpoints, Disk
from psrt.history.check.run import check_run
from support.hosts import VENDORS
from support.launching import Done

#: Of all workers: 24 samples a step, which three, two and one can share out.
TRAIN = (
    "train --mode allreduce --hidden 32 --batch-size 8 --steps 6000 --timeout-s 5 "
    "--checkpoint-every 100 --resume auto --optimizer adam --seed 3"
)
#: Of four learners, two are a quorum.
LEARNERS = (
    "train --mode local-sgd:local-steps=4,quorum=2 --servers 1 --hidden 32 --batch-size 8 "
    "--steps 6000 --timeout-s 5 --checkpoint-every 200 --resume auto --seed 3"
)
#: What a daemon of either MPI is called on another host.
DAEMON = re.compile(r"prted|hydra_pmi_proxy|hydra_bstrap_proxy")
#: Segments of shared memory that ranks have.
SEGMENTS = ("sm_segment", "vader", "osc_sm", "mpich_sh", "ucx_shm", "psrt")


class Job:
    """A supervised job of three ranks, one on each host, or of more."""

    def __init__(self, hosts, vendor, name, *flags, train=TRAIN, slots=(1, 1, 1)):
        self.hosts, self.out = hosts, hosts.folder / f"{vendor}-{name}"
        #: By host, segments that a job before this one has left: MPICH's own, if one is killed.
        self.before = {host: self.segments(host) for host in hosts.names}
        lines = (f"{name}:{count}\n" for name, count in zip(hosts.names, slots, strict=True))
        (hosts.folder / "three hosts").write_text("".join(lines))
        psrt = VENDORS[vendor] / "bin" / "psrt"
        words = (psrt, "launch", "--restarts", 8, *flags, "--hostfile", "three hosts")
        words = (*words, *train.split(), "--out", self.out)
        self.process = hosts.start(hosts.names[0], *words, OMPI_MCA_mpi_yield_when_idle="1")

    def step(self):
        newest, _ = Checkpoints(Disk(), self.out).newest()
        return -1 if newest is None else newest.manifest.step

    def until(self, step, seconds=300):
        deadline = time.monotonic() + seconds
        while self.step() < step:
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, self.step()
            time.sleep(0.02)

    def ends(self, seconds=600):
        stdout, stderr = self.process.communicate(timeout=seconds)
        return Done(self.process.returncode, stdout, stderr)

    def check_nothing_left(self):
        deadline = time.monotonic() + 300
        while left := [
            line for name in self.hosts.names for line in self.hosts.processes(name)
            if "train" in line or DAEMON.search(line)
        ]:  # fmt: skip
            assert time.monotonic() < deadline, left
            time.sleep(0.1)
        for name in self.hosts.names:
            assert not self.segments(name) - self.before[name], name

    def segments(self, host):
        shared = {it.name for it in self.hosts.own(host, "/dev/shm").iterdir()}
        return {it for it in shared if it.startswith(SEGMENTS)}


def pids(hosts, host, pattern):
    """Return the processes of a host, as they are called out here, whose commands match."""
    found = []
    for process in hosts.own(host, "/proc").iterdir():
        if process.name.isdecimal():
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if re.search(pattern, words):
                found.append(process.name)
    return found


def kill(hosts, host, pattern):
    hosts.run(host, "kill", "-9", *pids(hosts, host, pattern))


@pytest.fixture(scope="module")
def undisturbed(hosts):
    """Return what gives the result of a job in which nothing happens, by vendor."""

    @functools.cache
    def result_of(vendor):
        job = Job(hosts, vendor, "undisturbed")
        done = job.ends()
        assert done.status == 0, done.stderr
        return result(job.out)

    return result_of


def result(out):
    found = json.loads((out / "summary.json").read_text())
    return found["parameters_sha256"], found["workers"], found["steps"], found["samples"]


@pytest.mark.one_in(1000)
def test_a_rank_or_a_daemon_that_is_killed(hosts, vendor, undisturbed):
    job = Job(hosts, vendor, "killed")
    job.until(500)
    kill(hosts, "node02", "psrt train")
    job.until(job.step() + 800)
    kill(hosts, "node03", DAEMON.pattern)
    done = job.ends()
    assert done.status == 0, done.stderr
    # Ranks of MPICH train on without a daemon until they notice, and may be done by then.
    restarts = done.stderr.count("; restart 1 of 8 in 1 s")
    assert restarts == 2 or (vendor == "mpich" and restarts == 1), done.stderr
    assert result(job.out) == undisturbed(vendor)
    job.check_nothing_left()


@pytest.mark.exhaustive
@pytest.mark.parametrize("is_elastic", [False, True])
def test_learners_come_back(hosts, vendor, is_elastic):
    """With all that had come by the newest checkpoint, and nothing twice."""
    flags = ["--elastic", "--min-workers", 2] if is_elastic else []
    train = LEARNERS if is_elastic else f"{LEARNERS} --record"
    job = Job(hosts, vendor, f"learners-{is_elastic}", *flags, train=train, slots=(2, 2, 1))
    for host in ("node02", "node03"):
        job.until(job.step() + 600)
        kill(hosts, host, "psrt train")
    done = job.ends()
    assert done.status == 0, done.stderr
    assert done.stderr.count("; restart ") == 2, done.stderr
    if not is_elastic:
        outcome = check_run(job.out)
        assert outcome.ok, outcome.lines()
    _, workers, steps, samples = result(job.out)
    # Epochs of 45 steps, and 15 steps of the next.
    assert (workers, steps, samples) == (4, 6000, 133 * 1437 + 15 * 4 * 8)
    job.check_nothing_left()


@pytest.mark.exhaustive
def test_the_job_goes_on_without_a_host_and_with_it_again(hosts, vendor, undisturbed):
    """It is cut off; once it is back, the next restart has it."""
    job = Job(hosts, vendor, "elastic", "--elastic", "--min-workers", 2)
    job.until(500)
    hosts.cut_link("node03")
    try:
        before = job.step()
        job.until(before + 800)
    finally:
        hosts.mend_link("node03")
    manifest, _ = Checkpoints(Disk(), job.out).newest()
    assert manifest.manifest.workers == 2
    kill(hosts, "node02", "psrt train")
    done = job.ends()
    assert done.status == 0, done.stderr
    _, workers, steps, samples = result(job.out)
    assert (workers, steps, samples) == undisturbed(vendor)[1:]
    job.check_nothing_left()


@pytest.mark.exhaustive
def test_without_it_the_host_is_waited_for(hosts, vendor, undisturbed):
    job = Job(hosts, vendor, "waits")
    job.until(500)
    hosts.crash("node03")
    said = []
    try:
        while "2 of 3 hosts answer (node03: " not in "".join(said):
            line = job.process.stderr.readline()
            assert line, said
            said.append(line)
    finally:
        hosts.boot("node03")
    done = job.ends()
    assert done.status == 0, (said, done.stderr)
    assert result(job.out) == undisturbed(vendor)
    job.check_nothing_left()
