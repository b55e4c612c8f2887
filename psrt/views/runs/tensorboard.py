"""The metrics of runs in TensorBoard's format; needs the package ``tensorboardX``.

One folder for each run: scalars by step and by the time of day, how stale gradients were, and the
configuration with the final figures, for the dashboard HPARAMS.
"""

from __future__ import annotations

import contextlib
import importlib.util
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from psrt.config import TrainConfig
from psrt.config.knobs import knobs_of
from psrt.core.errors import ConfigError
from psrt.history.folds.record import time_of
from psrt.report.files import METRICS
from psrt.views.runs.folder import RunFolder, as_written, labels, read_run
from psrt.views.runs.staleness import Histogram, by_worker, histograms, moments

_PACKAGE = "tensorboardX"
#: Column of ``metrics.jsonl`` → tag; other numbers are below ``more``.
TAGS = {
    "loss": "loss/train", "test_loss": "loss/test", "accuracy": "accuracy/test",
    "samples_per_second": "speed/samples per second", "waiting_share": "speed/share of waiting",
    "staleness_mean": "staleness/mean", "staleness_max": "staleness/max",
    "gap_mean": "staleness/gap", "skew_max": "staleness/skew, max",
    "bytes_sent": "bytes/sent", "bytes_received": "bytes/received",
    "consensus_distance": "consensus distance",
}  # fmt: skip
#: Columns that locate a record.
_PLACES = (
    "epoch", "step", "seconds", "samples", "epoch_end", "evaluated_seconds", "measured_seconds",
)  # fmt: skip
#: Figures of a summary by which runs are compared, and their tags.
_FINAL = {
    "test_accuracy": "final/accuracy", "test_loss": "final/test loss",
    "train_loss": "final/training loss", "samples_per_second": "final/samples per second",
    "seconds": "final/seconds",
}  # fmt: skip


def export(runs: Sequence[str | Path], to: str | Path) -> list[Path]:
    """Write runs below a folder, and return the folder of each.

    Args:
        runs: their folders.
        to: the folder for TensorBoard; created if missing.

    Raises:
        ConfigError: without the package, if one is not the folder of a run, or if there are files
            of TensorBoard already where one is written.
    """
    if importlib.util.find_spec(_PACKAGE) is None:
        raise ConfigError(
            "export tensorboard needs tensorboardX: pip install 'psrt-mpi[tensorboard]'"
        )
    names = [name.replace("/", "-") for name in labels(runs)]
    read = [read_run(run) for run in runs]
    folders = [Path(to) / name for name in names]
    for folder in folders:
        if any(folder.glob("events.out.tfevents.*")):
            raise ConfigError(
                f"{folder} already has files of TensorBoard, which would be shown as well: delete "
                "it, or give another --to"
            )
    for run, folder in zip(read, folders, strict=True):
        with as_written(run.path):
            began = began_at(run)
            board = _Board(began)
            _fill(board, run, began)
        path = folder / f"events.out.tfevents.{began:.0f}.psrt"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(board.data)
        except OSError as error:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            raise ConfigError(f"cannot write {folder}: {error.strerror}") from None
    return folders


class _Board:
    """The events of a run, in TensorBoard's framing.

    The package's own writer is not used: it has a thread and an exit hook, and reports what it
    cannot write only there, as a traceback.
    """

    def __init__(self, began: float) -> None:
        from tensorboardX.proto import event_pb2, summary_pb2

        self._event, self._protos = event_pb2.Event, summary_pb2
        self.data = bytearray()
        self._append(self._event(wall_time=began, file_version="brain.Event:2"))

    def scalar(self, tag: str, value: float, step: int, walltime: float) -> None:
        """Add a number."""
        value_ = self._protos.Summary.Value(tag=tag, simple_value=value)
        self.add(self._protos.Summary(value=[value_]), step, walltime)

    def histogram(self, tag: str, histogram: Histogram, step: int, walltime: float) -> None:
        """Add how often each τ occurred, in buckets up to τ + 1/2."""
        least, most, number, total, squares = moments(histogram)
        taus = range(least, most + 1)
        histo = self._protos.HistogramProto(
            min=least, max=most, num=number, sum=total, sum_squares=squares,
            bucket_limit=[tau + 0.5 for tau in taus],
            bucket=[histogram.get(tau, 0) for tau in taus],
        )  # fmt: skip
        value = self._protos.Summary.Value(tag=tag, histo=histo)
        self.add(self._protos.Summary(value=[value]), step, walltime)

    def add(self, summary: Any, step: int, walltime: float) -> None:
        """Add any summary."""
        self._append(self._event(wall_time=walltime, step=step, summary=summary))

    def _append(self, event: Any) -> None:
        from tensorboardX.record_writer import masked_crc32c

        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        for part in (length, data):
            self.data += part + struct.pack("<I", masked_crc32c(part))


def _fill(board: _Board, run: RunFolder, began: float) -> None:
    for record in run.records:
        for name, value in record.items():
            if name in _PLACES or not _is_number(value):
                continue
            tag = TAGS.get(name, f"more/{name}")
            board.scalar(tag, value, record["step"], began + time_of(record, name))
    last = began + (run.records[-1]["seconds"] if run.records else 0.0)
    for step, histogram in histograms(run).items():
        board.histogram("staleness", histogram, step, _time_of(run, step, began, last))
    step = (run.summary or {}).get("steps", 0)
    for worker, histogram in by_worker(run).items():
        board.histogram(f"staleness of worker/{worker}", histogram, step, last)
    _hparams(board, run, step, last)


def _hparams(board: _Board, run: RunFolder, step: int, walltime: float) -> None:
    """Add the configuration, and the final figures as its metrics."""
    from tensorboardX.summary import hparams

    summary = run.summary or {}
    figures = {tag: summary[name] for name, tag in _FINAL.items() if _is_number(summary.get(name))}
    knobs = {name: _plain(getattr(run.config, name)) for name in knobs_of(TrainConfig)}
    known = {name: value for name, value in knobs.items() if value is not None}
    for part in hparams(known, figures):
        board.add(part, step, walltime)
    for tag, value in figures.items():
        board.scalar(tag, value, step, walltime)


def began_at(run: RunFolder) -> float:
    """Return when training began, in seconds since 1970, as far as the files tell."""
    progress = run.progress or {}
    if _is_number(progress.get("written")) and _is_number(progress.get("seconds")):
        return float(progress["written"] - progress["seconds"])
    metrics = run.path / METRICS
    if not (run.records and metrics.exists()):
        return 0.0
    return float(metrics.stat().st_mtime - run.records[-1]["seconds"])


def _time_of(run: RunFolder, step: int, began: float, last: float) -> float:
    return next((began + it["seconds"] for it in run.records if it["step"] >= step), last)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    """Return a knob's value for the dashboard: a number, a switch, or a text."""
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
