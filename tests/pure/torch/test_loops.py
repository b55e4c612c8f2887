"""Loops of torch: habits that psrt cannot honour are told at once, those that it can are kept."""

import numpy as np
import pytest
import torch

import psrt
from psrt import ConfigError, DivergedError, TrainConfig
from support.staging import BOTH
from support.torch_models import data, loss, plain

pytestmark = BOTH
#: One rank, whose parameters are all workers' in the one, and its own in the other.
SHARED, OWN = "allreduce", "serial"


def looped(body, mode=SHARED, module=None, steps=3):
    """Run a loop of some steps in two epochs; return the module, and the steps begun."""
    module, count = module or plain(), 0
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with psrt.Trainer(TrainConfig(mode=mode, epochs=2, lr=0.1), module) as trainer:
        while trainer.epoch():
            for _ in range(steps):
                count += 1
                body(trainer, module, optimizer, loss(module, data()))
    return module, count


def ordinary(trainer, module, optimizer, found):
    found.backward()
    trainer.step(samples=1)


def stepped(trainer, module, optimizer, found):
    found.backward()
    optimizer.step()
    optimizer.zero_grad()
    trainer.step(samples=1, loss=found.item())


def set_to_zero(trainer, module, optimizer, found):
    found.backward()
    optimizer.zero_grad(set_to_none=False)
    trainer.step(samples=1, loss=found.item())


def without_backward(trainer, module, optimizer, found):
    trainer.step(samples=1, loss=found.item())


def trained_twice(trainer, module, optimizer, found):
    found.backward()
    optimizer.step()
    trainer.step(samples=1)


def clamped(trainer, module, optimizer, found):
    found.backward()
    trainer.step(samples=1)
    for it in module.parameters():
        it.data.clamp_(-0.1, 0.1)


def swapped(trainer, module, optimizer, found):
    found.backward()
    trainer.step(samples=1)
    for it in module.parameters():
        it.data = it.data.clamp(-0.1, 0.1)


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (stepped, "no parameter has a gradient"),
        (without_backward, "no parameter has a gradient"),
        (set_to_zero, "the first gradient is exactly zero"),
        (trained_twice, r"wrote to the parameters, to 0\.weight first"),
        (clamped, r"wrote to the parameters, to 0\.weight first"),
        (swapped, r"wrote to the parameters, to 0\.weight first"),
    ],
)
def test_it_is_told_in_the_first_steps(body, line):
    count = 0

    def counted(*arguments):
        nonlocal count
        count += 1
        body(*arguments)

    with pytest.raises(ConfigError, match=line):
        looped(counted)
    assert count <= 2


@pytest.mark.parametrize(("body", "most"), [(trained_twice, 1), (swapped, 2), (clamped, 32)])
def test_it_is_told_where_it_begins_later(body, most):
    """Of what torch counts at once; of what it does not, within a few dozen steps."""
    begins, count = 40, 0

    def later(trainer, module, optimizer, found):
        nonlocal count
        count += 1
        (ordinary if count < begins else body)(trainer, module, optimizer, found)

    with pytest.raises(ConfigError, match=r"wrote to the parameters, to 0\.weight first"):
        looped(later, steps=100)
    assert begins <= count < begins + most


@pytest.mark.parametrize("body", [clamped, swapped])
def test_what_is_written_to_parameters_of_its_own_counts(body):
    module, count = looped(body, OWN)
    assert count == 6
    found = torch.cat([it.detach().reshape(-1) for it in module.parameters()])
    assert float(found.abs().max()) == np.float32(0.1)


def test_a_gradient_that_is_no_number_names_the_parameter():
    def broken(trainer, module, optimizer, found):
        found.backward()
        if trainer.steps:
            module[2].bias.grad[1] = np.nan
        trainer.step(samples=1)

    with pytest.raises(DivergedError, match=r"gradient of 2\.bias is nan at step 2 on worker 0"):
        looped(broken)


# --- no gradient is not one of zeros ------------------------------------------------------------

#: Whether an update is of the mean gradient of several workers, not of one's own.
OF_MEANS = {
    "sync": True, "softsync": True, "allreduce": True,
    "async": False, "local-sgd": False, "easgd": False, "gossip": False,
}  # fmt: skip
NEVER, AT_FIRST = range(2)
NO_GRADIENT = r"extra had no gradient at step {} on worker \d \(rank \d\), but {}.* would move it"


