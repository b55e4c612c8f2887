"""The lines of a run for its user, during the run and at its end. Pure: prints nothing.

Plain lines, no cursor movement: under mpirun every rank believes that it has a terminal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from os import PathLike
from typing import Any

from psrt.config.modes import MODES, Mode
from psrt.core.sharding import Memory
from psrt.core.units import plural, size_text, time_text
from psrt.history.folds.record import Record
from psrt.pipeline.registry import schedule_of
from psrt.rows.knobs import dashed


def epoch_line(record: Record) -> str:
    """Return the line of one record, without the figures that were not measured.

    >>> epoch_line(Record(3, 135, 0.21427, 0.19, 0.947, 0.2, 181234.5, 4320, 1.93, 4, 0, 0, True))
    'epoch  3  step  135  loss 0.2143  accuracy 94.7 %  1.8e+05 samples/s  staleness 1.9'
    """
    parts = [f"epoch {record.epoch:2d}", f"step {record.step:4d}"]
    if not math.isnan(record.loss):
        parts.append(f"loss {_loss(record.loss)}")
    if record.accuracy is not None:
        parts.append(f"accuracy {100 * record.accuracy:.1f} %")
    elif record.test_loss is not None:
        parts.append(f"test loss {_loss(record.test_loss)}")
    parts += [f"{name} {_loss(it)}" for name, it in record.figures.items() if it is not None]
    if record.samples_per_second is not None:
        parts.append(f"{record.samples_per_second:.2g} samples/s")
    if record.staleness_mean is not None:
        parts.append(f"staleness {record.staleness_mean:.1f}")
    if record.consensus_distance is not None:
        parts.append(f"consensus {record.consensus_distance:.1e}")
    return "  ".join(parts)


def final_table(
    summary: Mapping[str, Any],
    folder: str | PathLike[str] | None = None,
    *,
    mode: Mode | None = None,
) -> str:
    """Return the short table at the end of a run.

    Args:
        summary: the fields of a ``Summary``, as a dictionary or as read from ``summary.json``.
        folder: the run's folder; None if it wrote no files.
        mode: with its knobs; None if only its name is known.
    """
    rows = [("mode", _mode(summary, mode)), *_quality(summary), ("speed", _speed(summary))]
    rows += _staleness(summary)
    if summary["dropped"]:
        rows.append(("dropped", f"{summary['dropped']:,} gradients"))
    if summary.get("torn"):
        rows.append(("torn", f"{plural(summary['torn'], 'step')} of dead ranks, on some shards"))
    if summary.get("missing"):
        rows.append(("missing", "; ".join(map(_missing, summary["missing"]))))
    sent, received = size_text(summary["bytes_sent"]), size_text(summary["bytes_received"])
    rows.append(("bytes", f"{sent} sent, {received} received"))
    if summary.get("frame_bytes"):
        framed, whole = summary["frame_bytes"], summary["framed_bytes"]
        text = f"{size_text(framed)} instead of {size_text(whole)}, {whole / framed:.3g} times less"
        rows.append(("frames", text))
    if memory := summary.get("memory"):
        rows.append(("memory", f"per worker {Memory(**memory)}"))
    if averages := summary.get("averages"):
        rows.append(("averages", _averages(averages)))
    if tuned := summary.get("tuned"):
        rows.append(("tuned", tuned_text(tuned)))
    if found := summary.get("graph_averages"):
        is_cut = bool(summary.get("model_cut"))
        rows.append(("topology", topology_text(found, is_cut=is_cut)))
        rows.append(("model", _mean(found, is_cut=is_cut)))
    if cut := summary.get("model_cut"):
        rows.append(("parallel", cut_text(cut)))
        each = ", ".join(map(size_text, cut["memory"]))
        of_each = f"; a worker of each needs {each} of memory" if each else ""
        sent_between = size_text(summary["cut_bytes_sent"])
        rows.append(("parts", f"{sent_between} sent between them{of_each}"))
    if folder is not None:
        rows.append(("files", str(folder)))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _missing(row: Mapping[str, Any]) -> str:
    """Return which worker is missing, and since when.

    >>> _missing({"worker": 1, "rank": 2, "host": "node02", "pid": 9410, "clock": 412})
    'worker 1 (rank 2, node02, pid 9410), since clock 412'
    """
    return "worker {worker} (rank {rank}, {host}, pid {pid}), since clock {clock}".format(**row)


def _averages(row: Mapping[str, Any]) -> str:
    """Return what was averaged, and when.

    >>> row = {"local_steps": 8, "fragments": 2, "sync_delay": 3, "mixing": 0.5, "eager": False}
    >>> _averages(row | {"period_bytes": 4096, "peak_bytes": 3072})
    '4 KiB every 8 steps, in 2 fragments of at most 3 KiB, 3 steps late, keeping 0.5 of its own'
    """
    text = f"{size_text(row['period_bytes'])} every {plural(row['local_steps'], 'step')}"
    if row["fragments"] > 1:
        text += f", in {row['fragments']} fragments of at most {size_text(row['peak_bytes'])}"
    if row["sync_delay"]:
        late = plural(row["sync_delay"], "step")
        text += f", {late} late, keeping {row['mixing']:g} of its own"
    return f"{text}, its own part at once" if row["eager"] else text


def tuned_text(row: Mapping[str, Any]) -> str:
    """Return what ``--tune`` has chosen, and of what.

    >>> row = {"knob": "local_steps", "tried": [(1, 0.004), (4, 0.0025), (32, None)], "chosen": 9}
    >>> tuned_text(row)
    'local-steps 9: a step took 4 ms with 1, 2.5 ms with 4; at most 32'
    >>> tuned_text({"knob": "shards_per_server", "tried": [(1, 0.004)], "chosen": 1})
    'shards-per-server 1, the only one possible: a step took 4 ms with 1'
    """
    tried = [(value, seconds) for value, seconds in row["tried"] if seconds is not None]
    took = ", ".join(f"{time_text(seconds)} with {value}" for value, seconds in tried)
    most = "".join(f"; at most {value}" for value, seconds in row["tried"] if seconds is None)
    only = ", the only one possible" if len(tried) == 1 else ""
    return f"{dashed(row['knob'])} {row['chosen']}{only}: a step took {took}{most}"


def topology_text(row: Mapping[str, Any], *, is_cut: bool = False) -> str:
    """Return the graph on which workers, or copies of a split model, average; and what they send.

    >>> row = {"topology": "ring", "order": "combine-then-adapt", "push_sum": False, "period": 1}
    >>> topology_text(row | {"gap": 0.19526, "step_bytes": 8192.0})
    'ring, combine-then-adapt, spectral gap 0.195, 8 KiB per step and worker'
    """
    if not row["order"]:
        return f"{row['topology']}, pairs without rounds"
    text = f"{row['topology']}, {row['order']}"
    if row["push_sum"]:
        text += ", push-sum"
    if row["gap"] is not None:
        of = f" in {row['period']} steps" if row["period"] > 1 else ""
        text += f", spectral gap {row['gap']:.3g}{of}"
    if row["step_bytes"] is None:
        return text
    who = "copy" if is_cut else "worker"
    return f"{text}, {size_text(row['step_bytes'])} per step and {who}"


def cut_text(row: Mapping[str, Any]) -> str:
    """Return how a model is split.

    >>> row = {"parallel": "data:1,pipeline:2", "schedule": "1f1b", "micro_batches": 8}
    >>> cut_text(row | {"layers": [2, 1], "parameters": [9, 8]})
    'data:1,pipeline:2, 1f1b of 8 micro-batches, layers 2 + 1, parameters 9 + 8'
    """
    lists = [f"{name} {' + '.join(map(str, row[name]))}" for name in ("layers", "parameters")]
    number = row["micro_batches"]
    schedule = f"{row['schedule']} of {number} micro-batch{'es' if number > 1 else ''}"
    if schedule_of(row["schedule"]).row.asynchronous:
        schedule = f"{row['schedule']} of whole batches"
    return ", ".join([row["parallel"], schedule, *lists])


def _mean(row: Mapping[str, Any], *, is_cut: bool) -> str:
    """Return how the final model was made.

    >>> _mean({"models": 8, "consensus_distance": 0.00123}, is_cut=False)
    'mean of 8 workers, which ended 1.2e-03 apart'
    >>> _mean({"models": 2, "consensus_distance": None}, is_cut=True)
    'mean of 2 copies'
    """
    copies = f"{row['models']} {'copy' if row['models'] == 1 else 'copies'}"
    text = f"mean of {copies if is_cut else plural(row['models'], 'worker')}"
    if row["models"] > 1 and row["consensus_distance"] is not None:
        text += f", which ended {row['consensus_distance']:.1e} apart"
    return text


def _mode(summary: Mapping[str, Any], mode: Mode | None) -> str:
    name = summary["mode"] if mode is None else mode.described()
    ranks = [
        plural(summary[f"{role}s"], role) for role in ("server", "worker") if summary[f"{role}s"]
    ]
    return ", ".join([name, *ranks])


def _quality(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of the model's quality: accuracy, or the loss without classes, and more."""
    accuracy, loss = summary["test_accuracy"], summary["test_loss"]
    rows = [] if loss is None else [("test loss", _loss(loss))]
    if accuracy is not None:
        rows = [("accuracy", f"{100 * accuracy:.2f} %")]
    more = summary.get("test_figures") or {}
    return rows + [(name, _loss(it)) for name, it in more.items() if it is not None]


def _loss(loss: float) -> str:
    """Return a loss as text; that of a diverging run has up to 38 digits before the point.

    >>> _loss(0.21427), _loss(1.5e36)
    ('0.2143', '1.5e+36')
    """
    return f"{loss:.4f}" if abs(loss) < 1e4 else f"{loss:.4g}"


def _speed(summary: Mapping[str, Any]) -> str:
    per_second, samples, seconds = (
        summary[key] for key in ("samples_per_second", "samples", "seconds")
    )
    total = f"{samples:,} samples in {seconds:.2f} s"
    return f"{per_second:,.0f} samples/s ({total})" if per_second is not None else total


def _staleness(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    staleness = summary["staleness"]
    if not staleness["histogram"]:
        return []  # nothing was pushed
    text = f"mean {staleness['mean']:.2f}, max {staleness['max']}"
    mode = MODES.get(summary["mode"])
    if mode is not None and mode.lead < math.inf:  # its knob has the same name
        text += f" versions ({mode.name} limits steps ahead, not versions)"
    return [("staleness", text)]
