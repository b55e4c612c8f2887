"""Sums of buckets of gradients by a codec, which keeps back what its messages lose of them.

A sum is divided by a total, in whose units a residual is (``transport.coded_sum``). Here that is
the number of ranks and, within ``join``, times the samples of the turn over those of the unit of
weights. All ranks know it before any gradient, so a bucket can start while backward runs. If
several turns with different numbers of samples accumulate, the means are still right; what is kept
back then counts as if all turns were as large as the last one.

A round that is not used leaves no trace in what is kept back: one of which a gradient or a mean is
not finite (the step will be skipped, or fail), that failed, or that only compares the ranks. Its
buckets are summed without the codec if their means are needed. So is a bucket whose gradient has
changed while its sum was in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch

from psrt.checkpoint.state import restore, state_of
from psrt.collective.ops import OPS
from psrt.core.arrays import Vector
from psrt.core.errors import CheckpointError, ConfigError
from psrt.core.partition import Span
from psrt.runtime.job_codec import JobCodec
from psrt.runtime.strategies.base import FramePlan, frame_plan
from psrt.torch.communicator import Communicator, Work
from psrt.torch.sums import Sums
from psrt.torch.weights import Turn
from psrt.transport.coded_sum import SumPart


class CodedSums(Sums):
    """One rank's part in all rounds; see ``Sums``."""

    keeps_back = True

    def __init__(
        self,
        communicator: Communicator,
        turn: Turn,
        codec: JobCodec,
        unit: Callable[[], float],
        arrays: Sequence[Vector],
    ) -> None:
        """Prepare the sums; collective.

        Args:
            communicator: of the ranks.
            turn: the current turn of ``join``.
            codec: of the gradients of all buckets, one after another.
            unit: returns the factor of the loss, as of a GradScaler; the same on every rank.
            arrays: of these buckets, float32.
        """
        super().__init__(communicator, arrays)
        # A codec is given gradients as they are, and returns means.
        self.scale = self.divisor = 1.0
        self._turn, self._text, self._unit = turn, codec.row.text, unit
        stops = np.cumsum([it.size for it in arrays]).tolist()
        spans = [Span(a, b) for a, b in zip([0, *stops[:-1]], stops, strict=True)]
        self._codec = codec.of_sums(communicator.rank)
        self._sums = communicator.coded_sums(self._codec, list(zip(arrays, spans, strict=True)))
        #: Rounds that were used, and the unit of what is kept back since then.
        self._rounds, self._kept_in = 0, 0.0
        #: By bucket that has started in this round, what was kept back before; whether it is open.
        self._before: list[Any] = []
        self._is_open = False

    @property
    def plan(self) -> FramePlan:
        """What this rank sends in a round; only where it sends anything, as rank 0 does."""
        plan = frame_plan([self._codec], "a step")
        assert plan is not None, "this rank speaks for its host"
        return plan

    @property
    def sent(self) -> tuple[int, int]:
        """Bytes of the frames that this rank has sent, and of the numbers that they represent."""
        stats = self._codec.counts.stats
        return stats.frame_bytes, stats.framed_bytes

    @property
    def factor(self) -> float:
        """What the means of this round were divided by, over the number of ranks."""
        return self._codec.total / self._communicator.size

    def start(self, bucket: int) -> Work:
        """Start the sum of a bucket."""
        if not bucket:
            self._begin()
        self._before.append(deepcopy(state_of(self._sums[bucket].parts)))
        # It would stay in the residual for ever.
        self.is_odd |= not _is_finite(self._arrays[bucket])
        return self._sums[bucket].start()

    def _begin(self) -> None:
        if self._is_open:  # an error has ended the last round
            self.drop()
        turn, unit, size = self._turn, self._unit(), self._communicator.size
        if unit != self._kept_in and self._kept_in:
            for part in self._codec.sums:
                part.rescale(unit / self._kept_in)
        share = turn.total / turn.unit if turn.number and turn.total else 1.0
        self._codec.begin_round(self._rounds, turn.epoch, size * share)
        self._kept_in, self._before = unit, []
        self._is_open, self.is_odd = True, False

    def settle(self, *, odd: bool) -> bool:
        """End a round; return whether it must be made again without the codec."""
        self._finish()
        # Means have the same bits on all ranks, so all come to the same answer.
        again = odd or not all(map(_is_finite, self._arrays))
        self._rounds += not again
        return again

    def drop(self) -> None:
        """Forget a round."""
        self._finish()
        for bucket in range(len(self._before)):
            self._undo(bucket)

    def repeat(self, bucket: int) -> None:
        """Forget the sum of a bucket in the newest round, and make it without the codec."""
        self._undo(bucket)
        array, size = self._arrays[bucket], self._communicator.size
        scale = OPS["mean"].scale(np.float32, size)  # a sum of large numbers would be infinite
        with np.errstate(all="ignore"):
            np.multiply(array, np.float32(scale), out=array)
            super().repeat(bucket)
            np.multiply(array, np.float32(1.0 / (self._codec.total * scale)), out=array)

    def _finish(self) -> None:
        for it in self._sums:
            it.wait()
        self._is_open = False

    def _undo(self, bucket: int) -> None:
        restore(self._sums[bucket].parts, self._before[bucket])

    def state_dict(self) -> dict[str, Any]:
        """Return what is kept back and counted on this rank; tensors are copies."""
        found: dict[str, Any] = _each(
            {**self._whose, **self._counted, "sums": state_of(self._kept)},
            np.ndarray,
            lambda it: torch.from_numpy(it.copy()),
        )
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of the same rank of as many, of the same codec and parameters.

        Raises:
            ConfigError: if it is of another; nothing is changed then.
        """
        for name, own in self._whose.items():
            if (given := state.get(name)) != own:
                raise ConfigError(f"the state has {name} {given}, expected {own}")
        before = deepcopy(state_of(self._kept))
        try:
            counted = {name: state[name] for name in self._counted}
            restore(self._kept, _each(state["sums"], torch.Tensor, lambda it: it.numpy()))
        except (CheckpointError, LookupError) as error:
            restore(self._kept, before)
            raise ConfigError(
                f"the state is not of these parameters in these buckets: {error}"
            ) from error
        self._rounds, self._kept_in, self._turn.epoch, used = counted.values()
        self.used = dict(used)

    @property
    def _whose(self) -> dict[str, object]:
        ranks = self._communicator
        return {"codec": self._text, "rank": ranks.rank, "ranks": ranks.size}

    @property
    def _counted(self) -> dict[str, Any]:
        epoch, used = self._turn.epoch, dict(self.used)
        return {"rounds": self._rounds, "unit": self._kept_in, "epoch": epoch, "used": used}

    @property
    def _kept(self) -> dict[str, Sequence[SumPart]]:
        return {str(i): it.parts for i, it in enumerate(self._sums)}

    def free(self) -> None:
        """Let the communicator use their memory for other calls."""
        for it in self._sums:
            it.close()


def _each(tree: Any, kind: type, made: Callable[[Any], Any]) -> Any:
    """Return a tree of dictionaries with something else in place of all of a kind."""
    if isinstance(tree, Mapping):
        return {name: _each(it, kind, made) for name, it in tree.items()}
    return made(tree) if isinstance(tree, kind) else tree


def _is_finite(array: Vector) -> bool:
    # The sum of an array with NaN or infinity is not finite. It may overflow where all are finite,
    # so only then every element is looked at.
    with np.errstate(all="ignore"):
        total = np.add.reduce(array)
    return bool(np.isfinite(total) or np.isfinite(array).all())
