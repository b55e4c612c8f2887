"""Topologies: who averages with whom, and with which weights, as data. Pure: no MPI, no time.

A topology is a period of rounds. Each round has a graph, whose edges say who sends to whom, and a
mixing matrix M on these edges: after the round rank i has Σ_j M[i, j] θ_j. A matrix is built, and
then verified by code that did not build it (``verify``); how fast disagreement shrinks follows from
its singular values (``spectrum``).
"""

from psrt.topology.graph import Graph
from psrt.topology.registry import GRAPHS, Topology, topology_of
from psrt.topology.verify import MixingError, verify

__all__ = ["GRAPHS", "Graph", "MixingError", "Topology", "topology_of", "verify"]
