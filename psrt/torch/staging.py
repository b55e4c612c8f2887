"""Where tensors are, and the memory of the host through which they are summed and sent.

On the CPU the two are one, and nothing is copied. On any other device, gradients collect in memory
of the device and are copied to the host and back. ``psrt.torch.cuda`` has the only calls of CUDA.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from psrt.core.errors import ConfigError
from psrt.launch import started_rank

#: For contributors: ``PSRT_STAGE_CPU=1`` treats tensors on the CPU as if they were on a device.
_SWITCH = "PSRT_STAGE_CPU"


class Event(Protocol):
    """A point in the work of a device; see ``torch.cuda.Event``."""

    def query(self) -> bool:
        """Return whether the device has reached it."""

    def synchronize(self) -> None:
        """Wait until it has."""


class _Reached:
    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


_REACHED = _Reached()


class Mirror:
    """A flat tensor on the host, and its counterpart on the device: on the CPU the same one."""

    def __init__(self, host: Any, near: Any) -> None:
        #: On the host, and on the device.
        self.host, self.near = host, near

    def wrote(self) -> None:
        """Note that the current stream writes to ``near``."""

    def fetch(self, start: int, stop: int) -> Event:
        """Start to copy elements to the host, after the work of all streams that wrote to them.

        Until the event has come, nobody reads the elements on the host, or writes to either side
        without another fetch.
        """
        return _REACHED

    def give(self, start: int, stop: int) -> None:
        """Start to copy elements from the host; later work of the current stream sees them.

        Only ``fetch``, or a writer that has called ``settle``, may then write to them on the host.
        """

    def settle(self) -> None:
        """Wait until what was given has left the host."""

    def close(self) -> None:
        """Free what the device keeps of the memory of the host, which may then be freed."""


class Device:
    """The CPU, and what is asked of any other device."""

    #: Whether tensors need a mirror.
    is_remote = False
    #: Generators of random numbers besides that of the CPU.
    generators: Sequence[Any] = ()
    #: Elements from which on parts of a gradient are worth a copy of their own.
    copied = 0

    def __init__(self, device: Any) -> None:
        self.device = device

    def mirror(self, host: Any, what: str) -> Mirror:
        """Return the counterpart of a flat tensor on the memory of the host.

        Args:
            host: stays in place until the mirror is closed.
            what: lies there, for errors.

        Raises:
            ConfigError: if the device has no memory for it.
        """
        return Mirror(host, host)

    def memory(self, n: int, kind: Any) -> Any:
        """Return n elements of the host, for a mirror of memory that is nobody else's."""
        return torch.empty(n, dtype=kind)


class _AsIfRemote(Device):
    """The CPU, treated as a device: for tests on machines without one."""

    is_remote = True
    copied = 20

    def mirror(self, host: Any, what: str) -> Mirror:
        near = allocated(host.numel(), host.dtype, self.device, what)
        _spoil(near)
        return _Apart(host, near)


class _Apart(Mirror):
    """A mirror whose copies are late, and whose host memory is spoilt while nobody may read it."""

    def fetch(self, start: int, stop: int) -> Event:
        host, near = self.host[start:stop], self.near[start:stop]
        _spoil(host)
        return _Late(lambda: host.copy_(near))

    def give(self, start: int, stop: int) -> None:
        host = self.host[start:stop]
        self.near[start:stop].copy_(host)
        _spoil(host)


class _Late:
    """A copy that is made at the third query, or when it is waited for."""

    def __init__(self, copy: Callable[[], object]) -> None:
        self._copy: Callable[[], object] | None = copy
        self._queries = 0

    def query(self) -> bool:
        self._queries += 1
        if self._queries > 2:
            self.synchronize()
        return self._copy is None

    def synchronize(self) -> None:
        if self._copy is not None:
            with torch.no_grad():
                self._copy()
            self._copy = None


def _spoil(tensor: Any) -> None:
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(float("nan"))


def allocated(n: int, kind: Any, device: Any, what: str) -> Any:
    """Return new memory on a device.

    Args:
        n: elements.
        kind: their type.
        device: of torch.
        what: will lie there, for the error.

    Raises:
        ConfigError: if the device is full.
    """
    try:
        return torch.empty(n, dtype=kind, device=device)
    except torch.cuda.OutOfMemoryError:
        raise ConfigError(
            f"rank {started_rank()}: {device} has no memory for {what}, {n * kind.itemsize} bytes; "
            "expected a smaller module or batch, or fewer ranks on this device"
        ) from None


def device_of(named: Sequence[tuple[str, Any]]) -> Device:
    """Return the device that tensors are on.

    Args:
        named: at least one tensor, and how an error names each.

    Raises:
        ConfigError: if they are on several devices, or psrt cannot reach theirs.
    """
    (first, one), *others = named
    for name, it in others:
        if it.device != one.device:
            raise ConfigError(
                f"rank {started_rank()}: {first} is on {one.device}, and {name} is on {it.device}; "
                f"expected all on one device, as after module.to({str(one.device)!r})"
            )
    check_reachable(one, first)
    if one.device.type == "cuda":
        from psrt.torch.cuda import Cuda

        return Cuda(one.device)
    is_switched = os.environ.get(_SWITCH, "") not in ("", "0")
    return (_AsIfRemote if is_switched else Device)(one.device)


def check_reachable(tensor: Any, what: str) -> None:
    """Check that a tensor is where psrt can read it.

    Raises:
        ConfigError: if it is neither on the CPU nor on a GPU.
    """
    if tensor.device.type not in ("cpu", "cuda"):
        raise ConfigError(
            f"{what} is on {tensor.device}, expected the CPU or a CUDA device, as after .cpu()"
        )


def to_host(tensor: Any) -> Any:
    """Return a tensor's values in memory of the host: itself, if it is there.

    This waits for the current stream of its device. ``tensor.copy_(…)`` is the way back.
    """
    return tensor.detach().cpu()


def moved(batch: Any, device: Any) -> Any:
    """Return a batch with its tensors on a device, in tuples, lists and dictionaries, too."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: moved(it, device) for key, it in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(it, device) for it in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(moved(it, device) for it in batch)
    return batch
