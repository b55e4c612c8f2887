"""Which optimizers move an element whose gradient is 0: rows say it, and it is so."""

import numpy as np

from psrt.optim.registry import OPTIMIZERS, make_optimizer
from psrt.partition import Span
from support.cases import each


@each("name", list(OPTIMIZERS))
def test_a_row_says_so(name):
    knobs = {"momentum": 0.9, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8}
    taken = {it: knobs[it] for it in OPTIMIZERS[name].knobs}
    optimizer, theta = make_optimizer(name, 1, **taken), np.ones(1, np.float32)
    for gradient in (1.0, 0.0):
        before = theta.copy()
        optimizer.begin(0.1)
        optimizer.update(Span(0, 1), theta, np.full(1, gradient, np.float32), theta)
    assert (theta != before).all() == OPTIMIZERS[name].coasts
