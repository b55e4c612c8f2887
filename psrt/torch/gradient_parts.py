"""Gradients of one backward pass, copied into psrt's buffer part by part."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from psrt.core.arrays import Vector
from psrt.core.errors import ConfigError
from psrt.core.partition import Span
from psrt.torch.parameters import Parameters
from psrt.torch.staging import Event


class _Flight(NamedTuple):
    """A copy of parts from a device to the host."""

    #: The part after the last one; where they lie in the buffer; and when they are there.
    stop: int
    span: Span
    event: Event


class GradientParts:
    """Copies each parameter's gradient to its place as soon as backward has finished it.

    Parts are handed over from the last parameter to the first; a part that is ready early waits for
    those before it. On the CPU, the hooks run in the thread that called ``backward``; on a GPU, in
    a thread of torch's for that device, while the other one waits.
    """

    def __init__(self, parameters: Parameters) -> None:
        """Register hooks on the parameters; outside of ``run`` the hooks do nothing."""
        self._parameters = parameters
        #: By part: the last parameter first.
        self._tensors = parameters.tensors[::-1]
        for part, tensor in enumerate(self._tensors):
            tensor.register_post_accumulate_grad_hook(partial(self._arrive, part))
        self.spans: tuple[Span, ...] = tuple(parameters.spans[::-1])
        #: The buffer as the parameters see it; where the gradients go there, by part.
        self._buffer = parameters.parts_of("gradients")
        self._places: list[Any] = []
        self._out: Vector = np.empty(0, np.float32)
        #: Whether a backward pass is running, and which parts it has finished.
        self._runs = False
        self._has_come = [False] * len(self._tensors)
        #: The first part that has not been handed over; the next ones that are being copied.
        self._next = 0
        self._flights: deque[_Flight] = deque()
        self._ready: Callable[[int], None] | None = None
        #: Elements that are worth a copy; 0 on the CPU, where nothing is copied.
        self._copied = parameters.device.copied

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
        if self._buffer.lie_on(out):
            self._places = self._buffer.parts[::-1]
        self._drop()
        self._flights.clear()
        self._next = 0
        self._out, self._ready, self._runs = out, ready, True
        self._has_come = [False] * len(self._tensors)
        try:
            loss.backward()
            for part, has_come in enumerate(self._has_come):
                if not has_come:
                    self._places[part].zero_()
                    self._has_come[part] = True
                    unused.append(self._parameters.names[-1 - part])
            self._hand_over(at_end=True)
        finally:
            self._runs, self._ready = False, None
            self._drop()
        return unused[::-1]

    def forget(self) -> None:
        """Drop the reference to the buffer."""
        self._buffer.forget()
        self._places, self._out = [], np.empty(0, np.float32)

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
        if self._copied:
            self._buffer.wrote()
        self._hand_over()

    def _hand_over(self, *, at_end: bool = False) -> None:
        """Hand over what is complete; copies from a device are waited for only at the end."""
        if self._copied:
            self._depart(at_end)
            self._land(at_end)
        else:
            while self._next < len(self._has_come) and self._has_come[self._next]:
                self._next += 1
                if self._ready is not None:
                    self._ready(self._next - 1)

    def _depart(self, at_end: bool) -> None:
        """Start to copy the next parts to the host, once they are worth a copy."""
        start = self._flights[-1].stop if self._flights else self._next
        stop = start
        while stop < len(self._has_come) and self._has_come[stop]:
            stop += 1
        if stop > start:
            span = Span(self.spans[stop - 1].start, self.spans[start].stop)
            if at_end or span.size >= self._copied:
                self._flights.append(_Flight(stop, span, self._buffer.fetch(span)))

    def _land(self, at_end: bool) -> None:
        while self._flights:
            flight = self._flights[0]
            if at_end:
                flight.event.synchronize()
            elif not flight.event.query():
                return
            self._flights.popleft()
            self._buffer.land(flight.span, self._out)
            for part in range(self._next, flight.stop):
                self._next = part + 1
                if self._ready is not None:
                    self._ready(part)
