"""The result of a run: its summary, its files, and the table printed at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from psrt.config import TrainConfig
from psrt.config.names import GRADIENT_TRACKING, PUSH_SUM
from psrt.config.tuning import tuned_knob
from psrt.core.arrays import ITEMSIZE, Vector
from psrt.core.errors import DivergedError, OutputError, ProtocolError
from psrt.core.sharding import Memory
from psrt.core.stats import Stats
from psrt.faults import Member
from psrt.history.header import Tried
from psrt.job.shards import ShardChoice
from psrt.report import (
    Averages,
    Counts,
    GraphAverages,
    Missing,
    ModelCut,
    OutputFolder,
    Record,
    Staleness,
    Summary,
    Waiting,
    final_table,
    parameters_sha256,
    topology_text,
)
from psrt.report.console import tuned_text
from psrt.report.summary import FIELDS, Tuned
from psrt.runtime.mean import Mean
from psrt.runtime.named_arrays import tensors_of
from psrt.runtime.problem import Problem
from psrt.runtime.strategies.base import ReducePlan
from psrt.topology import Topology
from psrt.transport.port import AS_ASKED

#: The most ranks for which the time of computing a spectral gap is negligible.
_MOST_RANKS = 256
#: Takes a line for the user.
Say = Callable[[str], None]


def silent(line: str) -> None:
    """Print nothing."""


def say_plan(plan: ReducePlan | None, say: Say) -> None:
    """Print how all ranks will sum, if they do, with the reason for the pick of ``auto``."""
    if plan is not None:
        why = plan.why if plan.why == AS_ASKED else f"because {plan.why}"
        say(f"all-reduce: {plan.algorithm}, {why}")
        if plan.what:
            say(plan.what)


def say_shards(shards: ShardChoice | None, say: Say) -> None:
    """Print the number of shards of each server, if there are servers, and the reason."""
    if shards is not None:
        why = shards.why if shards.why == AS_ASKED else f"because {shards.why}"
        say(f"shards: {shards.shards} per server, {why}")


def say_tuned(config: TrainConfig, tried: Sequence[Tried], say: Say) -> None:
    """Print what ``--tune`` has chosen, and of what, if anything."""
    if (found := _tuned(config, tried)) is not None:
        say(f"tuned: {tuned_text(asdict(found))}")


def say_topology(config: TrainConfig, topology: Topology | None, parameters: int, say: Say) -> None:
    """Print the workers' neighbours, if any, and whose accuracy is shown if not that of all.

    Args:
        config: resolved.
        topology: the neighbours of workers; None without.
        parameters: n.
        say: called with each line.
    """
    found = _on_graph(config, topology, parameters, None)
    if found is not None:
        is_cut = config.parallel is not None
        say(f"topology: {topology_text(asdict(found), is_cut=is_cut)}")
        if found.models > 1:
            whose = "copy 0's model" if is_cut else "worker 0's own model"
            say(f"accuracy: of {whose}; at the end, of the mean of all")
    if config.scheme.elastic is not None:
        say("accuracy: of the centre at worker 0's last average; at the end, of the final centre")


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a run."""

    #: As in ``summary.json``.
    summary: Summary
    #: (n,) float32, the final parameters.
    theta: Vector
    #: As in ``metrics.jsonl``.
    records: tuple[Record, ...]


def summarize(
    config: TrainConfig,
    stats: Sequence[Stats],
    *,
    theta: Vector,
    figures: Mapping[str, float],
    records: Sequence[Record],
    plan: ReducePlan | None,
    shards: ShardChoice | None,
    topology: Topology | None = None,
    mean: Mean | None = None,
    cut: ModelCut | None = None,
    parameters: int,
    largest: int,
    hosts: int,
    library: str,
    died: int = 0,
    missing: Mapping[int, Member] = MappingProxyType({}),
    tuned: Sequence[Tried] = (),
) -> Summary:
    """Return the summary of a run.

    Args:
        config: resolved.
        stats: of every worker and every shard, in the order of the ranks.
        theta: (n,) the final parameters; empty if nothing was computed.
        figures: the problem's evaluation of the final parameters, by name.
        records: the lines of ``metrics.jsonl``.
        plan: how all ranks summed; None if they did not.
        shards: the number of shards of a server; None without servers.
        topology: the neighbours of workers; None without.
        mean: the mean of the workers' final parameters, which θ then is.
        cut: how the model was split; None if each worker had all of it.
        parameters: n.
        largest: elements that servers update at once.
        hosts: the number of hosts.
        library: name and version of the MPI library.
        died: the number of workers that crashed in a simulation.
        missing: the workers, by number, that others continued without; their stats have what
            they had reported.
        tuned: what ``--tune`` tried, see ``Header``.

    Raises:
        DivergedError: if a parameter ended as nan or infinite.
        ProtocolError: if ranks without servers ended with different parameters.
    """
    servers = config.servers or 0
    cells = config.axes.cells
    parts = [
        [one for one in stats if one.worker >= 0 and one.worker % cells == part]
        for part in range(cells)
    ]
    differs = any(len({one.fingerprint for one in part}) > 1 for part in parts)
    if cut is not None:
        memory = [max((sum(one.memory) for one in part), default=0.0) for part in parts]
        cut = replace(cut, memory=tuple(memory) if any(memory) else ())
    if differs and not servers and not config.scheme.mixes:
        raise ProtocolError("the ranks' final parameters differ; they must be equal to the bit")
    # By number: with a model split over several hosts, ranks have another order.
    workers = sorted((one for one in stats if one.worker >= 0), key=lambda one: one.worker)
    total = Stats.merged(stats)
    if records:  # they include dead workers, and attempts with other ranks
        total.samples = records[-1].samples
        total.seconds = max(total.seconds, records[-1].seconds)
    if records and (died or missing):  # for dead workers what they reported, as in the records
        total.steps, total.epochs = records[-1].step, records[-1].epoch
    total.seconds = round(total.seconds, 6)
    more = total.figures()
    counted = {name: more.pop(name) for name in FIELDS if name in more}
    if not np.isfinite(theta).all():  # the loss may not depend on all of them
        raise DivergedError(
            "diverged: the parameters at the end are nan or infinite; try a smaller --lr, or scale "
            "the inputs"
        )
    return Summary(
        mode=config.scheme.name,
        workers=len(workers),
        servers=servers,
        ranks=len(workers) + servers,
        hosts=hosts,
        mpi=library,
        seed=config.seed,
        allreduce=plan.algorithm if plan else None,
        allreduce_why=plan.why if plan else "",
        shards_per_server=shards.shards if shards else None,
        shards_why=shards.why if shards else "",
        buckets=plan.buckets if plan else 0,
        overlap=plan.overlap if plan else False,
        samples_per_second=total.samples / total.seconds if total.seconds else 0.0,
        train_loss=records[-1].loss if records else None,
        test_loss=figures.get("loss"),
        test_accuracy=figures.get("accuracy"),
        test_figures={it: figures[it] for it in figures if it not in ("loss", "accuracy")},
        parameters=parameters,
        parameters_sha256=parameters_sha256(theta) if theta.size else "",
        staleness=Staleness.of_ranks(stats),
        torn=total.torn,
        skew_max=max(total.skew, default=0),
        skew=Counts.of(total.skew.items()),
        waiting=tuple(Waiting.of(one) for one in workers if one.worker not in missing),
        missing=tuple(
            Missing(worker, it.rank, it.host, it.pid, total.left.get(worker, 0))
            for worker, it in missing.items()
        ),
        tuned=_tuned(config, tuned),
        averages=_averages(config, parameters, (plan and plan.largest) or largest),
        graph_averages=_on_graph(config, topology, parameters, mean),
        model_cut=cut,
        memory=Memory(*total.memory) if total.memory and config.scheme.sums_gradients else None,
        **counted,
        more=more,
    )


