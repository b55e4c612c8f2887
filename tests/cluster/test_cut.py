"""Models cut across hosts: the bits of one, whatever goes by shared memory or by messages."""

import json

import pytest

from psrt.report.files import SUMMARY

pytestmark = pytest.mark.exhaustive

JOB = [
    *("--dataset", "synthetic:600x20x4", "--hidden", "16,12,9", "--batch-size", "15"),
    *("--micro-batches", 4, "--steps", 25, "--optimizer", "momentum"),
]


@pytest.mark.parametrize(
    ("ranks", "flags"),
    [
        ((1, 1), ["--parallel", "pipeline:2"]),
        ((2, 1, 1), ["--parallel", "pipeline:4", "--pipeline-schedule", "zero-bubble"]),
        ((2, 2), ["--parallel", "pipeline:2,tensor:2", "--recompute"]),
        ((1, 1, 2), ["--parallel", "pipeline:2,tensor:2", "--pipeline-schedule", "gpipe"]),
        ((2, 2), ["--parallel", "pipeline:2", "--allreduce", "ring"]),
    ],
    ids=str,
)
def test_the_bits_are_those_of_one_host(hosts, bits, vendor, ranks, flags):
    def train(name, ranks):
        out = hosts.folder / name
        done = hosts.mpirun(vendor, ranks, "-m", "psrt", "train", *JOB, *flags, "--out", out)
        assert done.status == 0, done.stderr
        return out

    name = "-".join([vendor, "cut", *map(str, ranks), flags[1].replace(":", "").replace(",", "-")])
    run = train(name, ranks)
    alone = train(f"{name}-alone", (sum(ranks),))
    assert bits(run) == bits(alone)
    one, other = (json.loads((it / SUMMARY).read_text()) for it in (run, alone))
    assert one["hosts"] == len(ranks)
    assert one["cut_bytes_sent"] == one["cut_bytes_received"]
    if "tensor" not in flags[1]:  # sums take other ways between hosts
        assert one["cut_bytes_sent"] == other["cut_bytes_sent"]
