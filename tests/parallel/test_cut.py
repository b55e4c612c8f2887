"""Models that are cut into stages and slices, or whose parameters are: the same bits, and events.

That cut models train as whole ones do is a law in virtual time, and that they train over MPI as
they do there is another one (``tests/laws/test_equivalences.py``, ``test_laws.py``).
"""

from contextlib import contextmanager

import numpy as np
import pytest
from mpi4py import MPI

import psrt
from psrt import ConfigError, TrainConfig
from psrt.config.names import SHARDS
from psrt.history import EVENT, Kind, read_history
from psrt.history.check.run import check_run
from psrt.history.reading import read_cells
from psrt.mpi.stage_links import MpiStageLinks
from psrt.partition import Part, Span
from psrt.transport import drive
from psrt.transport.stage_links import Channel
from support.uneven import Uneven


@contextmanager
def first(comm, ranks):
    """Split the first ranks off; None at the others."""
    part = comm.Split(comm.rank < ranks, comm.rank)
    try:
        yield part if comm.rank < ranks else None
    finally:
        part.Free()


def trained(comm, ranks, **knobs):
    """Train on the first ranks; return the hash of the parameters, "" at the others."""
    base = {"epochs": 1, "hidden": (24, 20, 16), "seed": 1, "optimizer": "momentum"}
    with first(comm, ranks) as part:
        run = part and psrt.run(TrainConfig(**base | knobs), comm=part)
    if run:
        workers = ranks - knobs.get("servers", 0)
        virtual = psrt.simulate(TrainConfig(**base | knobs), workers=workers).summary
        assert run.summary.parameters_sha256 == virtual.parameters_sha256
    return run.summary.parameters_sha256 if run else ""


@pytest.mark.parametrize(
    ("ranks", "knobs"),
    [
        (3, {"parallel": "tensor:3"}),
        (3, {"parallel": "pipeline:3", "clip_norm": 0.3}),
        (2, {"parallel": "pipeline:2", "stages": "3,1", "shared_memory": False}),
        (4, {"parallel": "tensor:2,pipeline:2"}),
        (4, {"parallel": "tensor:2", "clip_norm": 0.3, "mode": "sync", "servers": 2}),
    ],
    ids=str,
)
def test_a_simulation_trains_to_the_same_bits(comm, ranks, knobs):
    if comm.size < ranks:
        pytest.skip("there are too few ranks")
    trained(comm, ranks, micro_batches=5, **knobs)


@pytest.mark.mpi(min_size=2)
def test_a_pipeline_of_one_stage_that_is_not_drained_is_none(comm):
    """One stage has no stale gradients: it trains as a model that is not cut, bit for bit."""
    cut = {"parallel": "pipeline:1", "pipeline_schedule": "pipedream"}
    assert trained(comm, 2, mode="allreduce", **cut) == trained(comm, 2, mode="allreduce")


# --- histories ----------------------------------------------------------------------------------

