"""Train an MLP: the main job as a script over the library, with all flags of ``psrt train``.

    mpirun -n 4 python apps/train_mlp.py --config apps/configs/sync.toml --epochs 10
    python apps/train_mlp.py                       # serially, in this process

Every rank runs this script; ``psrt.run`` makes servers and workers of them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from script import run_script, say

import psrt
from psrt.cli.flags import parse_train


def main(argv: Sequence[str]) -> None:
    """Train as the flags say, then look at what came out."""
    config = parse_train(argv, prog="train_mlp.py")
    result = psrt.run(config, say=say)  # says a line per epoch and a table at the end
    if result is None:
        return  # rank 0 has the result
    known = [(record.accuracy, record.epoch) for record in result.records if record.accuracy]
    if known:
        accuracy, epoch = max(known)
        say(f"best       {100 * accuracy:.2f} % after epoch {epoch}")
    say(f"parameters {result.theta.size:,}, largest {abs(result.theta).max():.3f}")


if __name__ == "__main__":
    sys.exit(run_script(main))
