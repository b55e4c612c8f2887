"""Whether a run can resume with another number of workers. Needs no numpy."""

from __future__ import annotations

from psrt.config.train import TrainConfig


def bound_to_workers(config: TrainConfig) -> str:
    """Return why a run can only resume with the same number of workers; empty if any will do.

    Args:
        config: resolved.
    """
    if not config.scheme.regroups:
        return f"--mode {config.scheme.name} does not allow"
    if config.scheme.averages and not config.servers:
        return f"--mode {config.scheme.name} does not allow without servers"
    if config.scheme.has_teams:
        return f"--mode {config.scheme} does not allow: its learners have several ranks"
    if config.parallel is not None:
        return f"--parallel {config.parallel} does not allow"
    if config.codec is not None and not config.servers:
        return f"--codec {config.codec} does not allow without servers: errors of sums are kept"
    if config.record:
        return "--record does not allow: a history has one set of workers"
    return ""
