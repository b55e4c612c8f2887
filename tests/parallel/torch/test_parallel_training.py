"""What trains and saves over torch.distributed, over psrt's group and over gloo's in one job."""

import warnings

import pytest
import torch
from torch import distributed, nn
from torch.distributed import checkpoint
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import psrt

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it uses what torch calls deprecated
    from torch.distributed.optim import ZeroRedundancyOptimizer

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch about itself


@pytest.fixture
def groups(open_communicator):
    """Return psrt's group of all ranks, and gloo's."""
    psrt.torch.init_process_group(open_communicator())
    yield distributed.group.WORLD, distributed.new_group(backend="gloo")
    distributed.destroy_process_group()


def module():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 300), nn.Tanh(), nn.Linear(300, 30), nn.Tanh(), nn.Linear(30, 4)
    )


def batch(step):
    draws = torch.Generator().manual_seed(100 * step + distributed.get_rank())
    return torch.randn(12, 8, generator=draws), torch.randint(4, (12,), generator=draws)


def losses(model, optimizer):
    """Train for a few steps, with clipped gradients."""
    found = []
    for step in range(4):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        found.append(loss.item())
    return found


def sharded(group, **how):
    """Return the module in shards: two of its layers by themselves."""
    model, mesh = module(), DeviceMesh.from_group(group, "cpu")
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh, **how)
    return model


HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


@pytest.mark.parametrize("how", [{}, {"mp_policy": HALF}, {"reshard_after_forward": False}])
def test_fsdp2_has_the_losses_of_gloo(groups, how):
    models = [sharded(group, **how) for group in groups]
    ours, theirs = (losses(it, torch.optim.Adam(it.parameters(), lr=0.01)) for it in models)
    assert ours == pytest.approx(theirs, rel=1e-6)
    assert len(set(ours)) == len(ours)


def test_zero_has_the_losses_of_gloo(groups):
    def trained(group):
        model = nn.parallel.DistributedDataParallel(module(), process_group=group)
        return losses(model, ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.Adam, process_group=group, lr=0.01
        ))  # fmt: skip

    assert trained(groups[0]) == pytest.approx(trained(groups[1]), rel=1e-6)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("schedule", [ScheduleGPipe, Schedule1F1B])
def test_a_pipeline_has_the_losses_of_gloo(groups, schedule):
    def trained(group):
        rank, size = group.rank(), group.size()
        torch.manual_seed(rank)
        stage = nn.Sequential(nn.Linear(200, 200), nn.Tanh())
        optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
        steps = schedule(
            PipelineStage(stage, rank, size, torch.device("cpu"), group=group),
            n_microbatches=4,
            loss_fn=nn.functional.mse_loss,
        )
        found = []
        for step in range(3):
            x = torch.randn(400, 200, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            last = {"target": x.tanh(), "losses": found} if rank == size - 1 else {}
            steps.step(*[x][: rank == 0], **last)
            optimizer.step()
        return [*map(float, found), *(it.sum().item() for it in stage.parameters())]

    assert trained(groups[0]) == pytest.approx(trained(groups[1]), rel=1e-6)


def test_tensors_are_spread_over_a_mesh_and_saved(groups, shared_folder):
    size = groups[0].size()
    mesh = init_device_mesh("cpu", (size,))
    x = torch.arange(24.0).reshape(6, 4)
    rows = distribute_tensor(x, mesh, [Shard(0)])
    for placement in (Shard(1), Replicate(), Shard(0)):
        rows = rows.redistribute(mesh, [placement])
        assert torch.equal(rows.full_tensor(), x)
    sums = DTensor.from_local(x, mesh, [Partial()])
    assert torch.equal(sums.redistribute(mesh, [Shard(0)]).full_tensor(), x * size)
    saved, loaded = sharded(groups[0]).state_dict(), sharded(groups[0]).state_dict()
    checkpoint.save(saved, checkpoint_id=shared_folder)
    for tensor in loaded.values():
        tensor.to_local().zero_()
    checkpoint.load(loaded, checkpoint_id=shared_folder)
    assert all(
        torch.equal(it.full_tensor(), saved[name].full_tensor()) for name, it in loaded.items()
    )


@pytest.mark.mpi(min_size=4)
def test_a_mesh_of_two_dimensions(groups):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))
    x = torch.arange(24.0).reshape(6, 4)
    assert torch.equal(distribute_tensor(x, mesh, [Shard(0), Shard(1)]).full_tensor(), x)
    model = module()
    fully_shard(model, mesh=mesh)  # summed over copies, in shards
    alone = losses(sharded(groups[1]), torch.optim.SGD(model.parameters(), lr=0.0))
    assert losses(model, torch.optim.SGD(model.parameters(), lr=0.0)) == pytest.approx(alone)
    whole = torch.cat([it.grad.full_tensor().flatten() for it in model.parameters()])
    means = [whole.clone() for _ in range(4)]
    distributed.all_gather(means, whole, group=groups[1])
    assert all(torch.equal(it, whole) for it in means)
