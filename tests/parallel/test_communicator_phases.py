"""Collectives of a communicator other than all-reduces, on every layout and from every root."""

import itertools

import numpy as np
import pytest
from mpi4py import MPI

from psrt.collective import OPS
from psrt.core.partition import even_spans
from psrt.mpi.arguments import DTYPES

pytestmark = pytest.mark.mpi


def buffers_of(communicator, n, dtype):
    """Yield arrays of a length in every place that an array can have."""
    room = communicator.empty(n + 5, dtype)
    yield room[:n]
    yield room[5:]
    yield np.empty(n, dtype)
    if n % 2 == 0:
        yield np.empty((2, n // 2), dtype)


def numbers(rank, shape, dtype):
    """Return small whole numbers of a rank."""
    return np.random.default_rng((rank, *shape)).integers(1, 4, shape).astype(dtype)


@pytest.mark.one_in(3)
def test_what_is_too_long_for_one_message(open_communicator, monkeypatch, host):
    """Cut into several, as beyond 2**30 bytes: Open MPI counts to 2**31 - 1 only."""
    monkeypatch.setattr("psrt.mpi.links.pieces.MOST_BYTES", 64)
    communicator = open_communicator(host=host)
    for n in (0, 16, 17, 1000):
        for name in ("ring", "node+ring", "mpi", "halving-doubling-blocks"):
            buffer = np.arange(n, dtype=np.float32) + communicator.rank
            communicator.all_reduce(buffer, "max", name)
            np.testing.assert_array_equal(buffer, np.arange(n) + communicator.size - 1)
        for root in (0, communicator.size - 1):
            buffer = np.arange(n, dtype=np.float64) + communicator.rank
            communicator.broadcast(buffer, root)
            np.testing.assert_array_equal(buffer, np.arange(n) + root)


def expected_of(call, every, root, op):
    """Return what each rank's buffer holds at the end, and where that is promised.

    Args:
        call: a method's name.
        every: (size, n), what each rank's buffer holds at the start.
        root: rank.
        op: a key of ``OPS``.
    """
    size, n = every.shape
    due, promised = every.copy(), np.zeros(every.shape, bool)
    chunks = [slice(span.start, span.stop) for span in even_spans(n, size)]
    if "op" in CALLS[call]:
        fold = OPS[op].ufunc.reduce(every * every.dtype.type(OPS[op].scale(every.dtype, size)))
        OPS[op].finish(fold, size)
    if call == "reduce":
        due[root], promised[root] = fold, True
    if call == "broadcast":
        due[:], promised[:] = every[root], True
    for rank, chunk in enumerate(chunks):
        if call == "reduce_scatter":
            due[rank, chunk], promised[rank, chunk] = fold[chunk], True
        if call == "all_gather":
            due[:, chunk], promised[:, chunk] = every[rank, chunk], True
        if call == "scatter":
            due[rank, chunk], promised[rank, chunk] = every[root, chunk], True
            promised[root] = True
        if call == "gather":
            due[root, chunk], promised[root, chunk] = every[rank, chunk], True
            promised[rank, chunk] = True
    return due, promised


#: Method → what it takes besides the buffer.
CALLS = {
    "reduce_scatter": ("op",), "all_gather": (), "broadcast": ("root",),
    "reduce": ("op", "root"), "scatter": ("root",), "gather": ("root",),
}  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("call", CALLS)
def test_against_numpy(open_communicator, host, call):
    """Every length, type, place and root; operations take turns, and whether it waits."""
    communicator, turns = open_communicator(host=host), itertools.count()
    pairs = [(op, d) for d in DTYPES for op, row in OPS.items() if row.takes(d)]
    lengths = [0, 1, 3, 17, 1000, 70_001] if communicator.size < 5 else [0, 5, 17, 1001]
    for n in lengths:
        for dtype in DTYPES if n < 1001 else DTYPES[:1]:
            for place, buffer in enumerate(buffers_of(communicator, n, dtype)):
                turn = next(turns)
                ops = [op for op, d in pairs if d == dtype]
                op, root = ops[turn % len(ops)], turn % communicator.size
                given = {"op": op, "root": root}
                every = np.stack([numbers(r, (n,), dtype) for r in range(communicator.size)])
                buffer[...] = every[communicator.rank].reshape(buffer.shape)
                words = {word: given[word] for word in CALLS[call]}
                if turn % 10 < 5:
                    handle = getattr(communicator, call + "_async")(buffer, **words)
                    handle.wait()
                    got = handle.result
                else:
                    got = getattr(communicator, call)(buffer, **words)
                due, promised = expected_of(call, every, root, op)
                mine, kept = due[communicator.rank], promised[communicator.rank]
                told = f"{call} {n} {dtype} {op} of {root} at place {place}"
                flat = buffer.reshape(-1)
                np.testing.assert_array_equal(flat[kept], mine[kept], err_msg=told)
                if "scatter" in call:
                    span = even_spans(n, communicator.size)[communicator.rank]
                    np.testing.assert_array_equal(got, mine[span.start : span.stop])
                    assert got.size == 0 or np.shares_memory(got, buffer)
                else:
                    assert got is buffer


#: Types that cannot be reduced.
SENT = ["bool", "uint8", "int16", "uint64", "complex64", "complex128", ">f4", "M8[s]", "S2"]


@pytest.mark.one_in(3)
def test_whatever_is_plain_bytes_can_be_sent(comm, open_communicator, host):
    communicator = open_communicator(host=host)
    size, rank = comm.size, comm.rank
    for dtype, n in itertools.product(SENT, [1, 3 * size, 2011 * size]):
        every = np.stack([np.resize(np.arange(7 * r, 7 * r + 90), n) for r in range(size)])
        every = every.astype("int64").astype(dtype)
        spans = even_spans(n, size)
        for buf in (communicator.empty(n, dtype), np.empty(n, dtype)):
            buf[:] = every[rank]
            assert (communicator.broadcast(buf, size - 1) == every[-1]).all()
            buf[:] = every[rank]
            assert (communicator.scatter(buf, 0) == spans[rank].of(every[0])).all()
            spans[rank].of(buf)[:] = spans[rank].of(every[rank])
            gathered = [its.of(every[r]) for r, its in enumerate(spans)]
            assert (communicator.all_gather(buf) == np.concatenate(gathered)).all()
            if n % size == 0:
                buf[:] = every[rank]
                rows = np.stack([row.reshape(size, -1)[rank] for row in every])
                assert (communicator.all_to_all(buf).reshape(size, -1) == rows).all()


def blocks(rank, size, k, dtype="float32"):
    """Return what a rank sends in an all-to-all: block j is for rank j."""
    values = 1000 * rank + 10 * np.arange(size)[:, None] + np.arange(k) % 10
    return values.astype(dtype)


@pytest.mark.one_in(3)
def test_all_to_all_is_mpis(comm, open_communicator, host):
    """In windows and out of them, in place and not, again and again, against ``MPI.Alltoall``."""
    communicator = open_communicator(host=host)
    size, rank = communicator.size, communicator.rank

    def call(*arrays, later):
        if not later:
            return communicator.all_to_all(*arrays)
        work = communicator.all_to_all_async(*arrays)
        work.wait()
        return work.result

    for k, dtype in [(0, "float32"), (1, "int64"), (3, "float16"), (1000, "int32"), (30_001, "f4")]:
        sent, expected = blocks(rank, size, k, dtype), np.empty((size, k), dtype)
        comm.Alltoall([sent.view(np.uint8), MPI.BYTE], [expected.view(np.uint8), MPI.BYTE])
        assert (expected == [blocks(r, size, k, dtype)[rank] for r in range(size)]).all()
        window, other = (communicator.empty((size, k), dtype) for _ in range(2))
        plain = np.empty(size * k, dtype)
        for buffer in (window, plain, window[::1], plain.reshape(size, k)):
            for later in (False, True, False):
                buffer[...] = sent.reshape(buffer.shape)
                assert call(buffer, later=later) is buffer
                np.testing.assert_array_equal(buffer.reshape(size, k), expected)
        outs = (other, np.empty((size, k), dtype), np.empty(size * k, dtype))
        for buffer, out in itertools.product((window, plain), outs):
            for later in (False, True, False):
                buffer[...] = sent.reshape(buffer.shape)
                out[...] = -1
                buffer.flags.writeable = False  # nothing but read
                assert call(buffer, out, later=later) is out
                buffer.flags.writeable = True
                np.testing.assert_array_equal(out.reshape(size, k), expected)
                np.testing.assert_array_equal(buffer.reshape(size, k), sent)


def test_results_under_way_are_waited_for(open_communicator, host):
    """A call on the array that an earlier one still fills comes after it."""
    communicator = open_communicator(host=host)
    size, rank = communicator.size, communicator.rank
    for buffer in (communicator.empty((size, 7)), np.empty((size, 7), np.float32)):
        buffer[...] = blocks(rank, size, 7)
        out = np.empty_like(buffer)
        work = communicator.all_to_all_async(buffer, out)
        communicator.all_reduce(out, "max")
        work.wait()
        assert work.result is out
        expected = np.max([[blocks(r, size, 7)[q] for r in range(size)] for q in range(size)], 0)
        np.testing.assert_array_equal(out, expected)


def test_several_kinds_are_under_way_at_once(open_communicator, host):
    communicator = open_communicator(host=host)
    size, rank, last = communicator.size, communicator.rank, communicator.size - 1
    buffers = [np.full(40, rank, np.int64) for _ in range(6)] + [communicator.empty(40, "int64")]
    buffers[-1][:] = rank
    table = blocks(rank, size, 3)
    handles = [
        communicator.reduce_async(buffers[0], "max", last),
        communicator.scatter_async(buffers[1], last),
        communicator.gather_async(buffers[2], last),
        communicator.broadcast_async(buffers[3], last),
        communicator.all_gather_async(buffers[4]),
        communicator.reduce_scatter_async(buffers[5], "or"),
        communicator.reduce_async(buffers[6], "xor", 0),
        communicator.all_to_all_async(table),
    ]
    for handle in handles if rank % 2 else handles[::-1]:
        handle.wait()
    owners = np.repeat(np.arange(size), [span.size for span in even_spans(40, size)])
    if rank == last:
        assert (buffers[0] == last).all()
        np.testing.assert_array_equal(buffers[2], owners)
    assert (handles[1].result == last).all()
    assert (buffers[3] == last).all()
    np.testing.assert_array_equal(buffers[4], owners)
    assert (handles[5].result == np.bitwise_or.reduce(np.arange(size))).all()
    assert rank or (buffers[6] == np.bitwise_xor.reduce(np.arange(size))).all()
    np.testing.assert_array_equal(table, [blocks(r, size, 3)[rank] for r in range(size)])
