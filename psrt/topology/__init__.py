"""Topologies: which ranks average with each other, and with which weights, as data. Pure.

A topology is a period of rounds. Each round has a graph, whose edges say which rank sends to which,
and a mixing matrix M on these edges: after the round rank i has Σ_j M[i, j] θ_j. A matrix is built,
and then verified by independent code (``verify``). How fast disagreement shrinks follows from its
singular values (``spectrum``).

The names below are looked up on first use: only ``names`` needs no numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psrt.core.lazy import on_first_use

if TYPE_CHECKING:
    from psrt.topology.graph import Graph
    from psrt.topology.registry import Topology, topology_of
    from psrt.topology.verify import MixingError

__all__ = ["Graph", "MixingError", "Topology", "topology_of"]

#: Public name → the module that has it.
_HOME = {
    "Graph": "psrt.topology.graph",
    **dict.fromkeys(("Topology", "topology_of"), "psrt.topology.registry"),
    "MixingError": "psrt.topology.verify",
}

__getattr__ = on_first_use(__name__, _HOME)
