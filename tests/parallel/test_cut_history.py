"""Histories of models that are cut: recorded over MPI, checked as parts and as one, repeated."""

import json

import numpy as np
import pytest

import psrt
from psrt import ConfigError, TrainConfig
from psrt.history import EVENT, Kind, read_history
from psrt.history.check.run import check_run
from psrt.history.reading import read_cells
from psrt.job.recorded import recorded_config
from psrt.job.virtual import simulate

BASE = {"hidden": (12, 10, 8), "batch_size": 9, "steps": 5, "lr": 0.05, "timeout_s": 20}
#: The first worker is slow where a run is recorded.
SLOW_S = 0.003
CASES = {
    "1f1b": ({"parallel": "pipeline:3", "micro_batches": 4}, 3),
    "between hosts": ({"parallel": "pipeline:3", "shared_memory": False}, 3),
    "zero-bubble, local-sgd": (
        {"parallel": "data:2,pipeline:2", "pipeline_schedule": "zero-bubble", "micro_batches": 4}
        | {"mode": "local-sgd", "local_steps": 2},
        4,
    ),
    "deferred, slices": (
        {"parallel": "data:1,pipeline:2,tensor:2", "defer_weights": True, "micro_batches": 3},
        4,
    ),
    "interleaved, sync": (
        {"parallel": "data:1,pipeline:2", "pipeline_schedule": "interleaved:2", "mode": "sync"}
        | {"servers": 2, "micro_batches": 4},
        4,
    ),
    "clipped": (
        {"parallel": "data:2,pipeline:2", "mode": "local-sgd", "local_steps": 2, "clip_norm": 0.3},
        4,
    ),
    "int8": (
        {"parallel": "data:2,pipeline:2", "codec": "int8", "codec_everywhere": True},
        4,
    ),
    "low-rank, slices": (
        {"parallel": "data:2,tensor:2", "codec": "low-rank", "codec_rank": 2}
        | {"codec_everywhere": True, "shared_memory": False},
        4,
    ),
    "top-k in fragments": (
        {"parallel": "data:2,pipeline:2", "mode": "local-sgd", "local_steps": 2, "fragments": 2}
        | {"stages": "2,2", "sync_delay": 1, "codec": "top-k", "codec_everywhere": True},
        4,
    ),
    "sync, low-rank and int8": (
        {"parallel": "data:1,pipeline:2", "mode": "sync", "servers": 2, "codec": "low-rank"}
        | {"codec_rank": 2, "codec_reply": "int8", "codec_everywhere": True},
        4,
    ),
    "gossip": (
        {"parallel": "data:2,pipeline:2", "mode": "gossip", "micro_batches": 3},
        4,
    ),
    "gossip of slices, int8": (
        {"parallel": "data:2,tensor:2", "mode": "gossip", "order": "adapt-then-combine"}
        | {"codec": "int8", "codec_everywhere": True, "shared_memory": False},
        4,
    ),
    "push-sum": ({"parallel": "data:2,pipeline:2", "mode": "gossip", "push_sum": True}, 4),
    "gradient tracking": (
        {"parallel": "data:2,pipeline:2", "mode": "gossip", "gradient_tracking": True},
        4,
    ),
    "pipedream": (
        # The pipeline is drained after five batches, and at the end.
        {"parallel": "pipeline:3", "pipeline_schedule": "pipedream", "steps": 8}
        | {"dataset": "synthetic:45x8x3"},
        3,
    ),
    "pipedream, ssp": (
        {"parallel": "data:2,pipeline:2", "pipeline_schedule": "pipedream", "mode": "ssp"}
        | {"staleness": 1, "servers": 2, "steps": 7, "dataset": "synthetic:90x8x3"},
        6,
    ),
    "async": ({"parallel": "data:3,pipeline:2", "mode": "async", "servers": 2}, 8),
    "ssp, 2 shards": (
        {"parallel": "data:3,pipeline:2", "mode": "ssp", "staleness": 1, "servers": 2}
        | {"shards_per_server": 2},
        8,
    ),
}


def simulated_alike(out, flags):
    """Check that the simulated run has the events of the real one, but for times."""
    config = TrainConfig(**(BASE | flags), record=True, out=str(out.with_name("simulated")))
    simulate(config, workers=config.axes.cells * (config.axes.data or 1))
    assert check_run(config.out).ok, check_run(config.out).lines()
    _, real = read_cells(out)
    _, virtual = read_cells(config.out)
    names = [name for name in EVENT.names if name not in ("time", "seconds", "gap")]
    for mine, its in zip(real, virtual, strict=True):
        for a, b in zip(mine.workers, its.workers, strict=True):
            assert sorted_events(a)[names].tolist() == sorted_events(b)[names].tolist()


def sorted_events(events):
    """Leave the order of what a stage computes; when messages come is a matter of time."""
    return np.concatenate(
        [events[events["kind"] != Kind.MESSAGE], events[events["kind"] == Kind.MESSAGE]]
    )


def cases():
    return [
        pytest.param(flags, ranks, marks=pytest.mark.mpi(min_size=ranks), id=name)
        for name, (flags, ranks) in CASES.items()
    ]


@pytest.mark.parametrize(("flags", "ranks"), cases())
def test_a_run_is_recorded_checked_and_repeated(comm, shared_folder, flags, ranks):
    part = comm.Split(comm.rank < ranks, comm.rank)
    try:
        if comm.rank < ranks:
            recorded_and_repeated(part, shared_folder / "run", flags)
    finally:
        part.Free()


def recorded_and_repeated(comm, out, flags):
    config = TrainConfig(**(BASE | flags), record=True, out=str(out), inject=(f"0:delay:{SLOW_S}",))
    run = psrt.run(config, comm=comm)
    lines = []
    config = recorded_config(out) if comm.rank == 0 else TrainConfig(**BASE)
    again = psrt.run(config, comm=comm, say=lines.append)
    if run is None:
        return
    outcome = check_run(out)
    assert outcome.ok, outcome.lines()
    assert outcome.checked["pipeline"]
    if flags.get("mode") not in ("async", "ssp") and "fragments" not in flags:
        # Where sums are under way while others are made, their order is a matter of time.
        simulated_alike(out, flags)
    assert again.summary.parameters_sha256 == run.summary.parameters_sha256
    assert any("the same parameters to the bit" in line for line in lines)
    header, cells = read_cells(out)
    assert sum(cell.header.n for cell in cells) == header.n == run.theta.size
    for cell in cells:
        for events in cell.workers:
            assert (events["kind"] == Kind.PASS).any()
    with pytest.raises(ConfigError, match="of a model that was cut into"):
        read_history(out)
    summary = json.loads((out / "summary.json").read_text())
    if flags.get("pipeline_schedule") == "pipedream":
        later = summary["staleness"]["histogram"][::-1]
        changed = summary | {"staleness": summary["staleness"] | {"histogram": later}}
        (out / "summary.json").write_text(json.dumps(changed))
        assert check_run(out).violation.rule == "summary"
    for name in ("cut_bytes_sent", "samples", "updates"):
        if name == "cut_bytes_sent" and ("tensor" in flags["parallel"] or "clip_norm" in flags):
            continue  # sums of slices and of norms are no events
        (out / "summary.json").write_text(json.dumps(summary | {name: summary[name] + 1}))
        outcome = check_run(out)
        assert outcome.violation.rule == "summary", name
