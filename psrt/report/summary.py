"""``summary.json``: the result of one run, in one object. Pure: text in, text out."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from psrt.core.errors import ConfigError
from psrt.core.sharding import Memory
from psrt.core.stats import Stats
from psrt.history.folds.figures import Counts, Staleness, Waiting
from psrt.history.header import Tried
from psrt.report.strict_json import dumps


@dataclass(frozen=True, slots=True)
class Missing:
    """A worker that died or stopped responding, while the others continued. It has no figures."""

    #: Its number, and its rank.
    worker: int
    rank: int
    #: Its process, as in ``roster.json``.
    host: str
    pid: int
    #: Its gradient steps, as far as a server or a neighbour received them; 0 if none did.
    clock: int


@dataclass(frozen=True, slots=True)
class Averages:
    """What local SGD averages, and when."""

    #: Steps of a period, H.
    local_steps: int
    #: Parts of the parameters that are averaged one at a time, F.
    fragments: int
    #: Steps from the beginning of an average until it is applied, T.
    sync_delay: int
    #: Share of its own parameters that a worker then keeps, A; None without a delay.
    mixing: float | None
    #: Whether a worker applies its own part of an outer step at once.
    eager: bool
    #: Bytes of the parameters that are averaged in a period, and of those averaged at once: of
    #: fragments, in the first part of a split model.
    period_bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was tried before the run, with ``--tune``, and the choice."""

    #: Name of the knob.
    knob: str
    chosen: int
    tried: tuple[Tried, ...]


@dataclass(frozen=True, slots=True)
class GraphAverages:
    """What workers averaged with their neighbours, and how far apart they ended."""

    #: As the mode spells it.
    topology: str
    #: Order of steps and averages; empty if pairs average without rounds.
    order: str
    #: Whether a weight was mixed as well.
    push_sum: bool
    #: Rounds after which the graphs began again.
    period: int
    #: Spectral gap of a period; None without rounds, or with many workers.
    gap: float | None
    #: Bytes of the vectors that a worker sent in a step, on average over workers and the period;
    #: None without rounds, where hosts mix, and with a codec.
    step_bytes: float | None
    #: Number of workers of which the final model is the mean, or of copies of a split model.
    models: int
    #: Root mean square over the workers of ‖θ_i − mean‖/√n at the end; None without numerics.
    consensus_distance: float | None


