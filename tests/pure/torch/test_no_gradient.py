"""No gradient is not one of zeros: who would move such a parameter says so, others leave it."""

import pytest
import torch

import psrt
from psrt import ConfigError, TrainConfig
from support.torch_models import data, loss, plain

#: Whether an update is of the mean gradient of several workers, not of one's own.
MODES = {
    "sync": True, "softsync": True, "allreduce": True,
    "async": False, "ssp": False, "local-sgd": False, "easgd": False, "gossip": False,
}  # fmt: skip
NEVER, AT_FIRST = range(2)
LINE = r"extra had no gradient at step {} on worker \d \(rank \d\), but {}.* would move it"


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


def by_trainer(used=NEVER, zeros=False, **knobs):
    module, value = module_with_extra(), loss_with(used, zeros=zeros)
    config = TrainConfig(**{"mode": "serial", "lr": 0.1, "steps": 4} | knobs)
    with psrt.Trainer(config, module) as trainer:
        while trainer.epoch():
            while True:
                value(module, data()).backward()
                if not trainer.step(samples=1):
                    break
    return module.extra.detach()


@pytest.mark.parametrize("by", [by_problem, by_trainer])
@pytest.mark.parametrize("mode", ["serial", "allreduce"])
@pytest.mark.parametrize(
    ("used", "knobs", "moves"),
    [
        (NEVER, {"weight_decay": 0.1}, "weight decay"),
        (NEVER, {"optimizer": "adamw", "weight_decay": 0.1}, "weight decay"),
        (AT_FIRST, {"weight_decay": 0.1}, "weight decay"),
        (AT_FIRST, {"optimizer": "momentum"}, "what momentum keeps"),
        (AT_FIRST, {"optimizer": "adam"}, "what adam keeps"),
    ],
)
def test_alone_what_would_move_it_is_refused_at_once(by, mode, used, knobs, moves):
    with pytest.raises(ConfigError, match=LINE.format(1 + used, moves)) as caught:
        by(used, mode=mode, **knobs)
    assert "\n" not in str(caught.value)
    assert "requires_grad_(False)" in str(caught.value)
    by(used, zeros=True, mode=mode, **knobs)  # it says that zeros are meant


@pytest.mark.parametrize("by", [by_problem, by_trainer])
@pytest.mark.parametrize("used", [NEVER, AT_FIRST])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "sign-sgd"])
def test_what_moves_nothing_leaves_it_alone(by, used, optimizer):
    once = by(used, optimizer=optimizer, steps=1)
    assert torch.equal(by(used, optimizer=optimizer), once)
    assert torch.equal(once, torch.ones(3)) == (used == NEVER)


@pytest.mark.parametrize("by", [by_problem, by_trainer])
@pytest.mark.parametrize("optimizer", ["nesterov", "adamw"])
def test_nothing_is_kept_of_what_never_had_any(by, optimizer):
    assert torch.equal(by(optimizer=optimizer), torch.ones(3))


@pytest.mark.parametrize("name", MODES)
def test_of_several_workers(name):
    flags = {"mode": name, "workers": 3, "optimizer": "momentum"}
    with pytest.raises(ConfigError, match=LINE.format(1, "weight decay")):
        by_problem(**flags, weight_decay=0.1)
    assert torch.equal(by_problem(**flags), torch.ones(3))
    if not MODES[name]:
        with pytest.raises(ConfigError, match=LINE.format(2, "what momentum keeps")):
            by_problem(AT_FIRST, **flags)
    else:  # another worker may have used it, and the mean is with zeros then
        by_problem(AT_FIRST, **flags)
        by_problem(AT_FIRST, **flags, weight_decay=0.1)
