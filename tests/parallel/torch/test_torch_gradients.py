"""One's own loop: the bits of all ranks, one process, and torch's own DistributedDataParallel."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import psrt
from psrt.errors import ConfigError, ProtocolError
from support.torch_models import FEATURES, data, loss, parameters_of, plain

STEPS = 8
EACH = 6


class Partly(nn.Module):
    """A layer that only the first rank uses, one that nobody does, and one that all do."""

    def __init__(self, rank):
        super().__init__()
        torch.manual_seed(4)
        self.rank = rank
        self.unused = nn.Linear(2, 2)
        self.some = nn.Linear(FEATURES, FEATURES)
        self.all = nn.Linear(FEATURES, 3)

    def forward(self, x):
        return self.all(self.some(x) if self.rank == 0 else x)


def batches(rank, size, steps=STEPS):
    """Return a rank's batches, or with size 1 and rank 0 what they are together."""
    x, y = data(5, EACH * size * steps)
    for step in range(steps):
        first = EACH * (step * size + rank)
        yield x[first : first + EACH], y[first : first + EACH]


def whole(size, steps=STEPS):
    x, y = data(5, EACH * size * steps)
    return zip(x.split(EACH * size), y.split(EACH * size), strict=True)


def optimizer_of(module, kind=torch.optim.Adam):
    return kind(module.parameters(), lr=0.01)


def train_alone(module, batches, *, norm=None):
    optimizer = optimizer_of(module)
    for batch in batches:
        optimizer.zero_grad()
        loss(module, batch).backward()
        if norm:
            nn.utils.clip_grad_norm_(module.parameters(), norm)
        optimizer.step()
    return parameters_of(module)


@pytest.fixture
def ranks(open_communicator):
    return open_communicator()


@pytest.mark.parametrize("norm", [None, 0.1])
@pytest.mark.parametrize(("nbytes", "to_none"), [(1, True), (150, False), (1 << 20, True)])
def test_all_ranks_have_the_bits_of_one_process(ranks, same_bits, nbytes, to_none, norm):
    module = plain()
    optimizer = optimizer_of(module)
    with psrt.torch.Gradients(optimizer, ranks, bucket_bytes=nbytes) as gradients:
        for batch in batches(ranks.rank, ranks.size):
            optimizer.zero_grad(set_to_none=to_none)
            loss(module, batch).backward()
            if norm:
                gradients.wait()
                nn.utils.clip_grad_norm_(module.parameters(), norm)
            optimizer.step()
    assert same_bits(parameters_of(module))
    alone = train_alone(plain(), whole(ranks.size), norm=norm)
    np.testing.assert_allclose(parameters_of(module), alone, atol=1e-5)


def test_added_up_they_are_those_of_the_larger_batch(ranks, same_bits):
    module = plain()
    optimizer = optimizer_of(module)
    with psrt.torch.Gradients(optimizer, ranks) as gradients:
        for x, y in batches(ranks.rank, ranks.size):
            optimizer.zero_grad()
            with gradients.no_sync():
                (loss(module, (x[:3], y[:3])) / 2).backward()
            (loss(module, (x[3:], y[3:])) / 2).backward()
            optimizer.step()
    assert same_bits(parameters_of(module))
    alone = train_alone(plain(), whole(ranks.size))
    np.testing.assert_allclose(parameters_of(module), alone, atol=1e-5)


