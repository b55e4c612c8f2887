"""A loop of the user's own over MPI: the same bits as ``psrt.run`` of the same batches."""

import time

import numpy as np
import pytest
from safetensors.numpy import load_file

import psrt
from psrt import ConfigError, TrainConfig
from psrt.history.check.run import check_run
from support.least_squares import D, UnevenSquares, schemes

BASE = {"lr": 0.05, "epochs": 3, "timeout_s": 20}
SAME = schemes(
    *("sync", "sync, 2 servers", "local-sgd", "local-sgd, ring", "local-sgd, server"),
    *("auto", "node", "ring"),
)


def trained(config, problem, comm, **more):
    """Train a problem in a loop; return the trainer."""
    theta = problem.initial()
    out = np.empty_like(theta)
    with psrt.Trainer(config, theta, comm=comm, **more) as trainer:
        while trainer.epoch():
            batches = problem.batches(trainer.worker, trainer.workers, trainer.epochs)
            for batch in batches:
                loss = problem.loss_and_grad(trainer.theta, batch, out) if len(batch) else None
                if not trainer.step(out, samples=len(batch), loss=loss):
                    break
    return trainer


@pytest.mark.parametrize("flags", SAME)
def test_the_bits_are_those_of_a_run_and_all_ranks_end_with_them(comm, flags):
    config = TrainConfig(**BASE | flags)
    own = trained(config, UnevenSquares(), comm)
    run = psrt.run(config, UnevenSquares(), comm=comm)
    ended = comm.allgather(own.theta.tobytes())
    if comm.rank == 0:
        np.testing.assert_array_equal(own.result.theta, run.theta)
        assert set(ended) == {run.theta.tobytes()}
        for name in ("steps", "samples", "epochs", "updates", "train_loss", "parameters_sha256"):
            assert getattr(own.result.summary, name) == getattr(run.summary, name), name
        for one, other in zip(own.result.records, run.records, strict=True):
            assert (one.step, one.epoch, one.samples) == (other.step, other.epoch, other.samples)
            np.testing.assert_equal(one.loss, other.loss)
    else:
        assert own.result is None


@pytest.mark.parametrize("flags", schemes("async", "ssp", "softsync", "backup"))
def test_what_it_did_is_checked_and_repeated_in_virtual_time(comm, shared_folder, flags):
    out = shared_folder / "own"
    own = trained(TrainConfig(**BASE | flags, out=str(out), record=True), UnevenSquares(), comm)
    if comm.rank == 0:
        assert check_run(out).ok, check_run(out)
        workers = own.result.summary.workers
        again = psrt.simulate(psrt.recorded_config(out), UnevenSquares(), workers=workers)
        np.testing.assert_array_equal(again.theta, own.result.theta)


@pytest.mark.parametrize("flags", schemes("sync", "local-sgd", "async"))
def test_its_length_is_that_of_the_config_or_until_it_leaves(comm, flags):
    config = TrainConfig(**BASE | flags | {"epochs": None, "steps": 6})
    own = trained(config, UnevenSquares(), comm)
    if not own.serves:
        assert own.steps == 6 or own.worker == 1
        with pytest.raises(psrt.ConfigError, match="training is over: leave the loop"):
            own.step(own.theta, samples=1)
    assert not own.epoch()

    theta = np.zeros(3, np.float32)
    with psrt.Trainer(TrainConfig(**BASE | flags), theta, comm=comm) as trainer:
        while trainer.epoch():
            while trainer.step(trainer.theta + 1, samples=2):
                if trainer.steps == 2 + trainer.worker:
                    trainer.leave()
                    break
    assert trainer.serves or trainer.steps == 2 + trainer.worker
    if comm.rank == 0:
        summary = trainer.result.summary
        assert summary.steps == 1 + summary.workers
        assert summary.samples == sum(2 * (2 + it) for it in range(summary.workers))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("flags", [{"mode": "allreduce"}, {"mode": "sync", "servers": 1}])
def test_it_goes_on_from_a_checkpoint_to_the_same_bits(comm, shared_folder, flags):
    class Counted(UnevenSquares):
        """Counts its gradients, and has the same number of batches for every worker."""

        def __init__(self):
            super().__init__()
            self.steps = 0

        def batches(self, worker, workers, epoch):
            return super().batches(0, workers, epoch)

        def loss_and_grad(self, *args):
            self.steps += 1
            return super().loss_and_grad(*args)

        def state(self):
            return {"steps": self.steps}

        def load_state(self, tree):
            self.steps = int(tree["steps"])

    def train(folder, problem, **more):
        config = TrainConfig(**BASE | flags | {"out": str(folder)} | more)
        hooks = {"state": problem.state, "load_state": problem.load_state}
        return trained(config, problem, comm, **hooks)

    problem = Counted()
    whole = train(shared_folder / "whole", problem)
    # A checkpoint in the middle of an epoch, and one at its end.
    for steps in (6, 8):
        run, again = shared_folder / str(steps), Counted()
        train(run, Counted(), epochs=None, steps=steps, checkpoint_every=2)
        resumed = train(shared_folder / f"{steps} again", again, resume=str(run))
        np.testing.assert_array_equal(resumed.theta, whole.theta)
        # The batches behind the checkpoint were computed once more, to no effect.
        assert resumed.serves or again.steps >= problem.steps


