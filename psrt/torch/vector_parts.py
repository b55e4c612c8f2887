"""A vector of psrt's in parts, one for each parameter, where the parameters are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from psrt.core.arrays import Vector
from psrt.core.partition import Span
from psrt.torch.staging import Device, Event, Mirror
from psrt.torch.views import address_of, tensor_on, tensors_on


class VectorParts:
    """Parts of a vector (n,): on the CPU views of it, else views of its mirror on the device.

    The vector may be another one in each step, and freed at any time. So a device copies from and
    to memory of its own, and the host copies between that and the vector.
    """

    def __init__(
        self, device: Device, spans: Sequence[Span], shapes: Sequence[Any], what: str
    ) -> None:
        """Note the layout.

        Args:
            device: of the parameters.
            spans: by parameter, its place in the vector; together all of it, in order.
            shapes: by parameter.
            what: the vector holds, for errors.
        """
        self._device, self._spans, self._shapes, self._what = device, spans, shapes, what
        #: The parts, while there is a vector.
        self.parts: list[Any] = []
        self._mirror: Mirror | None = None
        self._address: int | None = None

    def lie_on(self, vector: Vector) -> bool:
        """Make them parts of this vector; return whether they are other tensors than before.

        Raises:
            ConfigError: if the device has no memory for them.
        """
        if self._device.is_remote:
            if self._mirror is not None:
                return False
            host = self._device.memory(self._spans[-1].stop, torch.float32)
            self._mirror = self._device.mirror(host, self._what)
            self.parts = self._shaped(
                [_own(self._mirror.near[it.start : it.stop]) for it in self._spans]
            )
            return True
        if address_of(vector) == self._address:
            return False
        self._address = address_of(vector)
        self.parts = self.views(vector)
        return True

    def views(self, vector: Vector) -> list[Any]:
        """Return for each a tensor of its shape that is a view of a vector (n,) on the host.

        Each has its own storage, no larger than itself: ``torch.save`` of a submodule's
        ``state_dict`` then saves its tensors, not the whole vector.
        """
        return self._shaped(tensors_on([span.of(vector) for span in self._spans]))

    def _shaped(self, parts: Sequence[Any]) -> list[Any]:
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def send(self, vector: Vector) -> None:
        """Give the parts the values of the vector, for later work of the current stream."""
        if self._mirror is not None:
            self._mirror.settle()
            self._mirror.host.copy_(tensor_on(vector))
            self._mirror.give(0, vector.size)

    def wrote(self) -> None:
        """Note that the current stream has written to parts; only on a device, as the next two."""
        self._remote.wrote()

    def fetch(self, span: Span) -> Event:
        """Start to copy what the parts hold in a span to the host."""
        return self._remote.fetch(span.start, span.stop)

    def land(self, span: Span, vector: Vector) -> None:
        """Copy a span that has been fetched into the vector."""
        tensor_on(span.of(vector)).copy_(self._remote.host[span.start : span.stop])

    @property
    def _remote(self) -> Mirror:
        assert self._mirror is not None, "on the CPU the parts are the vector itself"
        return self._mirror

    def bring(self, vector: Vector) -> None:
        """Copy all parts into the vector, and wait for that."""
        if self._mirror is not None:
            whole = Span(0, vector.size)
            self.fetch(whole).synchronize()
            self.land(whole, vector)

    def look(self, span: Span) -> Any:
        """Return a copy of what the parts hold in a span, on the device; None on the CPU."""
        return None if self._mirror is None else self._mirror.near[span.start : span.stop].clone()

    def forget(self) -> None:
        """Drop the vector, and the mirror."""
        if self._mirror is not None:
            self._mirror.close()
        self.parts, self._mirror, self._address = [], None, None


def _own(view: Any) -> Any:
    """Return the same elements as a tensor whose storage is no larger than itself."""
    return torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(view))
