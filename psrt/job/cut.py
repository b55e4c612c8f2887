"""How a job splits a model: the layers and slices of each cell, and the links of stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from psrt.config import TrainConfig
from psrt.config.axes import Axes
from psrt.config.names import DEFAULT_PIPELINE, OPTIMIZER
from psrt.core.errors import ConfigError
from psrt.core.partition import Part, Rectangle, Span
from psrt.core.units import plural
from psrt.job.build import held_of_layers, length_of, rate_of, role_map_for
from psrt.job.cells import Cell, Place, layout_lines, place_of, ranks_of_cell
from psrt.job.gossip import role_map_with_peers
from psrt.job.result import Say
from psrt.job.shards import ShardChoice
from psrt.model.chain import ChainLayer, SliceGroup, chain_layers, layer_spans
from psrt.model.lent_stage import LentStage
from psrt.model.stage import Stage, StageLoss
from psrt.model.stage_memory import Boundary, StageShape
from psrt.model.tensor import tensor_slice
from psrt.pipeline.balance import balanced, imbalance
from psrt.pipeline.messages import sent_early
from psrt.pipeline.registry import PIPELINES, ScheduleName, schedule_of
from psrt.pipeline.schedule import most_alive
from psrt.report import ModelCut, cut_text
from psrt.runtime.cut_problem import CutProblem, Ways
from psrt.runtime.event_recorder import WorkerEventRecorder
from psrt.runtime.pipedream import PipeDream
from psrt.runtime.problem import Problem
from psrt.runtime.timing_chain import TimingOnlyStage
from psrt.runtime.timing_only import TimingOnlyProblem
from psrt.topology import Topology
from psrt.transport.port import RoleMap
from psrt.transport.stage_links import Channel, StageLinks, channels_of


class CutPlan(NamedTuple):
    """What the first process decides about a split, as JSON."""

    #: Layers of each chunk, in the order of the layers.
    counts: list[int]
    #: The time of the slowest stage over the mean of all stages.
    imbalance: float
    #: By slice, the elements of a row of the activations behind each chunk except the last.
    widths: list[list[int]]
    #: By cell, slices changing fastest, the rectangles of its part of the parameters.
    parts: list[list[tuple[int, int, int, int]]]
    #: By cell, the elements of each of its layers, in the order of its part.
    layers: list[list[int]]


@dataclass(frozen=True, slots=True)
class Cut:
    """A split model, and the ranks that have its parts."""

    #: The numbers of copies, stages and slices.
    axes: Axes
    #: The order in which stages work, and the chunks of each.
    schedule: ScheduleName
    #: Parts of a batch, M; in PipeDream, where whole batches follow each other, more than are in
    #: flight.
    micro_batches: int
    #: Layers of each chunk, in the order of the layers.
    counts: tuple[int, ...]
    #: The time of the slowest stage over the mean of all stages.
    imbalance: float
    #: By slice, the widths of the activations between chunks.
    widths: tuple[tuple[int, ...], ...]
    #: The most rows of all micro-batches.
    rows: int
    #: By stage, the most micro-batches that are alive in it.
    alive: tuple[int, ...]
    #: The cells by number: slices change fastest.
    cells: tuple[Cell, ...]
    #: Ranks of the workers by number.
    workers: tuple[int, ...]
    #: If servers have the whole model: they and the first worker of each copy, which speaks for it.
    served: Cell | None = None
    #: Rank → number of its cell, and of its worker: a simulation may have thousands.
    _cells: Mapping[int, int] = field(init=False, repr=False, compare=False)
    _workers: Mapping[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        groups = reversed([*enumerate(self.groups)])  # a worker is in a cell first of all
        cells = {rank: number for number, cell in groups for rank in cell.ranks}
        object.__setattr__(self, "_cells", cells)
        workers = {rank: number for number, rank in enumerate(self.workers)}
        object.__setattr__(self, "_workers", workers)

    @property
    def groups(self) -> tuple[Cell, ...]:
        """The cells, and behind them ``served``."""
        return self.cells if self.served is None else (*self.cells, self.served)

    @property
    def served_cells(self) -> tuple[Cell, ...]:
        """Those that have the servers, if there are any."""
        return self.cells if self.served is None else (self.served,)

    @property
    def parameters(self) -> int:
        """Number of parameters of the whole model."""
        return sum(cell.part.size for cell in self.cells)

    def figures(self) -> ModelCut:
        """Return its fields in the summary of a run."""
        return ModelCut(
            str(self.axes),
            str(self.schedule),
            1 if PIPELINES[self.schedule.name].asynchronous else self.micro_batches,
            self.counts,
            tuple(cell.part.size for cell in self.cells),
        )

    def channels(self, slice_: int) -> tuple[Channel, ...]:
        """Return the channels between the stages of a slice."""
        return channels_of(
            self.axes.pipeline,
            self.widths[slice_],
            self.alive,
            rows=self.rows,
            micro_batches=self.micro_batches,
        )

    def numbered_cell_of(self, rank: int) -> tuple[int, Cell]:
        """Return the cell of a rank of the job, and its number among all ``groups``."""
        number = self._cells[rank]
        return number, self.groups[number]

    def cell_of(self, rank: int) -> Cell:
        """Return the cell of a rank of the job."""
        return self.numbered_cell_of(rank)[1]

    @property
    def places(self) -> tuple[str, ...]:
        """The names of the workers' places in messages."""
        return tuple(
            place_of(worker, self.axes).words(self.axes) for worker in range(len(self.workers))
        )

    def place_of(self, rank: int) -> Place:
        """Return the place of a worker by its rank."""
        return place_of(self._workers[rank], self.axes)


