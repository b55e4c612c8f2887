"""Names of a module's tensors without the prefixes that wrappers add."""

from __future__ import annotations

from typing import Any

import torch

#: The attribute in which ``torch.compile`` keeps the original module.
_COMPILED = "_orig_mod"
_PARALLEL = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)


def plain_name(module: Any, name: str) -> str:
    """Return the name that a tensor would have if no part of the module were wrapped.

    >>> wrapped = torch.nn.Sequential(torch.nn.DataParallel(torch.nn.Linear(1, 1)))
    >>> plain_name(wrapped, "0.module.weight"), plain_name(wrapped, "0._orig_mod.weight")
    ('0.weight', '0.weight')

    Args:
        module: compiled, parallel, plain, or with such parts.
        name: as ``state_dict``, ``named_parameters`` and ``named_buffers`` of the module have it.
    """
    kept, part = [], module
    for step in name.split("."):
        if step != _COMPILED and not (step == "module" and isinstance(part, _PARALLEL)):
            kept.append(step)
        part = getattr(part, step, None)
    return ".".join(kept)
