"""Resumes a run from a checkpoint: checks the config, and reads what each rank gets back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from psrt.checkpoint import Checkpoints, Disk, Manifest, assemble, read_part
from psrt.checkpoint.folder import FOLDER
from psrt.config import TrainConfig, from_toml
from psrt.config.axes import axes_of
from psrt.config.modes import MODES, LocalSGD, Mode
from psrt.config.names import AUTO
from psrt.config.regroup import bound_to_workers
from psrt.config.tuning import tuned_like
from psrt.core.arrays import Vector
from psrt.core.errors import CheckpointError, ConfigError
from psrt.core.partition import Span
from psrt.core.units import numbered
from psrt.history.differences import knob_differences
from psrt.history.header import Tried
from psrt.report.files import SUMMARY
from psrt.runtime.mean import mean_of

#: Knobs that affect the numbers, but may change when a run is resumed: its length and its servers.
FREE = ("epochs", "steps", "servers", "shards_per_server")

#: Further ones if the number of workers changes.
OF_WORKERS = ("batch_size",)

#: In the manifest, the digest of the problem's data, the all-reduce of the control values, which
#: ranks shared a host, and what was tuned; beside them are knobs that were left to the run.
DATA, CONTROL, HOSTS, TUNED = "data", "control", "hosts", "tuned"


class Resumption(NamedTuple):
    """The checkpoint that a run resumes from."""

    #: Its folder.
    path: Path
    manifest: Manifest

    @property
    def attempt(self) -> int:
        """The number of times that the run will have been resumed."""
        return self.manifest.attempt + 1

    def plan(self) -> Iterator[str]:
        """Yield the lines that are printed at the start."""
        for path, it in Checkpoints.at(Disk(), self.path.parent).listed(verify=True):
            if path.name <= self.path.name:
                break
            if isinstance(it, CheckpointError):
                yield f"skipped: {it}"
        absent = self.manifest.absent
        without = f", which is without {numbered('worker', absent)}" if absent else ""
        yield f"resuming from step {self.manifest.step}, {self.path}{without}"

    def is_of(self, run: Path) -> bool:
        """Whether it is a checkpoint of the run in a folder."""
        return self.path.resolve().is_relative_to(run.resolve())

    def other_than(self, run: Path) -> Path | None:
        """Return the folder of its run, None if that is the same folder."""
        return None if self.is_of(run) else self.path.parent.parent

    def to_json(self) -> str:
        """Return it as text, for other processes."""
        return json.dumps([str(self.path), self.manifest.to_json()])

    @classmethod
    def from_json(cls, text: str) -> Resumption:
        """Read what ``to_json`` wrote."""
        path, manifest = json.loads(text)
        return cls(Path(path), Manifest.from_json(manifest))

    def part(self, name: str) -> dict[str, Any]:
        """Return the tree of a part.

        Raises:
            ConfigError: if it is missing, or cannot be read here.
        """
        entry = next((it for it in self.manifest.parts if it.name == name), None)
        if entry is None:
            raise ConfigError(f"--resume {self.path}: it has no {name}")
        try:
            tree = read_part(Disk(), self.path, entry)
            if not isinstance(tree.get("role"), dict):
                raise CheckpointError(f"{entry.file} has no state of a role")
            return tree
        except (CheckpointError, OSError) as error:
            if not self.path.exists():
                raise ConfigError(
                    f"--resume {self.path}: it was deleted while it was read, perhaps by a running "
                    "job there that keeps only the newest (--keep)"
                ) from error
            raise ConfigError(f"--resume {self.path}: {error}") from error

    def start(self, initial: Vector, data: str) -> Vector:
        """Return the parameters (n,) that are broadcast at the start.

        Args:
            initial: those of a new run, used if no vector is common to all workers.
            data: the digest of the problem's data; empty if it has none.

        Raises:
            ConfigError: if the model, or the data, is another one.
        """
        if data != self.manifest.more.get(DATA, ""):
            raise refusal(str(self.path), ["other data"])
        if initial.size != self.manifest.n:
            raise ConfigError(
                f"--resume {self.path}: it has {self.manifest.n} parameters, the model has "
                f"{initial.size}"
            )
        if any(len(names) > 1 for names in self._holders().values()):
            return initial  # each worker restores its own
        theta = self.theta()
        return initial if theta is None else theta

    def theta(self) -> Vector | None:
        """Return the parameters (n,) of the model; None if no part has all of them.

        If several workers have their own values of the same part, it is their mean.
        """
        pieces = []
        try:
            for spans, names in self._holders().items():
                size = sum(span.size for span in spans)
                held = (_held(self.part(name), size) for name in names)
                if len(names) == 1:
                    pieces.append((spans, next(held)[0]))
                else:
                    pieces.append((spans, mean_of(held).theta))
            if not pieces:
                return None
            return assemble(pieces, Span(0, self.manifest.n), self.manifest.n)
        except CheckpointError as error:
            raise ConfigError(f"--resume {self.path}: {error}") from error

    def reported(self, config: TrainConfig) -> int:
        """Return the step from which on workers report again.

        Raises:
            ConfigError: if workers were at different steps and one did not save it.
        """
        step = self.manifest.step
        if not config.scheme.parks:
            return step
        try:
            names = [it.name for it in self.manifest.parts if not is_shard(it.name)]
            roles = [self.part(name)["role"] for name in names]
            staying = [it["meter"]["reported_step"] for it in roles if not it["has_left"]]
            return min(staying, default=step) + 1
        except (LookupError, TypeError):
            why = "a worker does not say what it has reported"
            raise ConfigError(f"--resume {self.path}: {why}") from None

    def _holders(self) -> dict[tuple[Span, ...], list[str]]:
        """Return, by the spans that they have, the names of the parts with parameters."""
        found: dict[tuple[Span, ...], list[str]] = {}
        for it in self.manifest.parts:
            if it.spans:
                found.setdefault(it.spans, []).append(it.name)
        return found

    def chosen(self, knobs: Mapping[str, Any]) -> dict[str, str]:
        """Return the values that the run chose for those of these knobs that were left to it."""
        more = self.manifest.more
        return {name: it for name, it in more.items() if knobs.get(name, it) in (None, AUTO)}

    @property
    def tuned(self) -> tuple[Tried, ...]:
        """What was tried when the run was new, see ``Header``.

        Raises:
            ConfigError: if the checkpoint says it in no such way.
        """
        text = self.manifest.more.get(TUNED, "[]")
        try:
            return tuple(
                (int(value), seconds and float(seconds)) for value, seconds in json.loads(text)
            )
        except (ValueError, TypeError):
            raise ConfigError(f"--resume {self.path}: nothing was tuned like {text!r}") from None

    def check(self, config: TrainConfig, *, ranks: int) -> None:
        """Check that a resolved config resumes this run.

        Raises:
            ConfigError: one line that lists every difference.
        """
        then = from_toml(self.manifest.config, source=str(self.path)).plain()
        now = {name: it for name, it in config.plain().items() if name not in FREE}
        workers = ranks - (config.servers or 0)
        absent = self.manifest.absent
        others = workers != self.manifest.workers or bool(absent)
        if others:
            now = {name: it for name, it in now.items() if name not in OF_WORKERS}
            now["mode"] = _unbound(config.scheme, workers)
            then["mode"] = _unbound(MODES.read(then["mode"]), self.manifest.workers)
        differences = knob_differences(now, then | self.chosen(then))
        if others and (why := bound_to_workers(config)):
            dead = "other workers in place of dead ones" * bool(absent)
            who = dead or f"{workers} workers instead of {self.manifest.workers}"
            differences.append(f"{who}, which {why}")
        elif config.record and (config.servers or 0) != self.manifest.servers:
            differences.append("other servers, whose histories --record cannot join")
        if differences:
            raise refusal(str(self.path), differences)


def is_shard(name: str) -> bool:
    """Whether the part of that name is of a shard; otherwise it is of a worker."""
    return name.startswith("shard-")


def _held(tree: dict[str, Any], size: int) -> tuple[Vector, float]:
    """Return the parameters (size,) in a part, or a worker's own, and their weight in the mean.

    Raises:
        CheckpointError: if they are missing or invalid.
    """
    try:
        own = {"vector": tree["theta"]} if "theta" in tree else tree["role"]["strategy"]
        theta, weight = own["vector"], own.get("weight", 1.0)
    except (LookupError, TypeError, AttributeError):
        raise CheckpointError("a part has no parameters") from None
    is_vector = isinstance(theta, np.ndarray) and (theta.shape, theta.dtype) == (
        (size,),
        np.float32,
    )
    if not is_vector or type(weight) is not float or not 0 < weight < np.inf:
        raise CheckpointError("the parameters of a part are invalid")
    return theta, weight


def resumed_config(resume: str, **given: Any) -> TrainConfig:
    """Return the config of a resumed run: as it was, with the given knobs.

    Args:
        resume: a run's folder, or one of its checkpoints; ``auto`` is the run in ``out``, if any.
        given: knobs to set; those that affect the numbers must keep their value, except ``FREE``.

    Raises:
        ConfigError: if there is no such checkpoint, or the run would be another one.
    """
    where = resume
    if resume == AUTO:
        if given.get("out") is None:
            raise ConfigError("--resume auto has no effect without --out DIR, the run's folder")
        where = given["out"]
    it = found_in(where)
    if it is None and resume == AUTO:
        return TrainConfig(**given, resume=AUTO)
    it = _there(it, where)
    then = from_toml(it.manifest.config, source=f"{where}").plain()
    if given.get("tune") and it.tuned:  # it was, before the run
        given |= _as_found(given.get("mode"), it)
    if given.get("parallel") is not None and then["parallel"] is not None:
        # The number of copies may be left to the ranks.
        axes = axes_of(given["parallel"])
        copies = axes.data or axes_of(then["parallel"]).data
        given["parallel"] = str(axes._replace(data=copies))
    mode = _mode_of(given.get("mode"), then, it.manifest.workers)
    if given.get("mode") is not None:
        given["mode"] = mode
    kept = {name: it for name, it in given.items() if name not in (*FREE, *OF_WORKERS)}
    if found_differences := knob_differences(kept, then):
        raise refusal(where, found_differences)
    if any(given.get(name) is not None for name in ("epochs", "steps")):
        then |= {"epochs": None, "steps": None}
    if given.get("out") is None:
        given["out"] = _run_of(it)
    then["mode"] = mode
    if "staleness_rate" not in mode.uses:
        then["staleness_rate"] = None
    return TrainConfig(**{**then, **given, "resume": where})


def _mode_of(given: Mode | str | None, then: Mapping[str, Any], workers: int) -> Mode:
    """Return the mode of a resumed run, as it was given, or as it was.

    Args:
        given: with this run, if it was.
        then: knobs of the run that it resumes.
        workers: of that run.

    Where a merge waits for all workers it says so by a number, or by none: now there may be others.
    """
    row: Mode = MODES.read(then["mode"]) if given is None else MODES.accept(given)
    if given is not None:
        return row.among(workers, then["servers"] or 0) if row.quorum == workers else row
    return _unbound(row, workers)


def _unbound(row: Mode, workers: int) -> Mode:
    """Return a mode whose merges wait for all workers without their number."""
    is_of_all = isinstance(row, LocalSGD) and row.streams and row.quorum == workers
    return replace(row, quorum=None) if is_of_all else row  # type: ignore[call-arg]


def _run_of(it: Resumption) -> str:
    """Return the folder of a checkpoint's run, even if it was moved.

    Raises:
        ConfigError: if the checkpoint is in no run's folder.
    """
    if it.path.parent.name != FOLDER:
        raise ConfigError(f"--resume {it.path} is in no run's folder: it needs --out DIR")
    return str(it.path.parent.parent)


def pinned(config: TrainConfig) -> TrainConfig:
    """Return the config with the checkpoint of ``resume``, and its run's choices."""
    where, is_auto = config.resume or "", config.resume == AUTO
    if is_auto:
        if config.out is None:
            raise ConfigError("--resume auto has no effect without --out DIR, the run's folder")
        where = config.out
    it = found_in(where)
    if it is None and is_auto:
        # An attempt that died before its first checkpoint has left nothing to resume.
        left = Checkpoints(Disk(), Path(where)).listed()
        is_left = (Path(where) / SUMMARY).exists() or next(left, None) is not None
        return replace(config, resume=None, overwrite=config.overwrite or not is_left)
    it = _there(it, where)
    chosen: dict[str, Any] = it.chosen(config.plain())
    if config.tune and it.tuned:
        config = replace(config, **_as_found(config.mode, it))
    if chosen:
        chosen["machine_costs"] = None  # the choices were made by them
    if config.mode is not None:
        # A quorum that was all workers then is none.
        then = from_toml(it.manifest.config, source=str(it.path)).plain()
        mode = _mode_of(config.mode, then, it.manifest.workers)
        if mode != config.scheme:
            chosen |= {"mode": mode, "servers": config.servers or it.manifest.servers}
    return replace(config, **chosen, resume=str(it.path))


