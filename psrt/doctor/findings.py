"""What is wrong with a job's ranks, and what cures it: one row for each. Pure.

A rule takes the facts and yields what it has found, in words; its row says how bad that is and what
to do about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from textwrap import fill

from psrt.core.units import plural, size_text, time_text
from psrt.doctor.facts import Facts, PairFacts, RankFacts

#: Severity: a job would fail, or be slow; or something may be unintended.
FAILS, SLOW, NOTE = "fails", "slow", "note"

#: Both directions at once taking this many times as long as one means that they take turns.
_HALF_DUPLEX = 1.35
#: A link this many times as slow as the median of all is the odd one out.
_ODD = 3.0
#: Seconds; messages between hosts that take longer than this use a wrong route.
_SLOW_ALPHA_S = 500e-6
#: Bytes of /dev/shm for each rank below which the windows of larger models do not fit.
_SHM_PER_RANK = 64 << 20
#: Seconds by which clocks may differ before times in logs mislead.
_CLOCK_S = 1.0
#: Width of the text of a finding.
_WIDTH = 100
#: Most hosts, or pairs of hosts, that a rule lists for the same finding.
_MOST_ALIKE = 3
#: Variables that name the network to use.
_NETWORK = ("OMPI_MCA_btl_tcp_if_include", "UCX_NET_DEVICES", "FI_TCP_IFACE")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong."""

    severity: str
    what: str
    cure: str


@dataclass(frozen=True, slots=True)
class Rule:
    """How something wrong is noticed, and cured."""

    severity: str
    find: Callable[[Facts], Iterable[str]]
    cure: str
    #: The cure with Open MPI, if it differs.
    cure_open_mpi: str = ""


def judge(facts: Facts) -> list[Finding]:
    """Return what is wrong, the worst first."""
    found = []
    for rule in RULES:
        cure = (facts.is_open_mpi and rule.cure_open_mpi) or rule.cure
        whats = list(rule.find(facts))
        if len(whats) > _MOST_ALIKE:
            whats[_MOST_ALIKE:] = [f"and {len(whats) - _MOST_ALIKE} more like these"]
        found += [Finding(rule.severity, what, cure) for what in whats]
    return sorted(found, key=lambda finding: (FAILS, SLOW, NOTE).index(finding.severity))


