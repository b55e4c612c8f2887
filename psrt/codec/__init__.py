"""Vectors in fewer bytes, and back: casts, quantization, signs, sparse vectors, error feedback.

``table.py`` has a row for each codec, and ``codec.py`` their common interface. The names
below are looked up on first use: only the table needs no numpy, and flags are made from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psrt.codec.table import CODECS, CodecRow
from psrt.core.lazy import on_first_use

if TYPE_CHECKING:
    from psrt.codec.codec import Codec, Encoder
    from psrt.codec.feedback import ErrorFeedback
    from psrt.codec.matrices import Matrix, matrices_of_part, matrices_side_by_side, matrices_within
    from psrt.codec.randomness import draws

__all__ = [
    "CODECS",
    "Codec",
    "CodecRow",
    "Encoder",
    "ErrorFeedback",
    "Matrix",
    "draws",
    "matrices_of_part",
    "matrices_side_by_side",
    "matrices_within",
]

#: Public name → the module that has it.
_HOME = {
    **dict.fromkeys(("Codec", "Encoder"), "psrt.codec.codec"),
    "draws": "psrt.codec.randomness",
    "ErrorFeedback": "psrt.codec.feedback",
    **dict.fromkeys(
        ("Matrix", "matrices_of_part", "matrices_side_by_side", "matrices_within"),
        "psrt.codec.matrices",
    ),
}

__getattr__ = on_first_use(__name__, _HOME)
