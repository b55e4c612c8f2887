"""Collects facts about the ranks of a job over MPI. Every wait has a deadline."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np

import psrt.mpi.start  # noqa: F401 - the first import of MPI starts it; this says how

from mpi4py import MPI  # isort: skip

from psrt.bench.ranks import wait
from psrt.config import TrainConfig
from psrt.core.units import plural
from psrt.doctor.facts import Facts, RankFacts, rank_from_json, to_json
from psrt.doctor.links import measure_links
from psrt.doctor.local import local_facts
from psrt.doctor.messages import collect, deal, swap
from psrt.doctor.watch import Watch
from psrt.job.mpi import library_name
from psrt.job.roles import assign_roles, resolved
from psrt.mpi.agreement import bcast_text
from psrt.mpi.clocks import compare_clocks
from psrt.mpi.hosts import Layout, split_hosts
from psrt.mpi.monitor import wait_until_read
from psrt.report import OutputFolder

#: Seconds that a shared file system may take to show what another host has written.
_SHOWN_S = 3.0
#: Seconds that rank 0 has to print what is wrong before another rank exits.
_LAST_WORDS_S = 3.0


def gather(
    watch: Watch, *, out: str | None, timeout_s: float, host: int | None = None
) -> Facts | None:
    """Return what is known of all ranks, at rank 0; collective.

    Args:
        watch: ends this process if a step does not.
        out: the folder to try; None tries none.
        timeout_s: seconds that one rank waits for another.
        host: ranks that give the same number count as being on one host if they really are; None
            leaves it to MPI.

    Raises:
        TransportError: at rank 0, if some ranks do not answer.
    """
    comm = MPI.COMM_WORLD
    mine = local_facts(comm.rank, {"MPI": library_name(), "ABI": _abi()})
    # Point-to-point messages come first: a collective that waits for a rank that does not respond,
    # or that another rank cannot reach, does not tell which one.
    watch.step("every rank to say where it is")
    texts = collect(comm, f"{mine.host} {mine.boot} {host}\n{to_json(mine)}", timeout_s)
    keys = [text.partition("\n")[0] for text in texts]
    hosts = [keys.index(key) for key in keys]
    leaders = json.loads(deal(comm, json.dumps(list(dict.fromkeys(hosts))), timeout_s))
    watch.step("the clocks of the hosts")
    clock = compare_clocks(
        comm.rank,
        leaders,
        time.time,
        lambda peer, mine, theirs: swap(comm, peer, mine, theirs, timeout_s),
    )
    if clock is not None:
        mine = replace(mine, clock_s=clock[0], clock_error_s=clock[1])
    watch.step("hosts to exchange messages", 2 * len(leaders))
    pairs = measure_links(comm, leaders, timeout_s)
    if any(pair.error for pair in pairs):
        if comm.rank == 0:
            told = [rank_from_json(text.partition("\n")[2]) for text in texts]
            ranks = [replace(each, node=n) for each, n in zip(told, hosts, strict=True)]
            return Facts(ranks=tuple(ranks), pairs=tuple(pairs), out=out)
        time.sleep(_LAST_WORDS_S)  # rank 0 speaks first
        os._exit(0)  # MPI_Finalize would wait for what never arrives
    watch.step("the ranks of a host to share memory")
    node, layout = split_hosts(comm, host)
    mine = replace(mine, node=layout.local_ranks[0], window_error=_shared(node))
    node.Free()
    out_error, out_holds = "", []
    if out is not None:
        watch.step(f"every rank to look into {out}")
        mine, out_error = _look(comm, mine, out)
        if comm.rank == 0 and not out_error:
            out_holds = OutputFolder(out).found()
    watch.step("every rank to say what it has found")
    texts = collect(comm, to_json(mine), timeout_s)
    if comm.rank != 0:
        return None
    return Facts(
        ranks=tuple(map(rank_from_json, texts)),
        pairs=tuple(pairs),
        out=out,
        out_error=out_error,
        out_holds=tuple(out_holds),
        roles=_roles(layout),
    )


def _abi() -> str:
    """Return the ABI that mpi4py's module was built for; empty if it has but one."""
    parts = os.path.basename(MPI.__file__).split(".")
    return parts[1] if len(parts) > 3 else ""


def end_all(status: int) -> NoReturn:
    """End all ranks without MPI_Finalize, which would wait for those that do not respond.

    MPICH's mpirun does not end the others when one has exited on its own.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        wait_until_read(stream)
    MPI.COMM_WORLD.Abort(status)
    os._exit(status)


def _shared(node: MPI.Intracomm) -> str:
    """Return why the ranks of a host cannot see each other's writes; empty if they can."""
    error = ""
    try:
        window = MPI.Win.Allocate_shared(8, 1, comm=node)
        window.Lock_all(MPI.MODE_NOCHECK)
        numbers = [
            np.frombuffer(memoryview(window.Shared_query(rank)[0]), np.int64)  # type: ignore[arg-type]
            for rank in range(node.size)
        ]
        numbers[node.rank][0] = 1000 + node.rank
        window.Sync()
        node.Barrier()
        window.Sync()
        if [int(it[0]) for it in numbers] != [1000 + rank for rank in range(node.size)]:
            error = "a rank does not see what another has written"
        node.Barrier()
        numbers.clear()
        window.Unlock_all()
        window.Free()
    except MPI.Exception as failure:
        error = failure.Get_error_string()
    return error


def _look(comm: MPI.Comm, mine: RankFacts, out: str) -> tuple[RankFacts, str]:
    """Let rank 0 write a file into ``out``, and every rank look for it."""
    made: list[Path] = []
    name, error = "", ""
    folder = Path(out)
    if comm.rank == 0:
        try:
            missing = [p for p in (folder, *folder.parents) if not p.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            made += missing
            name = f".psrt-doctor-{secrets.token_hex(8)}"
            (folder / name).write_text("seen by which ranks?\n")
        except OSError as failure:
            name, error = "", failure.strerror or str(failure)
    name = bcast_text(comm, name)
    sees = None
    if name:
        end = time.monotonic() + _SHOWN_S
        while not (sees := (folder / name).exists()) and time.monotonic() < end:
            time.sleep(0.05)
    wait(comm.Ibarrier())
    if comm.rank == 0 and name:
        (folder / name).unlink(missing_ok=True)
        for path in made:  # the innermost first
            path.rmdir()
    return replace(mine, sees_out=sees), error


def _roles(layout: Layout) -> str:
    """Return the roles that psrt train would give the ranks, without further flags."""
    if layout.size == 1:
        return "serial"
    config = resolved(TrainConfig(), layout.size)
    lowest = {rank: ranks[0] for ranks in layout.hosts for rank in ranks}
    hosts = [lowest[rank] for rank in range(layout.size)]
    servers, workers = assign_roles(hosts, config.servers or 0, config.placement or "first")
    counts = plural(len(servers), "server"), plural(len(workers), "worker")
    return ", ".join((config.scheme.name, *counts))
