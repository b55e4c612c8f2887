"""A loop of the user's own under any mode: ``Trainer``, for numpy, torch and JAX alike."""

from psrt.trainer.trainer import Trainer

__all__ = ["Trainer"]
