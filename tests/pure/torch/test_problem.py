"""A module as a problem: its parameters, gradients, draws and buffers, without MPI."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import psrt
from psrt import TrainConfig
from psrt.core.errors import ConfigError
from psrt.runtime.problem import gradient_spans, matrices_of
from support.staging import BOTH
from support.torch_models import (
    FEATURES,
    SAMPLES,
    data,
    loss,
    noisy,
    parameters_of,
    plain,
    problem_of,
    trained_alone,
)

pytestmark = BOTH


def batch_of(problem, *, worker=0, epoch=0, step=0, workers=1):
    return list(problem.batches(worker, workers, epoch))[step]


def gradient(problem, theta=None, **which):
    """Return loss and gradient at a batch, and the parts in the order in which they came."""
    theta = problem.initial() if theta is None else theta
    out, came = np.full_like(theta, np.nan), []
    spans = problem.gradient_spans()

    def ready(part):
        came.append((part, spans[part].of(out).copy()))

    found = problem.loss_and_grad(theta, batch_of(problem, **which), out, ready)
    for part, numbers in came:
        np.testing.assert_array_equal(numbers, spans[part].of(out), "final when handed over")
    return found, out, [part for part, _ in came]


def by_autograd(module, batch):
    """Return the gradient by torch alone; of what is unused, zeros."""
    trained = [it for it in module.parameters() if it.requires_grad]
    found = torch.autograd.grad(loss(module, batch), trained, allow_unused=True)
    return torch.cat(
        [torch.zeros(it.numel()) if g is None else g.reshape(-1)
         for it, g in zip(trained, found, strict=True)]
    ).numpy()  # fmt: skip


class Tied(nn.Module):
    """The first layer's weight is the last one's, too; one layer is frozen, one is unused."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(FEATURES, FEATURES)
        self.unused = nn.Linear(2, 2)
        self.frozen = nn.Linear(FEATURES, FEATURES).requires_grad_(False)
        self.last = nn.Linear(FEATURES, FEATURES)
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(self.frozen(torch.tanh(self.first(x))))


def test_training_alone_is_torchs_own_loop_to_the_bit_and_a_second_run_begins_like_the_first():
    problem, expected = problem_of(plain()), trained_alone(plain(), batch=8, epochs=3, lr=0.25)
    for _ in range(2):
        run = psrt.run(psrt.TrainConfig(lr=0.25, epochs=3), problem)
        # A power of two: η g has no rounding, which torch does in one operation with the sum.
        np.testing.assert_array_equal(run.theta, expected)


@pytest.mark.parametrize("make", [plain, noisy, Tied])
def test_the_gradient_is_autograds_and_comes_in_parts_in_order(make):
    module = make().eval()  # no dropout
    problem = problem_of(module)
    with torch.no_grad():
        rows = torch.from_numpy(np.array(batch_of(problem).indices))
    x, y = data()
    expected = by_autograd(copy.deepcopy(module), (x[rows], y[rows]))
    _, found, parts = gradient(problem)
    np.testing.assert_array_equal(found, expected)
    assert parts == list(range(len(problem.gradient_spans())))
    assert gradient_spans(problem, len(expected))  # they tile it


def test_frozen_are_left_alone_tied_are_there_once_unused_have_no_gradient():
    module = Tied()
    problem = problem_of(module)
    square, line = FEATURES * FEATURES, FEATURES
    assert [it.size for it in problem.gradient_spans()] == [line, 2, 4, line, square]
    _, found, _ = gradient(problem)
    np.testing.assert_array_equal(found[square + line :][:6], 0)
    assert np.count_nonzero(found[: square + line])
    frozen = module.frozen.weight.clone()
    run = psrt.run(psrt.TrainConfig(lr=0.1, epochs=1), problem)
    assert torch.equal(module.frozen.weight, frozen)
    assert module.last.weight is module.first.weight
    named = problem.tensors(run.theta + 1)  # not what is in the module
    assert named.keys() == module.state_dict().keys()
    for name in ("last.weight", "first.weight"):
        np.testing.assert_array_equal(named[name], module.first.weight.detach() + 1)


