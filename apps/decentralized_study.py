"""What it takes to train without a centre: topologies against partitions, beside all-reduce.

    python apps/decentralized_study.py --out runs/decentralized
    python apps/decentralized_study.py --settings "all-reduce,ring" --partitions iid,by-label:2

Workers train the digits in virtual time over links of 10 Gbit/s: by all-reduce, local SGD, elastic
averaging, and gossip on several graphs, with IID and non-IID samples. A gradient takes
what it takes on this machine. Each setting has the best of several learning rates for each
partition, and is run with all workers alike and with a straggler. Shown are the accuracy of the
mean of all models, how far they are from it, the bytes that a worker sends in a step, and the
virtual time; what disappoints is shown like the rest.

Flags that are not listed are those of `psrt train` and apply to every run, as in: --hidden 256
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from script import (
    DEFAULT,
    can_plot,
    make_folder,
    names,
    number,
    rates,
    refuse_mpirun,
    run_script,
    say,
)
from studies import decentralized, decentralized_plot, refuse
from studies.decentralized import PARTITIONS, Row, cells, table

from psrt.cli.flags import FlagParser
from psrt.core.units import plural
from psrt.report.strict_json import dumps


def main(argv: Sequence[str]) -> None:
    """Run all settings; show and write what came out."""
    refuse_mpirun()
    options, flags = parser().parse_known_args(list(argv))
    refuse(flags, "--mode", "--partition", "--lr", "--seed", "--inject")
    make_folder(options.out)
    plots = can_plot()
    show(decentralized.run_all(options, flags), options, plots=plots)


def parser() -> FlagParser:
    """Return the parser of what is not a flag of ``psrt train``."""
    flags = FlagParser(prog="decentralized_study.py", description=__doc__)
    add = flags.add_argument
    add("--out", type=Path, default=Path("runs/decentralized"), metavar="DIR", help=DEFAULT)
    add("--settings", type=names, default=None, metavar="NAME,...", help="default: all")
    add(
        "--partitions", type=names, default=",".join(PARTITIONS), metavar="RULE,...", help=DEFAULT
    )  # fmt: skip
    add("--rates", type=rates, default="0.1,0.2,0.4,0.8", metavar="LR,...", help=DEFAULT)
    add("--workers", type=number, default=8, metavar="W", help=DEFAULT)
    add("--seeds", type=number, default=3, metavar="N", help=DEFAULT)
    add(
        "--slow", type=number, default=10, metavar="FACTOR",
        help="how many times as slow the straggler computes; default: %(default)s",
    )  # fmt: skip
    return flags


def show(rows: Sequence[Row], options: Namespace, *, plots: bool) -> None:
    """Print the tables, write all rows, and draw the plot if that can be."""
    found = cells(rows)
    note = (
        f"{options.workers} workers in virtual time, {plural(options.seeds, 'seed')}, "
        f"straggler {options.slow} times as slow"
    )
    say("\n".join(["", note, table(found)]))
    text = dumps({"note": note, "runs": rows}, indent=2) + "\n"
    (options.out / "decentralized.json").write_text(text, encoding="utf-8")
    files = ["decentralized.json"]
    if plots:
        decentralized_plot.draw(found, options.out / "decentralized.png", note=note)
        files.append("decentralized.png")
    say(f"written to {options.out}: {', '.join(files)}")


if __name__ == "__main__":
    sys.exit(run_script(main))
