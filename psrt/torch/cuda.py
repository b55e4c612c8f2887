"""Tensors on a GPU: mirrors in pinned memory, and copies on streams of their own.

Nothing here waits for a whole device. The calls are those that torch documents; ``torch.cuda`` is
also what torch's builds for ROCm call it.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any
from weakref import finalize

import torch

from psrt.launch import started_rank
from psrt.torch.staging import Device, Event, Mirror, allocated


class Cuda(Device):
    """A GPU, with a stream for copies to the host and one for copies from it."""

    is_remote = True
    copied = 1 << 16

    def __init__(self, device: Any) -> None:
        super().__init__(device)
        self.outward, self.inward = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self.generators = (torch.cuda.default_generators[device.index],)

    def mirror(self, host: Any, what: str) -> Mirror:
        """Return the counterpart of a flat tensor; see ``Device``."""
        return _Pinned(self, host, allocated(host.numel(), host.dtype, self.device, what))

    def memory(self, n: int, kind: Any) -> Any:
        """Return n elements of the host; see ``Device``."""
        try:
            return torch.empty(n, dtype=kind, pin_memory=True)
        except RuntimeError as error:
            _say_once(str(error).splitlines()[0])
            return torch.empty(n, dtype=kind)


class _Pinned(Mirror):
    """A mirror whose host memory the GPU reads and writes by itself."""

    def __init__(self, device: Cuda, host: Any, near: Any) -> None:
        super().__init__(host, near)
        self._device = device
        #: Streams that wrote to ``near`` since the last fetch.
        self._writers: set[Any] = set()
        #: The last copy to the device, which reads the host memory until then.
        self._given: Any = None
        for stream in (device.outward, device.inward):
            near.record_stream(stream)  # the allocator must not hand it on before they are done
        self._unpin: Any = None
        if host.numel() and not host.is_pinned() and _pin(host, device.device):
            self._unpin = finalize(self, _unpin, host.data_ptr(), device.device)
            self._unpin.atexit = False

    def wrote(self) -> None:
        """See ``Mirror``."""
        self._writers.add(torch.cuda.current_stream(self._device.device))

    def fetch(self, start: int, stop: int) -> Event:
        """See ``Mirror``."""
        self.wrote()
        stream = self._device.outward
        for writer in self._writers:
            stream.wait_stream(writer)
        self._writers.clear()
        if self._given is not None:
            stream.wait_event(self._given)
        event: Event = self._copied(stream, self.host[start:stop], self.near[start:stop])
        return event

    def give(self, start: int, stop: int) -> None:
        """See ``Mirror``."""
        now, stream = torch.cuda.current_stream(self._device.device), self._device.inward
        stream.wait_stream(now)  # which may still read what is overwritten
        self._given = self._copied(stream, self.near[start:stop], self.host[start:stop])
        now.wait_event(self._given)

    def settle(self) -> None:
        """See ``Mirror``."""
        if self._given is not None:
            self._given.synchronize()

    def close(self) -> None:
        """See ``Mirror``."""
        self._device.outward.synchronize()
        self._device.inward.synchronize()
        if self._unpin is not None:
            self._unpin()

    def _copied(self, stream: Any, to: Any, source: Any) -> Any:
        with torch.cuda.device(self._device.device), torch.cuda.stream(stream), torch.no_grad():
            to.copy_(source, non_blocking=True)
            event = torch.cuda.Event()
            event.record(stream)
        return event


def _pin(host: Any, device: Any) -> bool:
    """Pin memory that is already there, shared by the ranks of a host; return whether it worked."""
    runtime = torch.cuda.cudart()
    nbytes = host.numel() * host.element_size()
    status = runtime.cudaHostRegister(host.data_ptr(), nbytes, 0)
    if status != runtime.cudaError.success:
        _say_once(runtime.cudaGetErrorString(status))
        _clear_error(device)
        return False
    return True


def _unpin(address: int, device: Any) -> None:
    """Unpin memory, which may have been freed already."""
    runtime = torch.cuda.cudart()
    if runtime.cudaHostUnregister(address) != runtime.cudaError.success:
        _clear_error(device)


def _clear_error(device: Any) -> None:
    """Take an error that has been dealt with: else torch raises it at its next kernel."""
    with suppress(RuntimeError):
        torch.zeros(1, device=device)


_said: list[str] = []


def _say_once(why: str) -> None:
    if not _said:
        _said.append(why)
        print(
            f"psrt: rank {started_rank()}: memory of the host cannot be pinned, so copies from and "
            f"to the GPU are slower: {why}",
            file=sys.stderr,
            flush=True,
        )
