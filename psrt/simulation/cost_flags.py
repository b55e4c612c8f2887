"""The flags for the time of computing, sending and updating in a simulation.

``compute`` is the distribution of the time of one gradient, ``link`` the α-β model of each rank's
link, ``server_apply`` the rate at which a server applies gradients, ``codec_speed`` the speed of
codecs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from psrt.core.errors import ConfigError
from psrt.history import read_history
from psrt.pipeline.cost import Slowdown, StageCosts, as_dear
from psrt.pipeline.step import Kind
from psrt.rows.values import Number, read_numbers
from psrt.simulation import SimulationCosts
from psrt.simulation.calibration import RecordedCosts, calibrate
from psrt.simulation.distributions import LONGEST, read_compute
from psrt.transport import RoleMap

#: A millisecond, ±10 %: workers of exactly equal speed would stay in lockstep, as real ones never
#: do.
DEFAULT_COMPUTE = "lognormal:0.001:0.1"
#: Ethernet of 10 Gbit/s.
DEFAULT_LINK = "5e-5:1.25e9"
#: About one core, which reads gradients and parameters and writes parameters.
DEFAULT_SERVER_APPLY = "2e9"
#: Takes no time: it is small beside computing.
DEFAULT_WORKER_APPLY = "inf"
DEFAULT_PASS_OVERHEAD = "0"
#: As fast as the table of codecs says.
DEFAULT_CODEC_SPEED = "1"

#: Precedes the folder of a recorded run whose durations are replayed.
LIKE = "like:"
#: By cost that a recorded run may provide: its fields of ``SimulationCosts``; and the text for no
#: time. Messages of a run with a codec were encoded and decoded in it, so its times include that.
_PARTS = {
    "compute": ("compute",),
    "link": ("latency", "bandwidth", "hosts", "receive", "reduce", "last_sum", "framed"),
    "server_apply": ("apply",),
}
_FREE = {"compute": "constant:0", "link": "0:inf", "server_apply": "inf"}
_RATE = Number("BYTES_PER_S", 1.0, math.inf)
_SECONDS = Number("SECONDS", 0.0, LONGEST)
_CHECKPOINT = (Number("STALL_S", 0.0, LONGEST), Number("WRITE_S", 0.0, LONGEST, default=0))
_SPEED = Number("FACTOR", 1e-9, math.inf)
_PASSES = ("FORWARD", "BACKWARD_INPUT", "BACKWARD_WEIGHT")
_COSTS = tuple(Number(name, 0.0, 1e12) for name in _PASSES)
_DEARER = (Number("ROWS", 1, 1e9, whole=True), *(Number(name, 1e-3, 1e3) for name in _PASSES))
#: Draws that make up the mean time of a gradient.
_DRAWS = 100


@dataclass(frozen=True, slots=True)
class VirtualCosts:
    """The costs as texts, or ``like:DIR`` for those of a recorded run; checked when made.

    Raises:
        ConfigError: one line with the valid forms.
    """

    #: One of ``distributions.FORMS``.
    compute: str = DEFAULT_COMPUTE
    #: ``LATENCY_S:BYTES_PER_S`` of each rank's link, each way; the latter may be ``inf``.
    link: str = DEFAULT_LINK
    #: Bytes of gradient that a server applies per second; may be ``inf``.
    server_apply: str = DEFAULT_SERVER_APPLY
    #: Factor on the speed of codecs in their table; may be ``inf``.
    codec_speed: str = DEFAULT_CODEC_SPEED
    #: Of a split model: ``FORWARD:BACKWARD_INPUT:BACKWARD_WEIGHT,...``, the cost of each part for
    #: a whole batch, in any unit; empty: in proportion to its parameters.
    stage_costs: str = ""
    #: Of a split model: ``ROWS:FORWARD:BACKWARD_INPUT:BACKWARD_WEIGHT,...``, how many times as long
    #: a row takes in products of ROWS rows as in one of a whole batch; empty: as long.
    small_products: str = ""
    #: Of a split model: seconds that a pass takes beside its products.
    pass_overhead: str = DEFAULT_PASS_OVERHEAD
    #: Bytes of gradient that a worker applies per second to parameters which it updates itself.
    worker_apply: str = DEFAULT_WORKER_APPLY

    def __post_init__(self) -> None:
        if not self.compute.startswith(("run:", LIKE)):  # runs are read later, and only once
            read_compute(self.compute)
        if not self.link.startswith(LIKE):
            read_link(self.link)
        if not self.server_apply.startswith(LIKE):
            _rate("server-apply", self.server_apply)
        _read("codec-speed", (_SPEED,), self.codec_speed)
        read_stage_costs(self.stage_costs)
        read_small_products(self.small_products)
        read_seconds("pass-overhead", self.pass_overhead)
        _rate("worker-apply", self.worker_apply)

    @classmethod
    def like(cls, run: str, **given: str) -> VirtualCosts:
        """Return the costs of a recorded run, except for those given."""
        return cls(**{**dict.fromkeys(_PARTS, LIKE + run), **given})

    def runs(self) -> list[tuple[str, str]]:
        """Return the recorded runs to read, each after the flag that names it.

        >>> VirtualCosts.like("runs/a", compute="run:runs/b").runs()
        [('--compute', 'runs/b'), ('--like', 'runs/a'), ('--like', 'runs/a')]
        """
        found = []
        for name in _PARTS:
            kind, colon, run = getattr(self, name).partition(":")
            if colon and kind + colon in ("run:", LIKE):
                found.append(("--like" if kind + colon == LIKE else f"--{name}", run))
        return found

    def link_numbers(self) -> tuple[float, float] | None:
        """Return latency and bandwidth of a link; None if a recorded run provides them."""
        return None if self.link.startswith(LIKE) else read_link(self.link)

    def apply_rate(self) -> float | None:
        """Return the bytes of gradient a server applies per second; None if a run provides it."""
        given = self.server_apply
        return None if given.startswith(LIKE) else _rate("server-apply", given)

    def compute_mean(self) -> float | None:
        """Return the mean of some drawn gradient times; None if a recorded run provides them."""
        if self.compute.startswith(("run:", LIKE)):
            return None
        draw, rng = read_compute(self.compute), np.random.default_rng(0)
        return sum(draw(0, rng) for _ in range(_DRAWS)) / _DRAWS

    def at(
        self, role_map: RoleMap, *, say: Callable[[str], None] = lambda line: None
    ) -> SimulationCosts:
        """Return the costs of a job.

        Args:
            role_map: its workers and servers.
            say: called with a line about the means of a recorded run.

        Raises:
            ConfigError: if a named run cannot be read or lacks the times that the job needs.
        """
        texts = {name: getattr(self, name) for name in _PARTS}
        named = {name: text[len(LIKE) :] for name, text in texts.items() if text.startswith(LIKE)}
        costs = replace(self, **{name: _FREE[name] for name in named})._given(role_map)
        for run in dict.fromkeys(named.values()):
            parts = [name for name, whose in named.items() if whose == run]
            costs = _recorded(run, parts, costs, role_map, say)
        return costs

    def _given(self, role_map: RoleMap) -> SimulationCosts:
        draw = read_compute(self.compute)
        latency, bandwidth = read_link(self.link)
        rate = _rate("server-apply", self.server_apply)
        number = {rank: worker for worker, rank in enumerate(role_map.workers)}
        return SimulationCosts(
            compute=lambda rank, rng: draw(number[rank], rng),
            latency=lambda rng: latency,
            bandwidth=bandwidth,
            apply=None if rate == math.inf else lambda shard, nbytes, rng: nbytes / rate,
            codec_speed=_read("codec-speed", (_SPEED,), self.codec_speed)[0],
            stages=read_stage_costs(self.stage_costs),
            slowdown=read_small_products(self.small_products),
            pass_s=read_seconds("pass-overhead", self.pass_overhead),
            worker_apply=_rate("worker-apply", self.worker_apply),
        )


def _recorded(
    run: str,
    parts: Sequence[str],
    costs: SimulationCosts,
    role_map: RoleMap,
    say: Callable[[str], None],
) -> SimulationCosts:
    """Return ``costs`` with some parts, keys of ``_PARTS``, as they were in a recorded run.

    Raises:
        ConfigError: if the run cannot be read or lacks times that the job needs.
    """
    history = read_history(run)
    try:
        times = calibrate(history)
        recorded = RecordedCosts(times, role_map)
        if parts == ["compute"]:
            return replace(costs, compute=recorded.compute)
        there = replace(
            recorded.costs(), framed=bool(history.header.knob("codec_everywhere", False))
        )
    except ConfigError as error:
        raise ConfigError(f"{run}: {error}") from None
    say(f"like {run}: {times.text()}")
    return replace(
        costs, **{field: getattr(there, field) for name in parts for field in _PARTS[name]}
    )


def read_link(text: str) -> tuple[float, float]:
    """Return latency in seconds and bandwidth in bytes per second.

    >>> read_link("5e-5:1.25e9"), read_link("0:inf")
    ((5e-05, 1250000000.0), (0.0, inf))

    Raises:
        ConfigError: if the text has another form, or a number is out of range.
    """
    latency, bandwidth = _read("link", (Number("LATENCY_S", 0.0, LONGEST), _RATE), text)
    return latency, bandwidth


def _rate(flag: str, text: str) -> float:
    """Return a number of bytes per second, which may be infinite."""
    return _read(flag, (_RATE,), text)[0]


def read_seconds(flag: str, text: str) -> float:
    """Return a number of seconds.

    Raises:
        ConfigError: if it is not a number, or less than 0.
    """
    return _read(flag, (_SECONDS,), text)[0]


def read_checkpoint_cost(text: str) -> tuple[float, float]:
    """Return for how many seconds a checkpoint stops training, and how long writing then takes.

    >>> read_checkpoint_cost("0.05:2"), read_checkpoint_cost("3")
    ((0.05, 2.0), (3.0, 0.0))

    Raises:
        ConfigError: if the text has another form, or a number is out of range.
    """
    stall_s, write_s = _read("checkpoint-cost", _CHECKPOINT, text)
    return stall_s, write_s


def read_stage_costs(text: str) -> tuple[StageCosts, ...]:
    """Return the cost of each part of a model; empty if ``text`` is.

    >>> read_stage_costs("2:0:2,3:3:3")[0]
    StageCosts(forward=2.0, backward_input=0.0, backward_weight=2.0, nbytes=0.0)

    Raises:
        ConfigError: if the text has another form, or nothing costs anything.
    """
    parts = text.split(",") if text else ()
    found = tuple(StageCosts(*_read("stage-costs", _COSTS, part)) for part in parts)
    if found and not any(it.seconds for it in found):
        raise ConfigError(f"stage-costs must not all be 0, got {text!r}")
    return found


def read_small_products(text: str) -> Slowdown:
    """Return how many times as long a row takes in a product of few rows.

    Between the given numbers of rows it is linear in 1/rows, as for products with a cost per
    product and a cost per row; beyond them it stays the same.

    >>> dearer = read_small_products("32:1.5:2:2,128:1:1:1")
    >>> dearer(Kind.FORWARD, 16), dearer(Kind.BACKWARD_INPUT, 64), dearer(Kind.FORWARD, 1024)
    (1.5, 1.3333333333333333, 1.0)

    Raises:
        ConfigError: if the text has another form.
    """
    if not text:
        return as_dear
    rows = sorted(_read("small-products", _DEARER, part) for part in text.split(","))
    if len({row[0] for row in rows}) < len(rows):
        raise ConfigError(f"small-products must name a number of rows once, got {text!r}")
    many = [1.0 / row[0] for row in rows][::-1]
    kinds = (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
    lines = {kind: [row[i] for row in rows][::-1] for i, kind in enumerate(kinds, 1)}
    return lambda kind, rows: float(np.interp(1.0 / rows, many, lines[kind]))


def _read(flag: str, numbers: Sequence[Number], text: str) -> tuple[float, ...]:
    try:
        return read_numbers(numbers, text)
    except ValueError as error:
        raise ConfigError(f"{flag} {error}, got {text!r}") from None