def test_a_parameter_has_the_values_of_theta_wherever_that_lies(staged):
    module = plain()
    problem = problem_of(module)
    for by in range(3):
        theta = problem.initial() + np.float32(by)
        gradient(problem, theta)
        if not staged:  # it is a view
            theta += 1
        np.testing.assert_array_equal(parameters_of(module), theta)


def test_after_a_run_the_module_is_trained_and_holds_none_of_psrts_memory():
    module = plain()
    problem = problem_of(module)
    run = psrt.run(psrt.TrainConfig(lr=0.1, epochs=1), problem)
    np.testing.assert_array_equal(parameters_of(module), run.theta)
    before = run.theta.copy()
    worker = problem.of_worker(0)
    theta, out = problem.initial(), np.empty_like(run.theta)
    worker.loss_and_grad(theta, batch_of(problem), out)
    problem.conclude({})
    theta += 1
    np.testing.assert_array_equal(parameters_of(module), problem.initial())
    problem.evaluate(run.theta)
    for freed in (theta, run.theta):
        freed += 1
    np.testing.assert_array_equal(parameters_of(module), before)


def test_draws_depend_on_seed_worker_epoch_and_step_alone():
    problem = problem_of(noisy(), labels=np.zeros(SAMPLES, int))
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    theta = problem.initial()

    def drawn(problem, worker, epoch, step):
        # The same samples each time: only the draws differ.
        batches = problem.batches(worker, 2, epoch, [np.arange(8)] * 2)
        out = np.empty_like(theta)
        problem.loss_and_grad(theta, list(batches)[step], out)
        return out.tobytes()

    found = [drawn(problem, *key) for key in keys]
    assert len(set(found)) == len(keys)
    torch.manual_seed(12)
    before = torch.random.get_rng_state()
    assert [drawn(problem, *key) for key in reversed(keys)] == found[::-1]
    problem.evaluate(theta)
    problem.fingerprint()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert drawn(problem_of(noisy(), seed=1), *keys[0]) != found[0]


def test_samples_are_drawn_with_the_key_too():
    class Augmented(torch.utils.data.Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, i):
            return torch.randn(FEATURES), i % 3

    problem = psrt.torch.Problem(plain(), loss, Augmented(), batch_size=4)
    assert gradient(problem)[0] == gradient(problem)[0] != gradient(problem, step=1)[0]
    assert problem.fingerprint() == problem.fingerprint()
    assert problem.evaluate(problem.initial()) == {}


@pytest.mark.parametrize("rule", ["local", "mean"])
def test_buffers_are_each_workers_own(rule):
    """Held against a module for each worker."""
    module, workers, lr = noisy(), 3, 0.1
    module[3].p = 0.0  # so that modules of their own draw nothing
    own = [copy.deepcopy(module) for _ in range(workers)]
    problem = problem_of(module, buffers=rule)
    psrt.simulate(psrt.TrainConfig(mode="sync", lr=lr, epochs=2), problem, workers=workers)
    x, y = data()
    batches = [
        step
        for epoch in range(2)
        for step in zip(*(problem.batches(w, workers, epoch) for w in range(workers)), strict=True)
    ]
    for step in batches:
        for one, batch in zip(own, step, strict=True):
            rows = torch.from_numpy(np.array(batch.indices))
            one.zero_grad()
            (loss(one, (x[rows], y[rows])) / workers).backward()
        for parameters in zip(*(one.parameters() for one in own), strict=True):
            total = sum(it.grad for it in parameters)
            for it in parameters:
                it.data -= lr * total
    for name in ("running_mean", "running_var"):
        each = torch.stack([getattr(one[1], name) for one in own])
        assert not torch.allclose(each[0], each[1], atol=1e-3)
        expected = each[0] if rule == "local" else each.mean(0)
        torch.testing.assert_close(getattr(module[1], name), expected, atol=1e-5, rtol=0)
    assert module[1].num_batches_tracked == len(batches)


