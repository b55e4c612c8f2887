"""The output folder of a run, ``--out``. Plain files, no MPI; only rank 0 has one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path

import numpy as np

from psrt.core.errors import ConfigError, OutputError
from psrt.core.files import is_own_folder
from psrt.history import folder as history
from psrt.history.folds.record import Record
from psrt.report.metrics import MetricsFile, read_metrics
from psrt.report.summary import Summary

CONFIG, METRICS = "config.toml", "metrics.jsonl"
MODEL, SUMMARY = "model.safetensors", "summary.json"
#: Written by a simulation only.
SIMULATION = "simulation.json"
#: Written by a run on ranks, for those who look after it.
ROSTER, PROGRESS = "roster.json", "progress.json"
#: Of a run that ended without a summary; see ``psrt.report.end``.
END = "end.json"

#: All that a run writes; ``--overwrite`` deletes these and nothing else.
FILES = (CONFIG, METRICS, MODEL, SIMULATION, SUMMARY, ROSTER, PROGRESS, END)

#: Of a run that saves itself: a folder for each time.
CHECKPOINTS = "checkpoints"

#: Ends the name of a file that is still being written.
_PART = ".part"
#: Holds the files of an earlier run until the new one is known to start.
_ASIDE = ".earlier-run"


class OutputFolder:
    """The four files of a run: config.toml, metrics.jsonl, model.safetensors, summary.json.

    A simulation has a fifth, simulation.json, and no model if it computed nothing. A run on several
    ranks has roster.json, who is where, and progress.json, how far it is. One that ended early has
    end.json.

    The model and the summary appear whole or not at all: each is written under another name and
    then renamed, which is atomic within a folder. So a folder with ``summary.json`` holds a
    finished run.

    Args:
        path: the folder; it need not exist.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        #: The folder as it was named, which is what messages show.
        self.given = self.path
        #: Closes the folder, which is locked while it is open.
        self._unlock: Callable[[], object] | None = None

    def prepare(
        self,
        config_toml: str,
        *,
        overwrite: bool = False,
        record: bool = False,
        resumes: bool = False,
    ) -> None:
        """Make the folder, free of an earlier run, with ``config.toml`` in it.

        Called once, before training, so that a run does not fail at its end because it cannot be
        written. If it raises, nothing was changed. An earlier run is set aside, until ``commit``
        deletes it or ``discard`` brings it back. No other run may use the folder until ``release``.

        Args:
            config_toml: the resolved configuration.
            overwrite: replace the files of an earlier run.
            record: make an empty ``history/`` too.
            resumes: continue the run in the folder, whose checkpoints stay.

        Raises:
            ConfigError: if the path is a file or cannot be written to, by others as well, holds
                a run already and may not be overwritten, or is in use.
        """
        self.lock()
        with self._config_errors("write to"):
            if self._aside.is_dir():  # a start was killed before its first step
                self.discard()
        self._check(overwrite or resumes)
        with self._config_errors("write to"):
            # Others may not write to it even where the user's mask says so: see below.
            self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._lock()
            # Try it: permission bits show no read-only mounts, and do not bind root.
            with tempfile.TemporaryFile(dir=self.path):
                pass
            try:
                self._set_aside(() if resumes else (CHECKPOINTS,))
                with open(self.path / CONFIG, "x", encoding="utf-8") as file:
                    file.write(config_toml)
                if record:
                    history.prepare(self.history)
            except (OSError, ConfigError):
                self.discard()  # half a file would block the next run
                raise

    def lock(self) -> None:
        """Keep other runs away until ``release``, where there is a folder; else ``prepare`` does.

        Called first by a run that resumes: a run that trains in the folder deletes the checkpoint
        that is read.

        Raises:
            ConfigError: if one is there, or the folder is not the user's own.
        """
        with self._config_errors("write to"):
            if self.path.is_dir():
                self._check_own()
                self._lock()

    def _lock(self) -> None:
        """Keep other runs of this host away: the lock ends with this process, however it ends.

        On most file systems that hosts share a folder cannot be locked so: there, two runs must not
        be started in one folder.

        Raises:
            ConfigError: if one is there.
        """
        if self._unlock is not None:
            return
        handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._unlock = weakref.finalize(self, os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise ConfigError(f"output folder {self.path} is in use by another run") from None
        except OSError:
            self.release()

    def release(self) -> None:
        """Let other runs use the folder; nothing is written to it any more."""
        if self._unlock is not None:
            self._unlock()
        self._unlock = None

    def _set_aside(self, folders: Sequence[str]) -> None:
        """Move the files of an earlier run, and of one that was killed while it wrote.

        Args:
            folders: that are moved, too.
        """
        parts = [self.path / (name + _PART) for name in FILES]
        written = [self.path / name for name in (*FILES, *folders)]
        ends = history.files(self.path / history.LAST_EVENTS)
        for path in (*written, *parts, *history.files(self.history), *ends):
            if os.path.lexists(path):
                kept = self._aside / path.relative_to(self.path)
                kept.parent.mkdir(parents=True, exist_ok=True)
                path.replace(kept)
        history.clear(self.history)
        history.clear(self.path / history.LAST_EVENTS)

    @property
    def _aside(self) -> Path:
        return self.path / _ASIDE

    def set_aside(self, name: str) -> Path:
        """Return where something of an earlier run is, between ``prepare`` and ``commit``."""
        return self._aside / name

    def commit(self) -> None:
        """Delete the earlier run that this one replaces; the run is about to begin.

        From here on it does not matter what the current folder is: the user's code may change it.
        """
        self.path = self.path.absolute()
        if not self._aside.is_dir():
            return
        gone = self.path / (_ASIDE + _PART)
        shutil.rmtree(gone, ignore_errors=True)
        # Renamed at once: half of it, left by a kill or an open file, must never come back.
        self._aside.replace(gone)
        shutil.rmtree(gone, ignore_errors=True)

    @property
    def history(self) -> Path:
        """The folder of the run's events."""
        return self.path / history.FOLDER

    def metrics(self, earlier: Iterable[Record] = ()) -> MetricsFile:
        """Open ``metrics.jsonl`` with these records in it; the caller closes it."""
        return MetricsFile(self.path / METRICS, earlier)

    def earlier(self, step: int, run: Path | None = None) -> list[Record]:
        """Return the records before a step of a run.

        Args:
            step: of the checkpoint.
            run: its folder; None for the one that was here until ``prepare``.

        Raises:
            ConfigError: if there are none, or they are no records.
        """
        path = (run or self._aside) / METRICS
        if not path.exists():
            return []
        try:
            return [it for it in map(Record.read, read_metrics(path)) if it.step < step]
        except (TypeError, ValueError) as error:
            where = (run or self.path) / METRICS
            raise ConfigError(f"{where}: not the metrics of a run: {error}") from None

    def write_model(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Write ``model.safetensors``.

        Args:
            tensors: name → array of any shape, for instance ``MLP.tensors(theta)``.
        """
        from safetensors.numpy import save_file  # a run without --out does not need it

        # The format requires C order; safetensors would write a strided view's memory unchanged.
        arrays = {name: np.asarray(array, order="C") for name, array in tensors.items()}
        with self._replacing(MODEL) as part:
            save_file(arrays, part)
            # safetensors lets nobody else read it, whatever the user's mask says.
            shutil.copymode(self.path / CONFIG, part)

    def write_text(self, name: str, text: str) -> None:
        """Write one of ``FILES``, such as ``simulation.json``, which not every run has."""
        with self._replacing(name) as part:
            part.write_text(text, encoding="utf-8")

    def write_progress(self, text: str) -> None:
        """Write ``progress.json`` where that can be done; nothing depends on it."""
        part = self.path / (PROGRESS + _PART)
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
            with open(part, "x", encoding="utf-8") as file:
                file.write(text)
            os.replace(part, self.path / PROGRESS)

    def write_summary(self, summary: Summary) -> None:
        """Write ``summary.json``, the last file of a run."""
        self.write_text(SUMMARY, summary.to_json())

    def discard(self) -> None:
        """Delete what ``prepare`` made, bring an earlier run back, and delete an empty folder.

        For a run that turns out to be impossible: it must not block the next one.
        """
        with contextlib.suppress(OSError, ConfigError):
            history.clear(self.history)
            for name in FILES:
                (self.path / name).unlink(missing_ok=True)
            for kept in sorted(self._aside.rglob("*")):
                path = self.path / kept.relative_to(self._aside)
                if kept.is_dir():
                    path.mkdir(exist_ok=True)
                else:
                    kept.replace(path)
            shutil.rmtree(self._aside, ignore_errors=True)
            if not any(self.path.iterdir()):
                self.path.rmdir()

    def found(self) -> list[str]:
        """Return the names of what a run has written here."""
        found = [name for name in FILES if (self.path / name).exists()]
        if (self.history / history.HEADER).exists():
            found.append(history.FOLDER)
        if (self.path / CHECKPOINTS).exists():
            found.append(CHECKPOINTS)
        return found

    def _check_own(self) -> None:
        """Raise if somebody else could have this run write, or read, what is not its own.

        Files are made, and never opened if something stands at their name. But who may replace what
        is there can do so in between.
        """
        if not is_own_folder(self.path.resolve()):
            raise ConfigError(
                f"output folder {self.path} can be written to by others; expected one of your own, "
                "or chmod go-w"
            )
        for path in (self._aside, self.history, self.path / history.LAST_EVENTS):
            if (path.is_symlink() or path.is_dir()) and not is_own_folder(path):
                raise ConfigError(
                    f"{path} is no folder of your own: a link, or others can write to it"
                )

    def _check(self, overwrite: bool) -> None:
        """Raise if the folder cannot be used; change nothing."""
        with self._config_errors("use"):
            if self.path.exists() and not self.path.is_dir():
                raise ConfigError(f"output folder {self.path} is a file")
            found = self.found()
        for name in found:
            if name in FILES and (self.path / name).is_dir():
                raise ConfigError(f"output folder {self.path} has a folder {name} in it")
        if found and not overwrite:
            raise ConfigError(
                f"output folder {self.path} holds a run already ({', '.join(found)}); "
                "--overwrite replaces it"
            )

    @contextlib.contextmanager
    def _config_errors(self, verb: str) -> Iterator[None]:
        """Turn an error of the file system into a `ConfigError` of one line."""
        try:
            yield
        except OSError as error:
            raise ConfigError(f"cannot {verb} {self.path}: {error.strerror}") from error

    @contextlib.contextmanager
    def _replacing(self, name: str) -> Iterator[Path]:
        """Yield a path to write to, which is renamed to ``name`` at the end or deleted on an error.

        Raises:
            OutputError: if it cannot be written.
        """
        from safetensors import SafetensorError  # raised on a full disk, too

        part = self.path / (name + _PART)
        try:
            part.unlink(missing_ok=True)
            with open(part, "x"):
                pass
            yield part
            os.replace(part, self.path / name)
        except (OSError, SafetensorError) as error:
            raise OutputError(f"cannot write {self.given / name}: {reason_of(error)}") from None
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


def reason_of(error: Exception) -> str:
    """Return the file system's message; safetensors puts its number at the end of a sentence."""
    number = re.search(r"os error (\d+)", str(error))
    if number is not None:
        return os.strerror(int(number[1]))
    return str(getattr(error, "strerror", None) or error)
