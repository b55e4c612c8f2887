"""``psrt bench allreduce``: reads its flags, fits the machine's costs, measures all-reduces."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from mpi4py import MPI

from psrt.bench import allreduce, allreduce_rows, fit
from psrt.bench.allreduce_rows import MOST_RANKS
from psrt.bench.probes import read_machine
from psrt.bench.race import Layout, layouts
from psrt.cli.printing import say
from psrt.collective.analysis.machine import MachineCosts, read_costs
from psrt.core.errors import ConfigError
from psrt.core.files import write_text
from psrt.core.units import plural
from psrt.mpi.agreement import bcast_text, raise_on_all
from psrt.mpi.hosts import split_hosts
from psrt.views.explain.inputs import read_ranks, read_sizes

#: Seconds for all layouts together with ``--quick``.
_QUICK_S = 20.0


def run(given: argparse.Namespace, comm: MPI.Comm) -> dict[str, tuple[Any, str]]:
    """Measure; collective.

    Args:
        given: ``sizes``, ``ranks``, ``hosts``, ``machine_costs`` and ``fit`` as texts or None;
            ``limit_s`` as a number or None; ``rounds``.
        comm: all ranks.

    Returns:
        On rank 0, title → rows and their table; elsewhere an empty dict.

    Raises:
        ConfigError: on every rank, for invalid flags.
    """
    sizes = vector_sizes(given.sizes, allreduce.SIZES[:: 2 if given.quick else 1])
    limit_s = given.limit_s or (_QUICK_S if given.quick else allreduce.LIMIT_S)
    present = hosts_present(comm)
    placed = _layouts(given, comm, present)
    if comm.rank == 0:
        sets = f"{plural(len(sizes), 'vector size')} on {plural(len(placed), 'set')} of ranks"
        less = "" if given.quick else f"; --quick takes {_QUICK_S:g} s"
        say(f"measuring {sets}, for up to {limit_s:g} s{less}")
    fitted, costs = _costs(given, comm, present, placed)
    rows = allreduce.measure(
        comm,
        placed,
        costs=costs,
        sizes=sizes,
        rounds=given.rounds,
        limit_s=limit_s,
        say=say,
    )
    if fitted is not None:
        measured = (*costs.measured, *allreduce_rows.measured_by(rows))
        fitted = replace(fitted, costs=replace(costs, measured=measured))
    with raise_on_all(comm):
        if fitted is not None and given.fit is not None:
            write_text(given.fit, fitted.costs.to_json())
    if comm.rank:
        return {}
    report = {} if fitted is None else {"costs of this machine": _fitted(fitted)}
    return report | {"all-reduce": (rows, allreduce_rows.as_text(rows))}


def _refuse_doubtful(given: argparse.Namespace, fitted: fit.Fitted) -> None:
    why = fit.doubt(fitted)
    if why is None:
        return
    busy = f"{why}: is something else running? See uptime and top"
    if given.fit is not None and not given.force:
        raise ConfigError(f"{given.fit} was not written: {busy}; --force writes it anyway")
    say(f"note: the costs may be wrong for this machine: {busy}")


def _fitted(fitted: fit.Fitted) -> tuple[Any, str]:
    fits = {name: asdict(found) for name, found in fitted.fits.items()}
    return {"costs": asdict(fitted.costs), "fits": fits}, fit.as_text(fitted)


def vector_sizes(text: str | None, usual: Sequence[int]) -> Sequence[int]:
    """Return the vector sizes of ``--sizes``, in bytes, or the usual ones.

    Raises:
        ConfigError: if they are not sizes, or not sizes of float32 vectors.
    """
    if text is None:
        return usual
    sizes = named("sizes", read_sizes, text)
    for nbytes in sizes:
        if nbytes % 4:
            raise ConfigError(f"--sizes must be multiples of 4 bytes, for float32, got {nbytes}")
        if nbytes > allreduce.LARGEST:
            raise ConfigError(f"--sizes must be at most 1G, got {nbytes} bytes")
    return sizes


def _layouts(
    given: argparse.Namespace, comm: MPI.Comm, present: Sequence[Sequence[int]]
) -> list[Layout]:
    """Return the sets of ranks to measure."""
    most = min(comm.size, MOST_RANKS)
    # Between real hosts, the whole job is of interest as well.
    job = ({most}, {len(present)}) if len(present) > 1 else (set(), set())
    ranks = _counts("ranks", given.ranks) or sorted({*allreduce.RANKS} | job[0])
    hosts = _counts("hosts", given.hosts) or sorted({*allreduce.HOSTS} | job[1])
    if given.ranks is not None and not 2 <= min(ranks) <= max(ranks) <= most:
        raise ConfigError(
            f"--ranks must be from 2 to {most}, the number of ranks of this job, got {given.ranks}"
        )
    return layouts(present, ranks, hosts)


def _counts(flag: str, text: str | None) -> list[int]:
    return [] if text is None else named(flag, read_ranks, text)


def named(flag: str, read: Callable[[str], list[int]], text: str) -> list[int]:
    """Read a flag; an error message begins with the flag's name."""
    try:
        return read(text)
    except ConfigError as error:
        raise ConfigError(f"--{flag}: {error}") from None


def hosts_present(comm: MPI.Comm) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each host; collective."""
    node, layout = split_hosts(comm)
    node.Free()
    return layout.hosts


def _costs(
    given: argparse.Namespace,
    comm: MPI.Comm,
    present: Sequence[Sequence[int]],
    placed: Sequence[Layout],
) -> tuple[fit.Fitted | None, MachineCosts]:
    """Return the machine's costs, and on rank 0 the fit before them if they were measured.

    Raises:
        ConfigError: on every rank, if the file of the costs cannot be read.
    """
    text, fitted = "", None
    if given.machine_costs is None:
        ranks = sorted({len(layout.ranks) for layout in placed})
        readings = read_machine(comm, present, ranks=ranks, rounds=min(given.rounds, 5))
        with raise_on_all(comm):
            if comm.rank == 0:
                fitted = fit.fit_machine(readings, cores=len(os.sched_getaffinity(0)))
                _refuse_doubtful(given, fitted)
                text = fitted.costs.to_json()
    with raise_on_all(comm):
        if comm.rank == 0 and given.machine_costs is not None:
            text = read_costs(given.machine_costs).to_json()
    return fitted, MachineCosts.from_json(bcast_text(comm, text))
