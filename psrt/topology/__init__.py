"""Topologies: who averages with whom, and with which weights, as data. Pure: no MPI, no time.

A topology is a period of rounds. Each round has a graph, whose edges say who sends to whom, and a
mixing matrix M on these edges: after the round rank i has Σ_j M[i, j] θ_j. A matrix is built, and
then verified by code that did not build it (``verify``); how fast disagreement shrinks follows from
its singular values (``spectrum``).

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
