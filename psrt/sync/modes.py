"""The policy of each mode with servers, from its row in `psrt.config.modes`.

======================  =============  ======  ==================  =========================
declared                quorum         gate    late                update
======================  =============  ======  ==================  =========================
rounds                  W              0       –                   mean over all of a round
rounds, b backups       W − b          0       dropped             mean over the first W − b
nothing                 1              ∞       –                   each gradient at once
lead s                  1              s       –                   each gradient at once
share k                 ⌊W/k⌋, ≥ 1     ∞       –                   mean over a quorum
rounds, asynchronous    1              ∞       –                   each contribution at once
======================  =============  ======  ==================  =========================

W is the number of live workers. The mean staleness of softsync on equal workers is (W − 1)/⌊W/k⌋
versions: the W − 1 others push between a worker's read and its push, and ⌊W/k⌋ pushes make an
update. That is k(W − 1)/W if k divides W; for k > W/2 softsync is async.

Sources: backup workers, Chen et al. 2016 (arXiv:1604.00981); ssp, Ho et al., NeurIPS 2013;
softsync, Zhang, Gupta, Lian & Liu, IJCAI 2016 (arXiv:1511.05950).
"""

from __future__ import annotations

import math

from psrt.config.modes import MODES
from psrt.core.errors import ConfigError
from psrt.sync.policy import Policy


def policy_for(mode: str, workers: int, *, late: float = math.inf, **knobs: int) -> Policy:
    """Return the policy of one shard under ``mode``.

    Args:
        mode: the name of a mode that may have servers.
        workers: W, at least 1.
        late: the staleness above which a push is dropped; not in the modes with rounds.
        knobs: those that the mode's row names as ``backup``, ``lead``, ``share`` or
            ``asynchronous``; by default 0, 0, 1 and False.

    Raises:
        ConfigError: if there is no such mode with servers.
    """
    row = MODES.get(mode)
    if row is None or not row.may_have_servers:
        served = ", ".join(MODES.where(lambda it: it.may_have_servers))
        raise ConfigError(f"mode {mode!r} has no servers; those that do: {served}")
    assert knobs.keys() <= set(row.policy_knobs), f"{mode} has no {', '.join(knobs)}"
    row = row.under(knobs.get)
    if row.rounds:
        backup = knobs.get(row.backup or "", 0)
        return Policy(
            workers,
            quorum=lambda live: live - backup,
            gate=0,
            late=0 if backup else math.inf,
            rounds=True,
        )
    lead = math.inf if row.lead is None else knobs.get(row.lead, 0)
    if row.share is None:
        return Policy(workers, quorum=lambda _: 1, gate=lead, late=late)
    k = knobs.get(row.share, 1)
    return Policy(workers, quorum=lambda live: live // k, gate=lead, late=late)
