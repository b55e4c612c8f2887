"""``history/header.json``: the config and layout of a recorded run, to check and repeat it."""

from __future__ import annotations

import dataclasses
import json
import zlib
from dataclasses import dataclass, field
from typing import Any

from psrt.config import TrainConfig
from psrt.config.former import as_spelled_now
from psrt.config.knobs import knobs_of
from psrt.config.modes import Mode
from psrt.config.names import AUTO
from psrt.core.errors import ConfigError
from psrt.rows.row import Rows

#: Version of the folder's layout, of these fields and of ``EVENT``.
FORMAT = 14
#: The largest number that a check computes with: a float64 represents all whole numbers up to it.
MOST = 2**53
#: A value of a knob, and the mean of the workers' seconds of a step with it; None: it was not
#: tried, but the largest that was allowed.
Tried = tuple[int, float | None]
#: The fields in which a cell of a split model differs from the whole job.
OF_CELL = (
    *("n", "workers", "servers", "spans", "initial_sha256", "files", "matrices", "layers"),
    *("algorithm", "way", "control_algorithm"),
)
#: Name of the header's checksum, beside its fields.
_SUM = "crc32"


def _kind_of(annotation: str) -> str:
    return "tuple" if annotation.startswith("tuple[") and "None" not in annotation else annotation


