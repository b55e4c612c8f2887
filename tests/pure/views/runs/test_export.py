"""psrt export, and the scripts of docs/export.md: what other tools get is what runs left."""

from __future__ import annotations

import csv
import io
import json
import re
import struct
import sys
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest

from psrt.__main__ import main
from support.run_folders import record, summary, write_run

PAGE = Path(__file__).parents[4] / "docs/export.md"


def test_csv_has_a_line_for_each_record_and_the_columns_of_all(tmp_path, capsys):
    runs = [write_run(tmp_path / "a", 2), write_run(tmp_path / "b", 1)]
    (runs[1] / "metrics.jsonl").write_text(json.dumps(record(1, own="x, y")) + "\n" + '{"half')
    assert main(["export", "csv", *map(str, runs)]) == 0
    text = capsys.readouterr().out
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["run"], row["step"], row["own"]) for row in rows] == [
        ("a", "10", ""), ("a", "20", ""), ("b", "10", "x, y"),
    ]  # fmt: skip
    assert (rows[0]["loss"], rows[0]["test_loss"], rows[0]["epoch_end"]) == ("1.0", "", "True")
    out = tmp_path / "m.csv"
    assert main(["export", "csv", *map(str, runs), "-o", str(out)]) == 0
    assert out.read_text() == text
    assert capsys.readouterr().out == f"{out}: 3 records of 2 runs\n"