def _tuned(config: TrainConfig, tried: Sequence[Tried]) -> Tuned | None:
    """Return what was tried and chosen; None without ``--tune``."""
    if not tried:
        return None
    knob = tuned_knob(config.scheme, config.servers)
    chosen: Any = getattr(config.scheme, knob, None) or config.shards_per_server
    return Tuned(knob, chosen, tuple(tried))


def _averages(config: TrainConfig, parameters: int, largest: int) -> Averages | None:
    """Return the figures of averages; None in modes that average no parameters."""
    mode = config.scheme
    if not mode.averages:
        return None
    return Averages(
        mode.local_steps,
        mode.fragments,
        mode.sync_delay,
        mode.mixing,
        mode.eager,
        ITEMSIZE * parameters,
        ITEMSIZE * (largest or parameters),
    )


def _on_graph(
    config: TrainConfig, topology: Topology | None, parameters: int, mean: Mean | None
) -> GraphAverages | None:
    """Return the figures of gossip; None in other modes."""
    if topology is None:
        return None
    mode = config.scheme
    vectors = 2 if mode.variant == GRADIENT_TRACKING else 1
    sent = sum(map(topology.sent, range(topology.size))) / topology.size
    has_rounds = not mode.asynchronous
    is_coded = config.codec is not None and bool(config.codec_everywhere)
    is_fixed = has_rounds and topology.hosts is None and not is_coded
    return GraphAverages(
        topology.name,
        mode.order or "",
        mode.variant == PUSH_SUM,
        topology.period,
        topology.gap if has_rounds and topology.size <= _MOST_RANKS else None,
        ITEMSIZE * parameters * vectors * sent if is_fixed else None,
        mean.models if mean else topology.size,
        mean.distance if mean else None,
    )


def keep_model(
    theta: Vector, problem: Problem, folder: OutputFolder, failed: list[OutputError]
) -> None:
    """Write the parameters, as soon as they are available.

    Args:
        theta: (n,), not empty.
        problem: names the tensors of θ, if it can; if that fails they are written without names.
        folder: of the run.
        failed: an error of writing is added.

    Raises:
        Exception: what the problem has raised.
    """
    tensors = tensors_of(problem)
    with _collected(failed):
        try:
            folder.write_model({"theta": theta} if tensors is None else tensors(theta))
        except Exception:
            with contextlib.suppress(OutputError):
                folder.write_model({"theta": theta})
            raise


def keep(
    run: Run,
    folder: OutputFolder,
    files: Mapping[str, str],
    failed: list[OutputError],
) -> None:
    """Write the other files of a finished run.

    The summary is written last, and only if all others could be written: a folder with a summary
    holds a complete run.

    Args:
        run: the result.
        folder: of the run.
        files: the text of further files, by name.
        failed: the errors of files that could not be written so far; new ones are added.
    """
    for name, text in files.items():
        with _collected(failed):
            folder.write_text(name, text)
    if not failed:
        with _collected(failed):
            folder.write_summary(run.summary)


@contextlib.contextmanager
def _collected(failed: list[OutputError]) -> Iterator[None]:
    """Collect an error of writing and continue: the rest may fit."""
    try:
        yield
    except OutputError as error:
        failed.append(error)


def table_of(summary: Summary, config: TrainConfig, folder: OutputFolder | None) -> str:
    """Return the table that sums up a run of a resolved config."""
    given = folder.given if folder is not None else None
    return final_table(asdict(summary), given, mode=config.scheme)
