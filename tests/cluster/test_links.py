"""What links between hosts carry: frames of codecs, to the byte."""

import json

import pytest

from psrt.cli.simulate import main as simulate
from psrt.report.files import SUMMARY

pytestmark = pytest.mark.exhaustive


#: 10 steps of a model whose vectors are long beside the headers of frames.
JOB = ["--dataset", "synthetic:64x64x10", "--hidden", "200", "--batch-size", 8, "--steps", 10]


MODES = {
    "sync": ["--mode", "sync", "--servers", 1],
    "async": ["--mode", "async", "--servers", 1],
    "allreduce": ["--mode", "allreduce"],
}


#: How many times fewer bytes than without, at least.
FEWER = {"int8": 3.8, "sign": 25, "top-k": 55}


def figures(run):
    found = json.loads((run / SUMMARY).read_text())
    return {name: found[name] for name in ("bytes_sent", "frame_bytes", "framed_bytes")}


# How many bytes there are is psrt's, not the library's.
@pytest.mark.parametrize(
    ("mode", "vendor"),
    [("sync", "openmpi"), ("async", "mpich"), ("allreduce", "openmpi")],
    indirect=["vendor"],
)
def test_bytes_are_those_that_a_simulation_predicts(train, vendor, tmp_path, mode):
    words = [*JOB, *MODES[mode]]
    dense = figures(train(f"{vendor}-dense-{mode}", vendor, (1, 1, 1), *words))["bytes_sent"]
    for codec, fewer in FEWER.items():
        more = ["--codec", codec]
        if mode != "allreduce":
            more += ["--codec-reply", codec]
        real = figures(train(f"{vendor}-{codec}-{mode}", vendor, (1, 1, 1), *words, *more))
        assert dense / real["bytes_sent"] > fewer, (codec, real)
        out = tmp_path / codec
        workers = 3 if mode == "allreduce" else 2
        flags = map(str, [*words, *more, "--workers", workers, "--timing-only", "--out", out])
        assert simulate([*flags]) == 0
        predicted = figures(out)
        assert predicted["framed_bytes"] == real["framed_bytes"]
        if codec == "top-k":  # the length of its frames depends on the numbers
            assert 0.6 * predicted["frame_bytes"] < real["frame_bytes"] <= predicted["frame_bytes"]
        else:
            assert predicted["frame_bytes"] == real["frame_bytes"]
            assert predicted["bytes_sent"] == pytest.approx(real["bytes_sent"], rel=0.001)
