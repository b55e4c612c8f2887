"""The trainable parameters of a module as one flat vector, and the module on top of that vector."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from psrt.codec.matrices import Matrix
from psrt.core.arrays import AnyArray, Vector
from psrt.core.errors import ConfigError
from psrt.core.partition import Span
from psrt.runtime.problem_rules import WrittenError
from psrt.torch.names import plain_name
from psrt.torch.rules import check_module, check_trainable
from psrt.torch.staging import device_of, to_host
from psrt.torch.vector_parts import VectorParts

#: The floating-point types that numpy also has.
_FLOATS = (torch.float16, torch.float32, torch.float64)


#: The number of parts of the vector, one of which each step compares in turn; the fewest elements
#: of a part.
_WINDOWS, _WINDOW = 32, 1 << 12


class Parameters:
    """The trainable parameters, in the order of ``module.parameters()``, tied ones once.

    While psrt trains, they are views of its vector: the module computes with the same memory that
    the optimizer updates. On a GPU they are views of a copy, which ``bind`` renews. ``release``
    gives them memory of their own again.
    """

    def __init__(self, module: Any) -> None:
        """Find them.

        Raises:
            ConfigError: if there are none, one is not float32, or they are on several devices.
        """
        check_module(module)
        self.module = module
        named = [
            (plain_name(module, name), it)
            for name, it in module.named_parameters()
            if it.requires_grad and it.numel()
        ]
        if not named:
            raise ConfigError(
                "the module has no trainable parameters; expected some with requires_grad"
            )
        for name, it in named:
            check_trainable(it, name)
        #: Where they are.
        self.device = device_of([(f"parameter {name}", it) for name, it in named])
        #: By position: name, tensor, shape.
        self.names = [name for name, _ in named]
        self.tensors = [it for _, it in named]
        self._shapes = [it.shape for it in self.tensors]
        stops = np.cumsum([it.numel() for it in self.tensors]).tolist()
        #: The span of each in the vector.
        self.spans = [Span(a, b) for a, b in zip([0, *stops[:-1]], stops, strict=True)]
        #: The number of elements of the vector.
        self.n: int = stops[-1]
        #: Of the vector that they are views of; empty if they have memory of their own.
        self._vector = self.parts_of("the parameters")
        #: Their version counters while they should only be read; and a span with its bytes.
        self._versions: list[int] = []
        self._seen = Span(0, 0), b""
        #: Who should only have read, and what a device then had in this span; not compared yet.
        self._look: tuple[str, Any] | None = None

    def parts_of(self, what: str) -> VectorParts:
        """Return a vector (n,) in parts like these; ``what`` it holds is for errors."""
        return VectorParts(self.device, self.spans, self._shapes, what)

    def values(self) -> Vector:
        """Return a copy of their values, (n,) float32."""
        found: Vector = to_host(torch.cat([it.detach().reshape(-1) for it in self.tensors])).numpy()
        return found

    def check(self) -> None:
        """Check that the module still has these parameters and no other trainable ones.

        Raises:
            ConfigError: naming one that was replaced, added, moved, or has another type or shape.
        """
        now = {plain_name(self.module, name): it for name, it in self.module.named_parameters()}
        for name, tensor, shape in zip(self.names, self.tensors, self._shapes, strict=True):
            if now.pop(name, None) is not tensor or tensor.shape != shape:
                raise ConfigError(
                    f"parameter {name} was replaced after the problem was made; expected one of "
                    "the finished module"
                )
            check_trainable(tensor, name)
            if tensor.device != self.device.device:
                raise ConfigError(
                    f"parameter {name} is on {tensor.device}, expected {self.device.device}, where "
                    "it was when the problem was made"
                )
        for name, tensor in now.items():
            if tensor.requires_grad and tensor.numel():
                raise ConfigError(
                    f"parameter {name} requires a gradient, but did not when the problem was made; "
                    "expected one of the finished module"
                )

    def bind(self, theta: Vector) -> None:
        """Make them views of a vector (n,), which still belongs to the caller."""
        if self._vector.lie_on(theta):
            for tensor, part in zip(self.tensors, self._vector.parts, strict=True):
                tensor.data = part
        self._vector.send(theta)

    def versions(self) -> list[int]:
        """Return torch's count of writes to each, which leaves out writes to its ``data``."""
        return [it._version for it in self.tensors]

    def begin_reading(self, theta: Vector, *, whole: bool = False) -> None:
        """Remember their state, before user code that should only read them.

        Torch counts writes to a tensor, but not writes to its ``data``. To find those, a span is
        compared: the whole vector, or the next part of it at each call.
        """
        self._versions = self.versions()
        size = self.n if whole else max(_WINDOW, -(-self.n // _WINDOWS))
        start = self._seen[0].stop % self.n
        span = Span(0 if whole else start, min(start + size, self.n))
        self._seen = span, span.of(theta).tobytes()

    def check_read(self, by: str, theta: Vector | None = None) -> None:
        """Check that they were only read since ``begin_reading``.

        Args:
            by: the user code, for the error.
            theta: (n,), if nothing else has written to it; None if something may have.

        Raises:
            WrittenError: naming the first that was written.
        """
        pairs = zip(self.tensors, self._vector.parts, self._versions, strict=True)
        for i, (tensor, part, version) in enumerate(pairs):
            if tensor._version != version or tensor.data_ptr() != part.data_ptr():
                raise WrittenError(f"{by} wrote to parameter {self.names[i]}")
        if theta is None:
            return
        if (now := self._vector.look(self._seen[0])) is None:
            self._compare(by, self._seen[0].of(theta))
        else:
            self._look = by, now

    def finish_reading(self) -> None:
        """Compare what ``check_read`` has left: it does not wait for a device.

        Raises:
            WrittenError: as ``check_read``.
        """
        look, self._look = self._look, None
        if look is not None:
            self._compare(look[0], to_host(look[1]).numpy())

    def _compare(self, by: str, now: Vector) -> None:
        span, before = self._seen
        if now.tobytes() == before:
            return
        written = now.view(np.uint32) != np.frombuffer(before, np.uint32)
        at = span.start + int(np.flatnonzero(written)[0])
        name = next(name for name, it in zip(self.names, self.spans, strict=True) if at < it.stop)
        raise WrittenError(f"{by} wrote to parameter {name}")

    def gather(self) -> bool:
        """Copy the ``data`` of a parameter into the vector where it was replaced.

        Replaced: it is other memory, or the same with other strides, so no longer a view of its
        part. Return whether any was.
        """
        found = False
        for tensor, part in zip(self.tensors, self._vector.parts, strict=True):
            if tensor.data_ptr() != part.data_ptr() or tensor.stride() != part.stride():
                part.copy_(tensor.data)
                tensor.data = part
                found = True
        return found

    def bring(self, theta: Vector) -> None:
        """Copy what was written to them into the vector, where they are on a device."""
        self._vector.bring(theta)

    def release(self) -> None:
        """Give them memory of their own, with the same values."""
        if self._vector.parts:
            for tensor in self.tensors:
                tensor.data = tensor.data.clone()
            self._vector.forget()

    def load(self, theta: Vector) -> None:
        """Copy a vector (n,) into them, in memory of their own."""
        self.release()
        with torch.no_grad():
            for tensor, part in zip(self.tensors, self._vector.views(theta), strict=True):
                tensor.copy_(part)

    def matrices(self) -> list[Matrix]:
        """Return those with two dimensions or more, all but the first of them together.

        So a convolution kernel (out, in, height, width) is a matrix with one row per output
        channel.
        """
        return matrices_at([span.start for span in self.spans], self._shapes)

    def frozen(self) -> Iterator[tuple[str, AnyArray]]:
        """Yield name and numbers of the module's other parameters."""
        for name, tensor in self.module.named_parameters():
            if not tensor.requires_grad:
                yield plain_name(self.module, name), as_array(tensor)

    def named(self, theta: Vector) -> dict[str, AnyArray]:
        """Return the contents of ``module.state_dict()`` with the parameters in a vector (n,).

        The module holds these parameters meanwhile, so its own hooks that change the dictionary
        take effect. Entries other than tensors are left out.
        """
        before = [it.data for it in self.tensors]
        try:
            for tensor, part in zip(self.tensors, self._vector.views(theta), strict=True):
                tensor.data = part.to(tensor.device)
            found = self.module.state_dict()
        finally:
            for tensor, data in zip(self.tensors, before, strict=True):
                tensor.data = data
        return {
            plain_name(self.module, name): as_array(it)
            for name, it in found.items()
            if isinstance(it, torch.Tensor)
        }


def as_array(tensor: Any) -> AnyArray:
    """Return a contiguous array of a tensor's numbers; float32 for floats that numpy lacks."""
    tensor = to_host(tensor).resolve_conj().resolve_neg()
    if tensor.is_floating_point() and tensor.dtype not in _FLOATS:
        tensor = tensor.float()
    return np.asarray(tensor.numpy(), order="C")


def matrices_at(starts: Sequence[int], shapes: Sequence[Any]) -> list[Matrix]:
    """Return the matrices among tensors in a flat vector; see ``Parameters.matrices``."""
    found = []
    for start, shape in zip(starts, shapes, strict=True):
        columns = math.prod(shape[1:])
        if len(shape) > 1 and min(shape[0], columns) > 1:
            found.append(Matrix(start, shape[0], columns))
    return found
