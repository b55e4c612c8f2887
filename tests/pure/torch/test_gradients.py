"""Which sums Gradients begins, when and of what, over ranks that are played; without MPI."""

import numpy as np
import pytest
import torch
from torch import nn

import psrt
from psrt.errors import ConfigError
from psrt.torch.buckets import Buckets
from support.torch_models import data, loss, parameters_of, plain


class Played:
    """A communicator of several ranks, of which all others have zeros; notes what is summed."""

    def __init__(self, size=1):
        self.rank, self.size = 0, size
        self.begun, self.waited, self.counted = [], 0, []

    def empty(self, shape, dtype=np.float32):
        return np.zeros(shape, dtype)

    def all_reduce(self, buf, op="sum", algorithm="auto"):
        self.counted.append(buf.tolist())
        return buf

    def all_reduce_async(self, buf, op="sum", algorithm="auto"):
        assert op == "mean"
        buf /= self.size
        self.begun.append((buf.ctypes.data, buf.size, id(buf)))
        return self

    def test(self):
        return False

    def wait(self):
        self.waited += 1

    def broadcast(self, buf, root=0):
        return buf


def batch():
    x, y = data()
    return x[:8], y[:8]


def trained(module, *, ranks=None, steps=3, **more):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    gradients = psrt.torch.Gradients(optimizer, ranks or Played(), **more)
    return optimizer, gradients


def expected(module=None):
    module = plain() if module is None else module
    return [it.numpy() for it in torch.autograd.grad(loss(module, batch()), module.parameters())]


def found(module):
    return [it.grad.numpy() for it in module.parameters()]


def same(found, expected, factor=1):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, factor * other, rtol=1e-6)


@pytest.mark.parametrize(("nbytes", "count"), [(1, 4), (100, 2), (10**6, 1)])
def test_buckets_are_begun_in_order_while_backward_goes_on(nbytes, count):
    module, ranks = plain(), Played()
    optimizer, _ = trained(module, ranks=ranks, bucket_bytes=nbytes)
    arrays = set()
    for _ in range(3):
        ranks.begun.clear()
        loss(module, batch()).backward()
        assert len(ranks.begun) == count, "before anybody waits"
        places = [place for place, *_ in ranks.begun]
        assert places == sorted(places)
        assert sum(size for _, size, _ in ranks.begun) == 83
        arrays |= {it for *_, it in ranks.begun}
        optimizer.step()
        optimizer.zero_grad()
    assert ranks.waited == 3 * count
    assert len(arrays) == count, "the same at every step: they are compiled once"


@pytest.mark.parametrize("order", [[3, 2, 1, 0], [0, 1, 2, 3], [2, 0, 3, 1]])
def test_whatever_comes_first_the_order_is_the_same(order):
    ranks = Played()
    tensors = [torch.zeros(size) for size in (3, 4, 5, 6)]
    buckets = Buckets(tensors, ranks, 4)
    for i in order:
        buckets.arrive(i)
    assert [size for _, size, _ in ranks.begun] == [6, 5, 4, 3]
    buckets.wait()


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0), (0, 4, 0, 3, 0)])
def test_parameters_without_elements_are_waited_for(sizes):
    ranks = Played()
    buckets = Buckets([torch.zeros(it) for it in sizes], ranks, 4)
    for i in reversed(range(len(sizes))):
        buckets.arrive(i)
    assert len(ranks.begun) == len(buckets)
    buckets.wait()


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_are_means_however_they_are_set_back(to_none):
    module = plain()
    optimizer, _ = trained(module, ranks=Played(2))
    for _ in range(3):
        before = expected(module)
        optimizer.zero_grad(set_to_none=to_none)
        loss(module, batch()).backward()
        optimizer.step()
        same(found(module), before, 0.5)


def test_waiting_twice_is_waiting_once_and_a_step_may_be_left_out():
    module, ranks = plain(), Played()
    optimizer, gradients = trained(module, ranks=ranks, bucket_bytes=1)
    loss(module, batch()).backward()
    gradients.wait()
    gradients.wait()
    assert ranks.waited == 4
    nn.utils.clip_grad_norm_(module.parameters(), 1e-2)
    clipped = [it.copy() for it in found(module)]
    before = parameters_of(module)
    optimizer.step()
    step = 0.1 * np.concatenate([it.ravel() for it in clipped])
    np.testing.assert_allclose(parameters_of(module), before - step, atol=1e-7)
    assert ranks.waited == 4
    optimizer.zero_grad()
    loss(module, batch()).backward()
    gradients.wait()  # and no step
    optimizer.zero_grad()
    loss(module, batch()).backward()
    optimizer.step()
    assert ranks.waited == 12


def test_no_sync_adds_up():
    module, ranks = plain(), Played(2)
    optimizer, gradients = trained(module, ranks=ranks)
    for to_none in (True, False, True):
        before = expected(module)
        optimizer.zero_grad(set_to_none=to_none)
        with gradients.no_sync():
            for _ in range(2):
                loss(module, batch()).backward()
        assert not ranks.begun
        loss(module, batch()).backward()
        optimizer.step()
        same(found(module), before, 1.5)
        ranks.begun.clear()


def test_a_second_backward_is_refused():
    module = plain()
    trained(module)
    loss(module, batch()).backward()
    with pytest.raises(ConfigError, match=r"second backward pass before optimizer\.step\(\)"):
        loss(module, batch()).backward()


