"""What psrt reads that a stranger may have written: true files and frames of each format, changed.

Each reader gets a `Mutator` and a folder with true files, which are put back after it. It changes
one of them, reads it as psrt does, and raises what psrt raises.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gzip
import hashlib
import json
import os
import shutil
import socket
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from psrt.checkpoint import Checkpoints, Disk, announced
from psrt.checkpoint.part import parsed
from psrt.cli.like import read_like
from psrt.codec import CODECS
from psrt.collective.analysis.machine import DEFAULT_COSTS, read_costs
from psrt.config import TrainConfig, from_toml, to_toml
from psrt.core.errors import PsrtError
from psrt.core.files import read_text
from psrt.core.messages import Leave, Message, Mix, Params, Push
from psrt.data import load_dataset
from psrt.faults.connection import Connection
from psrt.history import EVENT
from psrt.history.check.run import check_run
from psrt.history.folder import HEADER
from psrt.history.header import sealed
from psrt.history.log import end_of_file
from psrt.job.recorded import recorded_config
from psrt.job.resuming import found, resumed_config
from psrt.job.scenario import Scenario, run_in_virtual_time
from psrt.job.virtual import simulate
from psrt.launch.hostfile import read_hostfile
from psrt.report import Summary
from psrt.report.files import OutputFolder
from psrt.report.metrics import read_metrics
from psrt.topology import topology_of
from psrt.transport.frames import FRAME_BYTES, decode, encode
from psrt.views.explain.inputs import read_example
from support.coding import make_codec
from support.mutation import NUMBERS, Mutator

Reader = Callable[[Mutator, Path], object]

#: Of the runs: small, and with all that a history may have.
_KNOBS: dict[str, Any] = {
    "dataset": "synthetic:40x6x3", "hidden": (4,), "batch_size": 4, "steps": 4, "lr": 0.05,
}  # fmt: skip
RUNS: dict[str, dict[str, Any]] = {
    "sync": {"mode": "sync", "servers": 2},
    "async": {"mode": "async", "servers": 1, "codec": "top-k:density=0.1"},
    "allreduce": {"mode": "allreduce", "allreduce": "ring"},
    "local-sgd": {"mode": "local-sgd:local-steps=2,fragments=2"},
    "gossip": {"mode": "gossip"},
    "cut": {"mode": "allreduce", "parallel": "pipeline:2"},
}
#: Those that can be gone on with.
SAVED: dict[str, dict[str, Any]] = {
    "sync": {"mode": "sync", "servers": 2, "optimizer": "adam"},
    "allreduce": {"mode": "allreduce", "codec": "dgc:density=0.1"},
    "local-sgd": {"mode": "local-sgd:local-steps=2,outer=nesterov,outer.lr=0.7", "servers": 1},
}
_WORKERS = 2
#: What psrt may raise; what is raised otherwise is a bug.
EXPECTED = (PsrtError,)


def make_runs(folder: Path) -> None:
    """Write the runs and their checkpoints."""
    for name, knobs in RUNS.items():
        config = TrainConfig(**_KNOBS, **knobs, record=True, out=str(folder / name))
        run_in_virtual_time(config, Scenario(workers=_WORKERS))
    for name, knobs in SAVED.items():
        knobs = {**_KNOBS, **knobs, "checkpoint_every": 2, "out": str(folder / f"saved-{name}")}
        simulate(TrainConfig(**knobs), workers=_WORKERS)


@contextlib.contextmanager
def changed(path: Path, it: Mutator, new: Callable[[bytes], bytes]) -> Any:
    """Have other content in a file, or now and then something else in its place."""
    old = path.read_bytes()
    try:
        if it.rng.random() < 0.02:
            it.kind(path)
        else:
            path.write_bytes(new(old))
        yield
    finally:
        _remove(path)
        path.write_bytes(old)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def _written(it: Mutator, folder: Path, name: str, data: bytes) -> str:
    """Write a file of a user's."""
    path = folder / name
    path.write_bytes(data)
    if it.rng.random() < 0.02:
        it.kind(path)
    return str(path)


@contextlib.contextmanager
def _file(it: Mutator, folder: Path, name: str, data: bytes) -> Any:
    path = folder / name
    try:
        yield _written(it, folder, name, data)
    finally:
        _remove(path)


# --- checkpoints --------------------------------------------------------------------------------


def _saved(it: Mutator, folder: Path) -> Path:
    """Return the newest checkpoint of a run."""
    run = folder / f"saved-{it.one(list(SAVED))}" / "checkpoints"
    return run / max(os.listdir(run))