def cut_plan(config: TrainConfig, problem: Problem, n: int) -> CutPlan | None:
    """Decide how to split a model; None if it is not split.

    Args:
        config: resolved.
        problem: its model is a chain.
        n: its parameters.

    Raises:
        ConfigError: if it cannot be split in this way.
    """
    if config.parallel is None:
        return None
    axes, schedule = config.axes, schedule_of(str(config.pipeline_schedule))
    layers = chain_layers(problem, n)
    costs = _costs(layers)
    cut = _cut(config, layers, costs, axes.pipeline * schedule.chunks)
    slices = [_slice(problem, axes, i, layers) for i in range(axes.tensor)]
    widths = [[int(it.layers[chunk.stop - 1].outputs) for chunk in cut[:-1]] for it in slices]
    parts, sizes = [], []
    for stage in range(axes.pipeline):
        own = [i for chunk in cut[stage :: axes.pipeline] for i in range(*chunk)]
        for of in slices:
            parts.append([_numbers(it) for i in own for it in of.parts[i]])
            sizes.append([int(of.layers[i].n) for i in own])
    fewest = min(map(len, sizes))
    if config.scheme.fragments > fewest:
        raise ConfigError(
            f"--mode {config.mode} has more fragments than one part of --parallel {axes} has "
            f"layers ({fewest}): each part is sent in fragments of its own layers"
        )
    return CutPlan([it.size for it in cut], imbalance(costs, cut), widths, parts, sizes)


def _numbers(it: Rectangle) -> tuple[int, int, int, int]:
    return it.start, it.rows, it.columns, it.pitch


class _Slice(NamedTuple):
    """What one slice has of a model."""

    layers: Sequence[ChainLayer]
    #: Of each layer, the parameters.
    parts: Sequence[Part]
    loss: StageLoss


def _slice(
    problem: Any,
    axes: Axes,
    index: int,
    layers: Sequence[ChainLayer],
    group: SliceGroup | None = None,
) -> _Slice:
    """Return a slice of a problem's model; all of it where there is one."""
    if axes.tensor == 1:
        parts = [Part.of_spans([span]) for span in layer_spans(layers)]
        return _Slice(layers, parts, problem.loss)
    found = tensor_slice(problem, axes.tensor, index, group)
    return _Slice(found.layers(), found.parts, found.loss)


def _costs(layers: Sequence[ChainLayer]) -> list[float]:
    """Return the costs of layers, by their parameters, which are used once in each of 3 products.

    The first layer has 2 products: the gradient of the input is not needed.
    """
    return [float(layer.n * (3 if i else 2)) for i, layer in enumerate(layers)]


