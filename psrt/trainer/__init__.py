"""For the user's own training loop: ``Trainer``, under any mode, and ``ParameterServer``."""

from psrt.trainer.parameter_server import ParameterServer
from psrt.trainer.trainer import Trainer

__all__ = ["ParameterServer", "Trainer"]