def test_uneven_data_is_weighed_by_samples(ranks, same_bits):
    """Rank r has r + 2 batches, the last of them smaller: held against all samples at once."""
    mine = [
        (x[: 1 + (ranks.rank + step) % EACH], y[: 1 + (ranks.rank + step) % EACH])
        for step, (x, y) in enumerate(batches(ranks.rank, ranks.size, ranks.rank + 2))
    ]
    module, once_more = plain(), 0
    optimizer = optimizer_of(module)
    with psrt.torch.Gradients(optimizer, ranks) as gradients:
        for batch in gradients.join(mine):
            once_more += gradients.ran_out
            optimizer.zero_grad()
            loss(module, batch).backward()
            optimizer.step()
    assert once_more == ranks.size - 1 - ranks.rank
    assert same_bits(parameters_of(module))
    turns = []
    for step in range(ranks.size + 1):
        those = []
        for rank in range(ranks.size):
            of_rank = list(batches(rank, ranks.size, rank + 2))
            if step < len(of_rank):
                count = 1 + (rank + step) % EACH
                those.append([it[:count] for it in of_rank[step]])
        turns.append([torch.cat(parts) for parts in zip(*those, strict=True)])
    alone = train_alone(plain(), turns)
    np.testing.assert_allclose(parameters_of(module), alone, atol=1e-5)


@pytest.mark.mpi(min_size=2)
def test_a_rank_without_a_batch_is_an_error_on_all(ranks, comm):
    optimizer = optimizer_of(plain())
    gradients = psrt.torch.Gradients(optimizer, ranks)
    with pytest.raises(ConfigError, match=rf"no batch at all on 1 of {comm.size} ranks"):
        for _ in gradients.join([] if comm.rank == 1 else [data()]):
            pass


@pytest.fixture(scope="module")
def gloo(ranks_of_module):
    """Torch's own processes, by a file; they are never destroyed, see ``test_it_is_torchs…``."""
    comm, meeting = ranks_of_module
    distributed = pytest.importorskip("torch.distributed")
    distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=comm.rank, world_size=comm.size
    )


@pytest.fixture(scope="module")
def ranks_of_module(tmp_path_factory):
    from psrt.mpi.agreement import bcast_text
    from psrt.mpi.start import world

    comm = world()
    meeting = str(tmp_path_factory.mktemp("gloo") / "meeting") if comm.rank == 0 else ""
    return comm, bcast_text(comm, meeting)


@pytest.mark.usefixtures("gloo")
@pytest.mark.filterwarnings("ignore")
def test_it_is_torchs_own_data_parallel(ranks, same_bits):
    rank, size = ranks.rank, ranks.size
    theirs = Partly(rank)
    ddp = nn.parallel.DistributedDataParallel(theirs, find_unused_parameters=True)
    mine = Partly(rank)
    one, other = optimizer_of(theirs), optimizer_of(mine)
    with psrt.torch.Gradients(other, ranks, bucket_bytes=64):
        for batch in batches(rank, size):
            for module, optimizer in ((ddp, one), (mine, other)):
                optimizer.zero_grad()
                loss(module, batch).backward()
                optimizer.step()
    assert same_bits(parameters_of(mine))
    np.testing.assert_allclose(parameters_of(mine), parameters_of(theirs), atol=1e-5)


def test_broadcast_gives_all_the_root_s(ranks, same_bits, comm):
    torch.manual_seed(comm.rank)
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1).to(torch.bfloat16))
    module.register_buffer("flag", torch.tensor([comm.rank == 0, True]))
    module[1].num_batches_tracked += comm.rank
    root = comm.size - 1
    before = copy.deepcopy(module.state_dict())
    psrt.torch.broadcast(module, ranks, root=root)
    for name, tensor in module.state_dict().items():
        assert same_bits(tensor.float().numpy()), name
        assert comm.rank != root or torch.equal(tensor, before[name])


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("width", "error"), [(3, ConfigError), (300, ProtocolError)])
def test_broadcast_refuses_other_modules(ranks, comm, width, error):
    """One of the same size only where it is another, of another size on all ranks."""
    module = nn.Linear(width, 2) if comm.rank else nn.Linear(2, 3, bias=False)
    if width == 3 and comm.rank == 0:
        module.register_buffer("two", torch.zeros(2))
    if width == 3 and comm.rank == 0:
        psrt.torch.broadcast(module, ranks)
        return
    with pytest.raises(error):
        psrt.torch.broadcast(module, ranks)
