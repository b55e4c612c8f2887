"""Whether fewer bytes pay: accuracy against bytes and against time, for every codec and local SGD.

    python apps/compression_study.py --out runs/compression
    python apps/compression_study.py --modes sync --settings "none,sign,top-k 1%" --seeds 3

Every codec trains the digits in every mode that has codecs, in virtual time over links of 100
Mbit/s, 1 and 10 Gbit/s; gradients, encoding and decoding take what they take on this machine. Each
codec in each mode has the best of several learning rates, and so has the run without one, the
baseline: a codec pays where its median time to the target accuracy is shorter than the fastest run
without one. Sign, and top-k of a hundredth, run without error feedback, too.

Mode local-sgd sends less by averaging seldom, by fragments, late or eagerly, some of it by a codec,
too, and is compared with averages after every step.

All that is sent is counted. Flags that are not listed are those of `psrt train` and apply to every
run, as in: --hidden 256 --epochs 30
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
    share,
)
from studies import compression, compression_plot, refuse
from studies.compression import LINKS, Row
from studies.compression_table import cells, table, verdict

from psrt.cli.flags import FlagParser
from psrt.core.errors import ConfigError
from psrt.core.units import plural
from psrt.report.strict_json import dumps
from psrt.rows.suggest import did_you_mean

#: The modes that are compared unless others are asked for: one of each kind.
SHOWN = ("sync", "async", "allreduce", "local-sgd")


def main(argv: Sequence[str]) -> None:
    """Run all settings; show and write what came out."""
    refuse_mpirun()
    options, flags = parser().parse_known_args(list(argv))
    refuse(flags, "--mode", "--codec", "--lr", "--seed", "--error-feedback", "--no-error-feedback")
    for link in options.links:
        if link not in LINKS:
            guess = did_you_mean(link, LINKS)
            raise ConfigError(f"no link {link!r}{guess}, there are: {', '.join(LINKS)}")
    make_folder(options.out)
    plots = can_plot()
    show(compression.run_all(options, flags), options, plots=plots)


def parser() -> FlagParser:
    """Return the parser of what is not a flag of ``psrt train``."""
    flags = FlagParser(prog="compression_study.py", description=__doc__)
    add = flags.add_argument
    modes = ",".join(SHOWN)
    add("--out", type=Path, default=Path("runs/compression"), metavar="DIR", help=DEFAULT)
    add("--modes", type=names, default=modes, metavar="MODE,...", help=DEFAULT)
    add(
        "--settings", type=names, default=None, metavar="NAME,...",
        help="default: all of the modes"
    )  # fmt: skip
    add("--links", type=names, default=list(LINKS), metavar="LINK,...",
        help="default: " + ", ".join(LINKS))  # fmt: skip
    add("--rates", type=rates, default="0.03,0.1,0.3", metavar="LR,...", help=DEFAULT)
    add("--workers", type=number, default=4, metavar="W", help=DEFAULT)
    add("--seeds", type=number, default=3, metavar="N", help=DEFAULT)
    add("--target", type=share, default=0.9, metavar="ACCURACY", help=DEFAULT)
    return flags


def show(rows: Sequence[Row], options: Namespace, *, plots: bool) -> None:
    """Print table and verdict, write all rows, and draw the plot if that can be."""
    found = cells(rows)
    note = f"{options.workers} workers in virtual time, {plural(options.seeds, 'seed')}"
    words = verdict(found)
    say("\n".join(["", f"{note}, seconds to {100 * options.target:g} %", table(found), "", *words]))
    document = {"note": note, "target": options.target, "verdict": words, "runs": rows}
    text = dumps(document, indent=2) + "\n"
    (options.out / "compression.json").write_text(text, encoding="utf-8")
    files = ["compression.json"]
    if plots:
        path = options.out / "compression.png"
        compression_plot.draw(found, path, target=options.target, note=note)
        files.append("compression.png")
    say(f"written to {options.out}: {', '.join(files)}")


if __name__ == "__main__":
    sys.exit(run_script(main))
