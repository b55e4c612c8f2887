"""torch.distributed over psrt: the same calls on the same numbers beside gloo's."""

import numpy as np
import pytest
import torch
from torch import distributed, nn

import psrt
from psrt.core.errors import ConfigError, LeftError, ProtocolError
from support.torch_models import data, loss, parameters_of, plain, trained_alone

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
WHOLE = ("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64")
REAL = ("float16", "bfloat16", "float32", "float64", "float8_e5m2", "float8_e4m3fn")
COMPLEX = ("complex32", "complex64", "complex128")
OPS = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "AVG")


@pytest.fixture
def group(open_communicator):
    """Have torch's calls be psrt's; return the ranks."""
    ranks = open_communicator()
    psrt.torch.init_process_group(ranks)
    yield ranks
    if distributed.is_initialized():
        distributed.destroy_process_group()


@pytest.fixture
def pairs(group):
    """The groups that this rank is in, each with one of gloo of the same ranks."""
    found = []
    ends, odd = sorted({0, group.size - 1}), range(group.size)[1::2]
    for ranks in dict.fromkeys(map(tuple, filter(len, (range(group.size), ends, odd)))):
        ours, theirs = (distributed.new_group(ranks, backend=it) for it in ("psrt", "gloo"))
        if group.rank in ranks:
            found.append((ours, theirs))
    return found


def an_all_reduce(g, x, places, op):
    tensors = [x(i) for i in range(12)]  # more than may be in progress
    works = [distributed.all_reduce(it, op, group=g, async_op=True) for it in tensors[:9]]
    with distributed._coalescing_manager(group=g):
        distributed.all_reduce(tensors[9], op, group=g)
        distributed.all_reduce(tensors[10], op, group=g)
    for work in reversed(works):
        work.wait()
    distributed.all_reduce(tensors[11], op, group=g)
    return tensors


def a_reduce(g, x, places, op):
    root, tensor = g.size() - 1, x(0)
    distributed.reduce(tensor, op=op, group=g, group_dst=root)
    return [tensor] * (g.rank() == root)


def a_reduce_scatter(g, x, places, op):
    one, other = places(1) + places(1)
    distributed.reduce_scatter(one, [x(i) for i in range(g.size())], op, group=g)
    distributed.reduce_scatter_single(
        other, joined([x(2 * i) for i in range(g.size())]), op, group=g
    )
    return [one, other]


def a_broadcast(g, x, places):
    tensor = x(0)
    distributed.broadcast(tensor, group=g, group_src=g.size() - 1)
    return [tensor]


def an_all_gather(g, x, places):
    rows, whole = places(g.size()), joined(places(g.size()))
    distributed.all_gather(rows, x(1), group=g)
    distributed.all_gather_single(whole, x(2).contiguous(), group=g)
    return [*rows, whole]


def a_gather(g, x, places):
    rows = places(g.size()) if g.rank() == 0 else None
    distributed.gather(x(3), rows, group=g, group_dst=0)
    return rows or []


def a_scatter(g, x, places):
    (out,), root = places(1), g.size() - 1
    rows = [x(i) for i in range(g.size())] if g.rank() == root else None
    distributed.scatter(out, rows, group=g, group_src=root)
    return [out]


def an_all_to_all(g, x, places):
    size, me = g.size(), g.rank()
    rows, n = places(size), len(x(0))
    distributed.all_to_all(rows, [x(i) for i in range(size)], group=g)
    # Rank i has (i + j) % 3 times n elements for rank j.
    times = [(me + i) % 3 for i in range(size)]
    splits = [n * it for it in times]
    out, given = (joined(it[: sum(times)]) for it in (places(6), [x(i) for i in range(6)]))
    distributed.all_to_all_single(out, given, splits, splits, group=g)
    return [*rows, out]


