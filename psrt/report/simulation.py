"""``simulation.json``, and the lines about a run that only a simulation can measure. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from psrt.checkpoint.failures import FailureCosts, Lost
from psrt.history.folds.figures import Waiting
from psrt.report.failures import failure_lines
from psrt.report.histogram import histogram_lines
from psrt.report.strict_json import dumps
from psrt.report.summary import Summary

#: The causes of waiting: field of ``Waiting``, in words.
CAUSES = {
    "for_workers": "other workers",
    "for_server": "the servers' work",
    "for_messages": "messages",
    "for_reduce": "sums",
}
#: Crashes that are listed one by one.
_LISTED = 8


@dataclass(frozen=True, slots=True)
class Load:
    """How busy a server was: shares of the virtual time, in [0, 1]."""

    #: Applying gradients.
    apply: float
    #: Its link, towards it and away from it.
    link_in: float
    link_out: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """The settings of a simulated run besides its config, and what only a simulation measures."""

    #: Ranks that computed gradients, W.
    workers: int
    #: The costs as given, see ``psrt.simulation.cost_flags``.
    compute: str
    link: str
    server_apply: str
    codec_speed: str
    #: (worker, seconds) each: the scheduled crashes.
    crash: tuple[tuple[int, float], ...]
    #: The number of ranks of each host; empty if none were given.
    hosts: tuple[int, ...]
    #: Whether anything was computed.
    numerics: bool
    #: Elements of the parameter vector, n.
    parameters: int
    #: Seed of the training and of the order of events.
    seed: int
    #: Scheduler events.
    events: int
    #: Virtual time at the end, in seconds.
    seconds: float
    #: Workers that died before they were done.
    crashed: tuple[int, ...]
    #: By server.
    servers: tuple[Load, ...]
    #: With model parallelism: the costs as given, and by stage the share of the virtual time in
    #: which it computed, on average over copies and slices.
    stage_costs: str = ""
    small_products: str = ""
    pass_overhead: str = "0"
    worker_apply: str = "inf"
    stages: tuple[float, ...] = ()
    #: The faults as given, in addition to ``crash``.
    faults: tuple[str, ...] = ()
    #: When each of ``crashed`` died, in seconds.
    crashed_at: tuple[float, ...] = ()
    #: Costs of failures, and the time that a long job of such steps loses; None if not asked for.
    failures: FailureCosts | None = None
    lost: tuple[Lost, ...] = ()

    def to_json(self) -> str:
        """Return the JSON text, one field per line, with a line feed at the end."""
        return dumps(dataclasses.asdict(self), indent=2) + "\n"


def simulation_text(run: Simulation, summary: Summary, wall_seconds: float) -> str:
    """Return the lines below the table of a run.

    Args:
        run: finished.
        summary: of the same run.
        wall_seconds: wall-clock time of the simulation itself.
    """
    rate = run.events / wall_seconds if wall_seconds > 0 else 0.0
    rows = [
        ("virtual time", f"{run.seconds:.6g} s"),
        ("events", f"{run.events:,} in {wall_seconds:.2f} s: {rate:,.0f} per second"),
        *_waiting(summary.waiting),
        *_servers(run.servers),
        *_stages(run.stages),
    ]
    skew = summary.skew
    if skew.histogram:
        rows.append(("skew", f"mean {skew.mean:.2f}, max {skew.max} versions"))
    if run.crashed:
        rows.append(("crashed", _crashes(run)))
    width = max(len(name) for name, _ in rows)
    lines = ["", *(f"{name:<{width}}  {value}" for name, value in rows)]
    bars = histogram_lines(summary.staleness.histogram)
    if bars:
        # Without servers it is the staleness of averages in pairs.
        what = "gradients in the updates" if summary.servers else "averages"
        lines += ["", f"staleness τ of the {what}", *bars]
    if run.failures is not None:
        lines += ["", *failure_lines(run.failures, run.lost)]
    return "\n".join(lines)


def _waiting(workers: Sequence[Waiting]) -> list[tuple[str, str]]:
    """Return the workers' share of waiting, mean and maximum, and its causes."""
    most = max(workers, key=lambda worker: worker.share)
    mean = sum(worker.share for worker in workers) / len(workers)
    text = f"{100 * mean:.1f} % of a worker's time"
    if len(workers) > 1:
        text += f", at most {100 * most.share:.1f} % (worker {most.worker})"
    whole = sum(worker.seconds for worker in workers)
    sums = {words: sum(getattr(w, cause) for w in workers) for cause, words in CAUSES.items()}
    parts = [f"{words} {100 * s / whole:.1f} %" for words, s in sums.items() if whole and s]
    return [("waiting", text), *([("waited for", ", ".join(parts))] if parts else [])]


def _servers(servers: Sequence[Load]) -> list[tuple[str, str]]:
    """Return the servers' busy shares, mean and maximum."""
    if not servers:
        return []
    parts = []
    for what, shares in (
        ("updates", [load.apply for load in servers]),
        ("link in", [load.link_in for load in servers]),
        ("link out", [load.link_out for load in servers]),
    ):
        mean = sum(shares) / len(shares)
        parts.append(f"{what} {100 * mean:.1f} %")
        if len(servers) > 1:
            parts[-1] += f" (at most {100 * max(shares):.1f} %)"
    return [("servers busy", ", ".join(parts))]


def _stages(busy: Sequence[float]) -> list[tuple[str, str]]:
    """Return how busy stages were; the rest is the bubble and other waiting."""
    if not busy:
        return []
    text = f"{100 * sum(busy) / len(busy):.1f} % of the time"
    if len(busy) > 1:
        least, most = (which(range(len(busy)), key=busy.__getitem__) for which in (min, max))
        text += (
            f", least {100 * busy[least]:.1f} % (stage {least}), most {100 * busy[most]:.1f} % "
            f"(stage {most})"
        )
    return [("stages busy", text)]


def _crashes(run: Simulation) -> str:
    when = zip(run.crashed, run.crashed_at, strict=True)
    listed = [f"worker {worker} at {at:g} s" for worker, at in islice(when, _LISTED)]
    if len(run.crashed) > _LISTED:
        listed.append(f"{len(run.crashed) - _LISTED} more")
    return ", ".join(listed)