def _cut(
    config: TrainConfig, layers: Sequence[ChainLayer], costs: Sequence[float], chunks: int
) -> tuple[Span, ...]:
    """Return the layers of each chunk."""
    if chunks > len(layers):
        schedule = schedule_of(config.pipeline_schedule or DEFAULT_PIPELINE)
        by = f" and --pipeline-schedule {schedule}" if schedule.chunks > 1 else ""
        raise ConfigError(
            f"--parallel {config.parallel}{by}: {plural(len(layers), 'layer')} cannot be split "
            f"into {chunks} parts"
        )
    asked = config.stages
    if asked is None:
        return balanced(costs, chunks)
    counts = tuple(map(int, asked.split(",")))
    if sum(counts) != len(layers):
        raise ConfigError(
            f"--stages {asked} says {plural(sum(counts), 'layer')}, the model has {len(layers)}"
        )
    return _spans_of(counts)


def _spans_of(counts: Sequence[int]) -> tuple[Span, ...]:
    return tuple(Span(a, b) for a, b in pairwise(accumulate(counts, initial=0)))


def cut_of(
    config: TrainConfig,
    plan: CutPlan,
    servers: Sequence[int],
    workers: Sequence[int],
    shards: ShardChoice | None,
    topology: Topology | None = None,
    whole: RoleMap | None = None,
) -> Cut:
    """Return which rank has which part.

    Args:
        config: resolved.
        plan: how it is split; may have been JSON.
        servers: ranks of the servers.
        workers: ranks of the workers, by number.
        shards: of each server; None without servers.
        topology: of the copies; None if they do not mix.
        whole: the role map of the job, if its servers have the whole model; else None.

    Raises:
        ConfigError: if a server would own nothing.
    """
    counts, uneven, widths, parts, layers = plan
    servers = servers if whole is None else ()
    axes, number_of = config.axes, {rank: number for number, rank in enumerate(workers)}
    cells = []
    for number, (rectangles, sizes) in enumerate(zip(parts, layers, strict=True)):
        stage, slice_ = divmod(number, axes.tensor)
        part = Part(Rectangle(*it) for it in rectangles)
        own = ranks_of_cell(stage, slice_, axes, workers, servers)
        ranks = tuple(sorted((*own[0], *own[1])))
        place = {rank: i for i, rank in enumerate(ranks)}
        role_map = role_map_for(
            part.size,
            tuple(place[rank] for rank in own[0]),
            tuple(place[rank] for rank in own[1]),
            shards_per_server=1 if shards is None else shards.shards,
            layers=_spans_of(sizes),
            controls=config.scheme.fragments,
        )
        if topology is not None:
            role_map = role_map_with_peers(config, part.size, role_map.workers, topology)
        numbers = tuple(number_of[rank] for rank in own[1])
        role_map = replace(role_map, job_ranks=ranks, job_workers=numbers)
        role_map = held_of_layers(config, _spans_of(sizes)[::-1], role_map)
        cells.append(Cell(stage, slice_, ranks, role_map, part))
    schedule, micro_batches = schedule_of(str(config.pipeline_schedule)), config.micro_batches or 1
    row, rows = PIPELINES[schedule.name], config.batch_size
    if row.asynchronous:
        micro_batches = axes.pipeline + 1
        rows *= micro_batches
    steps_of = row.plan(
        axes.pipeline, micro_batches, schedule.chunks, deferred=bool(config.defer_weights)
    )
    return Cut(
        axes,
        schedule,
        micro_batches,
        tuple(counts),
        uneven,
        tuple(map(tuple, widths)),
        rows,
        tuple(max(most_alive(steps, schedule.chunks)) for steps in steps_of),
        tuple(cells),
        tuple(workers),
        None if whole is None else _served(whole, axes.cells),
    )


def _served(whole: RoleMap, parts: int) -> Cell:
    """Return the servers of whole models, and the first worker of each copy, as a cell."""
    firsts = whole.workers[::parts]
    ranks = tuple(sorted((*whole.server_ranks, *firsts)))
    place = {rank: i for i, rank in enumerate(ranks)}
    role_map = replace(
        whole,
        workers=tuple(place[rank] for rank in firsts),
        servers=tuple(place[rank] for rank in whole.servers),
        job_ranks=ranks,
        job_workers=tuple(range(0, len(whole.workers), parts)),
    )
    return Cell(0, 0, ranks, role_map, Part.of_spans([Span(0, whole.n)]))


