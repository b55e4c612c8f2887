"""What torch waits for after a call of a process group."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from psrt.core.errors import TransportError
from psrt.torch.communicator import Work

#: Seconds between two looks of a wait that has a deadline of its own.
_LOOK_EVERY_S = 1e-4


class Part:
    """One call or message, and what is left to do once it is complete."""

    def __init__(self, handle: Work | None, take: Callable[[], object] = lambda: None) -> None:
        #: The call in progress; None if it is complete.
        self.handle = handle
        self._take = take
        self._is_done = False

    def test(self) -> bool:
        """Make progress; return whether all is done."""
        if not self._is_done and (self.handle is None or self.handle.test()):
            self.finish()
        return self._is_done

    def finish(self) -> None:
        """Wait for it, and do what is left."""
        if not self._is_done:
            if self.handle is not None:
                self.handle.wait()
            self._is_done = True
            self._take()


class Pending(dist.Work):  # type: ignore[misc]
    """Calls in progress; an error is raised where torch waits for them."""

    def __init__(self, parts: Sequence[Part], result: Any) -> None:
        super().__init__()
        self._parts, self._result = parts, result
        self._future = torch.futures.Future()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for all of them, for the communicator's deadline or a shorter one.

        Raises:
            PsrtError: as the communicator's calls.
        """
        if timeout:
            self._wait_until(time.monotonic() + timeout.total_seconds(), timeout)
        for part in self._parts:
            part.finish()
        return True

    def _wait_until(self, deadline: float, timeout: timedelta) -> None:
        while not self.is_completed():
            if time.monotonic() > deadline:
                raise TransportError(f"a call of torch is not complete within {timeout}")
            time.sleep(_LOOK_EVERY_S)

    def is_completed(self) -> bool:
        """Make progress; return whether all are complete."""
        return all(part.test() for part in self._parts)

    def is_success(self) -> bool:
        """Return whether all are complete."""
        return self.is_completed()

    def synchronize(self) -> None:
        """Wait for all of them."""
        self.wait()

    def result(self) -> Any:
        """Wait for all of them; return the tensors."""
        self.wait()
        return self._result

    def get_future(self) -> Any:
        """Wait for all of them; return a completed future: no thread could complete it later."""
        self.wait()
        if not self._future.done():
            self._future.set_result(self._result)
        return self._future

    def source_rank(self) -> int:
        """Return the rank in the group whose message was received."""
        self.wait()
        (part,) = self._parts
        assert part.handle is not None, "only messages have a source"
        return int(part.handle.result)

    _source_rank = source_rank


def done(result: Any) -> Any:
    """Return a completed handle."""
    from torch._C._distributed_c10d import _create_work_from_future

    future = torch.futures.Future()
    future.set_result(result)
    return _create_work_from_future(future)
