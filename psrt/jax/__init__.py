"""Functions of JAX as problems of psrt: ``Problem``, for any tree of parameters.

A loop of one's own is ``psrt.Trainer``, whose parameters may be a tree of JAX's, too. Everything is
on the CPU. Nothing here imports MPI.
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