def verdict(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield what is wrong as lines for people, those with one cure together."""
    if not findings:
        yield "nothing found that would make a job fail or slow it down"
    for cure, alike in groupby(findings, key=lambda finding: finding.cure):
        for head, text in (*((it.severity, it.what) for it in alike), ("cure", cure)):
            yield fill(f"{head:<6} {text}", _WIDTH, subsequent_indent=" " * 7)


def _singletons(facts: Facts) -> Iterator[str]:
    first = facts.ranks[0]
    if first.started > len(facts.ranks) == 1:
        yield f"started as one of {first.started} ranks, but MPI sees only this one"


def _unreachable(facts: Facts) -> Iterator[str]:
    for pair in facts.pairs:
        if pair.error:
            yield f"{_between(facts, pair)} cannot exchange messages: {pair.error}"


def _windows(facts: Facts) -> Iterator[str]:
    for ranks in facts.nodes.values():
        for error in sorted({rank.window_error for rank in ranks} - {""}):
            yield f"shared memory does not work on {ranks[0].host}: {error}"


def _differing(*names: str) -> Callable[[Facts], Iterator[str]]:
    def find(facts: Facts) -> Iterator[str]:
        for name in names:
            hosts: dict[str, list[str]] = {}
            for rank in facts.ranks:
                hosts.setdefault(rank.versions.get(name, "none"), []).append(rank.host)
            if len(hosts) > 1:
                each = "; ".join(
                    f"{version[:32]} on {', '.join(dict.fromkeys(on))}"
                    for version, on in hosts.items()
                )
                yield f"not every rank has the same {name}: {each}"

    return find


def _same_name(facts: Facts) -> Iterator[str]:
    boots: dict[str, set[str]] = {}
    for rank in facts.ranks:
        boots.setdefault(rank.host, set()).add(rank.boot)
    for host, machines in boots.items():
        if len(machines) > 1:
            yield f"{len(machines)} machines have the hostname {host}"


def _out_of_reach(facts: Facts) -> Iterator[str]:
    if facts.out_error:
        yield f"rank 0 cannot write to {facts.out}: {facts.out_error}"


def _earlier_run(facts: Facts) -> Iterator[str]:
    if facts.out_holds:
        yield f"{facts.out} holds a run already ({', '.join(facts.out_holds)})"


def _unseen_out(facts: Facts) -> Iterator[str]:
    hosts = dict.fromkeys(rank.host for rank in facts.ranks if rank.sees_out is False)
    if hosts:
        yield f"{', '.join(hosts)} cannot see what {facts.ranks[0].host} writes to {facts.out}"


def _apart(facts: Facts) -> Iterator[str]:
    seen: dict[tuple[str, str], list[RankFacts]] = {}
    for rank in facts.ranks:
        seen.setdefault((rank.host, rank.boot), []).append(rank)
    for (host, _), ranks in seen.items():
        groups = len({rank.node for rank in ranks})
        if groups > 1:
            yield (
                f"the {plural(len(ranks), 'rank')} on {host} share memory only within {groups} "
                "groups, and send messages between them"
            )


def _oversubscribed(facts: Facts) -> Iterator[str]:
    for ranks in facts.nodes.values():
        cores = {core for rank in ranks for core in rank.cores}
        if len(ranks) > len(cores) == ranks[0].machine_cores:
            yield f"{len(ranks)} ranks share {plural(len(cores), 'core')} on {ranks[0].host}"


def _tied(facts: Facts) -> Iterator[str]:
    """Ranks that are bound to too few cores: by Hall's theorem some of them must share one."""
    for ranks in facts.nodes.values():
        everything = frozenset(range(ranks[0].machine_cores))
        for cores in sorted({frozenset(rank.cores) for rank in ranks}, key=len):
            inside = [rank.rank for rank in ranks if cores.issuperset(rank.cores)]
            if len(inside) > len(cores) and cores != everything:
                yield (
                    f"ranks {_list(inside)} are bound to {plural(len(cores), 'core')} "
                    f"({_list(sorted(cores))}) on {ranks[0].host}, which has "
                    f"{ranks[0].machine_cores}"
                )
                break


def _threads(facts: Facts) -> Iterator[str]:
    for ranks in facts.nodes.values():
        threads = sum(rank.blas_threads or 1 for rank in ranks)
        cores = len({core for rank in ranks for core in rank.cores})
        if threads > max(cores, len(ranks)):
            each = max(rank.blas_threads or 1 for rank in ranks)
            yield (
                f"matrix products take {each} threads in each of {plural(len(ranks), 'rank')} on "
                f"{ranks[0].host}, which may use {plural(cores, 'core')}"
            )


def _little_shm(facts: Facts) -> Iterator[str]:
    for ranks in facts.nodes.values():
        free = ranks[0].shm_free
        if free is not None and len(ranks) > 1 and free < len(ranks) * _SHM_PER_RANK:
            yield (
                f"{ranks[0].host} has {size_text(free)} free in /dev/shm for "
                f"{plural(len(ranks), 'rank')}: large models will not fit"
            )


def _half_duplex(facts: Facts) -> Iterator[str]:
    for pair in facts.pairs:
        if not pair.error and pair.both_ways_s > _HALF_DUPLEX * pair.one_way_s > 0:
            yield (
                f"{_between(facts, pair)} send {size_text(pair.nbytes)} in "
                f"{time_text(pair.one_way_s)} one way, but in {time_text(pair.both_ways_s)} both "
                "ways at once: the two directions take turns"
            )


def _odd_link(facts: Facts) -> Iterator[str]:
    pairs = [pair for pair in facts.pairs if not pair.error and pair.beta_s > 0]
    if len(pairs) < 3:
        return
    usual = median(pair.beta_s for pair in pairs)
    for pair in pairs:
        if pair.beta_s > _ODD * usual:
            yield (
                f"{_between(facts, pair)} send a byte in {pair.beta_s * 1e9:.3g} ns, most hosts in "
                f"{usual * 1e9:.3g} ns"
            )


def _long_way(facts: Facts) -> Iterator[str]:
    for pair in facts.pairs:
        if not pair.error and pair.alpha_s > _SLOW_ALPHA_S:
            yield f"a message between {_between(facts, pair)} takes {time_text(pair.alpha_s)}"


def _several_networks(facts: Facts) -> Iterator[str]:
    if len(facts.nodes) < 2 or any(name in facts.ranks[0].settings for name in _NETWORK):
        return
    for ranks in facts.nodes.values():
        networks = ranks[0].networks
        if len(networks) > 1:
            yield (
                f"{ranks[0].host} has {len(networks)} networks "
                f"({', '.join(networks)}), and MPI may use any of them"
            )
            return  # one host is enough


def _clocks(facts: Facts) -> Iterator[str]:
    for ranks in facts.nodes.values():
        ahead = ranks[0].clock_s
        if ahead is not None and abs(ahead) > _CLOCK_S:
            way = "ahead of" if ahead > 0 else "behind"
            yield (
                f"the clock of {ranks[0].host} is {time_text(abs(ahead))} {way} that of "
                f"{facts.ranks[0].host}"
            )


def _between(facts: Facts, pair: PairFacts) -> str:
    return " and ".join(map(facts.host_of, pair.ranks))


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


RULES = (
    Rule(
        FAILS,
        _singletons,
        "use the launcher of this MPI: `psrt launch` finds the right one; with srun it is "
        "--mpi=pmi2 for MPICH",
        "use the launcher of this MPI: `psrt launch` finds the right one; with srun it is "
        "--mpi=pmix for Open MPI",
    ),
    Rule(
        FAILS,
        _unreachable,
        "open the hosts' firewalls for each other, or name the network that connects them: "
        "psrt launch --interface eth1",
    ),
    Rule(
        FAILS,
        _windows,
        "give the host a larger /dev/shm (docker run --shm-size=4g), or turn shared memory off: "
        "psrt train --no-shared-memory",
    ),
    Rule(FAILS, _same_name, "give each machine its own hostname"),
    Rule(
        FAILS,
        _differing("psrt", "MPI", "mpi4py"),
        "install the same environment at the same path on every host",
    ),
    Rule(FAILS, _out_of_reach, "give another folder to --out"),
    Rule(
        SLOW,
        _half_duplex,
        "check the link: ethtool shows whether a card has negotiated half duplex; some tunnels are "
        "always half duplex",
    ),
    Rule(
        SLOW,
        _long_way,
        "name the faster network, if the hosts have several: psrt launch --interface eth1",
    ),
    Rule(SLOW, _odd_link, "check that link: its cable, its negotiated speed, and other users"),
    Rule(
        SLOW,
        _tied,
        "let the system place them: psrt launch --bind-to none; under srun use --cpu-bind=none, or "
        "ask for more --cpus-per-task",
    ),
    Rule(
        SLOW,
        _oversubscribed,
        "start no more ranks than there are cores; for a first try it does not matter",
    ),
    Rule(
        SLOW,
        _threads,
        "the ranks are the parallelism: set OMP_NUM_THREADS=1, as psrt launch does",
    ),
    Rule(
        SLOW,
        _apart,
        "put them into one container or one namespace of processes and of /dev/shm, and under "
        "MPICH unset MPIR_CVAR_NOLOCAL",
    ),
    Rule(
        NOTE,
        _earlier_run,
        "give another folder to --out, or replace that run: psrt train --overwrite",
    ),
    Rule(
        NOTE,
        _unseen_out,
        "use a folder of a shared file system. Otherwise, with psrt train --record, their history "
        "stays in /tmp until the end, and is then sent to rank 0",
    ),
    Rule(NOTE, _little_shm, "enlarge it: mount -o remount,size=8g /dev/shm"),
    Rule(
        NOTE,
        _differing("Python", "numpy"),
        "install the same environment on every host: different versions may change the last bits, "
        "and a replay needs the same versions",
    ),
    Rule(
        NOTE,
        _several_networks,
        "if ranks hang at the start or are slow, name the right one: psrt launch --interface eth0",
    ),
    Rule(NOTE, _clocks, "let chrony or ntpd set the clocks, or do not compare times between hosts"),
)
