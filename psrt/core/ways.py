"""Ways to sum vectors that a codec compresses: schedules offer them, and codecs choose.

The rows of codecs (``codec.table``) and of all-reduces (``collective.registry``) name ways;
``collective.analysis.pick`` finds those that they have in common.
"""

from __future__ import annotations

from enum import Enum


class Way(Enum):
    """How a sum is compressed."""

    #: Every message is a frame: contributions go to the owner of a chunk, and their mean to all.
    TWO_PHASES = "in two phases"
    #: Every message is a frame: each rank sends its own to all, and each rank sums.
    GATHERED = "gathered"
    #: The outputs of a linear codec are added element by element, as the vectors would be.
    STRAIGHT = "straight"
