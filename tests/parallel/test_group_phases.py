"""Reduce-scatter, all-gather and broadcast of a group, on every layout and from every root."""

import itertools

import numpy as np
import pytest

from psrt.collective import OPS
from psrt.partition import even_spans

pytestmark = pytest.mark.mpi
LENGTHS = [0, 1, 3, 17, 1000, 70_001]


def buffers_of(group, n, dtype):
    """Yield arrays of a length in every place that an array can have."""
    room = group.empty(n + 5, dtype)
    yield room[:n]
    yield room[5:]
    yield np.empty(n, dtype)
    if n % 2 == 0:
        yield np.empty((2, n // 2), dtype)


def numbers(rank, shape, dtype):
    """Return small whole numbers of a rank."""
    return np.random.default_rng((rank, *shape)).integers(1, 4, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["float16", "int64"])
def test_reduce_scatter_leaves_each_its_chunk(open_group, host, dtype):
    group = open_group(host=host)
    ops = itertools.cycle(["sum", "min", "prod", "max"])
    for n in LENGTHS:
        for buffer in buffers_of(group, n, dtype):
            op = next(ops)
            buffer[...] = numbers(group.rank, buffer.shape, dtype)
            mine = group.reduce_scatter(buffer, op)
            every = [numbers(r, buffer.shape, dtype) for r in range(group.size)]
            whole = OPS[op].ufunc.reduce(every)
            span = even_spans(n, group.size)[group.rank]
            np.testing.assert_array_equal(mine, whole.reshape(-1)[span.start : span.stop])
            assert mine.size == 0 or np.shares_memory(mine, buffer)


def test_the_mean_is_divided_once(open_group, host):
    group = open_group(host=host)
    for buffer in buffers_of(group, 1000, "float32"):
        buffer[...] = 6 * (group.rank + 1)
        np.testing.assert_array_equal(group.reduce_scatter(buffer, "mean"), 3 * (group.size + 1))


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_all_gather_brings_every_chunk_to_all(open_group, host, dtype):
    group = open_group(host=host)
    for n in LENGTHS:
        expected = np.arange(n) % 1000 + 1
        for buffer in buffers_of(group, n, dtype):
            buffer[...] = -1 - group.rank
            span = even_spans(n, group.size)[group.rank]
            span.of(buffer.reshape(-1))[:] = span.of(expected)
            assert group.all_gather(buffer) is buffer
            np.testing.assert_array_equal(buffer.reshape(-1), expected)


def test_broadcast_from_every_root(open_group, host):
    group = open_group(host=host)
    for n, dtype in [(0, "int32"), (1, "float16"), (17, "float32"), (5000, "int64")]:
        buffers = list(buffers_of(group, n, dtype))
        for root, buffer in itertools.product(range(group.size), buffers):
            buffer[...] = numbers(group.rank, buffer.shape, dtype)
            assert group.broadcast(buffer, root) is buffer
            np.testing.assert_array_equal(buffer, numbers(root, buffer.shape, dtype))


def test_reduce_scatter_then_all_gather_is_an_all_reduce(open_group, same_bits, host):
    group = open_group(host=host)
    window = group.empty(70_001)
    for buffer in (window, np.empty(70_001, np.float32)):
        buffer[:] = np.arange(70_001) % 100 + group.rank
        group.reduce_scatter(buffer)
        group.all_gather(buffer)
        total = group.size * (group.size - 1) // 2
        np.testing.assert_array_equal(buffer, np.arange(70_001) % 100 * group.size + total)


def test_only_the_chunks_of_others_are_spoilt(open_group):
    """A reduce-scatter in a window reads the others' buffers and writes to none of them."""
    group = open_group()
    window = group.empty(1000)
    window[:] = group.rank
    group.reduce_scatter(window)
    others = np.ones(1000, bool)
    span = even_spans(1000, group.size)[group.rank]
    others[span.start : span.stop] = False
    assert (window[others] == group.rank).all()


def test_what_is_too_long_for_one_message(open_group, monkeypatch, host):
    """Cut into several, as beyond 2**30 bytes: Open MPI counts to 2**31 - 1 only."""
    monkeypatch.setattr("psrt.mpi.links.pieces.MOST_BYTES", 64)
    group = open_group(host=host)
    for n in (0, 16, 17, 1000):
        for name in ("ring", "node+ring", "mpi", "halving-doubling-blocks"):
            buffer = np.arange(n, dtype=np.float32) + group.rank
            group.allreduce(buffer, "max", name)
            np.testing.assert_array_equal(buffer, np.arange(n) + group.size - 1)
        for root in (0, group.size - 1):
            buffer = np.arange(n, dtype=np.float64) + group.rank
            group.broadcast(buffer, root)
            np.testing.assert_array_equal(buffer, np.arange(n) + root)