@pytest.mark.parametrize("flags", schemes("async", "node"))
def test_a_tree_is_its_leaves_in_a_row_which_may_be_looked_at_after_the_block(comm, flags):
    """The memory that ranks share is gone then."""
    problem, config = UnevenSquares(), TrainConfig(**BASE | flags)
    tree = {"b": [np.ones(2, np.float32)], "a": (np.ones((3, 1), np.float32),)}
    out = np.empty(5, np.float32)
    with psrt.Trainer(config, tree, comm=comm) as trainer:
        kept = [] if trainer.serves else [trainer.theta, trainer.parameters["b"][0]]
        while trainer.epoch():
            for batch in problem.batches(trainer.worker, trainer.workers, trainer.epochs):
                here = trainer.parameters
                theta = np.concatenate([here["a"][0].ravel(), here["b"][0]])
                kept += [trainer.theta, here["b"][0]]
                if len(batch):
                    problem.loss_and_grad(theta, batch, out)
                trainer.step({"a": (out[:3, None],), "b": [out[3:]]}, samples=len(batch))
    for it in kept:
        np.testing.assert_array_equal(it, trainer.theta[-it.size :])
    np.testing.assert_array_equal(trainer.parameters["b"][0], trainer.theta[3:])
    if flags["mode"] != "async":
        flat = trained(config, problem, comm)
        np.testing.assert_array_equal(trainer.theta, flat.theta)


@pytest.mark.parametrize("flags", schemes("sync", "local-sgd, ring", "auto"))
def test_figures_are_those_of_the_parameters_that_they_are_said_of(comm, flags):
    problem = UnevenSquares()
    config = TrainConfig(**BASE | flags | {"epochs": 4})  # not in step with the averages
    asked = trained(config, problem, comm, evaluate=problem.evaluate)
    theta = problem.initial()
    with psrt.Trainer(config, theta, comm=comm) as trainer:
        while trainer.epoch():
            trainer.step(np.full_like(theta, 1 + trainer.worker), samples=1, loss=2.0)
            if trainer.epochs != 1:
                trainer.metrics(loss=trainer.epochs, accuracy=0.5)
    if comm.rank == 0:
        assert asked.result.summary.test_loss == problem.evaluate(asked.theta)["loss"]
        assert any(it.test_loss is not None for it in asked.result.records)
        result = trainer.result
        told = [it.test_loss for it in result.records if it.epoch_end]
        # The last epoch of local SGD ends with an average, of which nothing was said.
        assert told == [0, None, 2, None if config.scheme.averages else 3]
        # Where a server, or a mean, has the last word, nobody has said anything of that.
        is_known = config.scheme.name == "allreduce"
        assert result.summary.test_accuracy == (0.5 if is_known else None)
        assert result.summary.train_loss == 2.0


OF_ITS_OWN = [
    *schemes("local-sgd", "local-sgd, server"),
    *(
        pytest.param(flags, marks=pytest.mark.mpi(min_size=2), id=str(flags))
        for flags in (
            {"mode": "local-sgd:local-steps=2,outer=nesterov,outer.lr=0.5,eager=true"},
            {"mode": "easgd:local-steps=2,asynchronous=true"},
            {"mode": "gossip:order=adapt-then-combine"},
            {"mode": "gossip:variant=gradient-tracking"},
        )
    ),
]


@pytest.mark.parametrize("flags", OF_ITS_OWN)
def test_what_a_loop_writes_to_parameters_of_its_own_counts_and_is_checked(
    comm, shared_folder, flags
):
    config = TrainConfig(**BASE | flags, out=str(shared_folder), record=True)
    with psrt.Trainer(config, {"w": np.ones(D, np.float32)}, comm=comm) as trainer:
        while trainer.epoch():
            for _ in range(4):
                time.sleep(0.001)  # psrt learns of no loss, and late of the gradient
                trainer.step({"w": np.full(D, trainer.worker - 9, np.float32)}, samples=1)
                clipped = np.minimum(trainer.parameters["w"], 1.25)
                trainer.parameters["w"] = clipped
    if comm.rank == 0:
        assert check_run(shared_folder).ok, check_run(shared_folder)
        # The gradients alone would have led to at least 1 + 12 · 0.05 · 7.
        assert trainer.theta.max() < 4


@pytest.mark.parametrize("flags", schemes("async", "ring"))
def test_an_evaluation_that_fails_at_the_end_loses_nothing(comm, shared_folder, flags):
    """Rank 0 has the result, on the disk and with the error, and all have the parameters."""
    out = shared_folder / "run"
    config = TrainConfig(epochs=2, lr=0.5, timeout_s=20, out=str(out), **flags)
    trainer = psrt.Trainer(
        config,
        {"w": np.zeros(3, np.float32)},
        comm=comm,
        # Where there is a server, rank 0 evaluates at the end only; in async others may be far.
        evaluate=lambda it: {"accuracy": 0.5 if comm.rank or it["w"][0] > -0.75 else 2.0},
    )

    def train():
        with trainer:
            while trainer.epoch():
                trainer.step({"w": np.ones(3, np.float32)}, samples=1)

    with pytest.raises(ConfigError, match="an accuracy of 2, expected one in"):
        train()
    ended = comm.allgather(trainer.parameters["w"].tolist())
    assert ended == ended[:1] * comm.size
    assert max(ended[0]) < -0.5
    if comm.rank == 0:
        assert load_file(out / "model.safetensors")["['w']"].tolist() == ended[0]
        assert not (out / "summary.json").exists()
        assert trainer.result.theta.tolist() == ended[0]
