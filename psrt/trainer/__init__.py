"""A loop of the user's own: ``Trainer``, under any mode, and ``ParameterServer``, by names."""

from psrt.trainer.parameter_server import ParameterServer
from psrt.trainer.trainer import Trainer

__all__ = ["ParameterServer", "Trainer"]