def some_messages(g, x, places):
    others = [i for i in range(g.size()) if i != g.rank()]
    rows = {(i, tag): it for i in others for tag, it in enumerate(places(2))}
    op, send, receive = distributed.P2POp, distributed.isend, distributed.irecv
    ops = [op(send, x(tag), group=g, tag=tag, group_peer=i) for i in others for tag in (0, 1)]
    ops += [op(receive, it, group=g, tag=tag, group_peer=i) for (i, tag), it in rows.items()]
    for work in distributed.batch_isend_irecv(ops[::-1]) if ops else []:
        work.wait()
    return list(rows.values())


#: Name → a call of a group, on tensors of a rank and places for tensors.
REDUCES = {it.__name__: it for it in (an_all_reduce, a_reduce, a_reduce_scatter)}
MOVES = {it.__name__: it for it in (a_broadcast, an_all_gather, a_gather, a_scatter, an_all_to_all,
                                    some_messages)}  # fmt: skip


def apart(n, kind):
    """Return (n,) elements that do not lie side by side."""
    return torch.zeros(2 * n, dtype=torch.uint8).to(kind)[::2]


def joined(tensors):
    """Return tensors of one length in one."""
    out = torch.empty(sum(map(len, tensors)), dtype=(*tensors, torch.zeros(0))[0].dtype)
    for part, it in zip(out.split([*map(len, tensors)]), tensors, strict=True):
        part.copy_(it)
    return out


def widened(tensor):
    """Return the same numbers in a type that gloo knows."""
    if tensor.is_complex():
        return torch.view_as_real(joined([tensor]).to(torch.complex128)).flatten()
    return joined([tensor]).to(torch.float64 if tensor.is_floating_point() else torch.int64)


def beside_gloo(pair, call, n, kind, *op):
    """Make a call on both groups, gloo's in a wide type that is rounded at the end."""
    kind, rank = getattr(torch, kind), distributed.get_rank()

    def x(i):  # small whole numbers, which every type has
        return apart(n, kind).copy_((torch.arange(n) * 5 + 3 * (rank + i)) % 4)

    def places(count):
        return [apart(n, kind) for _ in range(count)]

    def as_gloo_knows(make):
        return lambda i: widened(make(i)) if make is x else [*map(widened, make(i))]

    sums = ["SUM" if it == "AVG" else it for it in op]
    ours = call(pair[0], x, places, *map(reduce_op, op))
    wide = call(pair[1], as_gloo_knows(x), as_gloo_knows(places), *map(reduce_op, sums))
    for one, other in zip(ours, wide, strict=True):
        if op == ("AVG",):
            mean = other // pair[0].size() if kind in INTEGERS else other / pair[0].size()
            torch.testing.assert_close(
                widened(one), widened(narrowed(mean, kind)), rtol=2**-7, atol=0
            )
        else:
            assert torch.equal(bits(one), bits(narrowed(other, kind)))


INTEGERS = [getattr(torch, it) for it in WHOLE]


def reduce_op(name):
    return getattr(distributed.ReduceOp, name)


def narrowed(wide, kind):
    return (torch.view_as_complex(wide.reshape(-1, 2)) if kind.is_complex else wide).to(kind)


def bits(tensor):
    return joined([tensor]).view(torch.uint8)


def reduces(kind, op):
    """Return whether numbers of a type can be reduced so."""
    if kind in COMPLEX:
        return op in ("SUM", "AVG")
    if kind in REAL:
        return op not in ("BAND", "BOR", "BXOR")
    return op != "AVG" or kind not in ("bool", "uint64")


@pytest.mark.parametrize("call", REDUCES.values(), ids=REDUCES)
def test_every_reduction_of_every_type(pairs, call):
    for pair in pairs:
        for kind in (*WHOLE, *REAL, *COMPLEX):
            every = call is a_reduce or kind in ("float32", "int64")
            for op in [op for op in OPS if reduces(kind, op)][: None if every else 1]:
                beside_gloo(pair, call, 7, kind, op)
        for n in (0, 1, 300_007):  # the last one: more than may lie in a small place
            beside_gloo(pair, call, n, "float32", "SUM")


