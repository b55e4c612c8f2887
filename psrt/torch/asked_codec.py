"""The codec that a loop asks for, in the words of ``psrt.TrainConfig`` and by its rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from psrt.config import TrainConfig
from psrt.config.checks import check_matrices
from psrt.config.modes import AllReduce
from psrt.config.resolve import resolve
from psrt.core.errors import ConfigError
from psrt.runtime.job_codec import JobCodec, job_codec
from psrt.torch.buckets import SUMMED_AS
from psrt.torch.communicator import Communicator
from psrt.torch.parameters import matrices_at

#: A codec's sums are kept, each with places for two calls, of which a communicator has 256.
_MOST_BUCKETS = 32


def asked_codec(
    names: Sequence[str],
    tensors: Sequence[Any],
    communicator: Communicator,
    say: Callable[[str], None],
    **asked: Any,
) -> JobCodec | None:
    """Return the codec of the sums of gradients; None if they are summed as they are.

    Args:
        names: of the tensors, for errors.
        tensors: parameters, whose gradients lie one after another, the last one first.
        communicator: of the ranks.
        say: called at rank 0 with a line for the user where the codec has no effect.
        asked: knobs of ``TrainConfig``.

    Raises:
        ConfigError: if the codec is impossible, or not for these parameters.
    """
    if asked["codec"] is None and not any(asked.values()):
        return None
    # None: a knob that is off needs no codec.
    given = {name: it for name, it in asked.items() if it is not False or name == "error_feedback"}
    config = resolve(TrainConfig(mode=AllReduce(), **given), ranks=communicator.size)
    if config.codec is None:
        return None
    for name, it in zip(names, tensors, strict=True):
        if SUMMED_AS[it.dtype] is not torch.float32:
            raise ConfigError(
                f"{name} is {it.dtype}, but codec {config.codec} encodes float32; expected "
                "float32, float16 or bfloat16, or another Gradients without a codec for it"
            )
    shapes, starts, at = [tuple(it.shape) for it in tensors][::-1], list[int](), 0
    for it in reversed(tensors):
        starts.append(at)
        at += it.numel()
    matrices = matrices_at(starts, shapes)
    check_matrices(config, [(it.rows, it.columns) for it in matrices])
    if why := _without_effect(communicator, everywhere=bool(config.codec_everywhere)):
        if communicator.rank == 0:
            say(f"codec {config.codec} has no effect {why}")
        return None
    return job_codec(replace(config, codec_everywhere=True), matrices)


def _without_effect(communicator: Communicator, *, everywhere: bool) -> str:
    if communicator.size == 1:
        return "with one rank, which sends nothing"
    if len(communicator.hosts) == 1 and not everywhere:
        return "on one host, whose ranks share memory; codec_everywhere=True uses it anyway"
    return ""


def least_bucket(tensors: Sequence[Any]) -> int:
    """Return the bytes from which on buckets are large enough for the sums of a codec."""
    nbytes: int = 4 * sum(it.numel() for it in tensors)
    return nbytes // _MOST_BUCKETS + 1
