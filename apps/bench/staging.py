"""How fast psrt copies gradients from a GPU and back, beside plain copies of torch's."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from mpi4py import MPI

from psrt.bench.figures import Column, Summary, spread
from psrt.mpi.communicator import Communicator
from psrt.torch.staging import device_of
from psrt.torch.views import tensor_on

#: Bytes of a copy.
NBYTES = 64 << 20


def copies(comm: MPI.Comm, device: Any, rounds: int) -> list[dict[str, Any]]:
    """Measure copies of rank 0 alone; collective.

    The limit is what torch copies between the device and pinned memory of its own. psrt copies
    between the device and the memory in which the ranks of a host sum, which it has pinned.

    Args:
        comm: all ranks.
        device: of torch.
        rounds: copies of each kind.

    Returns:
        At rank 0 a row for each direction.
    """
    with Communicator(comm) as communicator:
        shared = tensor_on(communicator.empty(NBYTES // 4))
        if comm.rank:
            return []
        near = torch.ones(NBYTES // 4, device=device)
        pinned = torch.empty(NBYTES // 4, pin_memory=device.type == "cuda")
        mirror = device_of([("a tensor", near)]).mirror(shared, "a copy")
        kinds: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
            "to the host": (
                lambda: pinned.copy_(near, non_blocking=True),
                lambda: mirror.fetch(0, NBYTES // 4).synchronize(),
            ),
            "to the device": (
                lambda: near.copy_(pinned, non_blocking=True),
                lambda: mirror.give(0, NBYTES // 4),
            ),
        }
        rows = [_row(name, device, rounds, *kind) for name, kind in kinds.items()]
        mirror.close()
        return rows


def _row(
    name: str, device: Any, rounds: int, plain: Callable[[], Any], staged: Callable[[], Any]
) -> dict[str, Any]:
    speeds: tuple[list[float], list[float]] = [], []
    for _ in range(rounds + 1):
        for copy, found in zip((plain, staged), speeds, strict=True):
            found.append(NBYTES / _seconds(copy, device))
    limit, own = (it[1:] for it in speeds)  # the first is slower
    return {
        "copy": name,
        "limit": Summary.of(limit),
        "own": Summary.of(own),
        "share": Summary.of([a / b for a, b in zip(own, limit, strict=True)]),
    }


def _seconds(copy: Callable[[], Any], device: Any) -> float:
    began = perf_counter()
    copy()
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return perf_counter() - began


STAGING_COLUMNS: tuple[Column, ...] = (
    (f"{NBYTES >> 20} MiB", "copy"),
    ("plain GB/s", spread("limit", 1e-9)),
    ("psrt GB/s", spread("own", 1e-9)),
    ("psrt / plain", spread("share")),
)
