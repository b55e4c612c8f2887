"""Discrete-event simulation of a job: a seeded scheduler, ports, a network model, calibration."""

from psrt.simulation.costs import SimulationCosts
from psrt.simulation.simulator import Simulator

__all__ = ["SimulationCosts", "Simulator"]
