"""The table of modes with servers: three numbers each.

==================  =============  ======  ==================  =========================
mode                quorum         gate    late                update
==================  =============  ======  ==================  =========================
sync                W              0       –                   mean over all samples
sync, b backups     W − b          0       dropped             mean over the first W − b
async               1              ∞       –                   each gradient at once
ssp(s)              1              s       –                   each gradient at once
softsync(k)         ⌊W/k⌋, ≥ 1     ∞       –                   mean over a quorum
local-sgd           W              0       –                   mean of the parameters
==================  =============  ======  ==================  =========================

W counts the workers that are still there. The mean staleness of softsync on equal workers is
(W − 1)/⌊W/k⌋ versions: between a worker's read and its push come the pushes of the W − 1 others,
⌊W/k⌋ to an update. That is k(W − 1)/W where k divides W; for k > W/2 it is async.

Sources: backup workers, Chen et al. 2016 (arXiv:1604.00981); ssp, Ho et al., NeurIPS 2013;
softsync, Zhang, Gupta, Lian & Liu, IJCAI 2016 (arXiv:1511.05950).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from psrt.errors import ConfigError
from psrt.sync.policy import Policy


def _sync(workers: int, backup: int = 0, late: float = math.inf) -> Policy:
    return Policy(
        workers,
        quorum=lambda live: live - backup,
        gate=0,
        late=0 if backup else math.inf,
        rounds=True,
    )


def _async(workers: int, late: float = math.inf) -> Policy:
    return Policy(workers, quorum=lambda _: 1, late=late)


def _ssp(workers: int, staleness: int = 0, late: float = math.inf) -> Policy:
    return Policy(workers, quorum=lambda _: 1, gate=staleness, late=late)


def _softsync(workers: int, softsync: int = 1, late: float = math.inf) -> Policy:
    return Policy(workers, quorum=lambda live: live // softsync, late=late)


#: Mode → what makes a shard's policy out of W and the mode's own knobs.
SERVER_MODES: dict[str, Callable[..., Policy]] = {
    "sync": _sync,
    "async": _async,
    "ssp": _ssp,
    "softsync": _softsync,
    "local-sgd": _sync,
}


def policy_for(mode: str, workers: int, **knobs: float) -> Policy:
    """Return the policy of one shard under ``mode``.

    Args:
        mode: a key of ``SERVER_MODES``.
        workers: W, at least 1.
        knobs: ``backup`` (sync), ``staleness`` (ssp), ``softsync`` (softsync), and ``late``
            (the staleness above which a push is dropped; not in the modes with rounds).

    Raises:
        ConfigError: if there is no such mode.
    """
    if mode not in SERVER_MODES:
        raise ConfigError(f"mode {mode!r} has no servers; those that do: {', '.join(SERVER_MODES)}")
    return SERVER_MODES[mode](workers, **knobs)