def manifest(it: Mutator, folder: Path) -> None:
    path = _saved(it, folder) / "manifest.json"
    with changed(path, it, lambda old: it.json(json.loads(old))):
        run = path.parent.parent.parent
        for where in (run, path.parent):
            list(Checkpoints.at(Disk(), where).listed(verify=True))
            Checkpoints.at(Disk(), where).newest()
        found(str(run))
        resumed_config(str(path.parent), out=str(run), checkpoint_every=None, keep=None)


def part_bytes(it: Mutator, folder: Path) -> None:
    path = it.one(sorted(_saved(it, folder).glob("*.safetensors")))
    with changed(path, it, it.damaged):
        Checkpoints.at(Disk(), path.parent).newest()
    parsed(_part(it, path.read_bytes()))


def _part(it: Mutator, data: bytes) -> bytes:
    """Return a part with a changed header, values or arrays."""
    if it.rng.random() < 0.2:
        return it.damaged(data)
    length = int.from_bytes(data[:8], "little")
    header, arrays = json.loads(data[8 : 8 + length]), data[8 + length :]
    if it.rng.random() < 0.7:
        metadata = header["__metadata__"]
        metadata["values"] = it.json(json.loads(metadata["values"])).decode("utf-8", "replace")
        text = json.dumps(header).encode()
    else:
        text = it.json(header)
    if it.rng.random() < 0.2:
        arrays = it.damaged(arrays)
    return len(text).to_bytes(8, "little") + text + arrays


