"""Pushes and pulls between hosts that this machine plays, beside the wire's bound.

``make bench-hosts-ps``, as root, writes the tables of ``docs/hosts.md`` with it. Each worker and
each server has a host of its own. The bound is n·W/S bytes at the rate of a link: what a server
must receive while it sends as much; no step takes less, however much of it is done at a time.
Headers and the acknowledgements of the other direction take 7 % of the rate, so 1.07 is the least.

All hosts share the machine's cores, so the same step on links without a limit tells what those need
for it: where that comes near the bound, the cores are the limit. What was measured before stays in
the tables: ``ARGS='--rates 1000 --modes sync --shards 16'`` reads a part of them again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from hosts import RATES, ROOT, write_part

from psrt.bench.figures import write_json
from psrt.cli.flags import FlagParser
from psrt.cli.printing import say
from psrt.cli.process import run_command
from psrt.core.errors import ConfigError
from psrt.core.units import plural, time_text
from psrt.views.explain.inputs import read_ranks
from support.hosts import Hosts, why_not

BEGIN, END = "<!-- bench-hosts ps -->\n", "<!-- / ps -->"
WORKERS, SERVERS, NBYTES = 4, (1, 2, 4), 4 << 20
#: Shards per server.
SHARDS = (1, 16)
MODES = ("sync", "async")
#: How many times the bound a step of several shards may take, by number of servers.
AT_MOST = {1: 1.25, 2: 1.25, 4: 1.5}
LIMIT_S = 600


def bound_s(servers: int, rate: int) -> float:
    """Return the least seconds of a step on links of that rate, in Mbit/s.

    >>> [round(bound_s(servers, 100), 3) for servers in SERVERS]
    [1.342, 0.671, 0.336]
    """
    return NBYTES * WORKERS / servers * 8e-6 / rate


def measure(vendor: str, rate: int | None, mode: str, shards: int, rounds: int) -> dict[str, Any]:
    """Measure a mode with all numbers of servers; return the rows and the machine.

    Args:
        vendor: openmpi or mpich.
        rate: of links, in Mbit/s; None for no limit.
        mode: of psrt and of the plain loop.
        shards: of each server.
        rounds: turns of five steps.

    Raises:
        ConfigError: if a run fails.
    """
    ranks = max(SERVERS) + WORKERS
    words = [str(Path(__file__).with_name("ps.py")), "--mode", mode, "--shards-per-server", shards]
    words += ["--servers", ",".join(map(str, SERVERS)), "--workers", WORKERS]
    # Turns of a second or so on slow links; on fast ones more, against the noise.
    turns = rounds * (1 if rate == min(RATES) else max(RATES) // min(RATES))
    words += ["--sizes", NBYTES, "--rounds", turns, "--json", "found.json"]
    with Hosts(ranks, rate=None if rate is None else f"{rate}mbit") as hosts:
        done = hosts.mpirun(vendor, (1,) * ranks, *words, timeout_s=LIMIT_S)
        if done.status:
            raise ConfigError(f"{vendor}, {mode}: status {done.status}: {done.stderr}")
        found: dict[str, Any] = json.loads((hosts.folder / "found.json").read_text())
    return found


def table(
    rows: Sequence[dict[str, Any]], rate: int, free: Sequence[dict[str, Any]] = ()
) -> list[str]:
    """Return the lines of a table, and what falls short.

    Args:
        rows: of links of that rate.
        rate: in Mbit/s.
        free: of links without a limit: what the machine's cores need for a step.
    """
    heads = ["servers", "mode", "bound", "simplest loop", "over the bound"]
    for shards in SHARDS:
        heads += [f"psrt, {shards} shard{'s' * (shards > 1)} per server", "over the bound"]
    heads += ["without a limit"] * bool(free)
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    misses = []
    for servers, mode in product(SERVERS, MODES):
        bound = bound_s(servers, rate)
        here, unlimited = (
            {
                row["shards_per_server"]: row
                for row in each
                if (row["servers"], row["mode"]) == (servers, mode)
            }
            for each in (rows, free)
        )
        if not here:
            continue
        found = [here[SHARDS[0]]["plain_s"]["median"]] if SHARDS[0] in here else [None]
        found += [here[each]["psrt_s"]["median"] if each in here else None for each in SHARDS]
        cells = [
            cell
            for s in found
            for cell in (("–", "–") if s is None else (time_text(s), f"{s / bound:.2f}"))
        ]
        if free:
            cells.append(time_text(unlimited[SHARDS[-1]]["psrt_s"]["median"]))
        lines.append("| " + " | ".join([str(servers), mode, time_text(bound), *cells]) + " |")
        if found[-1] is not None and found[-1] > AT_MOST[servers] * bound:
            misses.append(
                f"{mode} with {plural(servers, 'server')} takes {found[-1] / bound:.2f} times "
                f"its bound, the aim is {AT_MOST[servers]}"
            )
    return [*lines, "", "Missed: " + "; ".join(misses) + "." if misses else "Nothing missed.", ""]


def tables(folder: Path, vendor: str) -> Iterator[str]:
    """Yield the lines of all tables whose figures are in a folder."""
    free, _ = _found(folder, vendor, None)
    for rate in RATES:
        rows, about = _found(folder, vendor, rate)
        if rows:
            yield from (f"**Links of {rate:,} Mbit/s**: {about}.", "")
            yield from table(rows, rate, free if rate == max(RATES) else ())


def _found(folder: Path, vendor: str, rate: int | None) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of a rate, None for no limit, and the machine that they were read on."""
    rows, about = [], ""
    for mode, shards in product(MODES, SHARDS):
        path = folder / _name(vendor, rate, mode, shards)
        if path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
            rows += found["push and pull"]
            about = found["machine"]
    return rows, about


