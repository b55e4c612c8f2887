"""Everything of virtual time: a seeded scheduler, ports, links with costs, calibration."""

from psrt.simulation.costs import SimulationCosts
from psrt.simulation.simulator import Simulator

__all__ = ["SimulationCosts", "Simulator"]
