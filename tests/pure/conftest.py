"""What the tests of whole runs in virtual time share: a problem that keeps books, and a world
that writes down what is sent."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.job.virtual import SimulatedRun, simulate
from psrt.messages import Message
from psrt.simulation import Costs, VirtualWorld


class Read(NamedTuple):
    """A worker starts to compute."""

    worker: int
    clock: int
    contents: np.ndarray  # (S, W, C): how often the step of a worker at a clock is in a shard


class Sent(NamedTuple):
    """A message is handed over."""

    time: float
    source: int
    to: int
    message: Message


class Ledger:
    """A problem whose parameters say which gradients they are made of.

    There is one parameter for each shard, worker and clock. A gradient is −1 at its own places
    and 0 elsewhere, so that with a learning rate of 1 an update adds 1 there, exactly.
    """

    def __init__(
        self,
        steps: Sequence[int],
        shards: int,
        *,
        empty: Sequence[tuple[int, int]] = (),
        weights: Mapping[tuple[int, int], int] | None = None,
    ):
        self.steps = tuple(steps)
        self.shape = shards, len(self.steps), max(self.steps)
        self.empty = frozenset(empty)  # (worker, clock) without samples
        self.weights = weights or {}
        self.log: list[Read | Sent] = []

    @property
    def reads(self) -> list[Read]:
        return [entry for entry in self.log if isinstance(entry, Read)]

    def there(self, worker: int) -> list[int]:
        """Return the clocks at which a worker has a gradient."""
        return [c for c in range(self.steps[worker]) if (worker, c) not in self.empty]

    def initial(self) -> np.ndarray:
        return np.zeros(self.shape, np.float32).ravel()

    def batches(self, worker: int, workers: int, epoch: int) -> list[tuple[int, int]]:
        return [(worker, clock) for clock in range(self.steps[worker])]

    def samples(self, batch: tuple[int, int]) -> int:
        return 0 if batch in self.empty else self.weights.get(batch, 1)

    def loss_and_grad(self, theta: np.ndarray, batch: tuple[int, int], out: np.ndarray) -> float:
        self.log.append(Read(*batch, theta.reshape(self.shape).copy()))
        out.fill(0)
        out.reshape(self.shape)[:, batch[0], batch[1]] = -1
        return 0.0

    def evaluate(self, theta: np.ndarray) -> dict[str, float]:
        return {}


class RecordingWorld(VirtualWorld):
    """Writes down every message that is sent."""

    def __init__(self, *arguments: Any, log: list[Any], **options: Any):
        super().__init__(*arguments, **options)
        for port in self.ports:
            self.listen(port, log)

    def listen(self, port: Any, log: list[Any]) -> None:
        send = port.send

        def heard(to: int, message: Message, *region: int) -> None:
            log.append(Sent(self.time, port.rank, to, message))
            send(to, message, *region)

        port.send = heard


class Recording(NamedTuple):
    run: SimulatedRun
    log: list[Any]


#: What computing and sending may take, from all alike to very uneven.
COSTS = {
    "exponential": Costs(),
    "all alike": Costs(compute=lambda *_: 1e-3, latency=lambda _: 1e-4),
    "slow links": Costs(latency=lambda rng: rng.exponential(1e-2), per_byte=1e-6),
    "now and then stuck": Costs(
        compute=lambda _, rng: 1e-3 * rng.pareto(1.1), latency=lambda rng: 1e-4 * rng.pareto(0.9)
    ),
    "the last rank is slow": Costs(
        compute=lambda rank, rng: rng.exponential(2e-2 if rank == 4 else 1e-3)
    ),
}


def record(
    config: TrainConfig,
    problem: Any = None,
    *,
    workers: int,
    seed: int = 0,
    costs: str = "exponential",
    world: type[RecordingWorld] = RecordingWorld,
) -> Recording:
    """Train in virtual time and keep what happened; a ledger's reads go into the same log."""
    log = getattr(problem, "log", [])
    made: Any = functools.partial(world, log=log)
    run = simulate(config, problem, workers=workers, seed=seed, costs=COSTS[costs], world=made)
    return Recording(run, log)


@pytest.fixture(scope="session", name="record")
def record_fixture() -> Any:
    return record


@pytest.fixture(scope="session", name="ledger")
def ledger_fixture() -> type[Ledger]:
    return Ledger


@pytest.fixture(scope="session")
def recording_world() -> type[RecordingWorld]:
    return RecordingWorld


@pytest.fixture(scope="session", params=COSTS)
def costs(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def explored(record_property: Callable[[str, Any], None]) -> Callable[..., None]:
    """Report how many (states, transitions, ends) an exploration found; they add up.

    As a property of the test, which also reaches the summary from another process (pytest-xdist).
    """

    def add(columns: str, row: str, column: str, found: tuple[int, int, int]) -> None:
        record_property("explored", [columns, row, column, list(found)])

    return add


def pytest_terminal_summary(terminalreporter: Any) -> None:
    properties = defaultdict(list)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":
                for name, value in report.user_properties:
                    properties[name].append(value)
    if properties["explored"]:
        _tell_explorations(terminalreporter, properties["explored"])
    if properties["mutants"]:
        terminalreporter.section("broken schedules")
        terminalreporter.line(f"{'schedule':24} mutants  refuted  equivalent, all of them swaps")
        for name, refuted, equivalent in sorted(properties["mutants"]):
            total = refuted + equivalent
            share = f"{refuted / total:7.1%}"
            terminalreporter.line(f"{name:24} {total:7}  {share}  {equivalent}")


def _tell_explorations(terminalreporter: Any, found: list[Any]) -> None:
    tables: dict[str, dict[str, dict[str, list[int]]]] = {}
    for columns, row, column, numbers in found:
        cells = tables.setdefault(columns, {}).setdefault(row, {})
        before = cells.get(column, [0, 0, 0])
        cells[column] = [a + b for a, b in zip(before, numbers, strict=True)]
    for columns, rows in tables.items():
        terminalreporter.section(f"every interleaving, with leaves and deaths: states by {columns}")
        names = sorted({column for cells in rows.values() for column in cells})
        lines = [["", *names, "transitions", "ends"]]
        totals = [0, 0, 0]
        for row, cells in rows.items():
            sums = [sum(numbers) for numbers in zip(*cells.values(), strict=True)]
            states = [str(cells[name][0]) if name in cells else "" for name in names]
            lines.append([row, *states, *map(str, sums[1:])])
            totals = [a + b for a, b in zip(totals, sums, strict=True)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            cells_of_line = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
            terminalreporter.line("  ".join([line[0].ljust(widths[0]), *cells_of_line[1:]]))
        terminalreporter.line("in all {} states, {} transitions, {} ends".format(*totals))


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that were saved, to look into."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    saved: list[Any] = []
    save = Figure.savefig

    def keep(figure: Any, path: Any, **options: Any) -> None:
        saved.append(figure)
        save(figure, path, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return saved
