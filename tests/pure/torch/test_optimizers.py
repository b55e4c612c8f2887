"""Optimizers of torch in place of psrt's: in which modes, with which numbers, and which not.

The oracle is a plain loop of torch in one process. With one worker the bits are the same: torch's
kernels round an element alike wherever it is in a tensor, except the fused ones.
"""

import warnings

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

import psrt
from psrt import ConfigError, TrainConfig
from psrt.core.partition import Span
from psrt.history.check.run import check_run
from psrt.optim.optimizer import BLOCK, step
from psrt.torch.optimizer import own_optimizer
from psrt.torch.parameters import Parameters
from support.torch_models import data, loss, parameters_of, plain, problem_of, trained_alone

KINDS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "heavy": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1}),
    "nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "maximize": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.5, "maximize": True}),
    "adam": (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
    "amsgrad": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True, "foreach": True}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "nadam": (torch.optim.NAdam, {"lr": 0.01, "weight_decay": 0.1}),
    "radam": (torch.optim.RAdam, {"lr": 0.01, "weight_decay": 0.1}),
    "adamax": (torch.optim.Adamax, {"lr": 0.01, "weight_decay": 0.1}),
    "adagrad": (torch.optim.Adagrad, {"lr_decay": 0.1, "initial_accumulator_value": 0.5}),
    "adadelta": (torch.optim.Adadelta, {"weight_decay": 0.1}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.9, "centered": True}),
    "rprop": (torch.optim.Rprop, {"lr": 0.01}),
    "asgd": (torch.optim.ASGD, {"lr": 0.01, "weight_decay": 0.1, "t0": 2}),
}  # fmt: skip


def made(kind, module, part="bias"):
    """Return an optimizer with a group of its own, with half the rate, for biases."""
    make, options = KINDS[kind]
    named = list(module.named_parameters())
    first, second = ([it for name, it in named if (part in name) is has] for has in (False, True))
    half = options.get("lr", 0.01) / 2
    return make([{"params": first}, {"params": second, "lr": half}], **options)


def brought(kind="adamw", scheduler=None, part="bias", **more):
    """Return a problem with that optimizer."""
    module = plain()
    optimizer = made(kind, module, part)
    of = None if scheduler is None else scheduler(optimizer)
    return problem_of(module, optimizer=optimizer, scheduler=of, **more)


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_shards_ends_where_torch_alone_does(kind):
    alone = plain()
    expected = trained_alone(alone, batch=8, epochs=2, optimizer=made(kind, alone))
    assert not np.array_equal(expected, parameters_of(plain()))
    for flags in ({"mode": "serial"}, {"mode": "async"}, {"mode": "sync", "servers": 3}):
        run = psrt.simulate(TrainConfig(epochs=2, **flags), brought(kind), workers=1)
        np.testing.assert_array_equal(run.theta, expected)


@pytest.mark.parametrize("kind", ["heavy", "adamw"])
def test_a_vector_of_several_blocks_in_several_pieces(kind):
    n = 2 * BLOCK + 1001
    torch.manual_seed(0)
    module = torch.nn.ParameterList([torch.randn(n - 5000), torch.randn(5000)])
    make, options = KINDS[kind]
    of = own_optimizer(Parameters(module), make(module.parameters(), **options))
    start = parameters_of(module)
    whole, spans = of.make([Span(0, n)]), [Span(7, BLOCK + 13), Span(0, 7), Span(BLOCK + 13, n)]
    pieces, moving = of.make(spans), [np.concatenate([it.of(start) for it in spans])]
    here, theirs = start.copy(), make(module.parameters(), **options)
    rng = np.random.default_rng(1)
    for _ in range(3):
        gradient = rng.standard_normal(n).astype(np.float32)
        out = np.empty_like(here)  # a version is another buffer
        step(whole, here, gradient, out, whole.rate(0.0))
        here = out
        split = np.concatenate([it.of(gradient) for it in spans])
        step(pieces, moving[0], split, moving[0], pieces.rate(0.0))
        for it, part in zip(module, np.split(gradient, [n - 5000]), strict=True):
            it.grad = torch.from_numpy(part)
        theirs.step()
    np.testing.assert_array_equal(here, parameters_of(module))
    np.testing.assert_array_equal(moving[0], np.concatenate([it.of(here) for it in spans]))


