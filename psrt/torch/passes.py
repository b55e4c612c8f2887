"""When a backward pass ends, as torch's engine has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

#: Returns the node that backward is in, which no older torch says; then every nested pass counts as
#: one of its own.
_node_now: Callable[[], Any] = getattr(torch._C, "_current_autograd_node", lambda: None)


def pass_number() -> int:
    """Return the number of the backward pass under way, -1 if none is.

    They grow; one that is nested in another has a number of its own.
    """
    number: int = torch._C._current_graph_task_id()
    return number


def when_backward_ends(call: Callable[[], None]) -> None:
    """Have a function called at the end of the backward pass, from a hook that runs in it.

    The engine calls at the end of the pass that it is in. That may be one nested in another, as in
    a reentrant checkpoint; then the node of the outer one, once it is done, asks again for the end.
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