@pytest.mark.parametrize("call", MOVES.values(), ids=MOVES)
def test_every_move_of_every_type(pairs, call):
    for pair in pairs:
        for kind in (*WHOLE, *REAL, *COMPLEX):
            for n in (0, 1, 7):
                beside_gloo(pair, call, n, kind)
        beside_gloo(pair, call, 300_007, "float32")


def test_what_cannot_be_reduced_is_refused(group):
    for kind in (*WHOLE, *REAL, *COMPLEX):
        for op in [op for op in OPS if not reduces(kind, op)]:
            text = rf"^rank {group.rank}: torch\.{kind} cannot be reduced by {op}$"
            with pytest.raises(ConfigError, match=text):
                distributed.group.WORLD.allreduce(torch.zeros(2).to(getattr(torch, kind)), made(op))
    total = torch.ones(3)
    distributed.all_reduce(total)
    assert total.tolist() == [group.size] * 3


def made(op):
    options = distributed.AllreduceOptions()
    options.reduceOp = reduce_op(op)
    return options


def test_large_unsigned_numbers_small_ones_and_factors(group):
    size, big = group.size, 2**64 - 1
    mixed = torch.tensor([big - group.rank, big if group.rank else 1], dtype=torch.uint64)
    least, most = [big - size + 1, 1], [big, big if size > 1 else 1]
    for op, expected in [("MAX", most), ("MIN", least)]:
        found = mixed.clone()
        distributed.all_reduce(found, reduce_op(op))
        assert found.tolist() == expected
    wraps = torch.tensor([100], dtype=torch.int8)
    distributed.all_reduce(wraps)
    assert wraps.item() == (100 * size + 128) % 256 - 128
    one = torch.full((2,), 1.0, dtype=torch.bfloat16)
    distributed.all_reduce(one, distributed._make_nccl_premul_sum(0.5))
    assert one.tolist() == [0.5 * size] * 2


def test_ddp_is_one_process_with_the_whole_batch(group, same_bits):
    module = plain()
    with torch.no_grad():
        module[0].weight += group.rank  # of which that of rank 0 is taken
    ddp = nn.parallel.DistributedDataParallel(module)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    each = 12 // group.size
    x, y = data()
    for epoch in range(2):
        order = np.random.default_rng((0, epoch)).permutation(len(x))
        for first in range(0, len(x), 12):
            rows = order[first + group.rank * each : first + (group.rank + 1) * each]
            optimizer.zero_grad()
            loss(ddp, (x[rows], y[rows])).backward()
            optimizer.step()
    assert same_bits(parameters_of(module))
    alone = trained_alone(plain(), batch=12, epochs=2, lr=0.1)
    np.testing.assert_allclose(parameters_of(module), alone, atol=1e-5)


def test_objects_any_source_and_lists_of_other_lengths(group):
    rank, size = group.rank, group.size
    found = [None] * size
    distributed.all_gather_object(found, {"rank": rank, "more": "x" * rank})
    assert found == [{"rank": i, "more": "x" * i} for i in range(size)]
    one = [None]
    distributed.scatter_object_list(one, list(range(size)) if rank == 0 else None)
    assert one == [rank]
    rows = [torch.zeros(i + 1) for i in range(size)]
    distributed.all_gather(rows, torch.full((rank + 1,), float(rank)))
    assert [it.tolist() for it in rows] == [[float(i)] * (i + 1) for i in range(size)]
    out = torch.zeros(rank + 1)
    distributed.reduce_scatter(out, [torch.ones(i + 1) for i in range(size)])
    assert out.tolist() == [size] * (rank + 1)
    if rank:
        distributed.send(torch.tensor([rank]), 0, tag=2)
    else:
        came = torch.zeros(size - 1, 1, dtype=torch.int64)
        assert [distributed.recv(it, tag=2) for it in came] == came.flatten().tolist()
        assert sorted(came.flatten().tolist()) == list(range(1, size))
    distributed.barrier()


