"""Whether a run can go on with another number of workers. Needs no numpy."""

from __future__ import annotations

from psrt.config.train import TrainConfig


def bound_to_workers(config: TrainConfig) -> str:
    """Return why a run can only go on with the same number of workers; empty if it can with others.

    Args:
        config: resolved.
    """
    if not config.scheme.regroups:
        return f"--mode {config.scheme.name} cannot have"
    if config.scheme.averages and not config.servers:
        return f"--mode {config.scheme.name} cannot have without servers"
    if config.parallel is not None:
        return f"--parallel {config.parallel} cannot have"
    if config.codec is not None and not config.servers:
        return f"--codec {config.codec} cannot have without servers: each keeps back parts of sums"
    if config.record:
        return "--record cannot have, since they make no one history"
    return ""