def test_the_fingerprint_is_of_torch_data_frozen_parameters_and_buffers(monkeypatch):
    def of(module, **more):
        return problem_of(module, **more).fingerprint()

    found = of(Tied())
    assert of(Tied(), batch_size=3) == found
    other = Tied()
    with torch.no_grad():
        other.frozen.bias += 1
    running = noisy()
    running[1].running_mean += 1
    x, y = data()
    problem = psrt.torch.Problem(Tied(), loss, (x, y + 1), batch_size=8)
    different = [of(other), of(noisy()), of(running), problem.fingerprint()]
    monkeypatch.setattr(torch, "__version__", "1.0")
    different.append(of(Tied()))
    assert len({found, *different}) == 6


def test_matrices_are_weights_and_kernels():
    module = nn.Sequential(
        nn.Conv2d(3, 4, 2), nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, 5), nn.Linear(5, 1)
    )
    problem = psrt.torch.Problem(module, loss, data(), batch_size=8)
    found = matrices_of(problem, problem.initial().size)
    assert [tuple(it) for it in found] == [(0, 4, 12), (84, 5, 16)]


def test_evaluation_is_over_all_and_leaves_the_modes():
    module = noisy()
    module[1].eval()  # a frozen norm in a module that trains
    u, v = data(1, 700)  # more than one batch
    problem = psrt.torch.Problem(
        module, loss, data(), (u, v), batch_size=8, accuracy=psrt.torch.accuracy
    )
    theta = problem.initial()
    found = problem.evaluate(theta)
    assert module.training
    assert module[3].training
    assert not module[1].training
    module.eval()
    with torch.no_grad():
        scores = module(u)
    assert found["accuracy"] == pytest.approx((scores.argmax(1) == v).double().mean().item())
    assert found["loss"] == pytest.approx(nn.functional.cross_entropy(scores, v).item(), abs=1e-6)


def test_a_data_set_is_as_its_tensors():
    x, y = data()

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return SAMPLES

        def __getitem__(self, i):
            return x[i], int(y[i])

    class Labelled(Rows):
        targets = y.tolist()

    given = [(x.numpy(), y.numpy()), torch.utils.data.TensorDataset(x, y), Labelled(), Rows()]
    problems = [psrt.torch.Problem(plain(), loss, it, batch_size=40) for it in [(x, y), *given]]
    first, *others = (psrt.run(psrt.TrainConfig(lr=0.1, epochs=1), it).theta for it in problems)
    for theta in others:
        np.testing.assert_array_equal(theta, first)
    *labelled, bare = problems
    for problem in labelled:
        np.testing.assert_array_equal(problem.labels(), y)
    with pytest.raises(ConfigError, match="no label of each sample: give Problem"):
        bare.labels()


def test_reentrant_checkpoints_of_tied_layers_are_refused():
    from torch.utils.checkpoint import checkpoint

    layer = nn.Linear(FEATURES, FEATURES)

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            x = x.requires_grad_()
            for _ in range(2):
                x = checkpoint(self.layer, x, use_reentrant=self.reentrant)
            return x

    module = Twice()
    problem = psrt.torch.Problem(module, loss, data(), batch_size=8)
    module.reentrant = True
    with pytest.raises(ConfigError, match=r"layer\.(bias|weight) came twice in one backward pass"):
        gradient(problem)
    module.reentrant = False
    x, y = data()
    rows = np.array(batch_of(problem).indices)
    np.testing.assert_allclose(
        gradient(problem)[1], by_autograd(module, (x[rows], y[rows])), atol=1e-7
    )


def test_sparse_gradients_are_made_dense():
    module = nn.Sequential(nn.EmbeddingBag(10, 3, mode="sum", sparse=True))
    words = torch.arange(40).reshape(20, 2) % 7
    problem = psrt.torch.Problem(module, loss, (words, words[:, 0] % 3), batch_size=20)
    found = gradient(problem)[1].reshape(10, 3)
    assert np.count_nonzero(found.any(axis=1)) == 7


# --- what cannot be -----------------------------------------------------------------------------


def made(module=None, loss=loss, train=None, **more):
    module = plain() if module is None else module
    return psrt.torch.Problem(
        module, loss, data() if train is None else train, **({"batch_size": 8} | more)
    )