@dataclass(frozen=True, slots=True)
class ModelCut:
    """How a model was split across ranks."""

    #: Copies, stages and slices, as in ``--parallel``.
    parallel: str
    #: Order in which stages worked, as in ``--pipeline-schedule``.
    schedule: str
    #: Parts of a batch.
    micro_batches: int
    #: Layers of each chunk, in the order of the model.
    layers: tuple[int, ...]
    #: Parameters of each part: of each stage, slice by slice.
    parameters: tuple[int, ...]
    #: Bytes of a worker of each part, if they are counted.
    memory: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a run: its setting, length, quality and cost."""

    #: Synchronization mode, as in ``--mode``.
    mode: str
    #: Ranks that train, W.
    workers: int
    #: Ranks that hold shards, S; 0 in modes without servers.
    servers: int
    #: MPI processes.
    ranks: int
    #: Machines that they ran on.
    hosts: int
    #: Name and version of the MPI library; empty without one.
    mpi: str
    #: Seed of the run.
    seed: int
    #: Epochs finished.
    epochs: int
    #: Gradient steps finished, the largest clock of a worker.
    steps: int
    #: All-reduce that summed the gradients or parameters; None without one.
    allreduce: str | None
    #: The reason for it, to follow "because", or "as asked"; empty without one.
    allreduce_why: str
    #: Shards that each server owned; None without servers.
    shards_per_server: int | None
    #: The reason for it, to follow "because", or "as asked"; empty without servers.
    shards_why: str
    #: All-reduces that made one update; 0 without one.
    buckets: int
    #: Whether they began while the gradient was still being computed.
    overlap: bool
    #: Training samples, all workers together.
    samples: int
    #: Time of training, in seconds, without start-up and the writing of files.
    seconds: float
    #: ``samples / seconds``.
    samples_per_second: float
    #: Mean training loss of the last record.
    train_loss: float | None
    #: Loss of the final parameters on the test set.
    test_loss: float | None
    #: Accuracy of the final parameters on the test set in [0, 1]; None without classes.
    test_accuracy: float | None
    #: Elements of the parameter vector, n.
    parameters: int
    #: SHA-256 of the final parameters: equal if two runs ended in the same bits.
    parameters_sha256: str
    #: Updates of each shard, or of the parameters that all ranks share if there are no shards.
    updates: int
    #: Gradients that arrived but were not applied: late ones of backups, or too stale.
    dropped: int
    #: Steps that only some of the shards have, of workers that died or were declared dead.
    torn: int
    #: Staleness of the applied gradients.
    staleness: Staleness
    #: Largest difference of shard versions within one read.
    skew_max: int
    #: Reads by that difference.
    skew: Counts
    #: Waiting time by worker and cause.
    waiting: tuple[Waiting, ...]
    #: Workers that died or stopped responding, while the others continued.
    missing: tuple[Missing, ...]
    #: Largest difference between two workers' clocks.
    clock_spread_max: int
    #: Bytes that all ranks handed to the transport.
    bytes_sent: int
    #: Bytes that all ranks took from the transport.
    bytes_received: int
    #: Bytes of the frames of a codec among those sent, and of the vectors that they encode; both 0
    #: without one.
    frame_bytes: int = 0
    framed_bytes: int = 0
    #: Of local SGD; None in other modes.
    averages: Averages | None = None
    #: With ``--tune``; None without.
    tuned: Tuned | None = None
    #: Of averages among neighbours; None in other modes.
    graph_averages: GraphAverages | None = None
    #: Bytes sent to other stages and slices under model parallelism, and received from them.
    cut_bytes_sent: int = 0
    cut_bytes_received: int = 0
    #: How the model was split; None if each worker had all of it.
    model_cut: ModelCut | None = None
    #: Memory of a worker's vectors, each the largest of all workers; None if it is not counted.
    memory: Memory | None = None
    #: What stopped the run before all of its steps were taken, ``on_epoch``; empty if nothing did.
    stopped: str = ""
    #: Further figures of ``evaluate`` for the final parameters, by name.
    test_figures: dict[str, float | None] = field(default_factory=dict)
    #: When, where and by what it was made; see ``report.environment``. It is not compared: runs on
    #: two machines count as the same run.
    environment: dict[str, Any] = field(default_factory=dict, compare=False)
    #: Figures of ``psrt.core.stats`` that have no field here; in the JSON text they are fields.
    more: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the JSON text, one field a line, with a line feed at the end."""
        values = dataclasses.asdict(self)
        return dumps(values | values.pop("more"), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Summary:
        """Return the summary that ``to_json`` wrote; unknown fields are ignored.

        Raises:
            ConfigError: if the text is not a JSON object or lacks a field.
        """
        try:
            values = json.loads(text)
            nested: dict[str, Any] = {
                "staleness": Staleness.from_values(values["staleness"]),
                "skew": Counts.from_values(values["skew"]),
                "waiting": tuple(map(Waiting.from_values, values["waiting"])),
                "missing": tuple(Missing(**it) for it in values["missing"]),
            }
            found = values.setdefault("test_figures", {})
            values.setdefault("stopped", "")
            values.setdefault("tuned", None)
            if not all(it is None or type(it) in (int, float) for it in {**found}.values()):
                raise TypeError
            if values["averages"] is not None:
                nested["averages"] = Averages(**values["averages"])
            if values["tuned"] is not None:
                tried = tuple(map(tuple, values["tuned"]["tried"]))
                nested["tuned"] = Tuned(**values["tuned"] | {"tried": tried})
            if values["graph_averages"] is not None:
                nested["graph_averages"] = GraphAverages(**values["graph_averages"])
            if values["model_cut"] is not None:
                cut = values["model_cut"]
                lists = {name: tuple(cut[name]) for name in ("layers", "parameters", "memory")}
                nested["model_cut"] = ModelCut(**cut | lists)
            if values["memory"] is not None:
                nested["memory"] = Memory(**values["memory"])
            if not isinstance(values["environment"], dict):
                raise TypeError("an environment is an object")
            known = {name: values[name] for name in FIELDS} | nested
            more = {name: values[name] for name in Stats().figures() if name in values}
        except (json.JSONDecodeError, RecursionError) as error:
            raise ConfigError(f"summary is not JSON: {error}") from error
        except KeyError as error:
            raise ConfigError(f"summary lacks {error}") from error
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            raise ConfigError("summary is not an object of fields") from error
        return cls(**known, more={name: more[name] for name in more if name not in known})


#: The fields of every summary.
FIELDS = tuple(field.name for field in dataclasses.fields(Summary) if field.name != "more")


def parameters_sha256(theta: np.ndarray) -> str:
    """Return the SHA-256 of ``theta``'s float32 bytes, little-endian, so equal on every machine.

    Args:
        theta: ``(n,)`` float32.
    """
    assert theta.dtype == np.float32
    return hashlib.sha256(np.ascontiguousarray(theta, dtype="<f4").data).hexdigest()
