"""Codecs over MPI: the same numbers on any host, bytes by the formula, and what one host says."""

import json

import numpy as np
import pytest

import psrt
from psrt import TrainConfig
from psrt.codec import TABLE
from psrt.history.check.run import check_run
from psrt.job.scenario import Scenario, run_in_virtual_time

BASE = {"hidden": (16,), "batch_size": 8, "steps": 6, "lr": 0.05, "timeout_s": 20}
KNOBS = {"random-k": {"codec_scaled": False}, "demo": {"optimizer": "sign-sgd"}}


@pytest.fixture(autouse=True)
def on_few_ranks(comm):
    if comm.size > 3:
        pytest.skip("seen on fewer ranks")


def check_agreement(comm, folder, name, flags):
    """Run over both kinds of links, check both histories, and compare with virtual time."""
    runs, outs = [], []
    for shared_memory in (True, False):
        out = folder / f"{name}-{shared_memory}"
        config = TrainConfig(**flags, shared_memory=shared_memory, out=str(out), record=True)
        runs.append(psrt.run(config, comm=comm))
        outs.append(out)
    if comm.rank:
        return
    for out in outs:
        outcome = check_run(out)
        assert outcome.ok, "\n".join(outcome.lines())
    servers = flags.get("servers", 1)
    virtual = run_in_virtual_time(TrainConfig(**flags), Scenario(comm.size - servers))
    for run in runs:
        np.testing.assert_array_equal(run.theta, virtual.theta)
        for figure in ("frame_bytes", "framed_bytes", "bytes_sent", "bytes_received"):
            assert getattr(run.summary, figure) == getattr(virtual.summary, figure), figure


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("codec", TABLE)
def test_links_and_virtual_time_agree_to_the_bit_and_to_the_byte(comm, shared_folder, codec):
    """In sync the order of arrival does not matter."""
    flags = BASE | {"mode": "sync", "shards_per_server": 2} | KNOBS.get(codec, {})
    flags |= {"codec": codec, "codec_everywhere": True}
    check_agreement(comm, shared_folder, codec, flags)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("codec", "one_for_all"),
    [
        *[(row.name, False) for row in TABLE.values() if row.sends_differences],
        *[("sign", True), ("top-k", True)],
    ],
)
def test_replies_over_links_and_in_virtual_time_agree(comm, shared_folder, codec, one_for_all):
    flags = BASE | {"mode": "sync", "shards_per_server": 2, "codec": "sign", "codec_reply": codec}
    flags |= {"codec_everywhere": True, "codec_reply_shared": one_for_all}
    check_agreement(comm, shared_folder, codec, flags)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("codec", "more"),
    [
        ("sign", {"outer_lr": 0.7}),
        ("top-k", {"fragments": 2, "sync_delay": 3, "inject": ("*:jitter:0.002",)}),
        ("low-rank", {"fragments": 2, "eager": True}),
        ("int8", {"servers": 1, "codec_reply": "int8"}),
    ],
)
def test_averages_over_links_and_in_virtual_time_agree(comm, shared_folder, codec, more):
    flags = BASE | {"mode": "local-sgd", "servers": 0, "local_steps": 3, "steps": 13} | more
    flags |= {"codec": codec, "codec_everywhere": True}
    if not flags["servers"]:
        flags["allreduce"] = "all-pairs"  # of the control values, too: auto takes shared memory
    check_agreement(comm, shared_folder, codec, flags)


@pytest.mark.mpi(min_size=2)
def test_on_one_host_a_codec_has_no_effect_and_the_run_says_so(comm, shared_folder):
    out, said = shared_folder / "run", []
    plain = psrt.run(TrainConfig(**BASE, mode="sync"), comm=comm)
    config = TrainConfig(**BASE, mode="sync", codec="sign", out=str(out), record=True)
    run = psrt.run(config, comm=comm, say=said.append)
    if comm.rank == 0:
        np.testing.assert_array_equal(run.theta, plain.theta)
        assert run.summary.frame_bytes == 0
        assert any("--codec sign has no effect on one host" in line for line in said)
        header = json.loads((out / "history" / "header.json").read_text())
        assert header["config"]["codec_everywhere"] is False
        assert check_run(out).ok


@pytest.mark.mpi(min_size=2)
def test_an_optimizer_has_its_codec_on_one_host_too(comm, shared_folder):
    """Without it, ``demo`` would be signed descent without a momentum."""
    flags = BASE | {"mode": "sync", "optimizer": "demo"}
    out, said = shared_folder / "run", []
    config = TrainConfig(**flags, out=str(out), record=True)
    run = psrt.run(config, comm=comm, say=said.append)
    if comm.rank == 0:
        virtual = run_in_virtual_time(TrainConfig(**flags), Scenario(comm.size - 1))
        np.testing.assert_array_equal(run.theta, virtual.theta)
        assert not any("has no effect" in line for line in said)
        header = json.loads((out / "history" / "header.json").read_text())
        assert header["config"]["codec_everywhere"] is True
        assert check_run(out).ok
