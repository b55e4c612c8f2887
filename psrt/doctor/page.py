"""The facts and findings as a page of text. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from psrt.bench.figures import format_table
from psrt.core.units import plural, runs_of, size_text, time_text
from psrt.doctor.facts import Facts, PairFacts, RankFacts
from psrt.doctor.findings import Finding, verdict


def page(facts: Facts, findings: Sequence[Finding]) -> str:
    """Return a page."""
    first = facts.ranks[0]
    versions = ", ".join(f"{name} {text}" for name, text in first.versions.items() if name != "MPI")
    nodes = facts.nodes
    spread = "one host" if len(nodes) == 1 else f"{len(nodes)} hosts"
    lines = [
        f"versions  {versions}",
        f"MPI       {first.versions.get('MPI', '')}, ABI {first.abi or 'of this MPI alone'}, "
        f"{first.library_path or 'built in'}",
        f"launcher  {first.launcher}, {first.pmi or 'no PMI'}",
        f"ranks     {plural(len(facts.ranks), 'rank')} on {spread}"
        + (f"; psrt train would use them as {facts.roles}" if facts.roles else ""),
    ]
    lines += [f"set       {name}={value}" for name, value in first.settings.items()]
    lines += ["", format_table(_HOST_HEADINGS, [_host(facts, ranks) for ranks in nodes.values()])]
    if facts.pairs:
        pairs = sorted(facts.pairs, key=lambda pair: pair.ranks)
        lines += ["", format_table(_PAIR_HEADINGS, [_pair(facts, pair) for pair in pairs])]
    return "\n".join([*lines, "", *verdict(findings)])


_HOST_HEADINGS = (
    "host", "ranks", "cores", "per rank", "BLAS threads", "/dev/shm free", "windows", "--out",
    "clock",
)  # fmt: skip
_PAIR_HEADINGS = ("hosts", "α", "β (ns/byte)", "message", "one way", "both ways", "each way")


def _host(facts: Facts, ranks: Sequence[RankFacts]) -> tuple[object, ...]:
    first = ranks[0]
    own = sorted({len(rank.cores) for rank in ranks})
    threads = sorted({rank.blas_threads for rank in ranks if rank.blas_threads is not None})
    free = "none"
    if first.shm_free is not None and first.shm_bytes is not None:
        free = f"{size_text(first.shm_free)} of {size_text(first.shm_bytes)}"
    out = (
        "-" if first.sees_out is None else "seen" if all(r.sees_out for r in ranks) else "not seen"
    )
    return (
        first.host,
        _ranges([rank.rank for rank in ranks]),
        first.machine_cores,
        "any" if own == [first.machine_cores] else _ranges(own),
        _ranges(threads) or "?",
        free,
        "fail" if any(rank.window_error for rank in ranks) else "work",
        out,
        "-" if len(facts.nodes) == 1 else _clock(first),
    )


def _clock(rank: RankFacts) -> str:
    if rank.clock_s is None or rank.clock_error_s is None:
        return "?"
    if rank.rank == 0:
        return "0"
    sign = "+" if rank.clock_s >= 0 else "-"
    return f"{sign}{time_text(abs(rank.clock_s))} ± {time_text(rank.clock_error_s)}"


def _pair(facts: Facts, pair: PairFacts) -> tuple[object, ...]:
    hosts = " - ".join(map(facts.host_of, pair.ranks))
    if pair.error:
        return (hosts, *["-"] * 5, pair.error)
    rate = 8e-6 * pair.nbytes / pair.both_ways_s
    return (
        hosts,
        time_text(pair.alpha_s),
        f"{pair.beta_s * 1e9:.3g}",
        size_text(pair.nbytes),
        time_text(pair.one_way_s),
        time_text(pair.both_ways_s),
        f"{rate:,.0f} Mbit/s",
    )


def _ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers in short.

    >>> _ranges([0, 1, 2, 5, 7, 8]), _ranges([])
    ('0-2, 5, 7-8', '')
    """
    runs = runs_of(numbers)
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