def cut_problem(
    config: TrainConfig,
    problem: Problem,
    cut: Cut,
    rank: int,
    links: StageLinks,
    *,
    now: Callable[[], float] = lambda: 0.0,
    events: WorkerEventRecorder | None = None,
) -> CutProblem:
    """Return a worker's part of a problem.

    Args:
        config: resolved.
        problem: the whole, a chain.
        cut: which rank has which part.
        rank: of the worker in the job.
        links: of the worker.
        now: returns the time of the events.
        events: records the steps; None for no history.
    """
    place, cell, axes = cut.place_of(rank), cut.cell_of(rank), cut.axes
    row, chunks = PIPELINES[cut.schedule.name], cut.schedule.chunks
    deferred = bool(config.defer_weights)
    steps = list(row(place.stage, axes.pipeline, cut.micro_batches, chunks, deferred=deferred))
    of = _slice(problem, axes, place.slice, chain_layers(problem, cut.parameters), links)
    spans = _spans_of(cut.counts)
    own = range(place.stage, len(spans), axes.pipeline)
    ways = [_ways(cut, place, number) for number in own]
    alive = most_alive(steps, chunks)
    stages: list[Stage] = []
    for i, number in enumerate(own):
        shape = StageShape(
            rows=cut.rows,
            micro_batches=cut.micro_batches,
            slots=alive[i],
            split=deferred or row.splits,
            recompute=bool(config.recompute),
            first=number == 0,
            given=number == 0,
        )
        loss = of.loss if number == len(spans) - 1 else None
        layers = of.layers[slice(*spans[number])]
        stages.append(_stage(config, problem, layers, shape, loss, ways[i], links))
    is_first = place.stage == place.slice == 0
    if row.asynchronous:
        # Servers that count staleness need to know the version of a gradient.
        served_stale = config.scheme.weakens
        return PipeDream(
            problem,
            links,
            part=cell.part,
            stage=stages[0],
            ways=ways[0],
            schedule=row,
            place=(place.stage, axes.pipeline),
            is_first=is_first,
            length=length_of(config),
            rate=None if served_stale else rate_of(config, cell.part.size),
            counts=not served_stale,
            now=now,
            events=events,
        )
    return CutProblem(
        problem,
        links,
        part=cell.part,
        chunks=stages,
        ways=ways,
        steps=sent_early(steps),
        is_first=is_first,
        now=now,
        events=events,
    )


def _stage(
    config: TrainConfig,
    problem: Problem,
    layers: Sequence[ChainLayer],
    shape: StageShape,
    loss: StageLoss | None,
    ways: Ways,
    links: StageLinks,
) -> Stage:
    """Return the object that computes a chunk's layers; the last chunk has ``loss``."""
    if isinstance(problem, TimingOnlyProblem):
        return TimingOnlyStage(layers, shape, group=links, is_last=loss is not None)
    made = Stage if config.scheme.shard in (None, OPTIMIZER) else LentStage
    boundary = _boundary(links, ways)
    return made(layers, shape, loss=loss, group=links, boundary=boundary, summed=links.empty)


def _ways(cut: Cut, place: Place, chunk: int) -> Ways:
    """Return the channels of a chunk, numbered in the order of the layers."""
    by_edge = {(it.edge, it.back): it for it in cut.channels(place.slice)}
    if cut.axes.pipeline == 1:
        return Ways()
    return Ways(
        by_edge.get((chunk - 1, False)),
        by_edge.get((chunk - 1, True)),
        by_edge.get((chunk, False)),
        by_edge.get((chunk, True)),
    )


def _boundary(links: StageLinks, ways: Ways) -> Boundary:
    """Return the matrices of a chunk's channels."""
    below, back_below, above, back_above = (
        None if it is None else links.matrices[it] for it in ways
    )
    return Boundary(
        inputs=below, outputs=above, input_gradients=back_below, output_gradients=back_above
    )


def say_cut(cut: Cut | None, hosts: Sequence[int], say: Say) -> None:
    """Print how the model is split, if it is, and which ranks have which part.

    Args:
        cut: of the model.
        hosts: of each rank of the job.
        say: called with each line.
    """
    if cut is None:
        return
    say(f"model: {cut_text(asdict(cut.figures()))}")
    if cut.axes.pipeline > 1:
        say(f"stages: the slowest takes {cut.imbalance:.2f} times the mean")
    for line in layout_lines(cut.axes, cut.workers, hosts):
        say(line)
