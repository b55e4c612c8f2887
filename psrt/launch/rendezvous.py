"""Where the ranks of a script meet if it brings its own network, such as torch.distributed."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Mapping, Sequence

from psrt.core.errors import ConfigError
from psrt.launch.environment import first_node
from psrt.launch.hostfile import Host

_ADDRESS, _PORT = "MASTER_ADDR", "MASTER_PORT"
#: Variables with the network of gloo and NCCL between hosts.
_NETWORKS = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
#: torchrun's port, and the number of ports from it on that are tried. All are below those that
#: Linux gives to sockets without a port, which mpirun opens before a rank listens.
_FIRST, _MOST = 29500, 3000


def rendezvous(
    environment: Mapping[str, str], hosts: Sequence[Host], *, spreads: bool, interface: str | None
) -> dict[str, str]:
    """Return ``MASTER_ADDR`` and ``MASTER_PORT``, and the network if one is asked for.

    Variables that the user has set are left out.

    Args:
        environment: the variables of this process, and those that the user sets for ranks.
        hosts: of the hostfile, rank 0's first; empty without one.
        spreads: whether ranks may be on other hosts.
        interface: the name of the network between hosts, or its addresses.

    Raises:
        ConfigError: if no port is free.
    """
    found = {name: it for name, it in _networks(interface).items() if not environment.get(name)}
    if not environment.get(_ADDRESS):
        found[_ADDRESS] = _first_host(environment, hosts) if spreads else "127.0.0.1"
    if not environment.get(_PORT):
        found[_PORT] = str(_free_port())
    return found


def _networks(interface: str | None) -> Mapping[str, str]:
    is_name = interface is not None and re.fullmatch(r"[A-Za-z][\w.-]*", interface)
    return dict.fromkeys(_NETWORKS, interface) if is_name and interface else {}


def _first_host(environment: Mapping[str, str], hosts: Sequence[Host]) -> str:
    """Return the name of rank 0's host, by which the others reach it."""
    if not hosts and (nodes := environment.get("SLURM_JOB_NODELIST")):
        return first_node(nodes)
    name = hosts[0].name if hosts else ""
    if name and (len(hosts) == 1 or not re.match(r"localhost$|127\.", name)):
        return name
    return socket.gethostname()  # by the other name each host would find itself


def _free_port() -> int:
    """Return a port that nobody on this host listens on; two jobs rarely begin at the same one."""
    for k in range(_MOST):
        port = _FIRST + (os.getpid() + k) % _MOST
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            return port
    raise ConfigError(f"no port from {_FIRST} to {_FIRST + _MOST - 1} is free: set {_PORT}")
