"""How the sum of vectors travels that a codec makes shorter: what schedules offer, codecs choose.

The rows of codecs (``codec.table``) and of all-reduces (``collective.registry``) name ways;
``collective.analysis.pick`` finds those that they have in common.
"""

from __future__ import annotations

from enum import Enum


class Way(Enum):
    """How the numbers of a sum become fewer bytes."""

    #: Every message is a frame: contributions to the owner of a chunk, and their mean to all.
    TWO_PHASES = "in two phases"
    #: Every message is a frame: each rank's to all, who sum for themselves.
    GATHERED = "gathered"
    #: What a linear codec makes of each vector is added element by element, as the vector would be.
    STRAIGHT = "straight"
