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
quorum K                K, ≤ W         ∞       –                   mean over a merge
======================  =============  ======  ==================  =========================

W is the number of live workers. The mean staleness of softsync on equal workers is (W − 1)/⌊W/k⌋
versions: the W − 1 others push between a worker's read and its push, and ⌊W/k⌋ pushes make an
update. That is k(W − 1)/W if k divides W; for k > W/2 softsync is async.

Sources: backup workers, Chen et al. 2016 (arXiv:1604.00981); ssp, Ho et al., NeurIPS 2013;
softsync, Zhang, Gupta, Lian & Liu, IJCAI 2016 (arXiv:1511.05950).
"""

from __future__ import annotations

import math
from dataclasses import replace

from psrt.config.modes import MODES, Mode
from psrt.core.errors import ConfigError
from psrt.sync.learners import Follower, Learners
from psrt.sync.policy import Policy


def policy_for(mode: Mode, workers: int, *, late: float = math.inf, decides: bool = True) -> Policy:
    """Return the policy of one shard under ``mode``.

    Args:
        mode: a mode that may have servers.
        workers: W, at least 1.
        late: the staleness above which a push is dropped; not in the modes with rounds.
        decides: whether the shard decides itself: in modes with a quorum one does for others, too.

    Raises:
        ConfigError: if the mode has no servers.
    """
    if not mode.may_have_servers:
        served = ", ".join(MODES.where(lambda it: it.may_have_servers))
        raise ConfigError(f"mode {mode.name!r} has no servers; those that do: {served}")
    lead, share, backup = mode.lead, mode.share, mode.backup
    if mode.has_teams:
        alone: Mode = replace(mode, learner_ranks=1)  # type: ignore[call-arg]
        policy = policy_for(alone, workers, late=late, decides=decides)
        for worker in range(workers):
            if worker % int(mode.learner_ranks):  # the first rank of a learner speaks for it
                del policy.clock[worker]
        return policy
    if mode.quorum is not None and not decides:
        return Follower(workers)
    if mode.quorum is not None:
        return Learners(workers, quorum=mode.quorum, has_window=mode.grace is not None, late=late)
    if mode.rounds:
        return Policy(
            workers,
            quorum=lambda live: live - backup,
            gate=0,
            late=0 if backup else math.inf,
            rounds=True,
        )
    if share is None:
        return Policy(workers, quorum=lambda _: 1, gate=lead, late=late)
    # A finite gate would be wrong with a quorum above 1: clocks count pushes on arrival, so the
    # gate would let workers read parameters that lack pushes still waiting for their quorum.
    assert lead == math.inf, "a mode has a lead or a share"
    return Policy(workers, quorum=lambda live: live // share, gate=lead, late=late)