@dataclass(frozen=True, slots=True)
class Header:
    """The facts about a run that its events do not contain."""

    #: The resolved configuration, knob by knob.
    config: dict[str, Any]
    #: Elements of the parameter vector.
    n: int
    #: Rank of each worker, by worker number.
    workers: tuple[int, ...]
    #: Shard → rank of its server; a server may own several.
    servers: tuple[int, ...]
    #: [start, stop) of each shard.
    spans: tuple[tuple[int, int], ...]
    #: SHA-256 of the initial parameters.
    initial_sha256: str
    #: SHA-256 of the training data; empty if the problem has no ``fingerprint``.
    data_sha256: str
    #: SHA-256 of psrt's source files that make the numbers.
    code_sha256: str
    #: Versions of psrt and numpy.
    psrt: str
    numpy: str
    #: Names of the event files, in the folder of the header.
    files: tuple[str, ...]
    #: The all-reduce of gradients or parameters, after ``auto``; None without one.
    algorithm: str | None = None
    #: How it uses a codec, as in ``ways``; None if it does not.
    way: str | None = None
    #: The all-reduce of the control values that are summed along with each update.
    control_algorithm: str | None = None
    #: Samples of an epoch, and of a worker's full batch, if psrt splits the data into batches; None
    #: if the problem does.
    batches: tuple[int, int] | None = None
    #: By worker, the number of its samples and of the labels among them, if samples are assigned to
    #: workers; empty with ``--partition iid``.
    deal: tuple[tuple[int, int], ...] = ()
    #: Start, rows and columns of the matrices among the parameters, if the problem names them.
    matrices: tuple[tuple[int, int, int], ...] = ()
    #: Start and stop of the layers, the first one first, if averages are in fragments; else empty.
    layers: tuple[tuple[int, int], ...] = ()
    #: Text of the file of edges, if the neighbours' graph has no name.
    edges: str = ""
    #: Number of the host of each rank.
    hosts: tuple[int, ...] = ()
    #: The offsets of hosts' clocks from the first host's, one per measurement: the host's number,
    #: seconds since the start, the offset in seconds, and its error. A host's first offset is
    #: already subtracted from its recorded times. Empty with one clock.
    clocks: tuple[tuple[int, float, float, float], ...] = ()
    #: The times at which the run resumed from a checkpoint, in seconds since its start. What
    #: happened between the checkpoint and that time is not in its history.
    resumed: tuple[float, ...] = ()
    #: Whether the loop was the user's own: it may report no loss, and computes a gradient before
    #: psrt learns of the step.
    own_loop: bool = False
    #: Whether the run was a simulation.
    simulated: bool = False
    #: Whether it computed anything; a simulation need not.
    numerics: bool = True
    #: Whether a simulation injected a fault, which may end after the last event.
    disturbed: bool = False
    #: Workers that may never have announced that they leave. In a simulation, those whose crash was
    #: scheduled, even if they had left by then; else those that went missing, whose own events are
    #: in no file.
    crashes: tuple[int, ...] = ()
    #: Pairs of an epoch and the dead workers that get no samples from then on, one per change.
    left_out: tuple[tuple[int, tuple[int, ...]], ...] = ()
    #: By worker, the clock at which it left, if the run was stopped early; else empty.
    stopped: tuple[int, ...] = ()
    #: With ``--tune``, what was tried before the run; the config has the choice.
    tuned: tuple[Tried, ...] = ()
    #: With a split model: by cell, slices changing fastest, its own values of ``OF_CELL``; see
    #: ``of_cell``. Empty if each worker has the whole model.
    cells: tuple[dict[str, Any], ...] = ()
    #: Whether the files have only the last events of each rank. Times are then by the clocks of the
    #: hosts, uncorrected, and ranks that were killed have no file.
    is_end: bool = False
    format: int = field(default=FORMAT)

    @property
    def mode(self) -> Mode:
        """The synchronization scheme.

        Raises:
            ConfigError: as ``chosen``.
        """
        mode: Mode = self.chosen("mode")
        return mode

    @property
    def server_ranks(self) -> tuple[int, ...]:
        """The rank of each server, once, in the order of their first shards."""
        return tuple(dict.fromkeys(self.servers))

    @property
    def algorithm_chosen(self) -> bool:
        """Whether ``auto`` chose the all-reduce; a single worker needs none."""
        chosen = self.algorithm is not None and self.config.get("allreduce") == AUTO
        return chosen and len(self.workers) > 1

    def of_cell(self, number: int) -> Header:
        """Return the header of a cell, as of a separate job.

        Raises:
            ConfigError: if it is invalid.
        """
        if number == len(self.cells):
            return self._of_servers()
        stopped = self.stopped[number :: len(self.cells)]
        cell = dataclasses.replace(self, **self.cells[number], cells=(), stopped=stopped)
        cell._check()
        if self.config.get("servers") is None:
            return cell
        return dataclasses.replace(cell, config=self.config | {"servers": len(cell.server_ranks)})

    @property
    def has_whole_servers(self) -> bool:
        """Whether servers have the whole of a split model, so that they are in no cell."""
        return bool(self.cells and self.servers) and not any(it["servers"] for it in self.cells)

    @property
    def parts(self) -> list[Header]:
        """The headers of what has files of its own: the cells, and servers that are in none.

        A job without cells is its only part.
        """
        count = len(self.cells) + self.has_whole_servers
        return [self.of_cell(i) for i in range(count)] if self.cells else [self]

    @property
    def pushed_to(self) -> list[tuple[int, ...]]:
        """By cell, the rank of each shard that its workers, or the first one of each copy, push to.

        A job without cells is one.
        """
        parts = self.parts[: max(1, len(self.cells))]
        return [(self if self.has_whole_servers else it).servers for it in parts]

    def _of_servers(self) -> Header:
        """Return the header of servers in no cell, and of the first worker of each copy."""
        its = {name for cell in self.cells for name in cell["files"]}
        return dataclasses.replace(
            self,
            workers=self.workers[:: len(self.cells)],
            stopped=self.stopped[:: len(self.cells)],
            files=tuple(name for name in self.files if name not in its),
            cells=(),
        )

    def knob(self, name: str, otherwise: Any = None) -> Any:
        """Return a knob of the run, ``otherwise`` if its mode does not use it."""
        value = self.config.get(name)
        return otherwise if value is None else value

    def chosen(self, name: str) -> Any:
        """Return the row that a knob of the run chose, with its knobs; None if nothing uses it.

        Raises:
            ConfigError: if this psrt has no such row, or the row is invalid.
        """
        rows, text = knobs_of(TrainConfig)[name].rows, self.knob(name)
        assert isinstance(rows, Rows), "a knob that chooses a row"
        try:
            return None if text is None else rows.read(str(text))
        except ConfigError as error:
            raise ConfigError(f"the history has an unknown {rows.what}: it {error}") from None

    def to_json(self) -> str:
        """Return the JSON text, with a checksum of all other fields and a line feed at the end."""
        return sealed(json.loads(json.dumps(dataclasses.asdict(self), allow_nan=False)))

    @classmethod
    def from_json(cls, text: str) -> Header:
        """Return what ``to_json`` wrote.

        Raises:
            ConfigError: if the text is damaged, or of another format; one line.
        """
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"not JSON: {error}") from None
        if not isinstance(values, dict):
            raise ConfigError("not a JSON object")
        version = values.get("format")
        if version != FORMAT:
            older = type(version) is int and version < FORMAT
            whose = ", which an older psrt wrote" if older else ""
            raise ConfigError(f"of format {version!r}{whose}; this psrt reads {FORMAT}")
        if values.pop(_SUM, None) != _crc(values):
            raise ConfigError("damaged: its checksum does not match its fields")
        known = {item.name: item for item in dataclasses.fields(cls)}
        missing = [name for name in known if name not in values]
        if missing:
            raise ConfigError(f"lacks {', '.join(missing)}")
        if isinstance(values["config"], dict):
            values["config"] = as_spelled_now(values["config"])
        header = cls(**{name: _tuples(values[name]) for name in known})
        header._check()
        header._check_cells()
        return header

    def _check_cells(self) -> None:
        """Raise if the cells do not make up this job."""
        if not isinstance(self.cells, tuple) or not all(
            isinstance(it, dict) and it.keys() == set(OF_CELL) for it in self.cells
        ):
            raise ConfigError("has cells without their fields")
        if not self.cells:
            return
        parts = self.parts
        cells = parts[: len(self.cells)]
        for what, mine, its in (
            ("workers", self.workers, [it.workers for it in cells]),
            ("servers", self.server_ranks, [it.server_ranks for it in parts]),
            ("files", self.files, [it.files for it in parts]),
        ):
            if sorted(mine) != sorted(one for part in its for one in part):
                raise ConfigError(f"has cells that together do not have the {what} of the job")
        turns = tuple(one for row in zip(*(it.workers for it in cells)) for one in row)  # noqa: B905
        if turns != self.workers:
            raise ConfigError("has cells whose workers are not ordered by copy")
        if self.n != sum(it.n for it in cells):
            raise ConfigError(f"has cells that do not make up its {self.n} parameters")

    def _check(self) -> None:
        """Raise if the fields have impossible types or values."""
        for name in _OF_KIND["tuple"]:
            if not isinstance(getattr(self, name), tuple):
                raise ConfigError(f"has {name} that are not a list")
        if not all(len(_rows(span)) == 2 for span in (*self.spans, *self.layers)):
            raise ConfigError("has spans that are not pairs")
        if not all(len(_rows(it)) == 3 for it in self.matrices):
            raise ConfigError("has matrices that are not a start, rows and columns")
        if not all(
            len(_rows(it)) == 2
            and all(type(number) is int and 0 < number <= MOST for number in _rows(it))
            for it in self.deal
        ):
            raise ConfigError(f"has a deal that is not two whole numbers from 1 to {MOST} each")
        copies = len(self.workers) // max(1, len(self.cells))
        if self.deal and len(self.deal) != copies:
            raise ConfigError(f"has {copies} workers, and samples of {len(self.deal)}")
        if self.batches is not None and (
            len(_rows(self.batches)) != 2
            or not all(type(number) is int and 0 < number <= MOST for number in _rows(self.batches))
        ):
            raise ConfigError(f"has batches that are not two whole numbers from 1 to {MOST}")
        if not all(type(it) is float and 0 <= it < MOST for it in self.resumed):
            raise ConfigError("has times of resuming that are not numbers")
        if not all(map(_is_reading, self.clocks)):
            raise ConfigError("has clocks that are not a host and three times each")
        if not all(len(_rows(it)) == 2 for it in self.left_out):
            raise ConfigError("has workers left out that are not an epoch and worker numbers")
        if not all(map(_is_tried, self.tuned)):
            raise ConfigError("has tuned values that are not a whole number and seconds each")
        if self.stopped and len(self.stopped) != len(self.workers):
            raise ConfigError(
                f"has {len(self.workers)} workers, and {len(self.stopped)} that stopped"
            )
        whole = [self.n, *self.workers, *self.servers, *self.hosts, *self.crashes, *self.stopped]
        for epoch, gone in self.left_out:
            whole += [epoch, *_rows(gone)]
        whole += [number for it in self.matrices for number in _rows(it)]
        whole += [bound for span in (*self.spans, *self.layers) for bound in _rows(span)]
        chosen = [getattr(self, name) for name in _OF_KIND["str | None"]]
        names: list[Any] = [*self.files, *(it for it in chosen if it is not None)]
        names += [getattr(self, name) for name in _OF_KIND["str"]]
        if not all(type(number) is int and number >= 0 for number in whole):
            raise ConfigError("has ranks, sizes or spans that are not whole numbers")
        if not all(min(_rows(it)) > 0 for it in (_rows(it)[1:] for it in self.matrices)):
            raise ConfigError("has matrices without rows or columns")
        if not all(isinstance(name, str) for name in names):
            raise ConfigError("has names that are not text")
        if not all(map(_is_digest, (self.initial_sha256, self.code_sha256))):
            raise ConfigError("has digests that are not SHA-256")
        if not all(isinstance(getattr(self, name), bool) for name in _OF_KIND["bool"]):
            raise ConfigError("does not say what was simulated")
        if not isinstance(self.config, dict) or not isinstance(self.config.get("mode"), str):
            raise ConfigError("does not name the mode")
        if not self.workers or len(self.spans) != len(self.servers):
            raise ConfigError(
                f"has {len(self.workers)} workers, the ranks of {len(self.servers)} shards and the "
                f"spans of {len(self.spans)}"
            )


