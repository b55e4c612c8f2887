"""Parameters that a worker's loss does not use, which a single process would not change. Pure.

θ is one vector, of which an optimizer cannot skip elements: a missing gradient is summed and
applied as zeros. Plain steps leave such an element unchanged, but weight decay and momentum do not.
"""

from __future__ import annotations

from collections.abc import Sequence

from psrt.config import TrainConfig
from psrt.core.errors import ConfigError


class NoGradient:
    """Refuses a worker's step that would move parameters without a gradient.

    If an update is of the mean over several workers, zeros are right if any other worker uses the
    parameter, which this one does not know. So only its first gradient is checked, and only for
    weight decay, since momentum is 0 for a parameter that never had a gradient.
    """

    def __init__(self, config: TrainConfig, workers: int) -> None:
        """Set up.

        Args:
            config: resolved.
            workers: of the job.
        """
        self._is_mean = workers > 1 and config.scheme.means_gradients
        optimizer, decay = config.optimizer, config.weight_decay
        #: What moves one that never had a gradient, and one that had.
        self._moves_new = optimizer.moves_without(decay, had_one=False)
        self._moves_old = self._moves_new or optimizer.moves_without(decay)
        #: Those that never had one here since this process began; None before the first step.
        self._never: frozenset[str] | None = None

    def check(self, names: Sequence[str], step: int, worker: str, *, is_first: bool) -> None:
        """Check a step.

        Args:
            names: of the parameters that had no gradient.
            step: its number, from 1 on.
            worker: what the worker is called.
            is_first: whether the gradient is the first one of this worker in the run.

        Raises:
            ConfigError: if one of them would move.
        """
        old = [it for it in names if self._never is not None and it not in self._never]
        self._never = frozenset(names).difference(old)
        moves, moved = self._moves_new, names
        if not moves:
            moves, moved = self._moves_old, old
        if self._is_mean and not (is_first and self._moves_new):
            return
        if moves and moved:
            raise ConfigError(
                f"{moved[0]} had no gradient at step {step} on worker {worker}, but {moves} would "
                "move it anyway: requires_grad_(False) leaves it out of training, 0 times "
                "its sum() in the loss says that zeros are meant; else take sgd or adagrad without "
                "weight decay, or psrt.torch.Gradients with a torch optimizer"
            )