def test_unused_and_frozen_parameters():
    module = nn.ModuleList([nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(6, 3)])
    module[1].requires_grad_(False)
    ranks = Played()
    optimizer, _ = trained(module, ranks=ranks)
    for to_none in (True, False):
        loss(module[0], batch()).backward()
        optimizer.step()
        assert module[1].weight.grad is None
        assert torch.equal(module[2].weight.grad, torch.zeros(3, 6))
        assert module[0].weight.grad.any()
        optimizer.zero_grad(set_to_none=to_none)
    optimizer.step()  # a rank whose loss uses nothing takes part
    assert sum(size for _, size, _ in ranks.begun) == 3 * 42
    module[2].requires_grad_(False)  # later than Gradients was made
    optimizer.zero_grad()
    loss(module[0], batch()).backward()
    optimizer.step()
    assert module[2].weight.grad is None
    assert sum(size for _, size, _ in ranks.begun) == 4 * 42


def test_several_groups():
    module = plain()
    groups = [{"params": module[0].parameters()}, {"params": module[2].parameters(), "lr": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    psrt.torch.Gradients(optimizer, Played(2))
    before, last = expected(module), module[2].weight.clone()
    loss(module, batch()).backward()
    optimizer.step()
    same(found(module), before, 0.5)
    assert torch.equal(module[2].weight, last)


def test_join_weighs_by_samples():
    module, ranks = plain(), Played(2)
    optimizer, gradients = trained(module, ranks=ranks)

    def others_have(samples, going_on):
        def all_reduce(buf):
            buf += np.array([samples, going_on, 0])

        ranks.all_reduce = all_reduce

    others_have(24, 1)
    turns = gradients.join([list(batch()), {"x": batch()[0], "y": batch()[1]}])
    for turn in range(2):
        got = next(turns)
        assert not gradients.ran_out
        assert isinstance(got, dict if turn else list)
        before = expected(module)
        loss(module, batch()).backward()
        optimizer.step()
        same(found(module), before, 8 / 32)
        optimizer.zero_grad()
    others_have(10, 1)
    next(turns)
    assert gradients.ran_out
    (loss(module, batch()) * float("nan")).backward()
    optimizer.step()
    for gradient in found(module):
        np.testing.assert_array_equal(gradient, 0)  # whatever comes of a batch that counts nothing
    others_have(0, 0)
    with pytest.raises(StopIteration):
        next(turns)
    assert not gradients.ran_out
    optimizer.zero_grad()
    before = expected(module)
    loss(module, batch()).backward()
    optimizer.step()
    same(found(module), before, 0.5)


def test_join_needs_a_batch_and_its_samples():
    _, gradients = trained(plain())
    with pytest.raises(ConfigError, match=r"cannot count the samples of a str; expected a tensor"):
        next(gradients.join(["abc"]))
    assert next(gradients.join(["abc"], len)) == "abc"
    ranks = Played(2)
    ranks.all_reduce = lambda buf: buf.__iadd__([5, 1, 0])
    _, gradients = trained(plain(), ranks=ranks)
    with pytest.raises(ConfigError, match="no batch at all on 1 of 2 ranks"):
        next(gradients.join([]))


def test_closed_it_does_nothing_and_holds_no_memory():
    module, ranks = plain(), Played()
    optimizer, gradients = trained(module, ranks=ranks)
    with gradients:
        loss(module, batch()).backward()
        optimizer.step()
        kept = found(module)
    for mine, place in zip(found(module), kept, strict=True):
        assert mine.ctypes.data != place.ctypes.data
        np.testing.assert_array_equal(mine, place)
    ranks.begun.clear()
    loss(module, batch()).backward()
    loss(module, batch()).backward()
    optimizer.step()
    assert not ranks.begun


def test_float64_will_do():
    module = plain().double()
    optimizer, _ = trained(module, ranks=Played(4))
    x, y = batch()
    loss(module, (x.double(), y)).backward()
    before = [it.grad.clone().numpy() for it in module.parameters()]
    optimizer.step()
    assert found(module)[0].dtype == np.float64
    same(before, found(module))


def optimizer_of(*modules, kind=torch.optim.SGD):
    return kind([it for module in modules for it in module.parameters()], lr=0.1)


@pytest.mark.parametrize(
    ("optimizer", "more", "words"),
    [
        (plain(), {}, "the optimizer is a Sequential, expected one of torch.optim"),
        (optimizer_of(plain()), {"bucket_bytes": 0}, "bucket_bytes must be at least 1, got 0"),
        (optimizer_of(plain().half()), {}, r"of shape \(8, 6\) is torch.float16, expected all of"),
        (optimizer_of(plain(), plain().double()), {}, "is torch.float64, expected all of them"),
        (optimizer_of(nn.Linear(2, 3, device="meta")), {}, r"of shape \(3, 2\) is on meta"),
        (optimizer_of(plain().requires_grad_(False)), {}, "no parameters that require a gradient"),
    ],
)
def test_what_cannot_be_is_one_line(optimizer, more, words):
    with pytest.raises(ConfigError, match=words):
        psrt.torch.Gradients(optimizer, Played(), **more)


def test_closures_and_new_parameters_are_refused():
    module = plain()
    optimizer, _ = trained(module)
    with pytest.raises(ConfigError, match="was given a closure"):
        optimizer.step(lambda: loss(module, batch()))
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(5))]})
    loss(module, batch()).backward()
    with pytest.raises(ConfigError, match=r"parameter of shape \(5,\) that it had not"):
        optimizer.step()


def test_broadcast_of_one_rank_changes_nothing():
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).to(torch.bfloat16)
    module.register_buffer("flags", torch.tensor([True, False, True]))
    before = {name: it.clone() for name, it in module.state_dict().items()}
    psrt.torch.broadcast(module, Played())
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name]), name
