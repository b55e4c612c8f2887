"""What docs/checkpoints.md promises of each mode is so: its table, cell by cell."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from psrt.cli.flags import parse_train
from psrt.config.modes import MODES
from psrt.errors import ConfigError
from psrt.job.resuming import resumed_config
from psrt.job.virtual import simulate

PAGE = Path(__file__).parents[3] / "docs/checkpoints.md"
KNOBS = (
    "--dataset synthetic:70x12x4 --hidden 16,8 --batch-size 4 --epochs 4 --optimizer momentum "
    "--checkpoint-every 5 --keep 1000"
)
WORKERS = 3
#: Of the columns, what is another one in the run that goes on.
COLUMNS = {"the same ranks": {}, "other servers": {"servers": 3}, "other workers": {"workers": 2}}
#: What a cell may say, in its first words, and what that asks for.
SAME, ROUNDED, LEGAL, REFUSED = "the same bits", "the same but for rounding", "legal", "refused"


def cells():
    """Return (mode and its flags, column, what it says) of every cell that is not empty."""
    text = PAGE.read_text(encoding="utf-8")
    table = re.search(r"^\| mode \| the same.*?\n\n", text, re.MULTILINE | re.DOTALL)[0]
    head, _, *rows = table.strip().splitlines()
    columns = [it.strip() for it in head.strip("|").split("|")][1:]
    assert columns == list(COLUMNS)
    found = []
    for row in rows:
        modes, *said = (it.strip() for it in row.strip("|").split("|"))
        for mode in re.findall(r"`([^`]+)`", modes):
            # Who cannot go on at all cannot with others either.
            some = columns[:1] if said[0] == REFUSED else columns
            found += [(mode, *cell) for cell in zip(some, said, strict=False) if cell[1]]
    return found


def trained(config, workers):
    workers = 1 if config.mode == "serial" else workers
    return simulate(config, workers=workers, seed=7)


def config_of(mode, out):
    words = f"--mode {mode} {KNOBS} --out {out}"
    if mode in ("sync", "local-sgd", "easgd", "async", "ssp", "softsync"):
        words += " --servers 2"
    if mode == "gossip --asynchronous":  # pairs need two colours
        words += " --topology star"
    return parse_train(words.split())


@pytest.mark.parametrize(("mode", "column", "says"), cells())
def test_what_the_table_says(tmp_path, mode, column, says):
    says = next(it for it in (SAME, ROUNDED, LEGAL, REFUSED) if says.startswith(it))
    if says == REFUSED and column == "the same ranks":
        with pytest.raises(ConfigError, match="--checkpoint-every 5"):
            trained(config_of(mode, tmp_path / "whole"), WORKERS)
        return
    whole = trained(config_of(mode, tmp_path / "whole"), WORKERS)
    steps = sorted((tmp_path / "whole/checkpoints").iterdir())
    where, changes = str(steps[len(steps) // 2]), dict(COLUMNS[column])
    workers = changes.pop("workers", WORKERS)
    again = resumed_config(where, out=str(tmp_path / "again"), **changes)
    if says == REFUSED:
        with pytest.raises(ConfigError, match=f"--resume {where}"):
            trained(again, workers)
        return
    one = trained(again, workers)
    assert one.summary.epochs == whole.summary.epochs
    if says == SAME:
        assert one.theta.tobytes() == whole.theta.tobytes()
    elif says == ROUNDED:
        batch = config_of(mode, "x").batch_size * WORKERS // workers
        again = resumed_config(where, out=str(tmp_path / "kept"), batch_size=batch)
        np.testing.assert_allclose(trained(again, workers).theta, whole.theta, rtol=1e-3, atol=1e-4)


def test_the_table_has_every_mode():
    assert {mode.split()[0] for mode, *_ in cells()} == set(MODES)