SCHEDULERS = {
    "cosine": lambda it: lr_scheduler.CosineAnnealingLR(it, T_max=3),
    "warm-up": lambda it: lr_scheduler.LambdaLR(it, lambda k: min(1.0, k / 3)),
    "in turn": lambda it: lr_scheduler.SequentialLR(
        it,
        [lr_scheduler.LinearLR(it, 0.1, total_iters=2), lr_scheduler.ExponentialLR(it, 0.9)],
        milestones=[2],
    ),
    "chained": lambda it: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(it, 0.5, total_iters=2), lr_scheduler.ExponentialLR(it, 0.9)]
    ),
    "one cycle": lambda it: lr_scheduler.OneCycleLR(it, max_lr=0.1, total_steps=40),  # momentum too
}


@pytest.mark.parametrize("every", ["epoch", "update"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_steps_as_in_a_loop_of_torch(name, every):
    alone = plain()
    optimizer = made("heavy", alone)
    after = {f"after_{every}": SCHEDULERS[name](optimizer)}
    expected = trained_alone(alone, batch=8, epochs=3, optimizer=optimizer, **after)
    constant = plain()
    usual = trained_alone(constant, batch=8, epochs=3, optimizer=made("heavy", constant))
    assert not np.array_equal(expected, usual)
    problem = brought("heavy", SCHEDULERS[name], schedule_every=every)
    for flags in ({"mode": "async", "servers": 2}, {"mode": "gossip"}):
        run = psrt.simulate(TrainConfig(epochs=3, **flags), problem, workers=1)
        np.testing.assert_array_equal(run.theta, expected)


def test_a_scheduler_that_ends_is_named():
    problem = brought("adamw", lambda it: lr_scheduler.OneCycleLR(it, 0.1, total_steps=2))
    with pytest.raises(ConfigError, match="scheduler OneCycleLR ends: Tried to step 3 times"):
        psrt.run(TrainConfig(mode="serial", epochs=4), problem)


MODES = [
    "sync", "ssp:staleness=2", "softsync:k=2", "local-sgd:local-steps=3,outer=nesterov",
    "local-sgd:local-steps=2,quorum=2", "local-sgd:local-steps=2,learner-ranks=2",
    "local-sgd:local-steps=2,fragments=2", "easgd:local-steps=2", "allreduce",
    "allreduce:shard=optimizer,bucket-bytes=100", "gossip:variant=push-sum",
    "gossip:variant=pairs", "gossip:variant=gradient-tracking",
]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_has_the_numbers_of_psrts_own(tmp_path, mode):
    """Momentum is psrt's and torch's: the same numbers, up to how each rounds."""
    base = {"mode": mode, "epochs": 2}
    own = TrainConfig(optimizer="momentum", lr=0.1, weight_decay=0.01, **base)
    expected = psrt.simulate(own, problem_of(plain()), workers=4).theta

    def problem():
        module = plain()
        options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
        return problem_of(module, optimizer=torch.optim.SGD(module.parameters(), **options))

    out = tmp_path / "run"
    run = psrt.simulate(TrainConfig(**base, out=str(out), record=True), problem(), workers=4)
    np.testing.assert_allclose(run.theta, expected, atol=1e-6)
    outcome = check_run(out)
    assert outcome.ok, outcome
    assert outcome.checked["rates"]
    assert not outcome.unchecked
    again = psrt.simulate(psrt.recorded_config(out), problem(), workers=4, seed=5)
    np.testing.assert_array_equal(again.theta, run.theta)


def test_groups_follow_their_elements_where_the_optimizer_is_sharded():
    found = []
    for mode in ("allreduce:bucket-bytes=100", "allreduce:bucket-bytes=100,shard=optimizer"):
        config = TrainConfig(mode=mode, allreduce="ring", epochs=2)
        found.append(psrt.simulate(config, brought("adamw"), workers=3).theta)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("rate", ["inverse", "delay-compensated"])
def test_stale_gradients_are_scaled_before_a_step(rate):
    base = {"mode": "async", "epochs": 2, "staleness_rate": rate, "clip_norm": 0.5}
    own = psrt.simulate(TrainConfig(lr=0.1, **base), problem_of(plain()), workers=4)
    module = plain()
    problem = problem_of(module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1))
    run = psrt.simulate(TrainConfig(**base), problem, workers=4)
    np.testing.assert_allclose(run.theta, own.theta, atol=1e-6)
    usual = psrt.simulate(TrainConfig(**base | {"staleness_rate": None}), problem, workers=4)
    assert not np.allclose(run.theta, usual.theta, atol=1e-6)


# --- checkpoints and histories ------------------------------------------------------------------

DECAYS = {"scheduler": lambda it: lr_scheduler.ExponentialLR(it, 0.7)}


@pytest.mark.parametrize("kind", ["heavy", "nadam", "adagrad", "asgd"])
@pytest.mark.parametrize(
    ("mode", "servers", "onward", "every"),
    [("sync", 1, 3, "epoch"), ("sync", 3, 2, "update"),
     ("allreduce:shard=optimizer", None, None, "update"),
     ("local-sgd:local-steps=2", 1, 2, "epoch")],
)  # fmt: skip
def test_a_run_resumes_to_the_bit_also_with_other_servers(
    tmp_path, kind, mode, servers, onward, every
):
    def run(**more):
        problem = brought(kind, **DECAYS, schedule_every=every)
        return psrt.simulate(TrainConfig(mode=mode, **more), problem, workers=2)

    out = str(tmp_path / "run")
    whole = run(servers=servers, steps=14)
    run(servers=servers, steps=9, out=out, checkpoint_every=4)
    resumed = run(servers=onward, steps=14, out=str(tmp_path / "onward"), resume=out)
    assert resumed.summary.steps == 14
    np.testing.assert_array_equal(resumed.theta, whole.theta)


def test_another_optimizer_neither_resumes_nor_replays_a_run(tmp_path):
    out = str(tmp_path / "run")
    config = TrainConfig(mode="sync", steps=8, checkpoint_every=4, out=out)
    psrt.simulate(config, brought("adamw", **DECAYS), workers=2)
    recorded = str(tmp_path / "recorded")
    config = TrainConfig(mode="async", steps=8, record=True, out=recorded)
    psrt.simulate(config, brought("adamw", **DECAYS), workers=2)
    outcome = check_run(recorded)
    assert outcome.ok
    assert "rates: not checked, set by the scheduler ExponentialLR every epoch" in "\n".join(
        outcome.lines()
    )
    assert [*outcome.document()["unchecked"]] == ["rates"]
    others = {
        "rule=Adam,": brought("adam", **DECAYS),
        "optimizer torch:.* instead": brought("adamw"),  # without its scheduler
        "ExponentialLR every epoch": brought(
            "adamw", lambda it: lr_scheduler.ExponentialLR(it, 0.8)
        ),
        "ExponentialLR every update": brought("adamw", **DECAYS, schedule_every="update"),
        "groups .* groups": brought("adamw", **DECAYS, part="0."),
    }
    for text, problem in others.items():
        onward = TrainConfig(mode="sync", steps=8, out=str(tmp_path / "next"), resume=out)
        with pytest.raises(ConfigError, match=f"would not continue that run: .*{text}"):
            psrt.simulate(onward, problem, workers=2)
        with pytest.raises(ConfigError, match=f"would not be that run: .*{text}"):
            psrt.simulate(psrt.recorded_config(recorded), problem, workers=2)
    with pytest.raises(ConfigError, match=r"--optimizer torch.*: the problem brings no optimizer"):
        psrt.simulate(psrt.recorded_config(recorded), problem_of(plain()), workers=2)
    again = psrt.simulate(psrt.recorded_config(recorded), brought("adamw", **DECAYS), workers=2)
    assert again.summary.steps == 8


def test_state_that_an_optimizer_has_is_continued():
    for kind in ("adamw", "heavy", "nadam"):
        alone = plain()
        optimizer = made(kind, alone)
        trained_alone(alone, batch=8, epochs=1, optimizer=optimizer)
        start = {name: it.clone() for name, it in alone.state_dict().items()}
        problem = problem_of(alone, optimizer=optimizer)
        config = TrainConfig(mode="sync", servers=3, epochs=1)
        run, again = (psrt.simulate(config, problem, workers=1).theta for _ in range(2))
        alone.load_state_dict(start)
        expected = trained_alone(alone, batch=8, epochs=1, optimizer=optimizer)
        np.testing.assert_array_equal(run, expected)
        np.testing.assert_array_equal(again, expected)  # nothing given had changed


# --- loops of the user's own --------------------------------------------------------------------


def test_a_trainer_takes_the_same(tmp_path):
    alone, module, (x, y) = plain(), plain(), data()
    theirs, mine = made("adamw", alone), made("adamw", module)
    after, scheduler = (lr_scheduler.ExponentialLR(it, 0.7) for it in (theirs, mine))
    config = TrainConfig(mode="serial", epochs=3, out=str(tmp_path / "run"), record=True)
    with psrt.Trainer(config, module, optimizer=mine, scheduler=scheduler) as trainer:
        while trainer.epoch(steps=6):
            for rows, wanted in zip(x.split(16), y.split(16), strict=True):
                for it in (module, alone):
                    loss(it, (rows, wanted)).backward()
                theirs.step()
                theirs.zero_grad()
                trainer.step(samples=len(rows))
            after.step()
    np.testing.assert_array_equal(parameters_of(module), parameters_of(alone))
    assert check_run(tmp_path / "run").ok
    assert not mine.state  # a copy was stepped
    with pytest.raises(ConfigError, match="optimizer= is for torch parameters, got ndarray"):
        psrt.Trainer(config, np.zeros(3, np.float32), optimizer=mine)


# --- what is refused ----------------------------------------------------------------------------


class Scaled(torch.optim.Optimizer):
    """Element-wise, as it says, with a number of its own for each group."""

    elementwise = True

    def __init__(self, parameters, lr=0.1):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for it in group["params"]:
                state = self.state[it]
                state["count"] = state.get("count", 0) + 1
                before = state.get("mean", torch.zeros_like(it))
                state["mean"] = 0.5 * before + it.grad  # another tensor each time
                it -= group["lr"] / state["count"] * self.length(it) * state["mean"]

    def length(self, it):
        return 1.0


class Trusting(Scaled):
    """Scales by the length of all that it is given, so it is not."""

    def length(self, it):
        return it.norm()


class Writing(Scaled):
    """Writes to a gradient, which is the worker's."""

    def length(self, it):
        it.grad *= 2
        return 1.0


class Unsaid(torch.optim.Adam):
    """Says nothing of itself."""


def test_a_class_of_ones_own_that_is_elementwise():
    alone = plain()
    expected = trained_alone(alone, batch=8, epochs=2, optimizer=Scaled(alone.parameters()))
    module = plain()
    problem = problem_of(module, optimizer=Scaled(module.parameters()))
    run = psrt.simulate(TrainConfig(mode="sync", servers=3, epochs=2), problem, workers=1)
    np.testing.assert_allclose(run.theta, expected, rtol=1e-6)


def of(kind, **options):
    return lambda module: {"optimizer": kind(module.parameters(), **options)}


def scheduled(make):
    def given(module):
        optimizer = made("adamw", module)
        return {"optimizer": optimizer, "scheduler": make(optimizer)}

    return given


def foreign(module):
    optimizer = made("adamw", module)
    lr_scheduler.StepLR(optimizer, 1)
    return {"optimizer": optimizer}


def hooked(module):
    optimizer = made("adamw", module)
    optimizer.register_step_post_hook(lambda *_: None)
    return {"optimizer": optimizer}


def half_begun(module):
    optimizer = torch.optim.Adam(module.parameters())
    module[0].weight.grad = torch.zeros_like(module[0].weight)
    optimizer.step()
    return {"optimizer": optimizer}


REFUSALS = {
    "the optimizer is a float": lambda module: {"optimizer": 0.1},
    "LBFGS cannot be run on shards: it evaluates the loss again": of(torch.optim.LBFGS),
    "Adafactor cannot be run on shards: it keeps means of rows": of(torch.optim.Adafactor),
    "Muon cannot be run on shards: it orthogonalizes whole matrices": lambda module: {
        "optimizer": torch.optim.Muon([module[0].weight, module[2].weight])
    },
    "SparseAdam cannot be run on shards: it takes sparse": of(torch.optim.SparseAdam),
    "Adam has fused=True: its kernels round": of(torch.optim.Adam, fused=True),
    "Adam has capturable=True: it is for graphs": of(torch.optim.Adam, capturable=True),
    "SGD has differentiable=True": of(torch.optim.SGD, differentiable=True),
    "Unsaid is not known .*: if it does, set elementwise = True": of(Unsaid),
    "Trusting steps differently on parts of a vector": of(Trusting),
    "Writing writes to gradients": of(Writing),
    "AdamW has hooks of step": hooked,
    "Adam has a group without parameters": lambda module: {
        "optimizer": torch.optim.Adam([{"params": module.parameters()}, {"params": []}])
    },
    "has state of parameters at different steps": half_begun,
    "every learning rate of the optimizer is 0": of(torch.optim.SGD, lr=0.0),
    "does not have parameter 0.bias": lambda module: {
        "optimizer": torch.optim.SGD([module[0].weight, *module[2].parameters()])
    },
    r"a parameter of shape \(3,\) that the module does not train": lambda module: {
        "optimizer": torch.optim.SGD([*module.parameters(), torch.nn.Parameter(torch.ones(3))])
    },
    "ReduceLROnPlateau follows a metric": scheduled(lr_scheduler.ReduceLROnPlateau),
    "the scheduler is a float": scheduled(lambda it: 0.1),
    "the scheduler StepLR is of another optimizer": scheduled(
        lambda it: lr_scheduler.StepLR(made("adamw", plain()), 1)
    ),
    "the optimizer has a scheduler: give it, too": foreign,
    "schedule_every is 'step', expected 'epoch' or 'update'": lambda module: {
        "optimizer": made("adamw", module), "schedule_every": "step"
    },
    "schedule_every='update' has no effect without scheduler=": lambda module: {
        "optimizer": made("adamw", module), "schedule_every": "update"
    },
    "have no effect without optimizer=": lambda module: {"schedule_every": "epoch"},
}  # fmt: skip


@pytest.mark.parametrize("line", REFUSALS)
def test_what_cannot_be_right_is_refused_by_name(line):
    module = plain()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch on options of its own
        given = REFUSALS[line](module)
    with pytest.raises(ConfigError, match=line) as caught:
        problem_of(module, **given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("knobs", "line"),
    [
        ({"optimizer": "adam"}, "--optimizer adam has no effect: the problem has an optimizer of"),
        ({"lr": 0.5}, "--lr 0.5 has no effect: the problem has an optimizer of torch, AdamW"),
        ({"weight_decay": 0.5}, "--weight-decay 0.5 has no effect"),
        ({"schedule": "cosine"}, "--schedule cosine has no effect"),
        ({"mode": "async", "staleness_rate": "gap-aware"}, "gap-aware is not possible with"),
        ({"mode": "allreduce", "parallel": "pipeline:2"}, "--parallel pipeline:2 is not possible"),
    ],
)
def test_knobs_that_it_replaces_are_refused(knobs, line):
    with pytest.raises(ConfigError, match=line):
        psrt.simulate(TrainConfig(**knobs), brought(), workers=2)


def test_a_row_of_files_is_no_choice_of_a_user():
    assert "torch" not in set(psrt.optim.OPTIMIZERS)
    with pytest.raises(ConfigError, match="--optimizer torch: the problem brings no optimizer"):
        psrt.run(TrainConfig(mode="serial", optimizer="torch"), problem_of(plain()))


@pytest.mark.parametrize(
    ("kind", "used", "moves"),
    [("sgd", 1, ""), ("rprop", 1, ""), ("heavy", 0, "weight decay"), ("asgd", 0, "weight decay"),
     ("nesterov", 0, ""), ("nesterov", 1, "keeps of earlier"), ("amsgrad", 1, "keeps of earlier")],
)  # fmt: skip
def test_a_parameter_without_gradients_may_not_move(kind, used, moves):
    module, steps = plain(), []
    module.spare = torch.nn.Parameter(torch.ones(4))

    def sometimes(module, batch):
        steps.append(None)
        found = torch.nn.functional.cross_entropy(
            module[2](module[1](module[0](batch[0]))), batch[1]
        )
        return found + module.spare.sum() if len(steps) <= used else found

    given = {"batch_size": 8, "optimizer": made(kind, module)}
    problem = psrt.torch.Problem(module, sometimes, data(), **given)
    config = TrainConfig(mode="serial", steps=3)
    if not moves:
        psrt.run(config, problem)
        return
    line = f"spare had no gradient at step {used + 1} .*but (what torch )?{moves}.* would move it"
    with pytest.raises(ConfigError, match=line):
        psrt.run(config, problem)
