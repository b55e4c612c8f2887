"""Pushes and pulls between hosts that this machine plays, beside the wire's bound.

``make bench-hosts-ps``, as root, writes the tables of ``docs/hosts.md`` with it. Each worker and
each server has a host of its own. The bound is n·W/S bytes at the rate of a link: what a server
must receive while it sends as much; no step takes less, however much of it is done at a time.
Headers and the acknowledgements of the other direction take 7 % of the rate, so 1.07 is the least.
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
from psrt.errors import ConfigError
from psrt.units import plural, time_text
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


def measure(vendor: str, rate: int, rounds: int) -> dict[str, Any]:
    """Measure every mode and number of shards; return the rows and the machine.

    Raises:
        ConfigError: if a run fails.
    """
    rows: list[dict[str, Any]] = []
    about = ""
    ranks = max(SERVERS) + WORKERS
    with Hosts(ranks, rate=f"{rate}mbit") as hosts:
        for mode, shards in product(MODES, SHARDS):
            words = ["-m", "psrt", "bench", "ps", "--mode", mode, "--shards-per-server", shards]
            words += ["--servers", ",".join(map(str, SERVERS)), "--workers", WORKERS]
            # Turns of a second or so on slow links; on fast ones more, against the noise.
            turns = rounds * max(1, rate // 100)
            words += ["--sizes", NBYTES, "--rounds", turns, "--json", "found.json"]
            done = hosts.mpirun(vendor, (1,) * ranks, *words, timeout_s=LIMIT_S)
            if done.status:
                raise ConfigError(f"{vendor}, {mode}: status {done.status}: {done.stderr}")
            found = json.loads((hosts.folder / "found.json").read_text())
            about = found["machine"]
            rows += found["push and pull"]
    return {"machine": about, "push and pull": rows}


def table(rows: Sequence[dict[str, Any]], rate: int) -> list[str]:
    """Return the lines of a table, and what falls short."""
    heads = ["servers", "mode", "bound", "simplest loop", "over the bound"]
    for shards in SHARDS:
        heads += [f"psrt, {shards} shard{'s' * (shards > 1)} a server", "over the bound"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    misses = []
    for servers, mode in product(SERVERS, MODES):
        bound = bound_s(servers, rate)
        here = {
            row["shards_per_server"]: row
            for row in rows
            if (row["servers"], row["mode"]) == (servers, mode)
        }
        seconds = [here[SHARDS[0]]["plain_s"]["median"]]
        seconds += [here[shards]["psrt_s"]["median"] for shards in SHARDS]
        cells = [cell for s in seconds for cell in (time_text(s), f"{s / bound:.2f}")]
        lines.append("| " + " | ".join([str(servers), mode, time_text(bound), *cells]) + " |")
        if seconds[-1] > AT_MOST[servers] * bound:
            misses.append(
                f"{mode} with {plural(servers, 'server')} takes {seconds[-1] / bound:.2f} times "
                f"its bound, the aim is {AT_MOST[servers]}"
            )
    return [*lines, "", "Missed: " + "; ".join(misses) + "." if misses else "Nothing missed.", ""]


def tables(folder: Path, vendor: str) -> Iterator[str]:
    """Yield the lines of all tables whose figures are in a folder."""
    for rate in RATES:
        path = folder / _name(vendor, rate)
        if path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
            yield from (f"**Links of {rate:,} Mbit/s**: {found['machine']}.", "")
            yield from table(found["push and pull"], rate)


def _name(vendor: str, rate: int) -> str:
    return f"{vendor}-ps-{rate}.json"


def main(argv: Sequence[str]) -> int:
    """Measure, and write the page."""
    parser = FlagParser(prog="hosts_ps.py", description=__doc__)
    add = parser.add_argument
    add("--mpi", choices=("openmpi", "mpich"), default="openmpi", help="whose library (openmpi)")
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
    for rate in RATES:
        found = measure(given.mpi, rate, given.rounds)
        write_json(given.out / _name(given.mpi, rate), found)
        say(f"links of {rate} Mbit/s")
        say("\n".join(table(found["push and pull"], rate)))
    if given.mpi == "openmpi":
        write_part(BEGIN, "\n".join(tables(given.out, given.mpi)), END)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(lambda: main(sys.argv[1:]), "hosts_ps.py"))