def _as_found(mode: Mode | str | None, it: Resumption) -> dict[str, Any]:
    """Return the knobs of a run that tuned when it was new."""
    then = from_toml(it.manifest.config, source=str(it.path))
    return tuned_like(mode, it.manifest.servers, then.scheme, then.shards_per_server)


def found_in(run: str) -> Resumption | None:
    """Return the newest good checkpoint of a run, None if there is none."""
    newest, _ = Checkpoints.at(Disk(), Path(run)).newest()
    return None if newest is None else Resumption(*newest)


def survived(run: str) -> bool:
    """Return whether a run continues when a worker dies, by its newest manifest alone.

    Raises:
        ConfigError: if its config cannot be read.
    """
    listed = Checkpoints.at(Disk(), Path(run)).listed()
    newest = next((it for _, it in listed if isinstance(it, Manifest)), None)
    return newest is not None and bool(from_toml(newest.config, source=run).survive)


def found(run: str) -> Resumption:
    """Return the newest good checkpoint of a run.

    Raises:
        ConfigError: if there is none.
    """
    return _there(found_in(run), run)


def _there(it: Resumption | None, run: str) -> Resumption:
    if it is None:
        _, passed = Checkpoints.at(Disk(), Path(run)).newest()
        raise ConfigError(f"--resume {run}: {passed[0] if passed else 'there is no checkpoint'}")
    return it


def refusal(run: str, differences: Sequence[str]) -> ConfigError:
    """Return the error of a run that would not continue the other."""
    return ConfigError(f"--resume {run} would not continue that run: {'; '.join(differences)}")
