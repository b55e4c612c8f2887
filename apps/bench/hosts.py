"""All-reduces between hosts that this machine plays: measured, predicted, and the wire's bound.

``make bench-hosts``, as root, writes the tables of ``docs/hosts.md`` with it. Between the hosts of
every layout all is measured twice: the first run keeps what it finds by ``--fit``, and by that
``auto`` chooses in the second one, whose figures are those of the tables.

A schedule's bound is its time on a network of nothing but bytes, at the rate of a link. Headers
take 4.5 % of that rate, so 1.05 times the bound is the least. What a link brings in a millisecond
passes at once. With more ranks than cores short calls take what the system's scheduler makes of
them, and are left out.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from psrt.bench.allreduce_rows import AUTO, BACK_TO_BACK, EXCHANGE, LIBRARY, WINDOW
from psrt.bench.figures import write_json
from psrt.cli.flags import FlagParser
from psrt.cli.printing import say
from psrt.cli.process import run_command
from psrt.collective.analysis.choose import predict
from psrt.collective.analysis.cost import lower_bounds
from psrt.collective.analysis.machine import MachineCosts, NodeCosts
from psrt.collective.costs import LinkCosts
from psrt.core.errors import ConfigError
from psrt.core.units import size_text, time_text
from psrt.views.explain.inputs import read_ranks
from support.hosts import Hosts, why_not

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "hosts.md"
BEGIN, END = "<!-- bench-hosts -->\n", "<!-- / -->"
#: Ranks of each host.
LAYOUTS = ((1, 1), (1, 1, 1), (1, 1, 1, 1), (2, 2), (2, 2, 2, 2))
#: Of a link, in Mbit/s each way.
RATES = (100, 1000)
SIZES = "1K:16M"
#: The schedules that are to come near the bound, and from what size on; and how near.
NEAR, FROM, AT_MOST = ("ring", "halving-doubling", "node+ring"), 4 << 20, 1.15
#: Of auto: how many times as long as the fastest, and at least this much of the library's speed.
AUTO_AT_MOST, LIBRARY_FROM, LIBRARY_AT_LEAST = 1.10, 64 << 10, 0.95
#: Bytes up to which a burst may pass a link at once, and up to which calls are short.
BURST = 128 << 10
#: Seconds of one run, or a little more.
LIMIT_S = 240


@dataclass(frozen=True, slots=True)
class Size:
    """The times of one size between the same hosts, in seconds."""

    nbytes: int
    #: The least of any all-reduce's bound.
    bound: float
    #: By name, medians, without auto and the library; and how many times its own bound that is.
    schedules: dict[str, float]
    ratios: dict[str, float]
    auto: float
    chosen: str
    #: How many times as long ``auto`` takes as what it chose, called by its name: noise.
    noise: float | None
    predicted: float | None
    #: How many times as fast as the library auto is, round by round.
    over_library: float | None

    @property
    def fastest(self) -> str:
        """The name of the fastest schedule."""
        return min(self.schedules, key=self.schedules.__getitem__)

    def over_bound(self, name: str) -> str:
        """Return how many times its own bound a schedule takes; a dash for what has no bound."""
        ratio = self.ratios.get(name, 0.0) if self.nbytes > BURST else 0.0
        return f"{ratio:.2f}" if ratio else "–"

    @property
    def misses(self) -> Iterator[str]:
        """What falls short of an aim, in words."""
        where = size_text(self.nbytes)
        over = self.auto / self.schedules[self.fastest]
        if over > AUTO_AT_MOST:
            yield f"auto takes {over:.2f} times as long as {self.fastest} at {where}"
        if self.nbytes >= LIBRARY_FROM and (self.over_library or 1) < LIBRARY_AT_LEAST:
            yield f"auto has {self.over_library:.2f} of MPI.Allreduce's speed at {where}"
        for name in NEAR:
            if self.nbytes >= FROM and self.ratios.get(name, 0.0) > AT_MOST:
                yield f"{name} takes {self.ratios[name]:.2f} times its bound at {where}"


def sizes(rows: Sequence[dict[str, Any]], layout: Sequence[int], rate: int) -> list[Size]:
    """Return the sizes in the rows of a run of ``psrt bench allreduce --json``."""
    nothing = LinkCosts(0.0, 0.0, 0.0)
    wire = MachineCosts(nothing, LinkCosts(0.0, 8e-6 / rate, 0.0), NodeCosts(0.0, 0.0), cores=1)
    found = []
    short = 0 if sum(layout) <= len(os.sched_getaffinity(0)) else BURST
    for nbytes in sorted({row["bytes"] for row in rows if row["bytes"] > short}):
        here = [r for r in rows if r["bytes"] == nbytes and r["pattern"] == BACK_TO_BACK]
        times = {(r["algorithm"], r["buffer"]): r["seconds"]["median"] for r in here}
        auto = next(r for r in here if (r["algorithm"], r["buffer"]) == (AUTO, WINDOW))
        schedules = {n: s for (n, _), s in times.items() if n not in (AUTO, LIBRARY, EXCHANGE)}
        own = schedules.get(auto["chosen"])
        bounds = {name: predict(name, layout, nbytes, 4, wire) for name in schedules}
        found.append(
            Size(
                nbytes,
                bound=lower_bounds(len(layout), nbytes, wire.between).seconds,
                schedules=schedules,
                ratios={name: schedules[name] / bound for name, bound in bounds.items() if bound},
                auto=auto["seconds"]["median"],
                chosen=auto["chosen"],
                noise=None if own is None else auto["seconds"]["median"] / own,
                predicted=auto["predicted_s"],
                over_library=(auto["over_library"] or {}).get("median"),
            )
        )
    return found


def measure(
    vendor: str, layout: Sequence[int], rate: int, rounds: int, lengths: str
) -> dict[str, Any]:
    """Fit, then measure with the fitted costs, and return what that wrote.

    Raises:
        ConfigError: if a run fails.
    """
    words = ["-m", "psrt", "bench", "allreduce", "--sizes", lengths, "--rounds", rounds]
    words += ["--ranks", sum(layout), "--hosts", len(layout), "--limit-s", LIMIT_S]
    costs = "costs.json"
    with Hosts(len(layout), rate=f"{rate}mbit") as hosts:
        for more in (["--fit", costs], ["--machine-costs", costs, "--json", "found.json"]):
            done = hosts.mpirun(vendor, layout, *words, *more, timeout_s=2 * LIMIT_S)
            if done.status:
                raise ConfigError(f"{vendor} on {layout}: status {done.status}: {done.stderr}")
        found: dict[str, Any] = json.loads((hosts.folder / "found.json").read_text())
    return found


def table(found: Sequence[Size]) -> list[str]:
    """Return the lines of a table, and what falls short."""
    near = [name for name in NEAR if name in found[0].schedules]
    heads = [
        "bytes",
        "bound",
        "`auto` takes",
        "predicted",
        "measured",
        "noise",
        "fastest",
        "over it",
    ]
    heads += [f"`{name}` over its bound" for name in near] + ["× `MPI.Allreduce`"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for each in found:
        cells = [
            size_text(each.nbytes),
            time_text(each.bound),
            f"`{each.chosen}`",
            "–" if each.predicted is None else time_text(each.predicted),
            time_text(each.auto),
            "–" if each.noise is None else f"{each.noise:.2f}",
            f"`{each.fastest}`",
            f"{each.auto / each.schedules[each.fastest]:.2f}",
            *map(each.over_bound, near),
            "–" if each.over_library is None else f"{each.over_library:.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    misses = [miss for size in found for miss in size.misses]
    return [*lines, "", "Missed: " + "; ".join(misses) + "." if misses else "Nothing missed.", ""]


def tables(folder: Path, vendor: str) -> Iterator[str]:
    """Yield the lines of all tables whose figures are in a folder."""
    about = ""
    for rate in RATES:
        for layout in LAYOUTS:
            path = folder / _name(vendor, layout, rate)
            if not path.exists():
                continue
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["machine"] != about:
                about = found["machine"]
                yield from (f"{about}.", "")
            yield from (f"**{len(layout)} hosts × {layout[0]}, {rate:,} Mbit/s**", "")
            yield from table(sizes(found["all-reduce"], layout, rate))


def _name(vendor: str, layout: Sequence[int], rate: int) -> str:
    return f"{vendor}-{'+'.join(map(str, layout))}-{rate}.json"


def write_part(begin: str, text: str, end: str) -> None:
    """Replace what the page has between two marks."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    after = rest.partition(end)[2]
    PAGE.write_text(f"{before}{begin}{text}{end}{after}", encoding="utf-8")


