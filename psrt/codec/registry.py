"""The codecs by name, and both ends of one by plain arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psrt.codec.casts import BFloat16, Float16
from psrt.codec.codec import Codec, Encoder
from psrt.codec.demo import Demo
from psrt.codec.dgc import Dgc
from psrt.codec.feedback import ErrorFeedback
from psrt.codec.low_rank import LowRank
from psrt.codec.matrices import Matrix
from psrt.codec.quantize import Int8, Qsgd, Ternary, TernaryBase3
from psrt.codec.sign import Sign
from psrt.codec.small_floats import Float4E3M0, Float8E4M3, Float8E5M2
from psrt.codec.sparse import Nonzero, RandomK, Threshold, TopK
from psrt.errors import ConfigError

CODECS: dict[str, type[Codec]] = {
    it.row.name: it
    for it in (
        Float16, BFloat16, Float8E4M3, Float8E5M2, Float4E3M0, Int8, Qsgd, Ternary, TernaryBase3,
        Sign, TopK, Threshold, RandomK, LowRank, Dgc, Demo, Nonzero,
    )
}  # fmt: skip


def make_codec(name: str, n: int, *, matrices: Sequence[Matrix] = (), **knobs: Any) -> Codec:
    """Make a codec for vectors of n elements: a receiver's side.

    Args:
        name: in ``CODECS``.
        n: elements of a vector.
        matrices: in it, disjoint and in order; most codecs do not look at them.
        knobs: of the codec; those left out have their default.

    Raises:
        ConfigError: if there is no such codec, or it cannot be as asked.
    """
    try:
        codec = CODECS[name]
    except KeyError:
        raise ConfigError(f"unknown codec {name!r}, expected one of {', '.join(CODECS)}") from None
    given: dict[str, Any] = {**codec.row.knobs, **knobs}
    if codec.row.takes_matrices:
        given["matrices"] = matrices
    return codec(n, **given)


def make_encoder(
    name: str,
    n: int,
    *,
    error_feedback: bool | None = None,
    matrices: Sequence[Matrix] = (),
    **knobs: Any,
) -> Encoder:
    """Make a sender's side, with what it keeps back from vector to vector.

    Args:
        name: in ``CODECS``.
        n: elements of a vector.
        error_feedback: whether what is lost is added to the next vector; None as the row says.
        matrices: as in ``make_codec``.
        knobs: of the codec.

    Raises:
        ConfigError: as ``make_codec``.
    """
    codec = make_codec(name, n, matrices=matrices, **knobs)
    row = codec.row
    feeds_back = row.feeds_back_with(knobs) if error_feedback is None else error_feedback
    if feeds_back and (row.feeds_back is None or {**row.knobs, **knobs}.get("scaled")):
        what = "scaled" if "scaled" in row.knobs else "which is unbiased or keeps back by itself"
        raise ConfigError(f"error feedback around {name}, {what}: it would lead away, or twice")
    return ErrorFeedback(codec) if feeds_back else codec
