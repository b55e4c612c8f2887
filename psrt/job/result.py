"""What a run comes to: its summary, its files, and what the user is told at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from psrt.config import TrainConfig
from psrt.errors import ConfigError, ProtocolError
from psrt.report import OutputFolder, Record, Summary, final_table, parameters_sha256
from psrt.report.accounts import skew_of, staleness_of, waiting_of
from psrt.report.recorder import Recorder
from psrt.runtime.account import Account
from psrt.runtime.problem import Problem
from psrt.runtime.problem_rules import checked_figures
from psrt.runtime.strategies.base import ReducePlan
from psrt.runtime.tally import Tally
from psrt.transport.port import AS_ASKED, Vector

#: Takes a line for the user.
Say = Callable[[str], None]


def silent(line: str) -> None:
    """Say nothing."""


def say_plan(plan: ReducePlan | None, say: Say) -> None:
    """Say once how all ranks will sum, if they do: what ``auto`` picked is no secret."""
    if plan is not None:
        why = plan.why if plan.why == AS_ASKED else f"because {plan.why}"
        say(f"all-reduce: {plan.algorithm}, {why}")


@dataclass(frozen=True, slots=True)
class Run:
    """What came out of a run."""

    #: As in ``summary.json``.
    summary: Summary
    #: (n,) float32, the final parameters.
    theta: Vector
    #: As in ``metrics.jsonl``.
    records: tuple[Record, ...]


def conclude(
    config: TrainConfig,
    problem: Problem,
    theta: Vector,
    *,
    tallies: Sequence[Tally],
    accounts: Sequence[Account],
    recorder: Recorder,
    folder: OutputFolder | None,
    say: Say,
    hosts: int = 1,
    mpi: str = "",
    plan: ReducePlan | None = None,
    parameters: int | None = None,
    died: int = 0,
) -> Run:
    """Make the summary, write what is to be written, and say how it went.

    Args:
        config: resolved.
        problem: evaluates the final parameters.
        theta: (n,) the final parameters.
        tallies: every rank's, in order.
        accounts: every rank's, in order.
        recorder: heard every worker's last report.
        folder: where to write; None writes nothing.
        say: takes the lines for the user.
        hosts: how many there were.
        mpi: the library's name and version.
        plan: how all ranks summed; None where they did not.
        parameters: n, where ``theta`` is empty because nothing was computed.
        died: workers that did not come to their end.

    Raises:
        ConfigError: if nobody had anything to train on, or ``evaluate`` gives no figures.
        ProtocolError: if ranks without servers ended with different parameters.
    """
    recorder.close()
    servers = config.servers or 0
    if not servers and len({tally.fingerprint for tally in tallies}) > 1:
        raise ProtocolError("the ranks' final parameters differ; they must be equal to the bit")
    total = Tally.of_all(tallies)
    seconds = total.microseconds / 1e6
    if not total.clock and not died:
        raise ConfigError(
            "nothing was trained: batches() gave no worker any batch; expected at least one"
        )
    figures = checked_figures(problem.evaluate(theta))
    summary = Summary(
        mode=config.mode or "",
        workers=len(tallies) - servers,
        servers=servers,
        ranks=len(tallies),
        hosts=hosts,
        mpi=mpi,
        seed=config.seed,
        epochs=total.epochs,
        steps=total.clock,
        allreduce=plan.algorithm if plan else None,
        allreduce_why=plan.why if plan else "",
        buckets=plan.buckets if plan else 0,
        overlap=plan.overlap if plan else False,
        samples=total.samples,
        seconds=seconds,
        samples_per_second=total.samples / seconds if seconds else 0.0,
        train_loss=recorder.records[-1].loss if recorder.records else None,
        test_loss=figures.get("loss"),
        test_accuracy=figures.get("accuracy"),
        parameters=theta.size if parameters is None else parameters,
        parameters_sha256=parameters_sha256(theta) if theta.size else "",
        updates=total.updates,
        dropped=total.dropped,
        staleness=staleness_of(accounts),
        skew_max=total.skew_max,
        skew=skew_of(accounts),
        waiting=waiting_of(accounts),
        clock_spread_max=total.clock_spread_max,
        bytes_sent=total.bytes_sent,
        bytes_received=total.bytes_received,
    )
    if folder is not None:
        tensors = getattr(problem, "tensors", None)
        if theta.size:
            folder.write_model(tensors(theta) if tensors is not None else {"theta": theta})
        folder.write_summary(summary)
    say("")
    say(final_table(asdict(summary), folder.path if folder is not None else None))
    return Run(summary, theta.copy(), tuple(recorder.records))
