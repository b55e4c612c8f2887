"""Learners that do not wait for all: what that saves, and what a merge does to quality.

    python apps/learners_study.py --out runs/learners
    python apps/learners_study.py --studies goodput --sweeps mtbf,many --restart 500
    psrt launch -n 5 apps/learners_study.py --studies merges,outers,text,text-outers

goodput: the share of what all learners could compute that is computed, in virtual time, by
all-reduce, local SGD, quorums of 1 and of half the learners, and gossip. One at a time are varied
the number of learners, their speeds, how often they fail, and links.
accuracy: virtual time until the digits are learned, with the same schemes.
merges: four learners at equal samples on the digits, a quorum of 3: each merge with and without an
outer step, also with one learner that pushes noise or the wrong sign. On five ranks of mpirun they
are real, else in virtual time.
outers: the same with a quorum of 1: each outer step, with fixed and dynamic local steps.
text, text-outers: both with torch_text.py's transformer; needs torch.

Failures are pauses: a learner that fails is away for --restart steps, loses nothing, and continues
with what it had. What was found is kept in --out, and not sought again. Flags that are not listed
are those of `psrt train` and apply to what computes, as in: --hidden 256
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from script import (
    DEFAULT,
    can_plot,
    make_folder,
    names,
    number,
    ranks_of_job,
    rates,
    run_script,
    say,
)
from studies import learner_merges, learner_times, learners, learners_plot, refuse
from studies.kept import Kept

from psrt.cli.flags import FlagParser
from psrt.core.errors import ConfigError
from psrt.rows.suggest import did_you_mean

if TYPE_CHECKING:
    from mpi4py import MPI

#: By name, what runs one in virtual time, shows it and draws it.
TIMES: dict[str, tuple[Any, ...]] = {
    "goodput": (learners.run_all, learners.table, learners_plot.draw_goodput),
    "accuracy": (learner_times.run_all, learner_times.table, None),
}
STUDIES = (*TIMES, *learner_merges.PLANS)


def main(argv: Sequence[str]) -> None:
    """Run what is asked for; show and write what came out."""
    options, flags = parser().parse_known_args(list(argv))
    refuse(flags, "--mode", "--servers", "--seed")
    for asked, known in (
        (options.studies, STUDIES), (options.sweeps, learners.SWEEPS),
        (options.merges or (), learner_merges.MERGES),
        (options.outers or (), learner_merges.OUTERS),
        (options.wrongs or (), learner_merges.WRONGS),
    ):  # fmt: skip
        for name in asked:
            if name not in known:
                guess = did_you_mean(name, known)
                raise ConfigError(f"no {name!r} here{guess}, there are: {', '.join(known)}")
    comm = ranks_of_job()
    if comm is None or comm.size == 1:
        make_folder(options.out)
        run_studies(options, flags, None)
        return
    ranks = learner_merges.LEARNERS + 1
    if comm.size != ranks or set(TIMES) & set(options.studies):
        raise ConfigError(
            f"real learners are {ranks} ranks, and of {', '.join(learner_merges.PLANS)} alone; "
            "the other studies are in virtual time, without mpirun"
        )
    from psrt.mpi.monitor import watched

    with watched(comm):  # one rank's failure ends all of them
        if comm.rank == 0:
            make_folder(options.out)
        run_studies(options, flags, comm)


def run_studies(options: Namespace, flags: Sequence[str], comm: MPI.Comm | None) -> None:
    """Run the studies in this process, or with real learners, where each rank calls this."""
    is_first = comm is None or comm.rank == 0
    plots = can_plot()
    for study in options.studies:
        if comm is not None:
            comm.barrier()  # all read before one writes
        kept = Kept(options.out / f"{study}.jsonl", writes=is_first)
        if comm is not None:
            comm.barrier()
        if study in TIMES:
            run_all, table, draw = TIMES[study]
            rows = run_all(options, flags, kept)
        else:
            table, draw = learner_merges.table, learners_plot.draw_curves
            rows = learner_merges.run_all(study, options, flags, kept, comm)
        say(f"\n{table(rows)}\n")
        if plots and draw is not None and is_first:
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
    add("--target", type=float, default=0.9, metavar="ACCURACY", help=DEFAULT)
    add("--rates", type=rates, metavar="LR,...",
        help="of which the best is taken (default: those of the study)")  # fmt: skip
    merges = flags.add_argument_group("merges, outers, text and text-outers")
    add = merges.add_argument
    add("--merges", type=names, metavar="NAME,...", help="default: those of the study")
    add("--outers", type=names, metavar="NAME,...", help="only these outer steps")
    add("--wrongs", type=names, metavar="NAME,...", help="only these of what one learner pushes")
    add("--last", choices=(learner_merges.FASTEST, learner_merges.SLOWEST),
        default=learner_merges.FASTEST,
        help="speed of the last learner, which is the wrong one; " + DEFAULT)  # fmt: skip
    add("--loud", type=float, default=10, metavar="TIMES",
        help="norm of noise over that of the gradient; " + DEFAULT)  # fmt: skip
    return flags


if __name__ == "__main__":
    sys.exit(run_script(main))
