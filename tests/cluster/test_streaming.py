"""Shards that are pushed, updated and read one behind the other between hosts."""

import time

import numpy as np
import pytest

from psrt.history import Kind, read_history
from psrt.history.check.run import check_run
from support.hosts import VENDORS
from support.launching import TIMEOUT_S

pytestmark = pytest.mark.exhaustive

#: 1.2 MB of parameters: eight shards are longer than what may be unanswered at a time.
JOB = [
    "--mode", "sync", "--dataset", "synthetic:600x64x4", "--hidden", "512,512",
    "--batch-size", "16", "--steps", "8", "--servers", "1",
]  # fmt: skip
RANKS = (1, 1, 1)


def test_the_first_shards_are_answered_before_the_last_are_there(train, bits, vendor):
    run = train(f"{vendor}-stream-8", vendor, RANKS, *JOB, "--shards-per-server", 8)
    outcome = check_run(run)
    assert outcome.ok, outcome.lines()
    shards = read_history(run).shards
    events = np.concatenate([shard[shard["kind"] != Kind.FINAL] for shard in shards])
    for clock in range(8):
        came = events[(events["kind"] == Kind.RECEIVE) & (events["clock"] == clock)]
        replies = events[(events["kind"] == Kind.REPLY) & (events["clock"] == clock + 1)]
        assert (len(came), len(replies)) == (16, 16)
        assert replies["time"].min() < came["time"].max()
    whole = train(f"{vendor}-stream-1", vendor, RANKS, *JOB, "--shards-per-server", 1)
    assert bits(run) == bits(whole)


def test_nobody_waits_for_a_worker_that_dies_amid_its_pushes(hosts, vendor):
    (hosts.folder / "stream-hosts").write_text("node01:2\nnode02:1\n")
    words = ["launch", "--hostfile", "stream-hosts", "train", *JOB, "--steps", 1000]
    words += ["--shards-per-server", 8, "--log-every", 1]
    hosts.limit("20mbit", "node02")  # a push takes half a second, of a step of one
    try:
        process = hosts.start(
            "node01", VENDORS[vendor] / "bin" / "psrt", *words, OMPI_MCA_mpi_yield_when_idle="1"
        )
        for line in process.stdout:
            if line.split()[2:4] == ["step", "2"]:
                break
        time.sleep(0.2)
        (worker,) = (
            pid.name for pid in hosts.own("node02", "/proc").iterdir()
            if pid.name.isdecimal() and b"\0psrt\0train" in (pid / "cmdline").read_bytes()
            and b"python" in (pid / "cmdline").read_bytes().split(b"\0")[0]
        )  # fmt: skip
        hosts.run("node02", "kill", "-9", worker)
        _, stderr = process.communicate(timeout=TIMEOUT_S)
    finally:
        hosts.limit(None, "node02")
    assert process.returncode == 5, stderr
    (line,) = (line for line in stderr.splitlines() if "psrt: error" in line)
    assert "(rank 2, node02, pid" in line
