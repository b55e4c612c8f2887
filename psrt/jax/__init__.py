"""JAX functions as problems of psrt: ``Problem``, for any tree of parameters.

For your own training loop use ``psrt.Trainer``, whose parameters may be a JAX tree, too. Everything
is on the CPU. Nothing here imports MPI.
"""

from __future__ import annotations

try:
    import jax as _jax
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "psrt.jax needs JAX, which pip installs: pip install 'jax[cpu]'", name="jax"
    ) from error

from psrt.jax.problem import Problem

__all__ = ["Problem"]

del _jax
