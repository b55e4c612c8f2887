"""What a module has beside its parameters: of any type, made late or growing, wrapped or not."""

import copy

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

import psrt
from psrt.torch.buffers import Buffers
from support.torch_models import FEATURES, data, loss, noisy

ODD = {
    "flags": torch.tensor([True, False]),
    "fp16": torch.tensor([1.5, 2.5]).half(),
    "brain": torch.tensor([[1.5], [2.5]]).bfloat16(),
    "tiny": torch.tensor(1.5).to(torch.float8_e4m3fn),
    "wave": torch.tensor([1 + 2j, 3 - 4j]).conj(),
    "words": torch.tensor([3, 1 << 15], dtype=torch.uint16),
    "wide": torch.ones(4, 2).double().T,
    "same": torch.ones(1).expand(3),
    "none": torch.zeros(0, 3),
    "a/b": torch.ones(2),
}


class Counts(nn.Module):
    """A linear layer with odd buffers; some are made, or grow, as it trains."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.inner = nn.Linear(FEATURES, 3)
        for name, it in ODD.items():
            self.inner.register_buffer(name, it.clone() if it.is_contiguous() else it)
        self.register_buffer("mask", None)
        self.register_buffer("seen", torch.zeros(0, 3))
        self.register_buffer("cache", torch.zeros(2), persistent=False)

    def forward(self, x):
        if self.training:
            if self.mask is None:
                self.mask = torch.ones(3, dtype=torch.bfloat16)
                self.register_buffer("late", torch.zeros(()))
                self.register_buffer("scratch", torch.zeros(5), persistent=False)
            self.late += 1
            self.cache = self.cache + 1
            self.seen = torch.cat([self.seen, x[:1, :3].detach()])
        return self.inner(x) * (1 if self.mask is None else self.mask.float())


def same(one, other):
    """Whether two dictionaries of tensors are, as far as numpy has their types."""
    assert one.keys() == other.keys()
    for name, it in one.items():
        assert it.shape == other[name].shape, name
        np.testing.assert_array_equal(_numbers(it), _numbers(other[name]), name)


def _numbers(it):
    it = torch.as_tensor(it).resolve_conj()
    return it.float() if it.dtype in (torch.bfloat16, torch.float8_e4m3fn) else it


def problem_of(module, **more):
    return psrt.torch.Problem(module, loss, data(), data(1, 30), batch_size=8, **more)


def in_problem(module, config):
    psrt.run(config, problem_of(module))


def in_loop(module, config):
    x, y = data()
    with psrt.Trainer(
        config, module, evaluate=lambda m: {"loss": loss(m.eval(), data()).item()}
    ) as trainer:
        while trainer.epoch():
            for rows in torch.arange(len(x)).split(8):
                assert module.training
                loss(module, (x[rows], y[rows])).backward()
                if not trainer.step(samples=8):
                    break


@pytest.mark.parametrize("trained", [in_problem, in_loop])
def test_odd_late_and_growing_buffers_are_saved_resumed_and_loaded(tmp_path, trained):
    whole, first, onward = Counts(), Counts(), Counts()
    config = {"mode": "serial", "lr": 0.1, "checkpoint_every": 4, "steps": 10}
    trained(whole, psrt.TrainConfig(**config, out=str(tmp_path / "whole")))
    assert whole.late == 10
    assert whole.seen.shape == (10, 3)
    assert whole.cache[0] == 10
    trained(first, psrt.TrainConfig(**config | {"steps": 6}, out=str(tmp_path / "run")))
    out = str(tmp_path / "onward")
    trained(onward, psrt.TrainConfig(**config, out=out, resume=str(tmp_path / "run")))
    assert onward.late == 10
    assert torch.equal(onward.cache, whole.cache)
    same(onward.state_dict(), whole.state_dict())
    same(load_file(tmp_path / "onward" / "model.safetensors"), whole.state_dict())
    fresh = Counts()
    fresh.register_buffer("late", None)
    fresh.seen = torch.zeros(10, 3)
    psrt.torch.load(fresh, out)
    same(fresh.state_dict(), whole.state_dict())


@pytest.mark.parametrize("rule", ["local", "mean"])
def test_workers_that_share_a_module_share_no_buffer(rule):
    module = Counts()
    problem = problem_of(module, buffers=rule)
    one, other = problem.of_worker(0), problem.of_worker(1)
    theta = problem.initial()
    out, batches = np.empty_like(theta), list(problem.batches(0, 1, 0))
    for which in (one, other, one, one):
        which.loss_and_grad(theta, batches[0], out)
    found = [dict(Buffers.copy(it._buffers)._kept) for it in (one, other)]
    assert found[1]["late"].tensor == 1
    states = {0: copy.deepcopy(one.state()), 1: copy.deepcopy(other.state())}
    third = problem.of_worker(2)
    third.evaluate(theta)
    assert module.mask is None
    assert not hasattr(module, "late")
    problem.conclude(states)
    assert module.late == (3 if rule == "local" else 2)
    assert module.seen.shape == (3, 3)
    assert module.mask.dtype == torch.bfloat16
    problem.of_worker(3).evaluate(theta)  # as at the beginning of a second run
    assert module.mask is None


# --- names --------------------------------------------------------------------------------------


def wrapped():
    """Return modules like ``noisy()`` that are wrapped in some way."""
    yield nn.DataParallel(torch.compile(noisy(), backend="eager"))
    parts = noisy()
    parts[1] = torch.compile(parts[1], backend="eager")
    parts[0] = nn.DataParallel(parts[0])
    yield parts


@pytest.fixture
def _untraced():
    """Compiled modules, without the seconds that compiling takes."""
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.mark.usefixtures("_untraced")
@pytest.mark.parametrize("trained", [in_problem, in_loop])
def test_names_are_those_of_the_plain_module(tmp_path, trained):
    torch.manual_seed(0)
    for i, module in enumerate([noisy(), *wrapped()]):
        out = tmp_path / str(i)
        trained(module, psrt.TrainConfig(mode="serial", epochs=1, lr=0.1, out=str(out)))
        found = load_file(out / "model.safetensors")
        assert found.keys() == noisy().state_dict().keys()
        assert found["1.num_batches_tracked"] == 12
        for other in (noisy(), *wrapped()):
            psrt.torch.load(other, out)
            values = other.state_dict().values()
            same(dict(zip(noisy().state_dict(), values, strict=True)), found)


def test_a_list_of_parameters_is_saved_by_number(tmp_path):
    parameters, out = [nn.Parameter(torch.zeros(2))], str(tmp_path / "run")
    with psrt.Trainer(psrt.TrainConfig(mode="serial", steps=1, out=out), parameters) as trainer:
        trainer.epoch()
        parameters[0].sum().backward()
        trainer.step(samples=1)
    assert list(load_file(tmp_path / "run" / "model.safetensors")) == ["0"]