def masked(data):
    """Return the checksum of TFRecord: CRC-32C, bit by bit, rotated and moved."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % (1 << 32)


def events_of(folder):
    """Return the events of TensorBoard in a folder, by the framing of TFRecord."""
    protos = pytest.importorskip("tensorboardX.proto.event_pb2")
    (path,) = folder.iterdir()
    data, found = path.read_bytes(), []
    while data:
        length, crc = struct.unpack("<QI", data[:12])
        assert crc == masked(data[:8])
        (crc,) = struct.unpack("<I", data[12 + length : 16 + length])
        assert crc == masked(data[12 : 12 + length])
        found.append(protos.Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return [(event, value) for event in found for value in event.summary.value]


def test_tensorboard_has_each_run_by_step_and_time(tmp_path, capsys):
    progress = {"clock": 40, "seconds": 8.0, "loss": 0.25, "written": 1_700_000_008.0}
    runs = [
        write_run(tmp_path / "x/run", 2, progress=progress, summary=summary()),
        write_run(tmp_path / "y/run", 1),
    ]
    to = tmp_path / "boards"
    assert main(["export", "tensorboard", *map(str, runs), "--to", str(to)]) == 0
    assert sorted(path.name for path in to.iterdir()) == ["x-run", "y-run"]
    events = events_of(to / "x-run")
    scalars = [
        (value.tag, event.step, event.wall_time, value.simple_value)
        for event, value in events
        if value.WhichOneof("value") == "simple_value"
    ]
    losses = [it[1:] for it in scalars if it[0] == "loss/train"]
    assert losses == [(10, 1_700_000_002.0, 1.0), (20, 1_700_000_004.0, 0.5)]
    assert [it[3] for it in scalars if it[0] == "accuracy/test"] == [0.5, 0.75]
    assert not [it for it in scalars if it[0] == "loss/test"]  # null
    assert ("final/accuracy", 40, 1_700_000_004.0, 0.9375) in scalars
    tags = {value.tag for _, value in events}
    assert {"_hparams_/experiment", "_hparams_/session_start_info"} <= tags
    parameters = next(v for _, v in events if v.tag == "_hparams_/session_start_info")
    assert b"staleness" in parameters.metadata.plugin_data.content
    histograms = {
        value.tag: (event.step, value.histo) for event, value in events if value.HasField("histo")
    }
    assert set(histograms) == {"staleness", "staleness of worker/0", "staleness of worker/1"}
    step, histo = histograms["staleness"]
    assert (step, histo.num, histo.sum, histo.sum_squares) == (40, 4, 5, 13)
    assert dict(zip(histo.bucket_limit, histo.bucket, strict=True)) == {
        0.5: 2, 1.5: 0, 2.5: 1, 3.5: 1,
    }  # fmt: skip


def test_tensorboard_has_staleness_by_epoch_of_a_run_that_was_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr("psrt.views.runs.staleness._BLOCK", 7)
    run, to = tmp_path / "run", tmp_path / "boards"
    words = ["--mode", "async", "--servers", "2", "--workers", "3", "--epochs", "2", "--seed", "2"]
    assert main(["simulate", *words, "--record", "--out", str(run)]) == 0
    assert main(["export", "tensorboard", str(run), "--to", str(to)]) == 0
    events = np.load(run / "history/events.npy")
    ends = [json.loads(it) for it in (run / "metrics.jsonl").read_text().splitlines()]
    found = {
        event.step: value.histo
        for event, value in events_of(to / "run")
        if value.tag == "staleness"
    }
    assert list(found) == [it["step"] for it in ends]
    for epoch, histo in enumerate(found.values()):
        taus = events["tau"][(events["kind"] == 18) & (events["progress"] // 1 == epoch)]
        assert (histo.num, histo.sum) == (len(taus), taus.sum())
        assert (histo.min, histo.max) == (taus.min(), taus.max())
    assert histo.max > 0


def test_a_full_disk_is_one_line_and_leaves_no_part(tmp_path, monkeypatch, capsys):
    run, to = write_run(tmp_path / "run", 1), tmp_path / "boards"

    def half(path, data):
        with open(path, "wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    assert main(["export", "tensorboard", str(run), "--to", str(to)]) == 2
    assert capsys.readouterr().err == (
        f"psrt: error: cannot write {to}/run: No space left on device\n"
    )
    assert list((to / "run").iterdir()) == []


def test_what_would_be_shown_twice_or_lacks_its_package_is_refused(tmp_path, capsys, monkeypatch):
    run, to = write_run(tmp_path / "run", 1), tmp_path / "boards"
    assert main(["export", "tensorboard", str(run), "--to", str(to)]) == 0
    assert main(["export", "tensorboard", str(run), "--to", str(to)]) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"psrt: error: {to}/run already has files of TensorBoard")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["export", "tensorboard", str(run), "--to", str(tmp_path / "x")]) == 2
    assert "pip install 'psrt-mpi[tensorboard]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["csv", "{}/none"], "no run at {}/none"),
        (["csv", "{}/run", "--to", "x"], "--to has no effect with csv: use -o FILE"),
        (["tensorboard", "{}/run", "--to", "{}/run/config.toml"],
         "cannot write {}/run/config.toml/run: Not a directory"),
        (["cvs", "{}/run"], "format must be one of csv, svg, tensorboard, got 'cvs'"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_one_line(words, line, tmp_path, capsys):
    write_run(tmp_path / "run", 1)
    assert main(["export", *(word.replace("{}", str(tmp_path)) for word in words)]) == 2
    assert capsys.readouterr().err == f"psrt: error: {line.replace('{}', str(tmp_path))}\n"


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_the_scripts_of_the_page_log_every_record(name, tmp_path, monkeypatch):
    scripts = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    _, script = (it for it in scripts if f"import {name}" in it)
    client = MagicMock()
    monkeypatch.setitem(sys.modules, name, client)
    monkeypatch.setattr(sys, "argv", ["script", str(write_run(tmp_path / "run", 3))])
    exec(compile(script, str(PAGE), "exec"), {})
    board = client.init.return_value.__enter__.return_value
    logged = (client.log_metrics if name == "mlflow" else board.log).call_args_list
    assert [(it.kwargs["step"], it.args[0]["loss"]) for it in logged] == [
        (10, 1.0), (20, 0.5), (30, 1 / 3),
    ]  # fmt: skip
    started = client.start_run.call_args or client.init.call_args
    assert "run" in started.kwargs.values()


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_the_hooks_of_the_page_log_every_record_as_it_is_written(name, tmp_path, monkeypatch):
    scripts = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    script, _ = (it for it in scripts if f"import {name}" in it)
    client = MagicMock()
    monkeypatch.setitem(sys.modules, name, client)
    monkeypatch.setattr("psrt.job.local.launched", lambda: False)
    exec(compile(script, str(PAGE), "exec"), {})
    logged = (client.log_metrics if name == "mlflow" else client.run.log).call_args_list
    assert [it.args[0]["epoch"] for it in logged] == [1, 2, 3]
    assert all(it.kwargs["step"] == it.args[0]["step"] > 0 for it in logged)
