"""The codecs by name: one row each."""

from __future__ import annotations

from typing import Any

from psrt.codec.casts import BFloat16, Float16
from psrt.codec.codec import Codec
from psrt.codec.dgc import Dgc
from psrt.codec.low_rank import LowRank
from psrt.codec.quantize import Int8, Qsgd, Ternary, TernaryBase3
from psrt.codec.sign import Sign
from psrt.codec.small_floats import Float4E3M0, Float8E4M3, Float8E5M2
from psrt.codec.sparse import RandomK, Threshold, TopK
from psrt.errors import ConfigError

CODECS: dict[str, type[Codec]] = {
    it.name: it
    for it in (
        Float16, BFloat16, Float8E4M3, Float8E5M2, Float4E3M0, Int8, Qsgd, Ternary, TernaryBase3,
        Sign, TopK, Threshold, RandomK, LowRank, Dgc,
    )
}  # fmt: skip


def make_codec(name: str, n: int, **knobs: Any) -> Codec:
    """Make a codec for vectors of n elements.

    Args:
        name: in ``CODECS``.
        n: elements of a vector.
        knobs: of the codec; those left out have their default.

    Raises:
        ConfigError: if there is no such codec, or it cannot be as asked.
    """
    try:
        codec = CODECS[name]
    except KeyError:
        raise ConfigError(f"unknown codec {name!r}, expected one of {', '.join(CODECS)}") from None
    return codec(n, **knobs)
