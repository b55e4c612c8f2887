"""Runs over hosts, and what they recorded: replayed elsewhere, gathered, and simulated."""

import json

import numpy as np
import pytest

from psrt.cli.simulate import main as simulate
from psrt.core.errors import ConfigError
from psrt.history import read_history
from psrt.history.check.run import check_run
from psrt.history.reading import read_header
from psrt.report.files import SUMMARY

JOB = ["--dataset", "synthetic:600x20x4", "--hidden", "16", "--batch-size", "16", "--steps", "25"]
SLOW = ["--inject", "0:jitter:0.002", "--inject", "1:tail:0.001:1.5"]


def replayed(hosts, vendor, ranks, run):
    return hosts.mpirun(vendor, ranks, "-m", "psrt", "train", "--replay", run)


def repeats(hosts, vendor, ranks, run):
    """Check that a run is repeated to the bit on so many ranks of each host."""
    done = replayed(hosts, vendor, ranks, run)
    assert done.status == 0, done.stderr
    assert "the same parameters to the bit" in done.stdout


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("ranks", [(3, 2), (5,)], ids=["other hosts", "one host"])
def test_an_asynchronous_run_repeats_on_other_hosts(hosts, train, vendor, ranks):
    flags = ["--mode", "async", "--servers", 2, "--placement", "spread", *JOB, *SLOW]
    run = train(f"{vendor}-async-{len(ranks)}", vendor, (2, 2, 1), *flags)
    repeats(hosts, vendor, ranks, run)


@pytest.mark.exhaustive
# Frames are bytes to either MPI, so each codec goes with one.
@pytest.mark.parametrize(
    ("codec", "vendor"),
    [
        (["sign"], "openmpi"),
        (["top-k"], "mpich"),
        (["sign", "--codec-reply", "top-k"], "mpich"),
    ],
    indirect=["vendor"],
)
def test_a_codec_is_in_effect_between_hosts_and_repeats_on_one(hosts, train, vendor, codec):
    flags = ["--mode", "async", "--codec", *codec, "--shards-per-server", 2, *JOB, *SLOW]
    run = train(f"{vendor}-{'-'.join(codec)}", vendor, (2, 1), *flags)
    summary = json.loads((run / SUMMARY).read_text())
    assert 0 < summary["frame_bytes"] < summary["framed_bytes"]
    assert check_run(run).ok
    repeats(hosts, vendor, (3,), run)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("codec", "vendor"),
    [("sign", "mpich"), ("top-k", "openmpi")],
    indirect=["vendor"],
)
def test_frames_of_sums_go_between_hosts(hosts, train, bits, vendor, codec):
    """By host where a host has several ranks; rank by rank they repeat anywhere, to the bit."""
    flags = ["--mode", "allreduce:bucket-bytes=64", "--codec", codec, *JOB]
    run = train(f"{vendor}-sums-{codec}", vendor, (2, 2), *flags)
    summary = json.loads((run / SUMMARY).read_text())
    assert summary["allreduce"] == "node+naive"
    assert 0 < summary["frame_bytes"] < summary["framed_bytes"]
    assert check_run(run).ok
    repeats(hosts, vendor, (2, 2), run)
    flags += ["--allreduce", "all-pairs"]
    run = train(f"{vendor}-pairs-{codec}", vendor, (2, 1, 1), *flags)
    assert check_run(run).ok
    repeats(hosts, vendor, (4,), run)


@pytest.mark.exhaustive
def test_sums_by_host_are_repeated_on_the_same_hosts_only(hosts, train, vendor):
    run = train(f"{vendor}-node", vendor, (5,), "--mode", "allreduce", "--allreduce", "node", *JOB)
    done = replayed(hosts, vendor, (2, 2, 1), run)
    assert done.status == 2
    assert "ranks on other hosts, which node sums by" in done.errors[0]
    over_hosts = ["--mode", "allreduce", "--allreduce", "node+ring", *JOB]
    run = train(f"{vendor}-node-ring", vendor, (2, 2, 1), *over_hosts)
    repeats(hosts, vendor, (2, 2, 1), run)
    assert replayed(hosts, vendor, (3, 2), run).status == 2


LONGER = [*JOB[:-1], "60"]
#: Two servers on hosts of their own.
SPREAD = ["--mode", "async", "--servers", 2, "--placement", "spread", *JOB]
RANKS = (2, 2, 1)
#: In a folder that every host has of its own.
OUT = "/tmp/runs/own"


@pytest.fixture
def recorded(hosts, vendor):
    """Return what trains into a host's own folder, which is empty again afterwards."""

    def run(*flags):
        words = ("-m", "psrt", "train", *SPREAD, "--out", OUT, "--record", *flags)
        return hosts.mpirun(vendor, RANKS, *words)

    yield run
    for name in hosts.names:
        hosts.run(name, "rm", "-rf", "/tmp/runs")


@pytest.mark.one_in(1000)
def test_a_folder_of_the_first_host_gets_all_of_the_history(hosts, recorded, capsys):
    for name in hosts.names[1:]:  # a folder of the same name is not the same folder
        hosts.run(name, "mkdir", "-p", f"{OUT}/history")
    done = recorded()
    assert done.status == 0, done.stderr
    assert "history: events of node02, node03 are copied to /tmp/runs/own/history" in done.stdout
    run = hosts.own(hosts.names[0], OUT)
    files = [f"rank-{rank:05d}.npy" for rank in range(sum(RANKS))]
    assert sorted(path.name for path in (run / "history").iterdir()) == ["header.json", *files]
    outcome = check_run(run)
    assert outcome.ok, outcome.lines()
    assert simulate(["--replay", str(run)]) == 0
    assert "the same parameters to the bit" in capsys.readouterr().out
    for name in hosts.names[1:]:
        left = hosts.run(name, "find", "/tmp/runs", "-type", "f").stdout
        assert left == ""


@pytest.mark.exhaustive
def test_a_history_that_did_not_come_is_of_an_unfinished_run(hosts, recorded):
    done = recorded("--lr", "1e6")
    assert done.status != 0  # 3, unless a connection that breaks is noticed before
    with pytest.raises(ConfigError, match="unfinished run: 5 of 5 files without an end"):
        check_run(hosts.own(hosts.names[0], OUT))
    for name in hosts.names[1:]:
        assert list(hosts.own(name, "/tmp/runs").parent.glob("tmp*")) == []


@pytest.mark.exhaustive
def test_the_clocks_of_hosts_are_in_the_header(train, vendor):
    run = train(f"{vendor}-clocks", vendor, (1, 1), *LONGER, "--mode", "async")
    clocks = read_header(run).clocks
    assert [host for host, *_ in clocks] == [0, 1, 0, 1]
    assert [ahead for host, _, ahead, _ in clocks if host == 0] == [0, 0]
    for host, at, ahead, error in clocks:
        if host == 1:
            # Hosts that this machine plays have boots of their own, but the ticks of one clock.
            assert ahead == pytest.approx(10_000, abs=0.01)
            assert 0 < error < 0.01
        assert (at > 0) == ((host, at, ahead, error) in clocks[2:])
    history = read_history(run)
    pushed, received = history.workers[0]["time"], history.shards[0]["time"]
    assert np.abs(pushed[-1] - received[-1]) < 1
