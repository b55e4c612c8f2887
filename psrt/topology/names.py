"""The names of topologies, and what they are in a few words. Needs no numpy, as flags do not."""

from __future__ import annotations

from typing import Final

#: By name, its edges.
NAMES: Final = {
    "ring": "rank i and rank i + 1",
    "exponential": "rank i sends to i + 1, i + 2, i + 4, …",
    "one-peer-exponential": "rank i sends to i + 2^t in round t, and begins again after ⌈lg N⌉",
    "torus": "a grid of ranks whose ends meet, as square as N allows",
    "star": "rank 0 and each other rank",
    "full": "each rank and each other rank",
    "hypercube": "ranks whose numbers differ in one binary digit",
}
#: The one that is shown if none is named.
DEFAULT: Final = next(iter(NAMES))
#: Each rank and D others, drawn at random.
RANDOM: Final = "random-regular"
#: As a user may write them; what is none of the names is the path of a file of edges.
FORMS: Final = (*NAMES, f"{RANDOM}:D", "FILE")