def _name(vendor: str, rate: int | None, mode: str, shards: int) -> str:
    return f"{vendor}-ps-{rate or 'free'}-{mode}-{shards}.json"


def main(argv: Sequence[str]) -> int:
    """Measure, and write the page."""
    parser = FlagParser(prog="hosts_ps.py", description=__doc__)
    add = parser.add_argument
    add("--mpi", choices=("openmpi", "mpich"), default="openmpi", help="whose library (openmpi)")
    add("--rates", metavar="N,...", default="100,1000", help="of links, in Mbit/s (100,1000)")
    add("--modes", metavar="NAME,...", default="sync,async", help="of psrt (sync,async)")
    add("--shards", metavar="N,...", default="1,16", help="of a server (1,16)")
    add(
        "--rounds",
        metavar="N",
        type=int,
        default=1,
        help="turns of five steps each, at 1,000 Mbit/s ten times as many (1)",
    )
    add("--out", metavar="DIR", type=Path, default=ROOT / "runs/hosts", help="figures (runs/hosts)")
    given = parser.parse(argv)
    reason = why_not()
    if reason is not None:
        raise ConfigError(reason)
    given.out.mkdir(parents=True, exist_ok=True)
    for rate, mode in product(read_ranks(given.rates), given.modes.split(",")):
        for shards in read_ranks(given.shards):
            found = measure(given.mpi, rate, mode, shards, given.rounds)
            write_json(given.out / _name(given.mpi, rate, mode, shards), found)
            say(f"{mode}, {plural(shards, 'shard')} per server, links of {rate} Mbit/s")
            say("\n".join(table(found["push and pull"], rate)))
            if rate == max(RATES) and shards == max(SHARDS):
                found = measure(given.mpi, None, mode, shards, given.rounds)
                write_json(given.out / _name(given.mpi, None, mode, shards), found)
    if given.mpi == "openmpi":
        write_part(BEGIN, "\n".join(tables(given.out, given.mpi)), END)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(lambda: main(sys.argv[1:]), "hosts_ps.py"))