def test_a_split_group_is_a_group(group):
    world = distributed.group.WORLD
    mine = [i for i in range(group.size) if i % 2 == group.rank % 2]
    child = world.split_group(mine, group_name=f"{mine}")
    one = torch.ones(3)
    child.allreduce([one]).wait()
    assert (child.rank(), child.size(), child.group_name) == (group.rank // 2, len(mine), f"{mine}")
    assert one.tolist() == [len(mine)] * 3
    assert world.split_group([(group.rank + 1) % (group.size + 1)]) is None
    child.shutdown()
    with pytest.raises(ConfigError, match=f"rank {group.rank}: the process group has been destr"):
        child.allreduce([one])


def test_what_is_wrong_is_one_line_with_the_rank(group):
    world, rank, size = distributed.group.WORLD, group.rank, group.size
    sparse = torch.eye(2).to_sparse()
    mixed = [torch.zeros(2), torch.zeros(2, dtype=torch.int64)]
    for action, text in [
        (lambda: world.allreduce([sparse]), r"got a torch\.sparse_coo tensor, expected a dense"),
        (lambda: world.allreduce([torch.zeros(2, device="meta")]), "got a meta tensor"),
        (
            lambda: world.allgather([[mixed[1]] * size], mixed[:1]),
            r"got tensors of torch\.float32 and",
        ),
        (lambda: world.all_gather_single(torch.zeros(size * 2 + 1), mixed[0]), "bytes in tensors"),
        (
            lambda: world.reduce_scatter_single(torch.zeros(2), torch.zeros(2 * size + 1)),
            "elements",
        ),
        (
            lambda: world.all_to_all_single(*mixed[:1] * 2, [9] * size, [9] * size),
            r"got splits \[9",
        ),
        (lambda: world.send(mixed[:1], size), f"{size} is not a rank"),
    ]:
        with pytest.raises(ConfigError, match=text) as caught:
            action()
        assert str(caught.value).startswith(f"rank {rank}: ")
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="torch has a process group already"):
        psrt.torch.init_process_group(group)
    distributed.all_reduce(torch.ones(3))


@pytest.mark.mpi(min_size=2)
def test_other_shapes_are_an_error_of_all_ranks(group):
    with pytest.raises(ProtocolError, match="the ranks make different calls: in call"):
        distributed.all_reduce(torch.zeros(3 + group.rank))


@pytest.mark.mpi(min_size=2)
def test_an_error_of_one_rank_that_destroys_its_group_reaches_the_others(open_communicator):
    def block():
        distributed.init_process_group(
            "psrt", store=distributed.HashStore(), rank=world.rank, world_size=world.size
        )
        try:
            if world.rank == 1:
                raise ValueError("no more")
            distributed.all_reduce(torch.ones(3))
        finally:
            distributed.destroy_process_group()

    world = open_communicator()
    error, text = (ValueError, "no more") if world.rank == 1 else (LeftError, "rank 1 left with V")
    with pytest.raises(error, match=text):
        block()


def test_torch_alone_makes_and_closes_it(open_communicator):
    world = open_communicator()
    distributed.init_process_group(
        "psrt", store=distributed.HashStore(), rank=world.rank, world_size=world.size
    )
    whole, one = distributed.group.WORLD, torch.ones(2)
    distributed.all_reduce(one)
    assert one.tolist() == [world.size] * 2
    assert distributed.get_backend() == "psrt"
    distributed.destroy_process_group()
    assert whole.ranks.closed
    with pytest.raises(
        ConfigError, match=f"^rank {world.rank}: the process group has been destroyed"
    ):
        whole.allreduce([one])
    psrt.torch.init_process_group()
    distributed.all_reduce(one)
    distributed.destroy_process_group()
    psrt.torch.init_process_group(world)
    whole = distributed.group.WORLD
    world.close()
    with pytest.raises(ConfigError, match="the communicator of the process group is closed"):
        distributed.all_reduce(one)
    distributed.destroy_process_group()
