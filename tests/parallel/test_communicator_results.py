"""What an all-reduce comes to: every algorithm, operation, type, length and layout."""

import dataclasses
import itertools

import numpy as np
import pytest

from psrt.collective import ALGORITHMS, OPS
from psrt.collective.analysis.machine import DEFAULT_COSTS
from psrt.core.partition import even_spans
from psrt.mpi.arguments import DTYPES

pytestmark = pytest.mark.mpi
NODES = ["auto", "node", *(f"node+{name}" for name in ALGORITHMS)]
NAMES = [*NODES, "mpi", *ALGORITHMS]
PAIRS = [(op, dtype) for op, dtype in itertools.product(OPS, DTYPES) if OPS[op].takes(dtype)]
#: Elements of a window that views are taken from, and where they begin.
ROOM, OFFSET = 5000, 13


def numbers(rank, size, n, op, dtype, salt=0):
    """Return (n,) small whole numbers of a rank: exact in any order and in every type."""
    rng = np.random.default_rng((rank, n, salt))
    values = rng.choice([-1, 1, 2], n) if op == "prod" else rng.integers(-8, 8, n)
    return (values * (size if op == "mean" else 1)).astype(dtype)


def result(size, n, op, dtype, salt=0):
    """Return what all ranks must end with."""
    whole = [numbers(rank, size, n, op, np.int64, salt) for rank in range(size)]
    folded = OPS[op].ufunc.reduce(whole)
    return (folded // size if op == "mean" else folded).astype(dtype)


class Buffers:
    """Arrays of a length and a type, in every place that an array can have."""

    def __init__(self, communicator):
        self.communicator = communicator
        self.room = {dtype: communicator.empty(ROOM, dtype) for dtype in DTYPES}

    def all_of(self, n, dtype):
        """Return a buffer, a view into it, an array, and one with two dimensions."""
        room, flat = self.room[dtype], np.empty(n, dtype)
        return [room[:n], room[OFFSET : OFFSET + n], flat, flat.copy().reshape(-1, 1)]


def reduced(communicator, name, op, buffer, dtype, salt=0):
    """All-reduce whole numbers in ``buffer`` and compare."""
    n, size = buffer.size, communicator.size
    buffer[...] = numbers(communicator.rank, size, n, op, dtype, salt).reshape(buffer.shape)
    assert communicator.all_reduce(buffer, op, name) is buffer
    expected = result(size, n, op, dtype, salt).reshape(buffer.shape)
    np.testing.assert_array_equal(buffer, expected, err_msg=f"{name} {op} {dtype} {n}")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["auto", "node+ring", "mpi"])
def test_every_operation_on_every_type(open_communicator, enough_on_few, host, name):
    if name == "mpi":
        enough_on_few()
    communicator = open_communicator(host=host)
    buffers = Buffers(communicator)
    turns = itertools.count()
    for op, dtype in PAIRS:
        if (name, dtype) == ("mpi", "float16"):
            continue
        turn = next(turns)
        for place in (turn % 2, 2 + turn % 2):
            reduced(communicator, name, op, buffers.all_of(50, dtype)[place], dtype, salt=turn)


