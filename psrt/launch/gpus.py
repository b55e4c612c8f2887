"""The GPUs of this host, by the variable that CUDA obeys or else the devices of its driver."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from psrt.core.errors import ConfigError
from psrt.core.units import plural

#: The variable with the GPUs that CUDA shows to a process.
VISIBLE = "CUDA_VISIBLE_DEVICES"
#: What it calls one: a number, or the identifier of a GPU or of a part of one.
_ENTRY = re.compile(r"\d+|(?:GPU|MIG)-.+")
_DEVICES = Path("/dev")


def gpus(environment: Mapping[str, str], devices: Path = _DEVICES) -> Sequence[str]:
    """Return the GPUs that a process on this host sees, as ``CUDA_VISIBLE_DEVICES`` names them.

    Args:
        environment: its variables.
        devices: the folder of the driver's devices.

    >>> gpus({"CUDA_VISIBLE_DEVICES": "3, GPU-1a,-1,5"}), gpus({"CUDA_VISIBLE_DEVICES": ""})
    (['3', 'GPU-1a'], [])
    """
    given = environment.get(VISIBLE)
    if given is not None:  # CUDA ignores what follows the first that is not valid
        return list(takewhile(_ENTRY.fullmatch, map(str.strip, given.split(","))))
    return [str(k) for k, _ in enumerate(devices.glob("nvidia[0-9]*"))]


def gpu_of(environment: Mapping[str, str], local: int, size: int, *, is_bound: bool) -> str:
    """Return what ``CUDA_VISIBLE_DEVICES`` should be for a rank.

    Args:
        environment: its variables.
        local: its number among those on this host.
        size: their number.
        is_bound: whether the launcher shows each rank its own GPUs only, which it then keeps.

    Raises:
        ConfigError: if the host has fewer GPUs than ranks, or none.
    """
    found = gpus(environment)
    if is_bound and found:
        return ",".join(found)
    if size > len(found):
        seen = f"{VISIBLE}={environment[VISIBLE]}" if VISIBLE in environment else "/dev/nvidia*"
        has = f"{plural(size, 'rank')} and {plural(len(found), 'GPU')}" if found else "no GPU"
        raise ConfigError(
            f"--gpus: host {platform.node()} has {has}, by {seen}; expected one per rank"
        )
    return found[local]
