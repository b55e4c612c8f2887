"""Made-up ranks and hosts for ``psrt doctor`` to judge."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from psrt.doctor.facts import Facts, PairFacts, RankFacts

VERSIONS = {"psrt": "0.1.0", "Python": "3.11", "numpy": "2.4", "mpi4py": "4.1", "MPI": "MPICH 5"}
OPEN_MPI = {**VERSIONS, "MPI": "Open MPI v5.0.11"}
GIB = 1 << 30


def rank(number: int, host: str = "node01", **more: Any) -> RankFacts:
    """A rank of a host with four cores and nothing wrong."""
    values: dict[str, Any] = {
        "boot": f"boot of {host}",
        "node": number,
        "cores": (0, 1, 2, 3),
        "machine_cores": 4,
        "versions": VERSIONS,
        "blas_threads": 1,
        "shm_bytes": 8 * GIB,
        "shm_free": 8 * GIB,
        "networks": {"eth0": "10.0.0.1"},
        "clock_s": 0.0,
        "clock_error_s": 1e-5,
    }
    return RankFacts(rank=number, host=host, **{**values, **more})


def healthy(ranks: int = 2, hosts: int = 2, **more: Any) -> Facts:
    """Ranks on hosts named node01 and so on, all of whom are well."""
    each = [
        rank(h * ranks + r, f"node{h + 1:02}", node=h * ranks, **more)
        for h in range(hosts)
        for r in range(ranks)
    ]
    pairs = [pair((a * ranks, b * ranks)) for b in range(hosts) for a in range(b)]
    return Facts(ranks=tuple(each), pairs=tuple(pairs), roles="sync, 1 server, 3 workers")


def pair(ranks: tuple[int, int], **more: Any) -> PairFacts:
    """Return what two hosts of a good network need."""
    values: dict[str, Any] = {
        "alpha_s": 4e-5,
        "beta_s": 8e-9,
        "nbytes": 1 << 22,
        "one_way_s": 0.034,
    }
    return PairFacts(ranks=ranks, **{**values, "both_ways_s": 0.035, **more})


def with_rank(facts: Facts, number: int, **more: Any) -> Facts:
    """Return facts with other ones of a rank."""
    ranks = list(facts.ranks)
    ranks[number] = replace(ranks[number], **more)
    return replace(facts, ranks=tuple(ranks))


def with_pair(**more: Any) -> Facts:
    """Return two hosts with other facts of the network between them."""
    return replace(healthy(), pairs=(pair((0, 2), **more),))
