"""``Trainer``: any mode of psrt behind a ``step()`` that the user's own loop calls.

Roles, strategies and the course of a run are those of ``psrt.run``. Where a worker's role would
compute, it suspends, and the user's loop continues in the same thread; ``step()`` resumes the role.
On a server, entering the ``with`` block serves until the end of training.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from operator import index
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from psrt.config import TrainConfig
from psrt.core.arrays import Vector
from psrt.core.errors import ConfigError
from psrt.job.hooks import Epoch, Hooks
from psrt.job.local import any_job
from psrt.job.result import Run, Say
from psrt.runtime.own_loop import Ending, Next, OwnBatch, OwnLoop
from psrt.trainer.parameters import parameters_of

if TYPE_CHECKING:
    from mpi4py import MPI

#: Upper bound (exclusive) of the steps of an epoch and of the samples of a step.
_MOST = 1 << 62
#: Parameters that a loop may not write to are compared with what they were: after each of the first
#: steps, then once in this many.
_FIRST_STEPS, _EVERY = 4, 32
_SERVES = "this rank is a server and takes no part in the loop; ask trainer.serves before"


class Words(NamedTuple):
    """Errors for calls out of order, in the words of the class that the user made."""

    once: str
    not_entered: str
    over: str
    #: If no worker has taken a step.
    nothing: str


class Trainer:
    """Trains in the user's own loop; every rank of the job makes one.

    ::

        with psrt.Trainer(psrt.TrainConfig(mode="ssp", epochs=5), module) as trainer:
            while trainer.epoch():  # False at once on a server: it has served before
                for x, y in batches(trainer.worker, trainer.workers):
                    loss = criterion(module(x), y)
                    loss.backward()
                    if not trainer.step(samples=len(x), loss=loss.item()):
                        break

    After the block every rank has the final parameters of the run.
    """

    _words = Words(
        once="a Trainer trains once: make another one",
        not_entered="a Trainer is entered first: with psrt.Trainer(…) as trainer:",
        over="training is over: leave the loop when step() returns False",
        nothing="nothing was trained: no worker called step() before it left",
    )
    #: Whether gradients may be any pushed values, rather than those of a loss.
    _pushes = False

    def __init__(
        self,
        config: TrainConfig,
        parameters: Any,
        *,
        comm: MPI.Comm | None = None,
        resume: str | PathLike[str] | None = None,
        say: Say | None = None,
        evaluate: Callable[[Any], Mapping[str, float]] | None = None,
        state: Callable[[], Any] | None = None,
        load_state: Callable[[Any], None] | None = None,
        buffers: str | None = None,
        optimizer: Any = None,
        scheduler: Any = None,
        schedule_every: str | None = None,
        on_record: Callable[[dict[str, Any]], object] | None = None,
        on_epoch: Callable[[Epoch], object] | None = None,
    ) -> None:
        """Set up; nothing starts before the ``with`` block is entered.

        Args:
            config: need not be resolved; that of rank 0 is used.
            parameters: what to train; training starts from the values of rank 0. A flat
                float32 array (n,); a tree of float32 arrays, numpy's or JAX's; a torch module, or
                torch parameters, which become views of psrt's own vector. The buffers of a module,
                such as running means, are trained, saved and handed back with it.
            comm: as in ``psrt.run``.
            resume: as in ``psrt.run``.
            say: called with each line meant for the user, at rank 0.
            evaluate: returns ``loss``, ``accuracy`` (in [0, 1]) and any other numbers by name, on
                held-out data; called with parameters in the form in which they were given. Worker 0
                calls it after each epoch, and rank 0, which may be a server, with the final ones.
                None where the loop calls ``metrics``.
            state: returns what a checkpoint keeps of the loop itself: a dictionary of numbers,
                text, arrays, and such dictionaries.
            load_state: takes back what ``state`` returned, before a resumed run continues.
            buffers: which buffers the trained module has: ``local``, those of worker 0, or
                ``mean``, the mean over all workers; None takes ``local``. During training each
                worker has its own.
            optimizer: a ``torch.optim.Optimizer`` of the torch parameters, which makes the updates
                instead of the config's; see ``psrt.torch.Problem``.
            scheduler: of torch, bound to it; None has none. The loop steps neither of the two.
            schedule_every: when the scheduler steps: after each ``epoch``, the default, or each
                ``update``.
            on_record: as in ``psrt.run``.
            on_epoch: as in ``psrt.run``.

        Raises:
            ConfigError: if the parameters are anything else, or a hook cannot be called.
        """
        self._given = parameters_of(
            parameters,
            buffers,
            optimizer=optimizer,
            scheduler=scheduler,
            schedule_every=schedule_every,
        )
        given = self._given
        self._loop = OwnLoop(
            given.initial,
            given.matrices(),
            given.arrays(),
            evaluate=evaluate and self._evaluated_by(evaluate),
            state=state,
            load_state=load_state,
            held=given.held,
            tensors=given.tensors,
            nothing=self._words.nothing,
            may_be_zero=self._pushes,
        )
        self._loop.own_optimizer = given.own_optimizer
        problem: Any = self._loop  # a problem that waits for its batches
        hooks = Hooks(on_record, on_epoch)
        self._start = partial(
            any_job, config, problem, comm=comm, resume=resume, say=say, hooks=hooks
        )
        #: The suspended job of this rank, while it runs.
        self._job: Coroutine[Any, Next | None, Run | None] | None = None
        self._is_in_epoch = self._is_over = False
        #: Whether the run ended in a step, after which the loop has not called ``epoch`` yet.
        self._was_last = False
        #: (n,) the parameters as the loop sees them: a copy, since the memory that the ranks share
        #: is freed when the job ends, and any view of it would dangle.
        self._theta: Vector | None = None
        self._parameters: Any = None
        #: Whether the loop may have seen them.
        self._was_read = self._given.in_place
        #: The result at rank 0, once the run is over; None elsewhere.
        self.result: Run | None = None

    def _evaluated_by(
        self, evaluate: Callable[[Any], Mapping[str, float]]
    ) -> Callable[[Vector], Mapping[str, float]]:
        """Return a function that evaluates parameters (n,), passing them in the user's form."""

        def found(theta: Vector) -> Mapping[str, float]:
            self._take(theta)
            with self._given.evaluating():
                return evaluate(self._parameters)

        return found

    # --- the run --------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Start the run; collective. On a server, return when all workers are done.

        Raises:
            ConfigError: on every rank, if the job cannot be run.
        """
        if self._is_over or self._job is not None:
            raise ConfigError(self._words.once)
        self._job = self._start()
        self._resume(None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave, and wait for the end of the run; collective.

        An error within the block ends the whole job, as an error in a problem of ``psrt.run`` does.
        """
        if error is None:
            self.leave()
        elif self._job is not None:
            job = self._job
            self._over()
            try:
                job.throw(error)
            except RuntimeError as raised:
                # A StopIteration within a coroutine arrives as this RuntimeError (PEP 479).
                if raised.__cause__ is not error:
                    raise

    def epoch(self, steps: int = 0) -> bool:
        """End this worker's current epoch, if any, and start the next one.

        Args:
            steps: the number of steps of the next epoch, if known; learning-rate schedules then
                advance within it.

        Returns:
            Whether there is a next epoch: False if training is over, by ``TrainConfig.epochs`` or
            ``steps``, and on a server.
        """
        steps = _whole("steps of an epoch", steps)
        self._was_last = False
        if self._is_in_epoch:
            self._is_in_epoch = False
            self._resume(Ending.EPOCH)
        if self._is_over:
            return False
        self._check_entered()
        self._resume(steps)
        self._is_in_epoch = not self._is_over
        return self._is_in_epoch

    def step(self, gradients: Any = None, *, samples: int, loss: float | None = None) -> bool:
        """Share a gradient by the rules of the mode, and wait for the next step's parameters.

        Args:
            gradients: of the mean loss of this worker's batch, in the form of the parameters. None
                for torch parameters, whose backward passes have left them in ``grad``; the step
                clears them.
            samples: of the batch: its weight in a mean over workers; with 0 there is no gradient.
                For a loss that is a mean over tokens, the number of tokens.
            loss: the mean loss, for the metrics; one that is nan or infinite ends the run.

        Returns:
            Whether this was a step of the run, so that another may follow in this epoch. The call
            after the last of ``TrainConfig.steps``, or after a signal to save and stop, returns
            False and ignores its gradient. Until then the loop may still call ``metrics`` for the
            last step.

        Raises:
            ConfigError: if the gradients do not match the parameters, or outside of an epoch.
        """
        if self._is_over:
            # A server first: it never was in the loop, so no other error would help.
            raise ConfigError(_SERVES if self._loop.member is None else self._words.over)
        self._check_entered()
        if not self._is_in_epoch:
            raise ConfigError("step() is part of an epoch: while trainer.epoch(): …")
        samples = _whole("samples of a step", samples)
        write = self._given.writer(gradients) if samples else _nothing
        known = None if loss is None else _number("loss", loss)
        if samples and known is not None and self.steps and not self._was_read:
            raise ConfigError(
                "the loop passes a loss but never read the parameters, which change with each "
                "step: compute it with the attribute parameters of the trainer"
            )
        self._resume(OwnBatch(samples, known, write))
        self._was_last = self._is_over
        return self._is_in_epoch

    def leave(self) -> None:
        """Take no more steps, and wait for the end of the run; collective.

        Other workers may continue training. The end of the ``with`` block calls this.
        """
        if not self._is_over:
            self._check_entered()
            self._resume(Ending.TRAINING)

    def _resume(self, found: Next | None) -> None:
        """Resume the role until it needs the loop again, or to its end."""
        assert self._job is not None, "a finished job is not resumed"
        try:
            fault = self._hand_back(within=isinstance(found, OwnBatch))
            if fault is None:
                self._job.send(found)
            else:  # raised inside the job, which it ends, wherever the loop is
                self._job.throw(fault)
        except StopIteration as stop:
            self._end(stop.value)
        except BaseException as error:
            self._end(getattr(error, "run", None))
            raise
        else:
            self._take(self._member.theta)

    def _hand_back(self, *, within: bool) -> ConfigError | None:
        """Pass what the loop wrote to the parameters on to the run, where it may write.

        A comparison takes longer than a copy. Where the loop may not write, they are therefore
        compared in the first steps, in one of ``_EVERY`` later ones, and whenever the parameters
        themselves report a write.

        Args:
            within: whether this is a step, rather than the start or end of an epoch.

        Returns:
            What is wrong, if the loop wrote to parameters that other workers share.
        """
        if self._theta is None or self._loop.member is None:
            return None
        owns = self._member.owns_theta
        compares = not within or self.steps < _FIRST_STEPS or not self.steps % _EVERY
        try:
            is_written = self._given.gather(self._theta, whole=owns or compares)
        except ConfigError as error:
            return error
        theta = self._member.theta
        if owns:
            np.copyto(theta, self._theta)
            return None
        if not (compares or is_written):
            return None
        mine, run = self._theta.view(np.uint32), theta.view(np.uint32)
        if np.array_equal(mine, run):
            return None
        name = self._loop.named(int(np.flatnonzero(mine != run)[0]))
        return ConfigError(
            f"the loop wrote to the parameters{name and f', to {name} first'}, which all workers "
            "share: only the optimizer of the config changes them. In serial, local-sgd, easgd and "
            "gossip in plain rounds each worker may write to its own; psrt.torch.Gradients leaves "
            "parameters and optimizer to the loop"
        )

    def _end(self, result: Run | None) -> None:
        """Give the loop the final parameters of the run, or the last ones if it failed."""
        self._over()
        self.result = result
        # After deaths of workers, the survivors keep their last parameters.
        if self._loop.final is not None:
            self._take(self._loop.final)
        self._given.release()

    def _take(self, theta: Vector) -> None:
        """Give the loop these parameters."""
        if self._theta is None:
            self._theta = np.empty_like(theta)
        np.copyto(self._theta, theta)
        self._parameters = self._given.bind(self._theta)

    def _over(self) -> None:
        """Ensure that nothing is resumed from here on."""
        self._job, self._is_over, self._is_in_epoch = None, True, False

    def _check_entered(self) -> None:
        if self._job is None:
            raise ConfigError(self._words.not_entered)

    # --- what a loop may read -------------------------------------------------------------------

    @property
    def _member(self) -> Any:
        if not self._is_over:
            self._check_entered()
        if self._loop.member is None:
            raise ConfigError(_SERVES)
        return self._loop.member

    @property
    def serves(self) -> bool:
        """Whether this rank is a server, which takes no part in the loop."""
        if not self._is_over:
            self._check_entered()
        return self._loop.member is None

    @property
    def worker(self) -> int:
        """This worker's index among the workers that share the epoch's data, from 0."""
        return self._loop.place

    @property
    def workers(self) -> int:
        """The number of workers that share the epoch's data; 0 on a server."""
        return self._loop.places

    @property
    def epochs(self) -> int:
        """The number of epochs that this worker has finished: the current epoch, from 0."""
        return int(self._member.epoch)

    @property
    def steps(self) -> int:
        """The number of gradient steps that this worker has finished: its clock."""
        return int(self._member.clock)

    @property
    def taken(self) -> int:
        """The number of finished steps of this epoch.

        Not 0 at the start of an epoch if a resumed run continues in the middle of it: that many
        calls of ``step()`` do nothing, and the loop may skip their batches.
        """
        return int(self._member.taken)

    @property
    def versions(self) -> tuple[int, ...]:
        """By shard, the number of updates in this worker's parameters; empty without servers."""
        return tuple(self._member.versions)

    @property
    def theta(self) -> Vector:
        """(n,) float32, this worker's parameters, read-only.

        They change with the next ``step()``; after the run they are the final ones.
        """
        whole: Vector = self._known_theta().view()
        self._was_read = True
        whole.flags.writeable = False
        return whole

    @property
    def parameters(self) -> Any:
        """The parameters in the form in which they were given, with their current values.

        Arrays are read-only views, which change with the next ``step()``.
        """
        self._known_theta()
        self._was_read = True
        return self._parameters

    def _known_theta(self) -> Vector:
        if self._theta is None:
            if not self._is_over:
                self._check_entered()
            raise ConfigError("workers have died: only rank 0 and the survivors have parameters")
        return self._theta

    def metrics(
        self, *, loss: float | None = None, accuracy: float | None = None, **figures: float
    ) -> None:
        """Report results on held-out data with the current parameters, before ``epoch()``.

        Those of worker 0 go into the metrics of the run, and into its summary only if the run
        ends with exactly worker 0's parameters. ``evaluate`` is called with the final ones. After
        the ``step()`` that returned False at the end of the run, this does nothing.

        Args:
            loss: mean loss.
            accuracy: share of right answers, in [0, 1].
            figures: any others, by name.
        """
        if self._was_last:
            return
        if self._is_over:
            raise ConfigError(
                "training is over: call metrics() before the epoch() that returns False"
            )
        self._check_entered()
        known = {"loss": loss, "accuracy": accuracy, **figures}
        found = {name: _number(name, it) for name, it in known.items() if it is not None}
        self._loop.tell(self.theta, found)


def _whole(what: str, value: Any) -> int:
    """Return a number of steps or samples.

    Raises:
        ConfigError: if it is no whole number, or out of range.
    """
    try:
        found = index(value)
    except TypeError:
        raise ConfigError(f"{what}: got {value!r}, expected a whole number") from None
    if not 0 <= found < _MOST:
        raise ConfigError(f"{what}: got {found}, expected a whole number of at least 0")
    return found


def _number(what: str, value: Any) -> float:
    """Return a figure as a float.

    Raises:
        ConfigError: if it is no number.
    """
    try:
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor of several
        raise ConfigError(f"{what}: got {type(value).__name__}, expected a number") from None


def _nothing(out: Vector) -> Sequence[str]:
    """Write no gradient, where a batch has no samples."""
    return ()
