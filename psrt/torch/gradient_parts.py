"""Gradients of one backward pass, copied into psrt's buffer part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from psrt.core.arrays import Vector
from psrt.core.errors import ConfigError
from psrt.core.partition import Span
from psrt.torch.parameters import Parameters
from psrt.torch.views import address_of


class GradientParts:
    """Copies each parameter's gradient to its place as soon as backward has finished it.

    Parts are handed over from the last parameter to the first; a part that is ready early waits for
    those before it. On the CPU, the hooks run in the thread that called ``backward``.
    """

    def __init__(self, parameters: Parameters) -> None:
        """Register hooks on the parameters; outside of ``run`` the hooks do nothing."""
        self._parameters = parameters
        #: By part: the last parameter first.
        self._tensors = parameters.tensors[::-1]
        for part, tensor in enumerate(self._tensors):
            tensor.register_post_accumulate_grad_hook(partial(self._arrive, part))
        self.spans: tuple[Span, ...] = tuple(parameters.spans[::-1])
        #: Where the gradients go, by part; and the buffer that these are views of.
        self._places: list[Any] = []
        self._address: int | None = None
        #: Whether a backward pass is running, and which parts it has finished.
        self._runs = False
        self._has_come = [False] * len(self._tensors)
        #: The first part that has not been handed over.
        self._next = 0
        self._ready: Callable[[int], None] | None = None

    def run(self, loss: Any, out: Vector, ready: Callable[[int], None] | None) -> Sequence[str]:
        """Write the gradient of a loss into ``out`` (n,); that of an unused parameter is 0.

        Args:
            loss: a scalar.
            out: psrt's buffer.
            ready: called with each part once it is complete; see ``psrt.Problem``.

        Returns:
            The names of unused parameters, in the order of the module.
        """
        unused = []
        if address_of(out) != self._address:
            self._places = self._parameters.views(out)[::-1]
            self._address = address_of(out)
        self._drop()
        self._next, self._ready, self._runs = 0, ready, True
        self._has_come = [False] * len(self._tensors)
        try:
            loss.backward()
            for part, has_come in enumerate(self._has_come):
                if not has_come:
                    self._places[part].zero_()
                    self._has_come[part] = True
                    unused.append(self._parameters.names[-1 - part])
            self._hand_over()
        finally:
            self._runs, self._ready = False, None
            self._drop()
        return unused[::-1]

    def forget(self) -> None:
        """Drop the reference to the buffer."""
        self._places, self._address = [], None

    def _drop(self) -> None:
        for tensor in self._tensors:
            tensor.grad = None

    def _arrive(self, part: int, tensor: Any) -> None:
        """Copy a gradient: called by backward, once for each parameter."""
        if not self._runs:
            return
        if self._has_come[part]:
            name = self._parameters.names[-1 - part]
            raise ConfigError(
                f"the gradient of {name} came twice in one backward pass, as with "
                "torch.utils.checkpoint(use_reentrant=True); expected use_reentrant=False"
            )
        gradient = tensor.grad
        self._places[part].copy_(gradient.to_dense() if gradient.is_sparse else gradient)
        tensor.grad = None
        self._has_come[part] = True
        self._hand_over()

    def _hand_over(self) -> None:
        while self._next < len(self._has_come) and self._has_come[self._next]:
            part = self._next
            self._next += 1
            if self._ready is not None:
                self._ready(part)
