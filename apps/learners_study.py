"""Learners that do not wait for all: what that saves, and what a merge does to quality.

    python apps/learners_study.py --out runs/learners
    python apps/learners_study.py --studies goodput --sweeps mtbf,many --restart 500
    python apps/learners_study.py --studies text --seeds 3 --steps 96

goodput: the share of what all learners could compute that is computed, in virtual time, by
all-reduce, local SGD, quorums of 1 and of half the learners, and gossip. One at a time are varied
the number of learners, their speeds, how often they fail, and links.
accuracy: virtual time until the digits are learned, with the same schemes.
merges: four learners at equal samples on the digits: each merge with each outer step, also with one
learner that pushes noise or the wrong sign.
text: the same with torch_text.py's transformer; needs torch.

Failures are pauses: a learner that fails is away for --restart steps, loses nothing, and continues
with what it had. Flags that are not listed are those of `psrt train` and apply to what computes, as
in: --hidden 256
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from script import (
    DEFAULT,
    can_plot,
    make_folder,
    names,
    number,
    numbers,
    rates,
    refuse_mpirun,
    run_script,
    say,
)
from studies import learner_merges, learner_times, learners, learners_plot, refuse
from studies.kept import Kept

from psrt.cli.flags import FlagParser
from psrt.core.errors import ConfigError
from psrt.rows.suggest import did_you_mean

#: By name, what runs one and what draws it; each module has ``run_all`` and ``table``.
STUDIES = {
    "goodput": (learners.run_all, learners.table, learners_plot.draw_goodput),
    "accuracy": (learner_times.run_all, learner_times.table, None),
    "merges": (learner_merges.run_all, learner_merges.table, learners_plot.draw_merges),
    "text": (learner_merges.run_text, learner_merges.table, learners_plot.draw_merges),
}


def main(argv: Sequence[str]) -> None:
    """Run what is asked for; show and write what came out."""
    refuse_mpirun()
    options, flags = parser().parse_known_args(list(argv))
    refuse(flags, "--mode", "--servers", "--seed")
    for asked, known in (
        (options.studies, STUDIES), (options.sweeps, learners.SWEEPS),
        (options.merges, learner_merges.MERGES), (options.outers, learner_merges.OUTERS),
        (options.wrongs, learner_merges.WRONGS),
    ):  # fmt: skip
        for name in asked:
            if name not in known:
                guess = did_you_mean(name, known)
                raise ConfigError(f"no {name!r} here{guess}, there are: {', '.join(known)}")
    make_folder(options.out)
    plots = can_plot()
    for study in options.studies:
        run_all, table, draw = STUDIES[study]
        rows = run_all(options, flags, Kept(options.out / f"{study}.jsonl"))
        say(f"\n{table(rows)}\n")
        if plots and draw is not None:
            draw(rows, options.out / f"{study}.png")
    say(f"written to {options.out}")


def parser() -> FlagParser:
    """Return the parser of what is not a flag of ``psrt train``."""
    flags = FlagParser(prog="learners_study.py", description=__doc__)
    add = flags.add_argument
    add("--out", type=Path, default=Path("runs/learners"), metavar="DIR", help=DEFAULT)
    add("--studies", type=names, default="goodput,accuracy,merges", metavar="NAME,...",
        help=DEFAULT)  # fmt: skip
    add("--seeds", type=number, default=10, metavar="N", help=DEFAULT)
    add("--local-steps", type=number, default=None, metavar="H",
        help="default: 32 for goodput, 8 for all else")  # fmt: skip
    goodput = flags.add_argument_group("goodput and accuracy")
    add = goodput.add_argument
    add("--sweeps", type=names, default=",".join(learners.SWEEPS), metavar="NAME,...",
        help=DEFAULT)  # fmt: skip
    add("--step", type=float, default=0.03, metavar="SECONDS",
        help="of the fastest learner; " + DEFAULT)  # fmt: skip
    add("--parameters", type=number, default=116_000, metavar="N", help=DEFAULT)
    add("--restart", type=float, default=100, metavar="STEPS", help=DEFAULT)
    add(
        "--simulated", type=number, default=8_000, metavar="N",
        help="rounds of all learners in a run of goodput, about; " + DEFAULT,
    )  # fmt: skip
    add("--workers", type=numbers, default="8,32", metavar="W,...", help="of accuracy; " + DEFAULT)
    add("--target", type=float, default=0.9, metavar="ACCURACY", help=DEFAULT)
    merges = flags.add_argument_group("merges and text")
    add = merges.add_argument
    add("--learners", type=number, default=4, metavar="W", help=DEFAULT)
    add("--quorum", type=number, default=3, metavar="K", help=DEFAULT)
    add("--merges", type=names, default=",".join(learner_merges.MERGES), metavar="NAME,...",
        help=DEFAULT)  # fmt: skip
    add("--outers", type=names, default=",".join(learner_merges.OUTERS), metavar="NAME,...",
        help=DEFAULT)  # fmt: skip
    add("--wrongs", type=names, default=",".join(learner_merges.WRONGS), metavar="NAME,...",
        help="what one learner pushes; " + DEFAULT)  # fmt: skip
    add("--counted", choices=learner_merges.STEPS, default="fixed",
        help="local steps: the same for all, or fewer for slower learners; " + DEFAULT)  # fmt: skip
    add("--rates", type=rates, default="0.1,0.2,0.4", metavar="LR,...", help=DEFAULT)
    add("--loud", type=float, default=10, metavar="TIMES",
        help="norm of noise over that of the gradient; " + DEFAULT)  # fmt: skip
    return flags


if __name__ == "__main__":
    sys.exit(run_script(main))
