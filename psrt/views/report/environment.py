"""Where a run ran, and with which versions, as far as that was recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from psrt.core.units import plural
from psrt.report.console import tuned_text
from psrt.report.environment import environment_rows
from psrt.report.simulation import Simulation
from psrt.views.page.parts import Note, Part, Section, Table
from psrt.views.page.words import NONE, number, percent
from psrt.views.report.folder import RunFolder
from psrt.views.report.of_each import of_each

#: Rows that are listed.
_LISTED = 64


def section(runs: Sequence[RunFolder]) -> Section:
    """Return the section."""
    return Section("environment", "Environment", list(of_each(runs, _of_one)))


def _of_one(run: RunFolder) -> Iterator[Part]:
    rows = [row for row in _rows(run) if row[1] not in ("", NONE)]
    if run.summary is not None:
        known = dict(rows)
        rows += [it for it in environment_rows(run.summary.environment) if it[0] not in known]
    if rows:
        yield Table(rows)
    if run.simulation is not None:
        yield Table(list(_virtual(run.simulation)), caption="Virtual time")
    if run.roster:
        yield _roster(run.roster)
    if run.header is None:
        text = "Digests of psrt's code and of the data are not recorded; --record writes them."
        yield Note(text, "missing")


def _rows(run: RunFolder) -> Iterator[tuple[str, str]]:
    if run.header is not None:
        yield "psrt", run.header.psrt
        yield "numpy", run.header.numpy
    if run.summary is not None:
        yield "MPI", run.summary.mpi or "none"
        yield "hosts", number(run.summary.hosts)
        if run.summary.shards_per_server is not None:
            why = f" ({run.summary.shards_why})" if run.summary.shards_why else ""
            yield "shards per server", f"{run.summary.shards_per_server:,}{why}"
        if run.summary.tuned is not None:
            yield "tuned", tuned_text(dataclasses.asdict(run.summary.tuned))
        memory = run.summary.memory
        if memory is not None and None not in dataclasses.astuple(memory):
            yield "memory of a worker", str(memory)
    if run.header is not None:
        yield "SHA-256 of psrt's code", run.header.code_sha256[:16]
        yield "SHA-256 of the data", run.header.data_sha256[:16]
        yield "SHA-256 of the initial parameters", run.header.initial_sha256[:16]
    if run.summary is not None:
        yield "SHA-256 of the final parameters", run.summary.parameters_sha256[:16]


def _virtual(run: Simulation) -> Iterator[tuple[str, str]]:
    yield "computing a gradient", run.compute
    yield "links", run.link
    yield "servers apply", run.server_apply
    if run.stage_costs:
        yield "costs of stages", run.stage_costs
    if run.hosts:
        yield "ranks of hosts", ", ".join(map(str, run.hosts[:_LISTED]))
    if run.faults:
        yield "faults", ", ".join(run.faults[:_LISTED])
    yield "events", f"{run.events:,}"
    if run.servers:
        busy = [it.apply for it in run.servers if it.apply is not None]
        if busy:
            yield "servers busy with updates", f"{percent(max(busy))} at most"
        links = [it.link_out for it in run.servers if it.link_out is not None]
        if links:
            yield "their links busy", f"{percent(max(links))} at most"


def _roster(members: Sequence[dict[str, Any]]) -> Table:
    """Return the host of each rank, or the number of ranks on each host if there are many."""
    if len(members) <= _LISTED:
        rows = [(f"{it['rank']}", it["role"], it["host"], f"{it['pid']}") for it in members]
        return Table(rows, ("rank", "role", "host", "process"))
    hosts: dict[str, int] = {}
    for it in members:
        hosts[it["host"]] = hosts.get(it["host"], 0) + 1
    counted = [(host, plural(count, "rank")) for host, count in list(hosts.items())[:_LISTED]]
    return Table(counted, ("host", "ranks"))
