"""Averaged gradients for any torch optimizer, in the user's own training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
import torch

from psrt.core.arrays import Vector
from psrt.core.errors import ConfigError, DifferentCallsError
from psrt.data.keyed import whole_weight
from psrt.runtime.job_codec import JobCodec
from psrt.torch.asked_codec import asked_codec, least_bucket
from psrt.torch.coded_sums import CodedSums
from psrt.torch.communicator import Communicator
from psrt.torch.passes import pass_number
from psrt.torch.replica import Replica, trained_by
from psrt.torch.rounds import Rounds
from psrt.torch.rules import check_communicator, check_module, said
from psrt.torch.weights import turn_of

_BUCKET_BYTES = 1 << 20
#: Optimizer steps between two comparisons of the ranks. One takes 1 ms with 0.2 million parameters
#: under Adam, so 0.25 % of steps of 2 ms; the words summed in each pass take 10 µs, 0.5 %.
_CHECK_EVERY = 200


class Gradients:
    """Makes each ``grad`` the mean over all ranks before ``backward()`` returns.

    So a loop that clips or scales gradients afterwards works on the mean, and nothing else in the
    loop changes. Sums overlap with backward. All ranks start with the parameters of rank 0, and
    end each step with the same bits.

    >>> with psrt.Communicator() as ranks:                                    # doctest: +SKIP
    ...     with psrt.torch.Gradients(optimizer, ranks, module=module) as gradients:
    ...         for x, y in gradients.join(batches):
    ...             optimizer.zero_grad()
    ...             loss(module(x), y).backward()
    ...             optimizer.step()

    Every rank makes the same backward passes, except those in ``no_sync``. A parameter that no
    rank's loss uses has no gradient; one that only some ranks use gets the mean, with zeros of the
    others. A rank without a loss in a step takes part by ``wait()`` or ``optimizer.step()``.
    """

    def __init__(
        self,
        optimizer: Any,
        communicator: Communicator,
        *,
        module: Any = None,
        bucket_bytes: int = _BUCKET_BYTES,
        check_every: int = _CHECK_EVERY,
        codec: Any = None,
        codec_reply: Any = None,
        codec_everywhere: bool = False,
        error_feedback: bool | None = None,
        seed: int = 0,
        scaler: Any = None,
        say: Callable[[str], None] = print,
    ) -> None:
        """Register hooks, and give all ranks the parameters of rank 0; collective.

        Args:
            optimizer: of torch, with the same parameters in the same order on every rank: float32,
                float64, bfloat16, float16 or complex, all on the CPU or on one GPU.
            communicator: must stay open as long as this. Each of several optimizers may have its
                own Gradients on one communicator.
            module: the module of these parameters. Its buffers and frozen parameters become those
                of rank 0, too, and errors name its tensors.
            bucket_bytes: the sum of a bucket starts once it holds this many bytes of gradients.
            check_every: optimizer steps between two comparisons of parameters, optimizer states and
                options among the ranks. They are also compared at the start, after the first step
                and at the end; 0 compares only at the start.
            codec: compresses what hosts send each other, as in ``psrt.TrainConfig``:
                ``"top-k:density=0.01"``. Inside hosts gradients are summed as they are. Parameters
                are float32, float16 or bfloat16 then, and buckets of a large model are larger.
            codec_reply: another codec for means on their way back, likewise.
            codec_everywhere: use the codec even on one host, where it only costs time.
            error_feedback: add what the codec lost of one gradient to the next; None follows the
                codec.
            seed: of what codecs draw at random.
            scaler: a GradScaler; what a codec keeps back follows its scale.
            say: called at rank 0 with a line that says what a codec sends, or why nothing.

        Raises:
            ConfigError: if the optimizer is of another kind, or a codec is impossible for it; on
                every rank, if the ranks differ in more than the values of parameters and buffers.
        """
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ConfigError(f"the optimizer is {said(optimizer)}, expected one of torch.optim")
        if bucket_bytes < 1:
            raise ConfigError(f"bucket_bytes must be at least 1, got {bucket_bytes}")
        if check_every < 0:
            raise ConfigError(f"check_every must be at least 0, got {check_every}")
        if module is not None:
            check_module(module)
        if scaler is not None and (codec is None or not hasattr(scaler, "get_scale")):
            raise ConfigError(
                f"the scaler is {said(scaler)}, expected a GradScaler of a loop with a codec; else "
                "Gradients need none"
            )
        check_communicator(communicator)
        self._communicator, self._turn = communicator, turn_of(communicator)
        self._replica = Replica(optimizer, module)
        taken = {id(it) for one in self._turn.members for it in one.tensors}
        device = self._replica.check(taken)
        asked = {
            "codec": codec, "codec_reply": codec_reply, "codec_everywhere": codec_everywhere,
            "error_feedback": error_feedback, "seed": seed,
        }  # fmt: skip
        names, tensors = self._replica.names, self._replica.tensors
        found = asked_codec(names, tensors, communicator, say, **asked)
        settings = bucket_bytes, check_every, scaler is None, *map(str, asked.values())
        self._replica.begin_alike(communicator, settings)
        self._coded: CodedSums | None = None
        if found is not None:
            bucket_bytes = max(bucket_bytes, least_bucket(tensors))
        self._rounds = Rounds(
            self._replica,
            communicator,
            self._turn,
            device,
            bucket_bytes=bucket_bytes,
            check_every=check_every,
            sums=None if found is None else partial(self._by_codec, found, scaler, say),
        )
        #: Whether backward passes only accumulate, on this rank.
        self._adds_up = False
        #: Whether this rank repeats its last batch, since others have more batches.
        self.ran_out = False
        self._hooks = [
            it.register_post_accumulate_grad_hook(partial(self._arrive, i))
            for i, it in enumerate(self._replica.tensors)
        ]
        self._hooks.append(optimizer.register_step_pre_hook(self._before_step))
        self._hooks.append(optimizer.register_step_post_hook(lambda *_: self._rounds.step()))
        self._turn.add(self._rounds.weights)

    def _by_codec(
        self, codec: JobCodec, scaler: Any, say: Callable[[str], None], arrays: Sequence[Vector]
    ) -> CodedSums:
        """Make the sums of buckets by a codec."""
        unit = (lambda: 1.0) if scaler is None else scaler.get_scale
        self._coded = CodedSums(self._communicator, self._turn, codec, unit, arrays)
        if self._communicator.rank == 0:
            say(codec.described_sums(self._coded.plan))
        return self._coded

    @property
    def frame_bytes(self) -> int:
        """Bytes of a codec's frames that this rank has sent so far; 0 without a codec."""
        return 0 if self._coded is None else self._coded.sent[0]

    @property
    def framed_bytes(self) -> int:
        """Bytes of the numbers that these frames represent."""
        return 0 if self._coded is None else self._coded.sent[1]

    @property
    def epoch(self) -> int:
        """The number of ``join`` loops so far, for codecs that send more in the first epochs.

        All Gradients of the communicator share it. Set it, on every rank, in a loop without
        ``join``.
        """
        return self._turn.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._turn.epoch = whole_weight(epoch, "epoch")

    def state_dict(self) -> dict[str, Any]:
        """Return what a codec keeps back on this rank, of gradients so far; empty without a codec.

        ``torch.load(weights_only=True)`` reads it again.
        """
        return {} if self._coded is None else self._coded.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the ``state_dict`` of this rank, on every rank.

        Raises:
            ConfigError: if it is of another rank, number of ranks, codec, or of other parameters or
                buckets; nothing is changed then.
        """
        if self._coded is not None:
            self._coded.load_state_dict(state)
        elif state:
            raise ConfigError(
                f"the state has codec {state.get('codec')}, expected an empty one: no codec has an "
                "effect here"
            )

    def wait(self) -> None:
        """Take part in a step for which this rank has made no backward pass; collective.

        It also sums what ``no_sync`` accumulated. If ``backward()`` has summed everything, it does
        nothing, so a call before clipping is harmless.

        Raises:
            PsrtError: as ``backward()``.
        """
        if not self._adds_up and self._rounds.is_due():
            self._rounds.bring_together()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let backward passes only accumulate gradients; the first pass after the block sums them.

        As in torch's DistributedDataParallel; divide the loss of each pass by their number.
        """
        before, self._adds_up = self._adds_up, True
        try:
            yield
        finally:
            self._adds_up = before

    def join(
        self, batches: Iterable[Any], samples: Callable[[Any], int] | None = None
    ) -> Iterator[Any]:
        """Yield this rank's batches until no rank has any left; collective.

        A gradient is weighted by the samples of its batch, so the mean is over all samples of all
        ranks, and of all turns over which it accumulates. A rank that has run out gets its last
        batch again, with weight 0; ``ran_out`` is then true. It takes the same steps with the same
        bits as the others. All Gradients of the communicator use these weights.

        Args:
            batches: one for each step; ranks may have different numbers of them.
            samples: returns the number of samples, or tokens, that the loss of a batch averages;
                None takes the length of the batch, or of its first part if it is a tuple.

        Raises:
            ConfigError: on every rank, if one has no batch at all, or if another ``join`` started
                within this one and has not ended; or if the samples cannot be counted.
        """
        count = _samples_in if samples is None else samples
        own, batch, has_any = iter(batches), None, False
        sums, turn = np.zeros(3, np.int64), self._turn
        before = turn.now  # of an enclosing join
        try:
            while True:
                try:
                    batch, has_any, self.ran_out = next(own), True, False
                except StopIteration:
                    self.ran_out = True
                mine = 0 if self.ran_out else whole_weight(count(batch), "join(samples=)")
                # Of this turn: samples, ranks with a batch, ranks that never had one.
                sums[:] = mine, not self.ran_out, not has_any
                try:
                    self._communicator.all_reduce(sums)
                except DifferentCallsError as error:
                    raise turn.explained(error) from error
                total, remaining, without = sums.tolist()
                if not remaining:
                    turn.epoch += not before[0]
                    return
                if without:
                    raise ConfigError(
                        f"join() got no batch at all on {without} of {self._communicator.size} "
                        "ranks; expected at least one on each"
                    )
                number = turn.begin(mine, total)
                yield batch
                if turn.number != number:
                    raise ConfigError(
                        "another join() has begun since this one's last batch, and has not ended; "
                        "expected join(zip(batches, others), samples=) to go through both at once"
                    )
        finally:
            self.ran_out = False
            turn.end(*before)

    def close(self) -> None:
        """Compare the ranks a last time, and remove the hooks; collective.

        The communicator must still be open.

        Raises:
            ConfigError: on every rank, if they differ, such as in the number of backward passes.
        """
        if not self._hooks:
            return
        self._remove_hooks()
        try:
            self._rounds.close()
        finally:
            self._rounds.free()

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._turn.remove(self._rounds.weights)
        self._rounds.leave()

    def __enter__(self) -> Gradients:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:  # the communicator tells the others
            self._remove_hooks()
            self._rounds.free()

    def _arrive(self, i: int, tensor: Any) -> None:
        """Take a gradient; called by backward once it is in ``grad``."""
        self._rounds.arrive(i, adds_up=self._adds_up)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if pass_number() >= 0:
            raise ConfigError(
                "optimizer.step() came within backward(), before the gradients are means; expected "
                "it after backward()"
            )
        known = set(map(id, self._replica.tensors))
        for tensor in trained_by(optimizer):
            if id(tensor) not in known:
                raise ConfigError(
                    f"the optimizer has a parameter of shape {tuple(tensor.shape)} that was frozen "
                    "or absent when Gradients was made; expected close(), then a new Gradients"
                )
        _, *given = args  # the optimizer comes first
        if all(it is None for it in (*given, *kwargs.values())):  # else backward is in the closure
            self.wait()


def _samples_in(batch: Any) -> int:
    """Return the number of samples of a batch of the kinds that data loaders make."""
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    first = batch[0] if isinstance(batch, list | tuple) and batch else batch
    if not isinstance(first, torch.Tensor | np.ndarray) or not first.ndim:
        raise ConfigError(
            f"join() cannot count the samples of {said(batch)}; expected a tensor, or several in a "
            "tuple, list or dict, or join(batches, samples=) to count them"
        )
    return len(first)
