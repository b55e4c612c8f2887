"""Tells from torch's autograd engine when a backward pass ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

#: Returns the node that backward is in. Older versions of torch lack it; every nested pass then
#: counts as a separate one.
_node_now: Callable[[], Any] = getattr(torch._C, "_current_autograd_node", lambda: None)


def pass_number() -> int:
    """Return the number of the running backward pass, -1 if none is.

    Numbers grow; a pass nested in another has its own.
    """
    number: int = torch._C._current_graph_task_id()
    return number


def when_backward_ends(call: Callable[[], None]) -> None:
    """Call a function at the end of the backward pass; to be used from a hook within the pass.

    The engine calls at the end of the innermost pass. If that is nested in another, as in a
    reentrant checkpoint, the outer pass's node asks again for the end once it is done.
    """

    def at_end() -> None:
        node = _node_now()
        if node is None:
            call()
            return

        def again(*_: Any) -> None:
            handle.remove()
            when_backward_ends(call)

        handle = node.register_hook(again)

    torch.autograd.Variable._execution_engine.queue_callback(at_end)
