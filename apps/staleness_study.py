"""How stale gradients are, and what that does to learning.

    python apps/staleness_study.py --out runs/staleness
    python apps/staleness_study.py --study workers --seeds 3
    python apps/staleness_study.py --run runs/mine

--study softsync, the default: the experiment of Zhang, Gupta, Lian & Liu (IJCAI 2016,
arXiv:1511.05950). Under softsync(n) an update averages ⌊W/n⌋ gradients, and a worker continues at
once with the newest parameters. Gradients are then (W − 1)/⌊W/n⌋ versions old on average, which is
about n where n divides W, and hardly ever more than twice that. A learning rate that is right for n
= 1 fails where n is large; divided by the staleness of each gradient, it works again.

--study workers: accuracy against the number of workers in async and softsync, at several
staleness-aware rates.

--run DIR: plots of one run, real or simulated: staleness by worker and by shard, how far parameters
had moved since they were read, how far apart the versions of shards were, or in gossip the models
of workers, and who waited for what.

Studies run in virtual time and compute everything that a real run computes: 30 workers need neither
a cluster nor MPI, and the same seed gives the same run. Flags that are not listed are those of
`psrt train`, as in: --lr 0.01 --epochs 10 --optimizer momentum
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from script import refuse_mpirun, run_script
from studies import one_run, softsync, workers

from psrt.cli.flags import FlagParser

STUDIES = {"softsync": softsync, "workers": workers}


def main(argv: Sequence[str]) -> None:
    """Do what is asked for."""
    refuse_mpirun()
    asked, _ = choice(add_help=False).parse_known_args(list(argv))
    flags = choice(prog="staleness_study.py", description=__doc__)
    if asked.run is not None:
        one_run.add_flags(flags)
        one_run.show(flags.parse(argv))
    else:
        STUDIES[asked.study].add_flags(flags)
        STUDIES[asked.study].study(*flags.parse_known_args(list(argv)))


def choice(**kwargs: Any) -> FlagParser:
    """Return a parser of the flags that say what to do."""
    flags = FlagParser(**kwargs)
    either = flags.add_mutually_exclusive_group()
    either.add_argument("--study", choices=STUDIES, default="softsync", help="default: softsync")
    either.add_argument("--run", type=Path, metavar="DIR", help="a run's folder: draw that")
    return flags


if __name__ == "__main__":
    sys.exit(run_script(main))
