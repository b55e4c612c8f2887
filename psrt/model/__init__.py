"""The model: an MLP over one flat float32 vector, its activations and its losses."""

from psrt.model.activation import ACTIVATIONS, Activation
from psrt.model.loss import LOSSES, Loss
from psrt.model.mlp import MLP

__all__ = ["ACTIVATIONS", "LOSSES", "MLP", "Activation", "Loss"]
