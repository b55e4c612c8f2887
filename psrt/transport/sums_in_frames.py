"""Maps an all-reduce to the sum in frames that uses its messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from psrt.collective import ALGORITHMS
from psrt.core.partition import Span
from psrt.core.ways import Way
from psrt.transport.coded_sum import CodedSum, FrameLink, SumCodec
from psrt.transport.gathered_sum import GatheredSum
from psrt.transport.two_phase_sum import TwoPhaseSum

_SUMS: Final[Mapping[Way, type[CodedSum]]] = {it.way: it for it in (TwoPhaseSum, GatheredSum)}


def sum_in_frames(
    algorithm: str, link: FrameLink, codec: SumCodec, span: Span, **rest: Any
) -> CodedSum:
    """Return one rank's part in the sums of a span; see ``CodedSum``.

    Args:
        algorithm: name of an all-reduce whose messages may be frames.
        link: carries the frames.
        codec: makes them.
        span: of the whole vector.
        rest: further arguments of ``CodedSum``.
    """
    make = next(_SUMS[way] for way in ALGORITHMS[algorithm].ways if way in _SUMS)
    return make(link, codec, span, **rest)
