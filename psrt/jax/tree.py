"""A tree of JAX's as one flat vector: where each leaf lies, and the tree on top of a vector."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from psrt.arrays import AnyArray, Vector
from psrt.codec.matrices import Matrix
from psrt.errors import ConfigError
from psrt.partition import Span


class Tree:
    """The leaves of a tree of float32 arrays, in JAX's order."""

    def __init__(self, tree: Any) -> None:
        """Look at it; its values are not kept.

        Raises:
            ConfigError: if a leaf is no float32 array, or there is none.
        """
        named, self._structure = jax.tree_util.tree_flatten_with_path(tree)
        #: By leaf: its path, its shape, and where it lies.
        self.names = [jax.tree_util.keystr(path) or "parameters" for path, _ in named]
        for name, (_, leaf) in zip(self.names, named, strict=True):
            kind = getattr(leaf, "dtype", None)
            if kind != np.float32:
                found = type(leaf).__name__ if kind is None else kind
                raise ConfigError(f"params{name} is {found}, expected a float32 array")
        self.shapes: list[tuple[int, ...]] = [leaf.shape for _, leaf in named]
        stops = np.cumsum([0, *(np.prod(it, dtype=np.int64) for it in self.shapes)]).tolist()
        self.spans = [Span(a, b) for a, b in itertools.pairwise(stops)]
        #: Elements of the vector.
        self.n: int = stops[-1]
        if not self.n:
            raise ConfigError("params has no numbers, expected a tree of float32 arrays")

    def flat(self, tree: Any) -> Vector:
        """Return the leaves of such a tree one behind the other, (n,) float32, copied."""
        found = np.empty(self.n, np.float32)
        self.put(tree, found)
        return found

    def put(self, tree: Any, out: Vector) -> None:
        """Write the leaves of such a tree into ``out`` (n,)."""
        for it, view in zip(jax.tree_util.tree_leaves(tree), self.views(out), strict=True):
            np.copyto(view, np.asarray(it))

    def views(self, vector: Vector) -> Sequence[AnyArray]:
        """Return the leaves as views of a vector (n,)."""
        return [
            span.of(vector).reshape(shape)
            for span, shape in zip(self.spans, self.shapes, strict=True)
        ]

    def on(self, vector: Vector) -> Any:
        """Return the tree whose leaves are views of a vector (n,).

        JAX takes the memory of those that are aligned as it is, and copies the others: whatever is
        computed from them must be done before the vector changes.
        """
        return jax.tree_util.tree_unflatten(self._structure, self.views(vector))

    def matrices(self) -> list[Matrix]:
        """Return those of two axes or more, all but the last of them together.

        So a kernel of a convolution in JAX's order (height, width, in, out) is a matrix with a
        column for each output channel, as a dense layer's (in, out) is.
        """
        found = []
        for span, shape in zip(self.spans, self.shapes, strict=True):
            if len(shape) > 1 and min(shape[-1], span.size // max(1, shape[-1])) > 1:
                found.append(Matrix(span.start, span.size // shape[-1], shape[-1]))
        return found