META = torch.device("meta")  # as good as any other device


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"module": nn.Linear(2, 2, device=META)}, "parameter weight is on meta, expected the CPU"),
        ({"module": plain().half()}, r"0.weight is torch.float16, .* as after .float\(\)"),
        ({"module": plain().requires_grad_(False)}, "the module has no trainable parameters"),
        ({"train": torch.utils.data.DataLoader([1, 2])}, "train is a DataLoader, expected its"),
        ({"train": (data()[0], data()[1][1:])}, "tensors of 96, 95 samples, expected eq"),
        ({"labels": [1, 2, 3]}, "3 labels of 96 samples"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(asked, words):
    with pytest.raises(ConfigError, match=words) as error:
        made(**asked).labels()
    assert "\n" not in str(error.value)


def other_layer(module):
    module[2] = nn.Linear(8, 3)


def unfrozen(module):
    module[0].requires_grad_(True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (other_layer, r"parameter 2\.weight was replaced after the problem"),
        (nn.Module.half, r"parameter 2\.weight is torch.float16"),
        (unfrozen, r"0\.weight requires a gradient, but did not"),
    ],
)
def test_a_module_stays_as_it_was(change, words):
    module = plain()
    module[0].requires_grad_(False)
    problem = made(module)
    change(module)
    with pytest.raises(ConfigError, match=words):
        gradient(problem)


# --- loading ------------------------------------------------------------------------------------


def test_theta_is_loaded_if_it_fits(tmp_path):
    module, theta = Tied(), np.arange(54, dtype=np.float32)
    psrt.torch.load(module, theta)
    found = [it.detach().reshape(-1) for it in module.parameters() if it.requires_grad]
    np.testing.assert_array_equal(torch.cat(found), theta)
    theta += 1
    assert module.first.weight[0, 0] == 0
    with pytest.raises(ConfigError, match=r"shape \(53,\), expected \(54,\): the module has 54"):
        psrt.torch.load(module, theta[1:])
    psrt.run(TrainConfig(steps=1, out=str(tmp_path / "run")), problem_of(noisy()))
    with pytest.raises(ConfigError, match=r"safetensors: 0\.bias is of shape \(16,\), expected"):
        psrt.torch.load(plain(), str(tmp_path / "run"))


def clamped(module):
    for it in module.parameters():
        it.clamp_(-1e-3, 1e-3)


def with_clamped_data(module):
    for it in module.parameters():
        it.data.clamp_(-1e-3, 1e-3)


def with_other_data(module):
    module[0].weight.data = module[0].weight.data * 1.0


@pytest.mark.parametrize(
    ("write", "who"),
    [
        (clamped, "the loss"), (with_clamped_data, "the loss"), (with_other_data, "the loss"),
        (with_clamped_data, "the evaluation"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mode", ["serial", "sync", "allreduce", "gossip"])
def test_parameters_that_a_loss_writes_to_are_told_at_once(mode, write, who):
    calls = 0

    def own(module, batch):
        nonlocal calls
        value, trains = loss(module, batch), torch.is_grad_enabled()
        if calls >= 3 if who == "the loss" else not trains:
            with torch.no_grad():
                write(module)
        calls += trains
        return value

    problem = psrt.torch.Problem(plain(), own, data(), data(), batch_size=8)
    when = r"" if "eval" in who else r" at step \d on worker \d \(rank \d\)"
    line = rf"^{who} wrote to parameter 0\.(weight|bias){when}, expected that it only reads it"
    with pytest.raises(ConfigError, match=line):
        psrt.simulate(TrainConfig(mode=mode, epochs=4), problem, workers=1 + (mode != "serial"))
    assert who == "the evaluation" or calls <= 4


def test_what_is_written_to_data_of_a_large_module_is_told_within_a_few_steps():
    module, steps = nn.Linear(1000, 300), 0

    def masked(module, batch):
        nonlocal steps
        steps += 1
        module.weight.data[-1].mul_(1.5 if steps > 3 else 1.0)
        return module(batch[0]).square().mean()

    problem = psrt.torch.Problem(module, masked, (torch.randn(400, 1000),), batch_size=4)
    with pytest.raises(ConfigError, match=r"^the loss wrote to parameter weight at step \d+ on"):
        psrt.run(TrainConfig(mode="serial", epochs=4, lr=1e-3), problem)
    assert steps <= 36
