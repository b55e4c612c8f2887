"""What is known about the ranks of a job and the links between their hosts. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """What one rank knows about itself and its host."""

    rank: int
    #: Name of its host, and a number of the boot of its machine.
    host: str
    boot: str = ""
    #: The lowest rank that it shares memory with.
    node: int = 0
    pid: int = 0
    #: The cores that it may run on, and the number that its machine has.
    cores: tuple[int, ...] = ()
    machine_cores: int = 1
    #: Versions by name: psrt, its code, Python, numpy, mpi4py, the MPI library.
    versions: Mapping[str, str] = field(default_factory=dict)
    #: The file of the MPI library, and the ABI that mpi4py was built for.
    library_path: str | None = None
    abi: str = ""
    #: What started it, and the protocol between them.
    launcher: str = ""
    pmi: str = ""
    #: Number of ranks that the launcher claims to have started.
    started: int = 1
    #: Threads of a matrix product; None if it is not known.
    blas_threads: int | None = None
    #: Bytes of /dev/shm, and free bytes; None without /dev/shm.
    shm_bytes: int | None = None
    shm_free: int | None = None
    #: Why shared memory of its host does not work; empty if it does.
    window_error: str = ""
    #: Networks of the host that are up, except for the loopback: name → address.
    networks: Mapping[str, str] = field(default_factory=dict)
    #: Whether it sees what rank 0 has written into ``--out``; None if it was not tried.
    sees_out: bool | None = None
    #: Seconds that its host's clock is ahead of rank 0's, and the error of that; None if it was not
    #: measured.
    clock_s: float | None = None
    clock_error_s: float | None = None
    #: Variables that tell MPI which network to use.
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFacts:
    """Exchanges between two hosts, one rank each, in both directions at once."""

    #: The ranks.
    ranks: tuple[int, int]
    #: Why they could not exchange anything; empty if they could.
    error: str = ""
    #: Seconds of a small exchange, and of each byte that is sent while another is received.
    alpha_s: float = 0.0
    beta_s: float = 0.0
    #: Bytes of the largest messages, and their seconds: one alone, and one each way at once.
    nbytes: int = 0
    one_way_s: float = 0.0
    both_ways_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that is known."""

    ranks: tuple[RankFacts, ...]
    pairs: tuple[PairFacts, ...] = ()
    #: The folder that was tried, and why rank 0 cannot write there; empty if it can.
    out: str | None = None
    out_error: str = ""
    #: The names of what an earlier run has written there.
    out_holds: tuple[str, ...] = ()
    #: The roles that `psrt train` would give these ranks.
    roles: str = ""

    @property
    def nodes(self) -> dict[int, list[RankFacts]]:
        """The ranks that share memory, by the lowest of them."""
        found: dict[int, list[RankFacts]] = {}
        for rank in self.ranks:
            found.setdefault(rank.node, []).append(rank)
        return found

    @property
    def is_open_mpi(self) -> bool:
        """Whether the ranks run on Open MPI."""
        return self.ranks[0].versions.get("MPI", "").startswith("Open MPI")

    def host_of(self, rank: int) -> str:
        """Return the name of a rank's host."""
        return self.ranks[rank].host

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        document: dict[str, Any] = json.loads(to_json(self))
        return document


def to_json(facts: RankFacts | PairFacts | Facts) -> str:
    """Return facts as JSON on one line."""
    return json.dumps(dataclasses.asdict(facts), allow_nan=False)


def rank_from_json(text: str) -> RankFacts:
    """Return what ``to_json`` wrote."""
    values = json.loads(text)
    values["cores"] = tuple(values["cores"])
    return RankFacts(**values)


def pair_from_json(text: str) -> PairFacts:
    """Return what ``to_json`` wrote."""
    values = json.loads(text)
    values["ranks"] = tuple(values["ranks"])
    return PairFacts(**values)