#: Names of the fields by what they are annotated with, of tuples whatever is in them.
_OF_KIND = {
    kind: [it.name for it in dataclasses.fields(Header) if _kind_of(str(it.type)) == kind]
    for kind in ("tuple", "str", "str | None", "bool")
}


def _tuples(value: Any) -> Any:
    """Return JSON's lists, at any depth, as tuples, except those inside an object."""
    if not isinstance(value, list):
        return value
    return tuple(
        {name: _tuples(own) for name, own in it.items()} if isinstance(it, dict) else _tuples(it)
        for it in value
    )


def sealed(values: dict[str, Any]) -> str:
    """Return the JSON text of a header's fields, with their checksum."""
    values = {name: value for name, value in values.items() if name != _SUM}
    return json.dumps(values | {_SUM: _crc(values)}, indent=2) + "\n"


def _crc(values: dict[str, Any]) -> int:
    """Return the checksum of the values, independent of the layout of the text."""
    return zlib.crc32(json.dumps(values).encode())


def _is_digest(text: str) -> bool:
    """Return whether a text is empty or has the form of a SHA-256."""
    return not text or (len(text) == 64 and set(text) <= set("0123456789abcdef"))


def _is_reading(value: Any) -> bool:
    """Return whether a value is a host, and three finite numbers of seconds."""
    if not isinstance(value, tuple) or len(value) != 4 or type(value[0]) is not int:
        return False
    return all(type(number) in (int, float) and abs(number) < MOST for number in value[1:])


def _is_tried(value: Any) -> bool:
    """Return whether a value is a whole number, and a finite number of seconds or None."""
    if not isinstance(value, tuple) or len(value) != 2 or type(value[0]) is not int:
        return False
    seconds = 0 if value[1] is None else value[1]
    return 0 < value[0] <= MOST and type(seconds) in (int, float) and 0 <= seconds < MOST


def _rows(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
