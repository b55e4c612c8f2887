"""The checkpoints of a run, its restarts, and the workers that it lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from psrt.checkpoint import Manifest
from psrt.core.units import plural
from psrt.views.page.parts import Note, Part, Section, Table
from psrt.views.page.words import nbytes, seconds
from psrt.views.report.folder import RunFolder
from psrt.views.report.of_each import of_each

#: Rows that are listed.
_LISTED = 50


def section(runs: Sequence[RunFolder]) -> Section:
    """Return the section."""
    parts = list(of_each(runs, _of_one))
    if not parts:
        parts.append(
            Note(
                "No checkpoints (--checkpoint-every writes them), no restarts, no lost workers.",
                "missing",
            )
        )
    return Section("checkpoints", "Checkpoints, restarts and lost workers", parts)


def _of_one(run: RunFolder) -> Iterator[Part]:
    if run.checkpoints:
        rows = [_row(name, found) for name, found in run.checkpoints[:_LISTED]]
        head = (
            "checkpoint",
            "step",
            "workers",
            "size",
            "written",
            "restarts before",
            "resumed from",
        )
        yield Table(rows, head, f"{plural(len(run.checkpoints), 'checkpoint')} kept")
    if run.header is not None and run.header.resumed:
        times = run.header.resumed
        listed = ", ".join(map(seconds, times[:_LISTED]))
        times_text = "once" if len(times) == 1 else f"{len(times):,} times"
        yield Note(f"Resumed from a checkpoint {times_text}: {listed} after it began.")
    if run.summary is not None and run.summary.missing:
        lost = [
            (f"worker {it.worker}", f"{it.rank}", it.host, f"{it.pid}", f"{it.clock:,}")
            for it in run.summary.missing[:_LISTED]
        ]
        yield Table(lost, ("lost", "rank", "host", "process", "steps that count"))
    if run.simulation is not None and run.simulation.crashed:
        crashed = zip(run.simulation.crashed, run.simulation.crashed_at, strict=False)
        rows = [(f"worker {worker}", seconds(at)) for worker, at in list(crashed)[:_LISTED]]
        yield Table(rows, ("crashed", "virtual time"))


def _row(name: str, found: object) -> tuple[str, ...]:
    if not isinstance(found, Manifest):
        return (name, f"cannot be read: {found}", "", "", "", "", "")
    size = sum(part.nbytes for part in found.parts)
    workers = f"{found.workers - len(found.absent):,}"
    written = found.created
    restarts = f"{found.attempt:,}"
    return (name, f"{found.step:,}", workers, nbytes(size), written, restarts, found.parent or "–")