def main(argv: Sequence[str]) -> int:
    """Measure, and write the page."""
    parser = FlagParser(prog="hosts.py", description=__doc__)
    add = parser.add_argument
    add("--mpi", choices=("openmpi", "mpich"), default="openmpi", help="whose library (openmpi)")
    add("--rates", metavar="N,...", default="100,1000", help="of links, in Mbit/s (100,1000)")
    add("--ranks", metavar="N,...", default="2,3,4,8", help="of all hosts together (2,3,4,8)")
    add("--sizes", metavar="BYTES", default=SIZES, help=f"FIRST:LAST ({SIZES})")
    add("--rounds", metavar="N", type=int, default=5, help="turns of each candidate (5)")
    add("--out", metavar="DIR", type=Path, default=ROOT / "runs/hosts", help="figures (runs/hosts)")
    given = parser.parse(argv)
    reason = why_not()
    if reason is not None:
        raise ConfigError(reason)
    rates, ranks = read_ranks(given.rates), read_ranks(given.ranks)
    given.out.mkdir(parents=True, exist_ok=True)
    for rate, layout in product(rates, LAYOUTS):
        if sum(layout) in ranks:
            found = measure(given.mpi, layout, rate, given.rounds, given.sizes)
            write_json(given.out / _name(given.mpi, layout, rate), found)
            say(f"{len(layout)} hosts × {layout[0]} at {rate} Mbit/s")
            say("\n".join(table(sizes(found["all-reduce"], layout, rate))))
    if given.mpi == "openmpi":
        write_part(BEGIN, "\n".join(tables(given.out, given.mpi)), END)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(lambda: main(sys.argv[1:]), "hosts.py"))
