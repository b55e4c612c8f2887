"""A replay of a run over hosts, elsewhere; and of one elsewhere, over hosts."""

import json

import pytest

from psrt.history.check.run import check_run
from psrt.report.files import SUMMARY

JOB = ["--dataset", "synthetic:600x20x4", "--hidden", "16", "--batch-size", "16", "--steps", "25"]
SLOW = ["--inject", "0:jitter:0.002", "--inject", "1:tail:0.001:1.5"]


def replayed(hosts, vendor, ranks, run):
    return hosts.mpirun(vendor, ranks, "-m", "psrt", "train", "--replay", run)


@pytest.mark.one_in(1000)
@pytest.mark.parametrize("ranks", [(3, 2), (5,)], ids=["other hosts", "one host"])
def test_an_asynchronous_run_repeats_on_other_hosts(hosts, train, vendor, ranks):
    flags = ["--mode", "async", "--servers", 2, "--placement", "spread", *JOB, *SLOW]
    run = train(f"{vendor}-async-{len(ranks)}", vendor, (2, 2, 1), *flags)
    done = replayed(hosts, vendor, ranks, run)
    assert done.status == 0, done.stderr
    assert "the same parameters to the bit" in done.stdout


@pytest.mark.exhaustive
# Frames are bytes to either MPI, so each codec goes with one.
@pytest.mark.parametrize(
    ("codec", "vendor"),
    [
        (["sign"], "openmpi"),
        (["top-k"], "mpich"),
        (["qsgd"], "openmpi"),
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
    done = replayed(hosts, vendor, (3,), run)
    assert (done.status, "the same parameters to the bit" in done.stdout) == (0, True), done.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("codec", "vendor"),
    [("sign", "mpich"), ("top-k", "openmpi"), ("int8", "mpich")],
    indirect=["vendor"],
)
def test_frames_of_sums_go_between_hosts(hosts, train, bits, vendor, codec):
    """By host where a host has several ranks; rank by rank they repeat anywhere, to the bit."""
    flags = ["--mode", "allreduce", "--codec", codec, "--bucket-bytes", 64, *JOB]
    run = train(f"{vendor}-sums-{codec}", vendor, (2, 2), *flags)
    summary = json.loads((run / SUMMARY).read_text())
    assert summary["allreduce"] == "node+naive"
    assert 0 < summary["frame_bytes"] < summary["framed_bytes"]
    assert check_run(run).ok
    done = replayed(hosts, vendor, (2, 2), run)
    assert (done.status, "the same parameters to the bit" in done.stdout) == (0, True), done.stderr
    flags += ["--allreduce", "all-pairs"]
    run = train(f"{vendor}-pairs-{codec}", vendor, (2, 1, 1), *flags)
    assert check_run(run).ok
    done = replayed(hosts, vendor, (4,), run)
    assert (done.status, "the same parameters to the bit" in done.stdout) == (0, True), done.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("codec", "more"),
    [
        ("sign", ["--outer-lr", 0.7]),
        ("low-rank", ["--fragments", 2, "--sync-delay", 4]),
        ("top-k", ["--fragments", 2, "--eager"]),
    ],
)
def test_frames_of_averages_go_between_hosts(hosts, train, vendor, codec, more):
    """By host, whose ranks each take their own part of the outer step, and rank by rank."""
    flags = ["--mode", "local-sgd", "--local-steps", 4, "--codec", codec, *more, *JOB, *SLOW]
    for ranks, name, where in (
        ((2, 2), "node+all-pairs", (2, 2)), ((2, 1, 1), "all-pairs", (4,)),
    ):  # fmt: skip
        run = train(f"{vendor}-{name}-{codec}", vendor, ranks, *flags, "--allreduce", name)
        summary = json.loads((run / SUMMARY).read_text())
        assert 0 < summary["frame_bytes"] < summary["framed_bytes"]
        outcome = check_run(run)
        assert outcome.ok, "\n".join(outcome.lines())
        done = replayed(hosts, vendor, where, run)
        assert (done.status, "the same parameters to the bit" in done.stdout) == (0, True), (
            done.stderr
        )


@pytest.mark.exhaustive
def test_sums_by_host_are_repeated_on_the_same_hosts_only(hosts, train, vendor):
    run = train(f"{vendor}-node", vendor, (5,), "--mode", "allreduce", "--allreduce", "node", *JOB)
    done = replayed(hosts, vendor, (2, 2, 1), run)
    assert done.status == 2
    assert "ranks on other hosts, which node sums by" in done.errors[0]
    over_hosts = ["--mode", "allreduce", "--allreduce", "node+ring", *JOB]
    run = train(f"{vendor}-node-ring", vendor, (2, 2, 1), *over_hosts)
    done = replayed(hosts, vendor, (2, 2, 1), run)
    assert (done.status, "the same parameters to the bit" in done.stdout) == (0, True), done.stderr
    assert replayed(hosts, vendor, (3, 2), run).status == 2
