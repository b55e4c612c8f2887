"""``psrt predict``: the classes that the model of a run finds in data. Needs no MPI."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from psrt.cli.flags import FlagParser
from psrt.cli.printing import say
from psrt.core.errors import ConfigError
from psrt.core.files import check_writable
from psrt.core.units import plural

if TYPE_CHECKING:
    from psrt.views.runs.prediction import Prediction

_DESCRIPTION = """\
Predict with the MLP that psrt train has trained:

  psrt predict runs/mine data.npz > classes.csv
  psrt predict runs/mine data.npz -o classes.npz

DATA is an .npz with the samples x, or else x_test, scaled as in training; or any other --dataset of
psrt train, whose test set is taken. Without DATA it is the run's own dataset. The result has y, the
class of each sample, and p, the probability of each class; after --loss squared y has the outputs.
If DATA has y, or y_test, accuracy and loss are printed, too."""


def predict_parser() -> FlagParser:
    """Return the parser."""
    parser = FlagParser(prog="psrt predict", description=_DESCRIPTION)
    parser.add_argument("run", metavar="RUN", help="output folder (--out) of a run")
    parser.add_argument("data", metavar="DATA", nargs="?", help="samples (default: the run's own)")
    parser.add_argument(
        "-o", "--out", metavar="FILE", help="write y and p to this .npz (default: CSV on stdout)"
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Write the predictions and return the exit status.

    Raises:
        ConfigError: if the run has no MLP, the data does not fit it, or the file cannot be written.
        SystemExit: after ``--help`` was printed.
    """
    given = predict_parser().parse(argv)
    if given.out is not None and not given.out.endswith(".npz"):
        raise ConfigError(f"-o {given.out}: expected the name of an .npz file")
    check_writable(given.out)
    from psrt.views.runs.prediction import predict  # numpy only now: --help needs none

    found = predict(given.run, given.data)
    if given.out is None:
        say("\n".join(_lines(found)))
        if found.loss is not None:
            print(_figures(found), file=sys.stderr, flush=True)
    else:
        _write(given.out, found)
        known = "" if found.loss is None else f", {_figures(found)}"
        say(f"{given.out}: {plural(len(found.y), 'sample')}{known}")
    return 0


def _figures(found: Prediction) -> str:
    accuracy = "" if found.accuracy is None else f"accuracy {found.accuracy:.4f}, "
    return f"{accuracy}loss {found.loss:.4g}"


def _lines(found: Prediction) -> Iterator[str]:
    """Yield the lines of a table with a header."""
    if found.p is None:
        yield ",".join(f"y{k}" for k in range(found.y.shape[1]))
        yield from (",".join(f"{it:.6g}" for it in row) for row in found.y)
        return
    yield ",".join(["y", *(f"p{k}" for k in range(found.p.shape[1]))])
    for y, row in zip(found.y, found.p, strict=True):
        yield ",".join([str(y), *(f"{it:.4g}" for it in row)])


def _write(path: str, found: Prediction) -> None:
    import numpy as np

    try:
        if found.p is None:
            np.savez(path, y=found.y)
        else:
            np.savez(path, y=found.y, p=found.p)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