@pytest.mark.one_in(2)
def test_every_algorithm_on_every_length_and_in_every_place(comm, open_communicator, host):
    """Operations and types take turns, another one for every length, place and algorithm."""
    buffers = Buffers(open_communicator(host=host))
    # None, one, fewer than ranks, ragged, and more than the smallest plan of a host takes.
    lengths = [0, 1, comm.size - 1, 3 * comm.size + 1, 4500]
    for turn, name in enumerate(NAMES):
        for i, n in enumerate(lengths):
            op, dtype = PAIRS[(7 * turn + 3 * i) % len(PAIRS)]
            dtype = "float32" if name == "mpi" and dtype == "float16" else dtype
            for place in ((turn + i) % 2, 2 + (turn // 2 + i) % 2):
                buffer = buffers.all_of(n, dtype)[place]
                reduced(buffers.communicator, name, op, buffer, dtype, salt=turn)


def test_slices_of_several_blocks(comm, open_communicator, enough_on_few, host):
    """Longer than a block of the shared-memory fold, and than a piece of what is staged."""
    enough_on_few()
    communicator = open_communicator(host=host)
    n = 65_537 * max(comm.size, 5)
    mine = np.arange(n, dtype=np.float32) % 1009
    names = ["auto", "node", "node+ring", "node+segmented-ring", "segmented-ring", "mpi"]
    for buffer, name in itertools.product((communicator.empty(n), np.empty(n, "f4")), names):
        for _ in range(2):
            buffer[:] = mine * (comm.rank + 1)
            communicator.all_reduce(buffer, "sum", name)
            total = comm.size * (comm.size + 1) // 2
            np.testing.assert_array_equal(buffer, mine * total, err_msg=name)


@pytest.mark.one_in(3)
def test_all_ranks_have_the_same_bits_in_every_run(open_communicator, same_bits, host):
    """Random numbers, among them some that are none, of both signs, and such zeros."""
    communicator = open_communicator(host=host)
    rows = np.random.default_rng(communicator.rank).standard_normal(4500)
    rows[::97] = 0.0 if communicator.rank % 3 else -0.0
    rows[5::331] = np.nan if communicator.rank % 2 else -np.nan
    rows[1::503] = np.inf
    windows = {
        dtype: communicator.empty(4500, dtype) for dtype in ("float16", "float32", "float64")
    }
    ops = [op for op in OPS if OPS[op].takes(float)]
    turns = itertools.cycle(itertools.product(ops, windows))
    for name, n in itertools.product([*NODES, *ALGORITHMS], [11, 4500]):
        op, dtype = next(turns)
        mine, window = rows.astype(dtype), windows[dtype]
        if name == "auto" and communicator.choice(mine[:n].nbytes, dtype).algorithm == "mpi":
            continue
        for buffer in (window[:n], np.empty(n, dtype)):
            runs = []
            for _ in range(2):
                buffer[:] = mine[:n]
                with np.errstate(all="ignore"):
                    communicator.all_reduce(buffer, op, name)
                assert same_bits(buffer), (name, op, n)
                runs.append(buffer.tobytes())
            assert runs[0] == runs[1], (name, op, n)


@pytest.mark.mpi(min_size=2)
def test_auto_agrees_on_what_is_no_number(open_communicator, same_bits, one_host):
    """Where the library is said to be the cheapest, which does not promise it for min and max."""
    one_host()  # its times are known for one only
    sizes = [("mpi", (ranks,), nbytes, 1e-12) for ranks in range(2, 9) for nbytes in (4, 1 << 20)]
    communicator = open_communicator(
        machine_costs=dataclasses.replace(DEFAULT_COSTS, measured=tuple(sizes))
    )
    assert communicator.choice(4000, "int32", "min").algorithm == "mpi"
    for op in ("min", "max"):
        for n in (1, 5000):
            buffer = np.full(n, np.nan if communicator.rank == 0 else communicator.rank, np.float32)
            communicator.all_reduce(buffer, op)
            assert np.isnan(buffer).all()
            assert same_bits(buffer)


@pytest.mark.one_in(3)
def test_arrays_of_any_form(open_communicator, enough_on_few, host):
    """Without dimensions, not aligned, stored by columns, and of a class of their own."""
    enough_on_few()
    communicator = open_communicator(host=host)
    buffers = [communicator.empty(()), np.empty((), np.float32), np.empty((1, 1, 1), np.float32)]
    for name, buffer in itertools.product(NAMES, buffers):
        buffer[...] = 2
        communicator.all_reduce(buffer, "prod", name)
        assert buffer == 2**communicator.size, name
    for n, name in itertools.product((9, 4500), ("auto", "node", "node+tree", "ring")):
        buffer = np.empty(4 * n + 1, np.uint8)[1:].view(np.float32)
        assert not buffer.flags.aligned
        reduced(communicator, name, "sum", buffer, "float32")

    class Mine(np.ndarray):
        def reshape(self, *shape):
            raise AssertionError("not asked for")

    numbers = np.arange(12, dtype=np.float32).reshape(3, 4)
    for name in ("auto", "ring", "mpi"):
        buffer = np.asfortranarray(numbers + communicator.rank).view(Mine)
        communicator.all_reduce(buffer, "max", name)
        assert type(buffer) is Mine
        np.testing.assert_array_equal(np.asarray(buffer), numbers + communicator.size - 1)
        own = communicator.reduce_scatter(np.asarray(buffer), "max")
        assert np.shares_memory(own, buffer) or not own.size


def test_auto_is_what_choice_says(open_communicator, same_bits, host):
    communicator = open_communicator(host=host)
    for n in (0, 10, 70_000):
        choice = communicator.choice(4 * n)
        assert choice.algorithm in NAMES
        assert same_bits(np.frombuffer(choice.why.encode(), np.uint8))
        by_auto = np.random.default_rng(communicator.rank).standard_normal(n).astype(np.float32)
        by_name = by_auto.copy()
        communicator.all_reduce(by_auto)
        communicator.all_reduce(by_name, "sum", choice.algorithm)
        assert choice.algorithm == "mpi" or by_auto.tobytes() == by_name.tobytes()


@pytest.mark.one_in(3)
def test_what_all_ranks_send_all_ranks_receive(comm, open_communicator, enough_on_few, host):
    enough_on_few()
    communicator = open_communicator(host=host)
    n = 1000 // communicator.size * communicator.size
    calls = [("all_reduce", "sum", name) for name in NAMES]
    calls += [("reduce",), ("scatter",), ("gather",), ("all_to_all",)]
    window = communicator.empty(n)
    for (call, *words), buffer in itertools.product(calls, [window, np.zeros(n, np.float32)]):
        before = np.array([communicator.bytes_sent, communicator.bytes_received])
        getattr(communicator, call)(buffer, *words)
        moved = np.array([communicator.bytes_sent, communicator.bytes_received]) - before
        totals = np.empty_like(moved)
        comm.Allreduce(moved, totals)
        assert totals[0] == totals[1], (call, words)
        # Every rank needs what the others have, and they need what it has.
        least = buffer.nbytes if call == "all_reduce" else 1
        assert totals[0] >= least * (communicator.size > 1), (call, words)
        assert (totals[0] > 0) == (communicator.size > 1) or words == ["sum", "mpi"]


#: Numbers that are near the end of their type, as a rank has them: their mean fits, their sum not.
NEAR_THE_END = {
    "float16": [40_000, -65_504, 65_504, 6e-8, 1.5],
    "float32": [3e38, -3.4e38, 3.4028235e38, 1e-30, 1.5],
    "float64": [1.7e308, -1.7e308, 1.7976931348623157e308, 1e-300, 1.5],
    "int32": [2_000_000_000, -(2**31), 2**31 - 1, -7, 5],
    "int64": [2**63 - 1, -(2**63), 2**62 + 12345, -7, 5],
}


@pytest.mark.one_in(5)
def test_a_mean_of_numbers_that_fit_fits(open_communicator, host, same_bits):
    """By every way a sum can take, in windows and out, waiting and not, whole and in chunks."""
    communicator = open_communicator(host=host)
    for dtype, near in NEAR_THE_END.items():
        mean_fits(communicator, same_bits, dtype, np.resize(np.array(near, dtype), 1201))


def mean_fits(communicator, same_bits, dtype, mine):
    p, n, is_whole = communicator.size, mine.size, "int" in dtype
    expected = mine
    if is_whole:
        least = np.iinfo(dtype).min  # fractions are rounded down, those of negative numbers, too
        whole = [[int(x) - rank % 2 * (int(x) > least) for x in mine] for rank in range(p)]
        expected = np.array([sum(column) // p for column in zip(*whole, strict=True)], dtype)
        mine = np.array(whole[communicator.rank], dtype)
    window = communicator.empty(n, dtype)
    names = NAMES if dtype == "int32" else ("auto", "node", "ring", "node+tree", "mpi")
    calls = [
        (name, lambda buf, name=name: communicator.all_reduce(buf, "mean", name))
        for name in names
        if name != "mpi" or dtype != "float16"
    ]
    calls += [
        ("later", lambda buf: waited(communicator.all_reduce_async(buf, "mean"))),
        ("chunk", lambda buf: communicator.reduce_scatter(buf, "mean")),
        ("root", lambda buf: communicator.reduce(buf, "mean")),
    ]
    for (name, call), buf in itertools.product(calls, (window, np.empty(n, dtype))):
        buf[:] = mine
        got = call(buf)
        assert same_bits(got) or name in ("chunk", "root")
        right = expected if name != "chunk" else even_spans(n, p)[communicator.rank].of(expected)
        if name != "root" or communicator.rank == 0:
            near = {"rtol": 0} if is_whole else {"rtol": p * np.finfo(dtype).eps, "atol": 6e-8}
            np.testing.assert_allclose(got, right, **near)


def waited(work):
    work.wait()
    return work.result
