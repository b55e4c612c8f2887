"""torch.distributed over psrt's collectives."""

import numpy as np
import pytest
import torch
from torch import distributed, nn

import psrt
from psrt.core.errors import ConfigError
from support.torch_models import data, loss, parameters_of, plain, trained_alone


@pytest.fixture
def group(open_communicator):
    """Have torch's calls be psrt's; return rank and size."""
    ranks = open_communicator()
    psrt.torch.init_process_group(ranks)
    yield ranks
    distributed.destroy_process_group()


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


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "bool"])
def test_collectives_of_any_type(group, kind):
    kind, rank, size = getattr(torch, kind), group.rank, group.size

    def of(rank):
        return (torch.arange(6).reshape(3, 2) % 2 + rank).to(kind)

    largest = of(rank).t()  # not contiguous
    distributed.all_reduce(largest, distributed.ReduceOp.MAX)
    assert torch.equal(largest, torch.stack([of(i) for i in range(size)]).amax(0).t())
    rows = [torch.zeros(3, 2, dtype=kind) for _ in range(size)]
    distributed.all_gather(rows, of(rank))
    assert all(torch.equal(row, of(i)) for i, row in enumerate(rows))
    given = of(rank)
    distributed.broadcast(given, src=size - 1)
    assert torch.equal(given, of(size - 1))


def test_sums_objects_and_barriers(group):
    total = torch.tensor([group.rank + 1.0, 0.5])
    distributed.all_reduce(total)
    assert total.tolist() == [sum(range(group.size + 1)), 0.5 * group.size]
    mean = torch.full((2,), float(group.rank))
    distributed.all_reduce(mean, distributed.ReduceOp.AVG)
    assert mean.tolist() == [(group.size - 1) / 2] * 2
    distributed.all_reduce(torch.zeros(0))
    found = [None] * group.size
    distributed.all_gather_object(found, {"rank": group.rank, "more": "x" * group.rank})
    assert found == [{"rank": i, "more": "x" * i} for i in range(group.size)]
    distributed.barrier()


def test_there_is_one_group_of_all(group):
    with pytest.raises(ConfigError, match="torch has a process group already"):
        psrt.torch.init_process_group(group)
    if group.size > 1 and group.rank == 0:
        with pytest.raises(ConfigError, match="psrt makes no groups of fewer ranks"):
            distributed.new_group([0])
    with pytest.raises(ConfigError, match=r"cannot reduce torch\.float8_e5m2 by"):
        distributed.all_reduce(torch.zeros(2).to(torch.float8_e5m2))
