"""``psrt checkpoints``: what a run has saved, whether it can be read, and its model."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psrt.cli.flags import FlagParser
from psrt.cli.printing import say
from psrt.core.errors import CheckpointError, ConfigError
from psrt.core.files import check_writable
from psrt.core.units import numbered, plural, size_text

if TYPE_CHECKING:
    from psrt.checkpoint import Checkpoints, Manifest

#: How often to look for the newest checkpoint again if the run deletes it while it is read.
_TRIES = 20

_DESCRIPTION = """\
List the checkpoints of a run, the newest first, and read all of each to see whether --resume could.
The exit status is 0 if all can be read, 1 if one cannot, and 2 if there is none."""


def checkpoints_parser() -> FlagParser:
    """Return the parser."""
    parser = FlagParser(prog="psrt checkpoints", description=_DESCRIPTION)
    parser.add_argument(
        "run", metavar="RUN", help="output folder (--out) of the run, or one of its checkpoints"
    )
    parser.add_argument("--step", metavar="N", help="only the checkpoint of this step")
    parser.add_argument("--show", action="store_true", help="print what the newest one holds")
    parser.add_argument(
        "--export", metavar="FILE", help="write the model of the newest one, like model.safetensors"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def main(argv: Sequence[str]) -> int:
    """List checkpoints and return the exit status.

    Raises:
        ConfigError: if there is none, or if one is needed and none can be read.
        SystemExit: after ``--help`` was printed.
    """
    given = checkpoints_parser().parse(argv)
    if given.json and (given.show or given.export is not None):
        raise ConfigError("--json prints the list: leave out --show and --export")
    from psrt.checkpoint import Checkpoints, Disk, Manifest  # numpy only now: --help needs none

    checkpoints = Checkpoints.at(Disk(), Path(given.run))
    if given.export is not None:
        _check_export(given.export, checkpoints.folder)
    path = Path()
    for _ in range(_TRIES):
        listed = _listed(checkpoints, given.run, given.step)
        good = [(path, it) for path, it in listed if isinstance(it, Manifest)]
        if not (given.show or given.export is not None):
            rows = [_row(path, it) for path, it in listed]
            say(json.dumps(rows) if given.json else "\n".join(map(_line, rows)))
            return 0 if len(good) == len(listed) else 1
        if not good:
            raise ConfigError(str(listed[0][1]))
        path, manifest = good[0]
        try:
            said = _of_one(path, manifest, given.export, shows=given.show)
        except (ConfigError, CheckpointError, OSError):
            if path.exists():
                raise
            continue  # deleted by the running job, which has a newer one by now
        say("\n".join(said))
        return 0
    raise ConfigError(
        f"{path} was deleted while it was read: let the run keep more checkpoints (--keep)"
    )


def _listed(
    checkpoints: Checkpoints, run: str, step: str | None
) -> list[tuple[Path, Manifest | CheckpointError]]:
    """Read the checkpoints of a run, or the one of a step, and return what each holds.

    Raises:
        ConfigError: if there is none.
    """
    listed = list(checkpoints.listed(verify=True))
    if step is not None:
        listed = [it for it in listed if it[0].name == step.rjust(8, "0")]
    if not listed:
        of_step = "" if step is None else f" of step {step}"
        raise ConfigError(f"{run}: there is no checkpoint{of_step}")
    return listed


def _of_one(path: Path, manifest: Manifest, export: str | None, *, shows: bool) -> list[str]:
    """Export the model of a checkpoint if asked to, and return the lines about it."""
    said = list(_contents(path, manifest)) if shows else []
    if export is not None:
        _export(path, manifest, export)
        said.insert(0, f"{export}: the {manifest.n} parameters of {path}")
    return said


def _row(path: Path, found: Manifest | CheckpointError) -> dict[str, Any]:
    if isinstance(found, CheckpointError):
        return {"path": str(path), "wrong": str(found)}
    return {
        "path": str(path),
        "step": found.step,
        "parameters": found.n,
        "workers": found.workers,
        "absent": list(found.absent),
        "servers": found.servers,
        "bytes": sum(part.nbytes for part in found.parts),
        "created": found.created,
        "attempt": found.attempt,
        "parent": found.parent,
    }


def _line(row: dict[str, Any]) -> str:
    if "wrong" in row:
        return f"{row['path']}  cannot be read: {row['wrong']}"
    ranks = plural(row["workers"], "worker")
    if row["absent"]:
        ranks += f" (without {numbered('worker', row['absent'])})"
    if row["servers"]:
        ranks += f" and {plural(row['servers'], 'server')}"
    resumed = f", resumed {row['attempt']} times" if row["attempt"] else ""
    return (
        f"{row['path']}  step {row['step']}, {ranks}, {size_text(row['bytes'])}, "
        f"{row['created']}{resumed}"
    )


def _contents(path: Path, manifest: Manifest) -> Iterator[str]:
    """Yield a line for each thing in a checkpoint."""
    from psrt.checkpoint import Disk, read_part
    from psrt.checkpoint.tree import flatten

    yield _line(_row(path, manifest))
    for entry in manifest.parts:
        spans = ", ".join(f"{start} to {stop}" for start, stop in entry.spans)
        yield f"{entry.file}, {size_text(entry.nbytes)}" + (
            f", parameters {spans}" if spans else ""
        )
        arrays, values = flatten(read_part(Disk(), path, entry))
        for name, array in arrays.items():
            yield f"  {name}  {array.dtype}{list(array.shape)}"
        for name, value in _leaves(values, ""):
            yield f"  {name}  {json.dumps(value)}"


def _leaves(values: dict[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{path}{name}/")
        elif not isinstance(value, dict):
            yield f"{path}{name}", value


def _check_export(file: str, checkpoints: Path) -> None:
    """Check that a model can be written to a file, which is replaced.

    Raises:
        ConfigError: if it cannot, if it is not a regular file, or if it belongs to a checkpoint.
    """
    if Path(file).resolve().is_relative_to(checkpoints.resolve()):
        raise ConfigError(f"--export {file} would be written into the checkpoints")
    if os.path.exists(file) and not os.path.isdir(file) and not os.path.isfile(file):
        raise ConfigError(f"cannot write {file}: not a regular file")
    check_writable(file)


def _export(path: Path, manifest: Manifest, file: str) -> None:
    """Write the parameters, under the model's names for them if it is psrt's own model."""
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    from psrt.config import from_toml
    from psrt.job.problems import supervised_problem
    from psrt.job.resuming import Resumption
    from psrt.report.files import reason_of

    theta = Resumption(path, manifest).theta()
    if theta is None:
        raise ConfigError(
            f"{path} has no single model to export: each of its workers has its own parameters"
        )
    config = from_toml(manifest.config, source=str(path))
    arrays = {"theta": theta}
    try:
        problem = supervised_problem(config, workers=manifest.workers)
        if problem.initial().size == theta.size:
            arrays = problem.tensors(theta)
    except ConfigError:
        pass  # the model or its data is not available here
    named = {name: np.ascontiguousarray(it) for name, it in arrays.items()}
    try:
        save_file(named, os.path.realpath(file))
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"cannot write {file}: {reason_of(error)}") from None
