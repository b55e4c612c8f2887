"""Folders of runs, written as text, with only what a test is about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONFIG = 'mode = "ssp:staleness=2"\nservers = 1\nepochs = 4.0\n'


def record(epoch: int, **more: Any) -> dict[str, Any]:
    """Return a line of ``metrics.jsonl``, at the end of an epoch of 10 steps in 2 s."""
    return {
        "epoch": epoch, "step": 10 * epoch, "loss": 1 / epoch, "test_loss": None,
        "accuracy": 1 - 0.5**epoch, "seconds": 2.0 * epoch, "samples_per_second": 500.0,
        "samples": 1000 * epoch, "staleness_mean": 1.5, "staleness_max": 3, "bytes_sent": 4096,
        "bytes_received": 4096, "epoch_end": True, "evaluated_seconds": 2.0 * epoch,
        "gap_mean": None, "skew_max": 0, "waiting_share": 0.25, "consensus_distance": None,
    } | more  # fmt: skip


def summary(**more: Any) -> dict[str, Any]:
    """Return the figures of a run that is over, as far as they are compared."""
    return {
        "mode": "ssp", "workers": 3, "servers": 1, "hosts": 1, "epochs": 4, "steps": 40,
        "seconds": 8.0, "samples": 4000, "samples_per_second": 500.0, "train_loss": 0.25,
        "test_loss": None, "test_accuracy": 0.9375, "parameters": 10, "dropped": 0,
        "staleness": {
            "mean": 1.5, "max": 3, "histogram": [2, 0, 1, 1],
            "by_worker": [
                {"mean": 0.0, "max": 0, "histogram": {"0": 2}},
                {"mean": 2.5, "max": 3, "histogram": {"2": 1, "3": 1}},
            ],
        },
        "waiting": [
            {"worker": 0, "share": 0.5, "waiting_for": {"2": 3.0}},
            {"worker": 1, "share": 0.25, "waiting_for": {"2": 1.0, "0": 2.0}},
        ],
        "missing": [], "bytes_sent": 1 << 20, "parameters_sha256": "ab" * 32,
    } | more  # fmt: skip


def write_run(path: Path, epochs: int = 0, config: str = CONFIG, **files: Any) -> Path:
    """Write a run's folder.

    Args:
        path: of the folder.
        epochs: lines of its metrics.
        config: its ``config.toml``.
        files: by name without ``.json``, the content of others.
    """
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.toml").write_text(config)
    lines = [json.dumps(record(epoch)) + "\n" for epoch in range(1, epochs + 1)]
    (path / "metrics.jsonl").write_text("".join(lines))
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path