def module_with_extra():
    module = plain()
    module.register_parameter("extra", torch.nn.Parameter(torch.ones(3)))
    return module


def loss_with(used, workers=1, zeros=False):
    """Return a loss that uses ``extra`` never, or in the first step of each worker alone."""
    count = 0

    def found(module, batch):
        nonlocal count
        value = loss(module, batch)
        if torch.is_grad_enabled():
            count += 1
            if used == AT_FIRST and count <= workers:
                value = value + (module.extra**2).sum()
            elif zeros:
                value = value + 0 * module.extra.sum()
        return value

    return found


def by_problem(used=NEVER, workers=1, zeros=False, **knobs):
    """Train by a problem, of several workers in virtual time; return what ``extra`` is then."""
    module = module_with_extra()
    problem = psrt.torch.Problem(module, loss_with(used, workers, zeros), data(), batch_size=8)
    config = TrainConfig(**{"lr": 0.1, "steps": 4} | knobs)
    if workers == 1:
        psrt.run(config, problem)
    else:
        psrt.simulate(config, problem, workers=workers)
    return module.extra.detach()


def by_loop(used=NEVER, zeros=False, **knobs):
    module, value = module_with_extra(), loss_with(used, zeros=zeros)
    config = TrainConfig(**{"mode": "serial", "lr": 0.1, "steps": 4} | knobs)
    with psrt.Trainer(config, module) as trainer:
        while trainer.epoch():
            while True:
                value(module, data()).backward()
                if not trainer.step(samples=1):
                    break
    return module.extra.detach()


@pytest.mark.parametrize("by", [by_problem, by_loop])
@pytest.mark.parametrize("mode", ["serial", "allreduce"])
@pytest.mark.parametrize(
    ("used", "knobs", "moves"),
    [
        (NEVER, {"weight_decay": 0.1}, "weight decay"),
        (NEVER, {"optimizer": "adamw", "weight_decay": 0.1}, "weight decay"),
        (AT_FIRST, {"optimizer": "momentum"}, "what momentum keeps"),
        (AT_FIRST, {"optimizer": "adam"}, "what adam keeps"),
    ],
)
def test_alone_what_would_move_it_is_refused_at_once(by, mode, used, knobs, moves):
    with pytest.raises(ConfigError, match=NO_GRADIENT.format(1 + used, moves)) as caught:
        by(used, mode=mode, **knobs)
    assert "\n" not in str(caught.value)
    assert "requires_grad_(False)" in str(caught.value)
    by(used, zeros=True, mode=mode, **knobs)  # it says that zeros are meant


@pytest.mark.parametrize("by", [by_problem, by_loop])
@pytest.mark.parametrize("used", [NEVER, AT_FIRST])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "sign-sgd"])
def test_what_moves_nothing_leaves_it_alone(by, used, optimizer):
    once = by(used, optimizer=optimizer, steps=1)
    assert torch.equal(by(used, optimizer=optimizer), once)
    assert torch.equal(once, torch.ones(3)) == (used == NEVER)


@pytest.mark.parametrize("name", OF_MEANS)
def test_of_several_workers(name):
    flags = {"mode": name, "workers": 3, "optimizer": "momentum"}
    with pytest.raises(ConfigError, match=NO_GRADIENT.format(1, "weight decay")):
        by_problem(**flags, weight_decay=0.1)
    assert torch.equal(by_problem(**flags), torch.ones(3))
    if not OF_MEANS[name]:
        with pytest.raises(ConfigError, match=NO_GRADIENT.format(2, "what momentum keeps")):
            by_problem(AT_FIRST, **flags)
    else:  # another worker may have used it, and the mean is with zeros then
        by_problem(AT_FIRST, **flags)
        by_problem(AT_FIRST, **flags, weight_decay=0.1)


def test_a_norm_that_an_embedding_keeps_to_is_kept_or_told():
    def embedded(trainer, module, optimizer, found):
        value = module[0](torch.arange(4)).square().sum()
        value.backward()
        trainer.step(samples=4, loss=value.item())

    def table():
        module = torch.nn.Sequential(torch.nn.Embedding(6, 3, max_norm=0.5))
        module.forward = lambda x: x[:, :3]  # of the data
        return module

    with pytest.raises(ConfigError, match=r"wrote to the parameters, to 0\.weight first"):
        looped(embedded, module=table())
    own, _ = looped(embedded, OWN, module=table())
    assert float(own[0].weight.detach()[:4].norm(dim=1).max()) <= 0.5 + 1e-6