def gone_on(it: Mutator, folder: Path) -> None:
    """Train on from a checkpoint whose sums are right, and whose content is not."""
    run = folder / f"saved-{it.one(list(SAVED))}" / "checkpoints"
    where = run / min(os.listdir(run))
    path = it.one(sorted(where.glob("*.safetensors")))
    whole, listed = path.read_bytes(), (where / "manifest.json").read_bytes()
    out = folder / "gone-on"
    try:
        data = _part(it, whole)
        path.write_bytes(data)
        for entry in (described := json.loads(listed))["parts"]:
            if entry["name"] == path.stem:
                entry |= {"nbytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        (where / "manifest.json").write_text(json.dumps(described))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of numbers that are absurd
            simulate(resumed_config(str(where), out=str(out)), workers=_WORKERS)
    finally:
        path.write_bytes(whole)
        (where / "manifest.json").write_bytes(listed)
        shutil.rmtree(out, ignore_errors=True)


def notes(it: Mutator, folder: Path) -> None:
    said = {"name": "worker-0-of-2", "nbytes": 99, "sha256": "0f" * 32, "spans": [[0, 5]]}
    values = it.one((said, {"failed": "no room"}))
    with (
        _file(it, folder, "worker-0-of-2.json", it.json(values)),
        contextlib.suppress(OSError),  # which it may raise, too
    ):
        announced(Disk(), folder)


# --- runs ---------------------------------------------------------------------------------------


def _run(it: Mutator, folder: Path) -> Path:
    return folder / it.one(list(RUNS))


def _read_run(run: Path) -> None:
    """Read a run as all commands do that read one; a finding of the check is a right result."""
    for read in (check_run, recorded_config, _like):
        with contextlib.suppress(*EXPECTED):
            read(run)


def _like(run: Path) -> object:
    return read_like(argparse.Namespace(like=str(run), timing_only=True))


def header(it: Mutator, folder: Path) -> None:
    run = _run(it, folder)

    def new(old: bytes) -> bytes:
        if it.rng.random() < 0.2:
            return it.json(json.loads(old))
        values = it.values(json.loads(old))
        return (sealed(values) if isinstance(values, dict) else json.dumps(values)).encode()

    with changed(run / "history" / HEADER, it, new):
        _read_run(run)


def events(it: Mutator, folder: Path) -> None:
    run = _run(it, folder)
    path = it.one(sorted((run / "history").glob("*.npy")))

    def new(old: bytes) -> bytes:
        if it.rng.random() < 0.3:
            return it.damaged(old)
        begin = len(old) % EVENT.itemsize or EVENT.itemsize
        begin = next(i for i in range(begin, 4096, EVENT.itemsize) if i >= 64)
        rows = np.frombuffer(old[begin:], EVENT)[:-1].copy()
        for _ in range(it.one((1, 1, 2, 5))):
            field = it.one([name for name in EVENT.names or () if not name.startswith("_")])
            kind = EVENT[field]
            row = it.rng.randrange(len(rows))
            if it.rng.random() < 0.5:
                rows[field][row] = np.frombuffer(it.rng.randbytes(kind.itemsize), kind)[0]
            else:
                rows[field][row] = it.one((0, 1, 2, 3, 5, 100))
        if it.rng.random() < 0.3:
            rows = np.delete(rows, it.rng.randrange(len(rows)))
        if it.rng.random() < 0.2:
            np.random.default_rng(it.rng.randrange(99)).shuffle(rows)
        at = old.index(b"'shape': (") + 10
        count = str(len(rows) + 1).encode()
        width = old.index(b",", at) - at
        head = old[:at] + count.rjust(width) + old[at + width : begin]
        crc = zlib.crc32(head, zlib.crc32(rows.view(np.uint8).data))
        return head + rows.tobytes() + end_of_file(len(rows), crc)

    with changed(path, it, new):
        _read_run(run)


def beside(it: Mutator, folder: Path) -> None:
    """Read a run whose summary, metrics or model is another one."""
    run = _run(it, folder)
    name = it.one(("summary.json", "metrics.jsonl", "model.safetensors", "simulation.json"))

    def new(old: bytes) -> bytes:
        if name == "metrics.jsonl":
            lines = old.splitlines()
            at = it.rng.randrange(len(lines))
            lines[at] = it.json(json.loads(lines[at])).replace(b"\n", b" ")
            return b"\n".join(lines) + b"\n"
        return it.damaged(old) if name == "model.safetensors" else it.json(json.loads(old))

    with changed(run / name, it, new):
        _read_run(run)
        with contextlib.suppress(*EXPECTED):
            Summary.from_json(read_text(str(run / "summary.json")))
        with contextlib.suppress(*EXPECTED):
            read_metrics(run / "metrics.jsonl")
        aside = run / ".earlier-run"
        aside.mkdir()
        try:
            if (run / "metrics.jsonl").is_file() and not (run / "metrics.jsonl").is_symlink():
                shutil.copy2(run / "metrics.jsonl", aside)
            with contextlib.suppress(*EXPECTED):
                OutputFolder(run).earlier(3)
        finally:
            shutil.rmtree(aside)


# --- what users name ----------------------------------------------------------------------------


#: Lines of a file, and what reads it.
TEXTS: tuple[tuple[str, Callable[[str], object]], ...] = (
    (
        to_toml(TrainConfig(mode="ssp:staleness=3", servers=2, hidden=(64, 32))),
        lambda path: from_toml(read_text(path, "a TOML file"), source=path),
    ),
    ("0 1\n1 2\n2 3\n3 0\n", lambda path: topology_of(path, 4, push_sum=False)),
    (
        "0 > 1 0.5\n1 > 2 0.5\n2 > 3 0.5\n3 > 0 0.5 # a\n",
        lambda path: topology_of(path, 4, push_sum=True),
    ),
    ("a:4  # first\nb slots=2\nc\n10.0.0.1:3\n", read_hostfile),
    ("A,17,11,1,9\nB,5,13,23,14\nC,3,6.5,10,8\n", read_example),
)


def text(it: Mutator, folder: Path) -> None:
    given, read = it.one(TEXTS)
    with _file(it, folder, "text.csv", it.lines(given)) as path:
        read(path)


def costs(it: Mutator, folder: Path) -> None:
    values = json.loads(DEFAULT_COSTS.to_json())
    values["measured"] = [["ring", [2, 2], 100, 0.5], ["ring", [2, 2], 1000, 0.7]]
    with _file(it, folder, "costs.json", it.json(values)) as path:
        found = read_costs(path)
        for nbytes in (1, 500, 10**6):
            found.measured_seconds("ring", [2, 2], nbytes)


# --- data ---------------------------------------------------------------------------------------


def _arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 3)).astype(np.float32), np.arange(12) % 3
    return {"x_train": x[:8], "y_train": y[:8], "x_test": x[8:], "y_test": y[8:]}