BASE = {"hidden": (12, 10, 8), "batch_size": 9, "steps": 5, "lr": 0.05, "timeout_s": 20}
HISTORIES = {
    "1f1b": ({"parallel": "pipeline:3", "micro_batches": 4}, 3),
    "between hosts": ({"parallel": "pipeline:3", "shared_memory": False}, 3),
    # Drained after five batches, and at the end.
    "pipedream": (
        {"parallel": "pipeline:3", "pipeline_schedule": "pipedream", "steps": 8}
        | {"dataset": "synthetic:45x8x3"}, 3,
    ),
    "zero-bubble, local-sgd, clipped": (
        {"parallel": "data:2,pipeline:2", "pipeline_schedule": "zero-bubble", "micro_batches": 4}
        | {"mode": "local-sgd", "local_steps": 2, "clip_norm": 0.3}, 4,
    ),
    "interleaved, sync, low-rank and int8": (
        {"parallel": "data:1,pipeline:2", "pipeline_schedule": "interleaved:2", "mode": "sync"}
        | {"servers": 2, "micro_batches": 4, "codec": "low-rank", "codec_rank": 2}
        | {"codec_reply": "int8", "codec_everywhere": True}, 4,
    ),
    "gossip of slices, int8": (
        {"parallel": "data:2,tensor:2", "mode": "gossip", "order": "adapt-then-combine"}
        | {"codec": "int8", "codec_everywhere": True, "shared_memory": False}, 4,
    ),
    "pipedream, ssp": (
        {"parallel": "data:2,pipeline:2", "pipeline_schedule": "pipedream", "mode": "ssp"}
        | {"staleness": 1, "servers": 2, "steps": 7, "dataset": "synthetic:90x8x3"}, 6,
    ),
    "async, 2 shards": (
        {"parallel": "data:3,pipeline:2", "mode": "async", "servers": 2, "shards_per_server": 2}, 8,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "ranks"),
    [
        pytest.param(flags, ranks, marks=pytest.mark.mpi(min_size=ranks), id=name)
        for name, (flags, ranks) in HISTORIES.items()
    ],
)
def test_a_run_is_recorded_checked_and_repeated(comm, shared_folder, flags, ranks):
    out, lines = shared_folder / "run", []
    with first(comm, ranks) as part:
        if part is None:
            return
        slow = ("0:delay:0.003",)
        run = psrt.run(
            TrainConfig(**BASE | flags, record=True, out=str(out), inject=slow), comm=part
        )
        part.Barrier()
        again = psrt.run(psrt.recorded_config(out), comm=part, say=lines.append)
    if run is None:
        return
    outcome = check_run(out)
    assert outcome.ok, outcome.lines()
    assert outcome.checked["pipeline"]
    if flags.get("mode") not in ("async", "ssp"):
        simulated_alike(out, flags)
    assert again.summary.parameters_sha256 == run.summary.parameters_sha256
    assert any("the same parameters to the bit" in line for line in lines)
    header, cells = read_cells(out)
    assert sum(cell.header.n for cell in cells) == header.n == run.theta.size
    with pytest.raises(ConfigError, match="of a model that was cut into"):
        read_history(out)


def simulated_alike(out, flags):
    """Check that the simulated run has the events of the real one, but for times."""
    config = TrainConfig(**BASE | flags, record=True, out=str(out.with_name("simulated")))
    psrt.simulate(config, workers=config.axes.cells * (config.axes.data or 1))
    names = [name for name in EVENT.names if name not in ("time", "seconds", "gap")]
    for mine, its in zip(read_cells(out)[1], read_cells(config.out)[1], strict=True):
        for a, b in zip(mine.workers, its.workers, strict=True):
            assert (a["kind"] == Kind.PASS).any()
            assert computed_first(a)[names].tolist() == computed_first(b)[names].tolist()


def computed_first(events):
    """Leave the order of what a stage computes; when messages come is a matter of time."""
    is_message = events["kind"] == Kind.MESSAGE
    return np.concatenate([events[~is_message], events[is_message]])


# --- the channels between stages ----------------------------------------------------------------

#: Three micro-batches of two rows take turns.
CHANNEL = Channel(0, False, writer=0, reader=1, width=3, rows=6, messages=3, turn=2)


def rows_of(m):
    return CHANNEL.place(m, Span(2 * m, 2 * m + 2))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("one_host", [True, False])
def test_the_next_batch_waits_for_rows_of_the_one_before(comm, one_host):
    """Of five micro-batches the fourth lies where the first of the next batch goes."""
    with first(comm, 2) as part:
        if part is None:
            return
        host = None if one_host else comm.rank
        links = MpiStageLinks(
            part, part, MPI.COMM_SELF, [CHANNEL],
            parts=[Part(), Part()], names=[0, 1], slices=[0], host=host,
        )  # fmt: skip
        (_writes if part.rank == 0 else _reads)(links, part, links.matrices[CHANNEL])
        links.close()


