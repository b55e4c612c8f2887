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
from psrt.core.partition import Part, Span
from psrt.history import EVENT, Kind, read_history
from psrt.history.check.run import check_run
from psrt.history.reading import read_cells
from psrt.mpi.stage_links import MpiStageLinks
from psrt.transport import drive
from psrt.transport.stage_links import Channel
from support.knobs import together
from support.uneven import Uneven


@contextmanager
def first(comm, ranks):
    """Split the first ranks off; None at the others."""
    part = comm.Split(comm.rank < ranks, comm.rank)
    try:
        yield part if comm.rank < ranks else None
    finally:
        part.Free()


@pytest.mark.parametrize(
    ("ranks", "knobs"),
    [
        (3, {"parallel": "tensor:3"}),
        (3, {"parallel": "pipeline:3", "clip_norm": 0.3}),
        (2, {"parallel": "pipeline:2", "stages": "3,1", "shared_memory": False}),
    ],
    ids=str,
)
def test_a_simulation_trains_to_the_same_bits(comm, ranks, knobs):
    if comm.size < ranks:
        pytest.skip("there are too few ranks")
    base = {"epochs": 1, "hidden": (24, 20, 16), "seed": 1, "optimizer": "momentum"}
    config = TrainConfig(**base, micro_batches=5, **knobs)
    with first(comm, ranks) as part:
        run = part and psrt.run(config, comm=part)
    if run:
        virtual = psrt.simulate(config, workers=ranks)
        np.testing.assert_array_equal(run.theta, virtual.theta)


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
        | {"mode": "local-sgd:local-steps=2", "clip_norm": 0.3}, 4,
    ),
    "copies that learn": (
        {"parallel": "pipeline:1", "micro_batches": 2, "mode": "local-sgd:local-steps=2,quorum=1"}
        | {"servers": 1}, 3,
    ),
    "copies of two parts that learn": (
        {"parallel": "pipeline:2", "mode": "local-sgd:local-steps=2,quorum=1,outer=nesterov"}
        | {"servers": 3, "codec": "int8", "codec_everywhere": True, "shared_memory": False}, 7,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("flags", "ranks"), HISTORIES.values(), ids=HISTORIES)
def test_a_run_is_recorded_checked_and_repeated(comm, shared_folder, flags, ranks):
    if comm.size < ranks:
        pytest.skip("there are too few ranks")
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
    if "quorum" not in str(flags):  # else it matters who comes first
        simulated_alike(out, flags)
    assert again.summary.parameters_sha256 == run.summary.parameters_sha256
    assert any("the same parameters to the bit" in line for line in lines)
    header, cells = read_cells(out)
    cells = cells[: len(header.cells)]
    assert sum(cell.header.n for cell in cells) == header.n == run.theta.size
    with pytest.raises(ConfigError, match="of a model that was split into"):
        read_history(out)


def simulated_alike(out, flags):
    """Check that the simulated run has the events of the real one, but for times."""
    config = TrainConfig(**BASE | flags, record=True, out=str(out.with_name("simulated")))
    psrt.simulate(config, workers=config.axes.cells * (config.axes.data or 1))
    names = [name for name in EVENT.names if name not in ("time", "seconds", "gap")]

    def told(events):
        """The order is that of what a stage computes; when messages come is a matter of time."""
        is_message = events["kind"] == Kind.MESSAGE
        return np.concatenate([events[~is_message], events[is_message]])[names].tolist()

    for mine, its in zip(read_cells(out)[1], read_cells(config.out)[1], strict=True):
        for a, b in zip(mine.workers, its.workers, strict=True):
            assert (a["kind"] == Kind.PASS).any()
            assert told(a) == told(b)


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
        links = MpiStageLinks(
            part, part, MPI.COMM_SELF, [CHANNEL], parts=[Part(), Part()], names=[0, 1], slices=[0],
            host=None if one_host else comm.rank,
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
    if link is None:
        send(0, 5)
    else:
        assert [link.is_free(rows_of(m)) for m in range(3)] == [False, False, True]
    part.Barrier()
    if link is not None:
        send(0, 5)
    part.Barrier()


def _reads(links, part, matrix):
    links.begin({CHANNEL: [rows_of(m) for m in range(5)]})
    for m in range(5):
        drive(links.receive(CHANNEL))
        if m < 3:
            links.release(CHANNEL)
    links.begin({CHANNEL: [rows_of(0)]})
    part.Barrier()
    part.Barrier()
    assert matrix[[rows_of(3).start, rows_of(4).start], 0].tolist() == [3, 4]
    links.release(CHANNEL)
    links.release(CHANNEL)
    drive(links.receive(CHANNEL))
    assert (matrix[rows_of(0)] == 5).all()
    links.release(CHANNEL)
    part.Barrier()


# --- what workers keep of the optimizer ---------------------------------------------------------

#: 371 parameters in buckets of 171 and 200; the last batch of an epoch is smaller. Shares of four
#: samples add up alike in any order: ``auto`` may sum the weights of workers by another algorithm.
SMALL = {
    "mode": "allreduce:bucket-bytes=300", "epochs": 2, "timeout_s": 20, "optimizer": "adam",
    "dataset": "synthetic:118x9x3", "hidden": (20, 7), "batch_size": 4,
}  # fmt: skip


def bits(comm, knobs, problem=None, **more):
    """Return the bits of a run and how it summed."""
    run = psrt.run(TrainConfig(**together({**knobs, **more})), problem, comm=comm)
    return comm.bcast(None if run is None else (run.theta.tobytes(), run.summary.allreduce))


@pytest.mark.one_in(7)
@pytest.mark.parametrize("shard", SHARDS)
def test_the_bits_of_a_run_without(comm, on_hosts, shard):
    """Whatever ``auto`` takes where ranks are on these hosts, and by the ring of all ranks."""
    part, algorithm = bits(comm, SMALL, shard=shard)
    assert part == bits(comm, SMALL, allreduce=algorithm)[0]
    assert bits(comm, SMALL, shard=shard, allreduce="ring") == bits(comm, SMALL, allreduce="ring")


def test_ranks_that_leave_at_different_times(comm):
    knobs = {
        **SMALL,
        "hidden": (8, 7, 6, 5),
        "mode": "allreduce:bucket-bytes=1",
        "allreduce": "ring",
    }

    def of(**more):
        return bits(comm, knobs, Uneven(TrainConfig(**knobs), comm.size), **more)

    whole = of()
    assert [of(shard=it) == whole for it in SHARDS] == [True] * len(SHARDS)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    "cut",
    [
        {"parallel": "pipeline:2", "micro_batches": 3, "defer_weights": True},
        {"parallel": "tensor:2", "micro_batches": 1, "shared_memory": False},
    ],
    ids=["stages", "slices"],
)
def test_of_a_model_that_is_cut(comm, cut):
    knobs = {**SMALL, **cut, "hidden": (20, 7, 9), "allreduce": "ring"}
    with first(comm, comm.size // 2 * 2) as part:
        if part is not None:
            whole = bits(part, knobs)
            assert [bits(part, knobs, shard=it) == whole for it in SHARDS] == [True] * len(SHARDS)
