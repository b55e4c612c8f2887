"""``Trainer``: any mode of psrt behind a ``step()`` that a loop of the user's own calls.

The roles, the strategies and the life of a run are those of ``psrt.run``. Where a worker's role
would compute, it suspends, and the user's loop goes on in the same thread; ``step()`` resumes it.
A role that serves runs to its end as the ``with`` block is entered.
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
from psrt.job.local import any_job
from psrt.job.result import Run, Say
from psrt.runtime.own_loop import Ending, Next, OwnBatch, OwnLoop
from psrt.trainer.parameters import parameters_of

if TYPE_CHECKING:
    from mpi4py import MPI

#: Steps of an epoch, or samples of a step, are fewer.
_MOST = 1 << 62
#: Steps after which parameters that a loop may not write to are compared with what they were: each
#: of the first, and one in so many.
_FIRST_STEPS, _EVERY = 4, 32
_SERVES = "this rank serves, it has no part in the loop"


class Words(NamedTuple):
    """What a user is told who calls it out of turn, in the words of what was made."""

    once: str
    not_entered: str
    over: str
    #: Where nobody has taken a step.
    nothing: str


class Trainer:
    """Trains in a loop of one's own; every rank of the job makes one.

    ::

        with psrt.Trainer(psrt.TrainConfig(mode="ssp", epochs=5), module) as trainer:
            while trainer.epoch():  # False at once at a server, which has served by then
                for x, y in batches(trainer.worker, trainer.workers):
                    loss = criterion(module(x), y)
                    loss.backward()
                    if not trainer.step(samples=len(x), loss=loss.item()):
                        break

    After the block the parameters are those that the run has ended with, on every rank.
    """

    _words = Words(
        once="a Trainer trains once: make another one",
        not_entered="a Trainer is entered first: with psrt.Trainer(…) as trainer:",
        over="training is over: leave the loop when step() returns False",
        nothing="nothing was trained: no worker called step() before it left",
    )
    #: Whether gradients need not be of a loss, but may be whatever is pushed.
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
    ) -> None:
        """Set up; nothing is begun before the ``with`` block is entered.

        Args:
            config: need not be resolved; that of rank 0 is used.
            parameters: what is trained; the values of rank 0 are those to start from. A flat
                float32 array (n,); a tree of float32 arrays, numpy's or JAX's; a torch module, or
                torch parameters, which become views of psrt's own vector. The buffers of a module,
                such as running means, are trained, saved and handed back with it.
            comm: as in ``psrt.run``.
            resume: as in ``psrt.run``.
            say: called with each line meant for the user, at rank 0.
            evaluate: returns ``loss``, ``accuracy`` (in [0, 1]) and any other numbers by name, on
                held-out data, of parameters in the form in which they were given. Called at worker
                0 after each epoch, and at rank 0, which may serve, with the final ones. None where
                ``metrics`` says them.
            state: returns what a checkpoint keeps of the loop itself: a dictionary of numbers,
                text, arrays, and such dictionaries.
            load_state: takes back what ``state`` returned, before a resumed run goes on.
            buffers: of the trained module: ``local``, those of worker 0, or ``mean``, the mean over
                all workers; None takes ``local``. While they train each worker has its own.

        Raises:
            ConfigError: if these are no parameters.
        """
        self._given = parameters_of(parameters, buffers)
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
        problem: Any = self._loop  # one whose batches are waited for
        self._start = partial(any_job, config, problem, comm=comm, resume=resume, say=say)
        #: The job of this rank, suspended, while it is under way.
        self._job: Coroutine[Any, Next | None, Run | None] | None = None
        self._is_in_epoch = self._is_over = False
        #: (n,) the parameters as the loop has them: a copy, for what the ranks share is gone when
        #: the job ends, and with it whatever else would look at it.
        self._theta: Vector | None = None
        self._parameters: Any = None
        #: Whether the loop can have seen them.
        self._was_read = self._given.in_place
        #: The result at rank 0, once the run is over; None elsewhere.
        self.result: Run | None = None

    def _evaluated_by(
        self, evaluate: Callable[[Any], Mapping[str, float]]
    ) -> Callable[[Vector], Mapping[str, float]]:
        """Return what evaluates parameters (n,): with them in the form that was given."""

        def found(theta: Vector) -> Mapping[str, float]:
            self._take(theta)
            with self._given.evaluating():
                return evaluate(self._parameters)

        return found

    # --- the run --------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Begin the run; collective. A server returns when all workers are done.

        Raises:
            ConfigError: on every rank, if the job is impossible.
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

        An error within the block ends the whole job, as one in a problem of ``psrt.run`` does.
        """
        if error is None:
            self.leave()
        elif self._job is not None:
            job = self._job
            self._over()
            try:
                job.throw(error)
            except RuntimeError as raised:
                # A coroutine that a StopIteration ends raises this instead.
                if raised.__cause__ is not error:
                    raise

    def epoch(self, steps: int = 0) -> bool:
        """End the epoch that this worker is in, if any, and begin the next one.

        Args:
            steps: the number of steps of the next one, where it is known: learning-rate schedules
                move on within it then.

        Returns:
            Whether there is one: False if training is over, as ``TrainConfig.epochs`` and ``steps``
            say, and at a server.
        """
        steps = _whole("steps of an epoch", steps)
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
        """Share a gradient as the mode says, and wait for the parameters of the next step.

        Args:
            gradients: of the mean loss of this worker's batch, in the form of the parameters. None
                for torch parameters, whose backward passes have left them there; they are
                forgotten after the step.
            samples: of the batch: its weight in a mean over workers; with 0 there is no gradient.
                Of a loss that is a mean over tokens, their number.
            loss: the mean loss, for the metrics; one that is nan or infinite ends the run.

        Returns:
            Whether this was a step of the run, so that another may follow in this epoch. The call
            after the last of ``TrainConfig.steps``, or after the run was told to save and stop,
            returns False, and its gradient is of no effect: until then the loop may still say
            ``metrics`` of the last step.

        Raises:
            ConfigError: if these are no gradients of the parameters, or there is no epoch.
        """
        if self._is_over:
            # Of a server first of all: it never was in the loop.
            raise ConfigError(_SERVES if self._loop.member is None else self._words.over)
        self._check_entered()
        if not self._is_in_epoch:
            raise ConfigError("step() is part of an epoch: while trainer.epoch(): …")
        samples = _whole("samples of a step", samples)
        write = self._given.writer(gradients) if samples else _nothing
        known = None if loss is None else _number("loss", loss)
        if samples and known is not None and self.steps and not self._was_read:
            raise ConfigError(
                "the loop gives a loss but never asked for parameters, which change with each "
                "step: compute it with those of the attribute parameters"
            )
        self._resume(OwnBatch(samples, known, write))
        return self._is_in_epoch

    def leave(self) -> None:
        """Have no more steps, and wait for the end of the run; collective.

        Other workers may train on. The end of the ``with`` block does this by itself.
        """
        if not self._is_over:
            self._check_entered()
            self._resume(Ending.TRAINING)

    def _resume(self, found: Next | None) -> None:
        """Let the role go on until it asks for what comes next, or to its end."""
        assert self._job is not None, "nothing is resumed after its end"
        try:
            fault = self._hand_back(within=isinstance(found, OwnBatch))
            if fault is None:
                self._job.send(found)
            else:  # so that it ends the job, wherever the loop is
                self._job.throw(fault)
        except StopIteration as stop:
            self._end(stop.value)
        except BaseException as error:
            self._end(getattr(error, "run", None))
            raise
        else:
            self._take(self._member.theta)

    def _hand_back(self, *, within: bool) -> ConfigError | None:
        """Let the run have what the loop has written to the parameters, where it may do so.

        To compare takes longer than a copy of them. Where the loop may not write, that is for the
        first steps, one in ``_EVERY`` of the others, and what the parameters tell by themselves.

        Args:
            within: whether this is a step, and no beginning or end of an epoch.

        Returns:
            What is wrong, if the parameters here are another's, too.
        """
        if self._theta is None or self._loop.member is None:
            return None
        try:
            is_written = self._given.gather(self._theta)
        except ConfigError as error:
            return error
        theta = self._member.theta
        if self._member.owns_theta:
            np.copyto(theta, self._theta)
            return None
        is_first = self.steps < _FIRST_STEPS
        if within and not is_first and not is_written and self.steps % _EVERY:
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
        """Let the loop have what the run has ended with, as far as it has come."""
        self._over()
        self.result = result
        # Where workers have died, those that are left have what they had last.
        if self._loop.final is not None:
            self._take(self._loop.final)
        self._given.release()

    def _take(self, theta: Vector) -> None:
        """Let the loop have these parameters."""
        if self._theta is None:
            self._theta = np.empty_like(theta)
        np.copyto(self._theta, theta)
        self._parameters = self._given.bind(self._theta)

    def _over(self) -> None:
        """Let nothing be resumed any more."""
        self._job, self._is_over, self._is_in_epoch = None, True, False

    def _check_entered(self) -> None:
        if self._job is None:
            raise ConfigError(self._words.not_entered)

    # --- what a loop may ask --------------------------------------------------------------------

    @property
    def _member(self) -> Any:
        if not self._is_over:
            self._check_entered()
        if self._loop.member is None:
            raise ConfigError(_SERVES)
        return self._loop.member

    @property
    def serves(self) -> bool:
        """Whether this rank is a server, without a part in the loop."""
        if not self._is_over:
            self._check_entered()
        return self._loop.member is None

    @property
    def worker(self) -> int:
        """This worker's place among those that the epoch is dealt out to, counted from 0."""
        return self._loop.place

    @property
    def workers(self) -> int:
        """The number of those; 0 at a server."""
        return self._loop.places

    @property
    def epochs(self) -> int:
        """The number of epochs that this worker has finished: that of the present one, from 0."""
        return int(self._member.epoch)

    @property
    def steps(self) -> int:
        """The number of gradient steps that this worker has finished: its clock."""
        return int(self._member.clock)

    @property
    def taken(self) -> int:
        """The number of steps of this epoch that are done.

        Not 0 at the beginning of an epoch in the middle of which a resumed run goes on: that many
        calls of ``step()`` are of no effect, and a loop may leave out their batches.
        """
        return int(self._member.taken)

    @property
    def versions(self) -> tuple[int, ...]:
        """By shard, how many updates are in the parameters here; empty without servers."""
        return tuple(self._member.versions)

    @property
    def theta(self) -> Vector:
        """(n,) float32, the parameters as this worker has them, to be read only.

        It changes with the next ``step()``; after the run it is what that has ended with.
        """
        whole: Vector = self._known_theta().view()
        self._was_read = True
        whole.flags.writeable = False
        return whole

    @property
    def parameters(self) -> Any:
        """The parameters in the form in which they were given, with their present values.

        Arrays are views that must not be written, and change with the next ``step()``.
        """
        self._known_theta()
        self._was_read = True
        return self._parameters

    def _known_theta(self) -> Vector:
        if self._theta is None:
            if not self._is_over:
                self._check_entered()
            raise ConfigError("workers have died: rank 0 and those that are left have parameters")
        return self._theta

    def metrics(
        self, *, loss: float | None = None, accuracy: float | None = None, **figures: float
    ) -> None:
        """Say what was found on held-out data with the present parameters, before ``epoch()``.

        What worker 0 says is in the metrics of the run; in its summary only if the run ends with
        the very parameters of worker 0. ``evaluate`` of ``Trainer`` is asked for the final ones.

        Args:
            loss: mean loss.
            accuracy: share of what was right, in [0, 1].
            figures: any others, by name.
        """
        if self._is_over:
            raise ConfigError(
                "training is over: say metrics() before the epoch() that returns False"
            )
        self._check_entered()
        known = {"loss": loss, "accuracy": accuracy, **figures}
        found = {name: _number(name, it) for name, it in known.items() if it is not None}
        self._loop.tell(self.theta, found)


def _whole(what: str, value: Any) -> int:
    """Return a number of steps or samples.

    Raises:
        ConfigError: if it is no whole number, or one that cannot be.
    """
    try:
        found = index(value)
    except TypeError:
        raise ConfigError(f"{what}: got {value!r}, expected a whole number") from None
    if not 0 <= found < _MOST:
        raise ConfigError(f"{what}: got {found}, expected a whole number from 0 on")
    return found


def _number(what: str, value: Any) -> float:
    """Return a figure.

    Raises:
        ConfigError: if it is none.
    """
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):  # torch's, of what requires a gradient
        raise ConfigError(f"{what}: got {type(value).__name__}, expected a number") from None


def _nothing(out: Vector) -> Sequence[str]:
    """Write no gradient, where a batch has no samples."""
    return ()