def _writes(links, part, matrix):
    def send(m, number):
        drive(links.free(CHANNEL, rows_of(m)))
        matrix[rows_of(m)] = number
        links.send(CHANNEL, rows_of(m))

    for m in range(5):
        send(m, m)
    part.Barrier()
    link = links._local.get(CHANNEL)
    free = [] if link is None else [link.is_free(rows_of(m)) for m in range(3)]
    if link is None:
        send(0, 5)
    part.Barrier()
    if link is not None:
        send(0, 5)
    part.Barrier()
    assert free in ([], [False, False, True])


def _reads(links, part, matrix):
    links.begin({CHANNEL: [rows_of(m) for m in range(5)]})
    for m in range(5):
        drive(links.receive(CHANNEL))
        if m < 3:
            links.release(CHANNEL)
    links.begin({CHANNEL: [rows_of(0)]})
    part.Barrier()
    part.Barrier()
    kept = matrix[[rows_of(3).start, rows_of(4).start], 0].tolist()
    links.release(CHANNEL)
    links.release(CHANNEL)
    drive(links.receive(CHANNEL))
    new = matrix[rows_of(0)].copy()
    links.release(CHANNEL)
    part.Barrier()
    assert kept == [3, 4]
    np.testing.assert_array_equal(new, 5)


# --- what workers keep of the optimizer ---------------------------------------------------------

#: 371 parameters in buckets of 171 and 200; the last batch of an epoch is smaller. Shares of four
#: samples add up alike in any order: ``auto`` may sum the weights of workers by another algorithm.
SMALL = {
    "mode": "allreduce", "epochs": 2, "timeout_s": 20, "optimizer": "adam",
    "dataset": "synthetic:118x9x3", "hidden": (20, 7), "batch_size": 4, "bucket_bytes": 300,
}  # fmt: skip
#: More than one block of an update for each of four workers, and θ is one on a host.
LARGE = {**SMALL, "dataset": "synthetic:60x300x10", "hidden": (3500,), "batch_size": 5}
LARGE |= {"epochs": 1, "bucket_bytes": None}


def bits(comm, knobs, problem=None, **more):
    """Return the bits of a run and how it summed."""
    run = psrt.run(TrainConfig(**{**knobs, **more}), problem, comm=comm)
    return comm.bcast(None if run is None else (run.theta.tobytes(), run.summary.allreduce))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("shard", SHARDS)
def test_the_bits_of_a_run_without(comm, on_hosts, shard):
    """Whatever ``auto`` takes where ranks are on these hosts, and by the ring of all ranks."""
    part, algorithm = bits(comm, SMALL, shard=shard)
    assert part == bits(comm, SMALL, allreduce=algorithm)[0]
    assert bits(comm, SMALL, shard=shard, allreduce="ring") == bits(comm, SMALL, allreduce="ring")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "knobs", [{"shard": "optimizer"}, {"shard": "parameters", "shared_memory": False}], ids=str
)
def test_the_bits_of_a_large_run_without(comm, knobs):
    if comm.size > 4:
        pytest.skip("a large model takes its time")
    assert bits(comm, LARGE, **knobs, allreduce="ring") == bits(comm, LARGE, allreduce="ring")


@pytest.mark.parametrize("shard", SHARDS)
def test_ranks_that_leave_at_different_times(comm, shard):
    knobs = {**SMALL, "hidden": (8, 7, 6, 5), "bucket_bytes": 1, "allreduce": "ring"}
    problems = [Uneven(TrainConfig(**knobs), comm.size) for _ in range(2)]
    assert bits(comm, knobs, problems[0], shard=shard) == bits(comm, knobs, problems[1])


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("shard", SHARDS)
@pytest.mark.parametrize(
    "cut",
    [
        {"parallel": "pipeline:2", "micro_batches": 3, "defer_weights": True},
        {"parallel": "tensor:2", "micro_batches": 1, "shared_memory": False},
    ],
    ids=["stages", "slices"],
)
def test_of_a_model_that_is_cut(comm, shard, cut):
    knobs = {**SMALL, **cut, "hidden": (20, 7, 9), "allreduce": "ring"}
    with first(comm, comm.size // 2 * 2) as part:
        if part is not None:
            assert bits(part, knobs, shard=shard) == bits(part, knobs)