def npz(it: Mutator, folder: Path) -> None:
    path = folder / "data.npz"
    target = it.one(("x_train", "y_train", "x_test", "y_test"))
    whole = it.rng.random() < 0.4
    with zipfile.ZipFile(path, "w", it.one((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as file:
        for name, array in _arrays().items():
            with file.open(f"{name}.npy", "w") as member:
                if whole or name != target:
                    np.lib.format.write_array(member, array)
                else:
                    member.write(_npy(it, array))
    data = path.read_bytes()
    path.unlink()
    with _file(it, folder, "data.npz", it.damaged(data) if whole else data) as name:
        load_dataset(name, seed=0)


def _npy(it: Mutator, array: np.ndarray) -> bytes:
    """Return an array in a file whose header says something else."""
    shape = it.values(list(array.shape))
    if it.rng.random() < 0.4:
        shape = [it.one(NUMBERS), *array.shape[1:]]
    shape = tuple(shape) if isinstance(shape, list) else shape
    descr: Any = array.dtype.str
    if it.rng.random() < 0.3:
        descr = it.one(("<f8", "|O", "<U9999999", "|V0", "<i4", [("a", "<f4")], 3))
    text = repr({"descr": descr, "fortran_order": it.one((False, True)), "shape": shape})
    head = text.encode("utf-8", "replace")
    head += b" " * (-(len(head) + 11) % 64) + b"\n"
    magic = b"\x93NUMPY" + bytes(it.one(((1, 0), (1, 0), (2, 0), (9, 9))))
    data = magic + struct.pack("<H", len(head) % 65536) + head + array.tobytes()
    return it.damaged(data) if it.rng.random() < 0.3 else data


def idx(it: Mutator, folder: Path) -> None:
    out = folder / "idx"
    out.mkdir()
    try:
        names = [(f"{part}-{kind}") for part in ("train", "t10k") for kind in ("images", "labels")]
        target = it.one(names)
        for name in names:
            is_images = name.endswith("images")
            shape = (4, 2, 3) if is_images else (4,)
            data = struct.pack(f">I{len(shape)}I", 0x800 + len(shape), *shape)
            data += bytes(range(24)) if is_images else bytes((0, 1, 2, 0))
            zipped = it.rng.random() < 0.3
            if name == target and it.rng.random() < 0.6:
                data = it.damaged(data)
            data = gzip.compress(data, 1) if zipped else data
            if name == target and zipped:
                data = it.damaged(data)
            file = f"{name}-idx{len(shape)}-ubyte{'.gz' * zipped}"
            if name == target:
                _written(it, out, file, data)
            else:
                (out / file).write_bytes(data)
        load_dataset(str(out), seed=0)
    finally:
        shutil.rmtree(out)


# --- frames -------------------------------------------------------------------------------------


@functools.cache
def _frame(name: str, n: int) -> tuple[Any, bytes]:
    codec = make_codec(name, n)
    rng = np.random.default_rng(0)
    return make_codec(name, n), bytes(codec.encode(rng.normal(size=n).astype(np.float32), rng))


def codec_frame(it: Mutator, folder: Path) -> None:
    n = it.one((0, 1, 60, 3000))
    codec, frame = _frame(it.one(list(CODECS)), n)
    out = np.empty(n + 2, np.float32)
    out[[0, -1]] = 7
    codec.decode(np.frombuffer(it.damaged(frame), np.uint8).copy(), out[1:-1])
    assert (out[[0, -1]] == 7).all()


def message(it: Mutator, folder: Path) -> None:
    told: list[Message] = [Leave(1, 2, 3), Params(1, 2, 3, 4, 0.5, 1, 0.5)]
    told += [Mix(1, 2, 3, 0.5, 1), Push(1, 2, 3, 4, 0.5, 1)]
    buffer = bytearray(FRAME_BYTES)
    encode(it.one(told), buffer)
    decode(bytearray(it.damaged(bytes(buffer))[:FRAME_BYTES].ljust(FRAME_BYTES, b"\0")))


def line(it: Mutator, folder: Path) -> None:
    """Receive what anybody may send to the socket of a rank."""
    text = it.json({"failed": [1, "it broke"], "beat": 0.5})
    data = struct.pack("!I", it.one((len(text), len(text), it.rng.getrandbits(32)))) + text
    ours, its = socket.socketpair()
    connection = Connection(ours)
    with its:
        its.sendall((it.damaged(data) if it.rng.random() < 0.5 else data)[:100_000])
    try:
        list(connection.receive())
    finally:
        connection.close()


#: Each reader, and its share of the cases: those that are fast and have much to check have most.
READERS: dict[Reader, int] = {
    manifest: 10, part_bytes: 10, gone_on: 1, notes: 10, header: 10, events: 10, beside: 10,
    text: 30, costs: 10, npz: 10, idx: 10, codec_frame: 20, message: 5, line: 10,
}  # fmt: skip
