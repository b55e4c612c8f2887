"""``psrt explain``: draws a collective, a mode, a codec or a graph. Needs no MPI."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from textwrap import fill
from typing import TYPE_CHECKING

from psrt.cli.explain_files import checked, film_of, json_of, publish
from psrt.cli.explain_flags import (
    MOST_VALUES,
    codec_parser,
    compare_parser,
    config_of,
    costs_of,
    gossip_parser,
    pipeline_compare_parser,
    pipeline_parser,
    schedule_parser,
    slow_of,
    timeline_parser,
    with_defaults,
)
from psrt.cli.printing import say
from psrt.codec.table import CODECS
from psrt.collective import ALGORITHMS, PHASES, SCHEDULES, Algorithm
from psrt.config.modes import MODES, Mode
from psrt.config.names import AUTO
from psrt.config.train import TrainConfig
from psrt.core.errors import ConfigError
from psrt.pipeline import PIPELINES, forms, schedule_of
from psrt.rows.knobs import read_flag
from psrt.rows.suggest import did_you_mean
from psrt.rows.values import BYTES, REAL, WHOLE
from psrt.topology.names import TOPOLOGIES
from psrt.topology.names import forms as graphs

if TYPE_CHECKING:
    from psrt.views.explain.explanation import Explanation

#: Modes with several workers.
#: Gossip is explained by its graph.
TIMELINES = MODES.where(lambda mode: not mode.single and not mode.mixes)

_WRAPPED = fill(", ".join(ALGORITHMS), 74, subsequent_indent=" " * 17, break_on_hyphens=False)
_CODECS = fill(", ".join(CODECS), 74, subsequent_indent=" " * 19, break_on_hyphens=False)
_TOPOLOGIES = fill(", ".join(graphs()), 74, subsequent_indent=" " * 19, break_on_hyphens=False)
_PIPELINES = fill(", ".join(forms()), 74, subsequent_indent=" " * 19, break_on_hyphens=False)
_HELP = f"""\
usage: psrt explain WHAT [flags]

Draw how ranks work together. Needs neither MPI nor mpirun. WHAT is one of

  an all-reduce  {_WRAPPED}
  a collective   {", ".join(PHASES)}
                   which chunk each rank sends to which rank, round by round; the result; and
                   the cost next to the lower bound
  a mode         {", ".join(TIMELINES)};
                   with its knobs as --mode takes them, such as ssp:staleness=2:
                   a timeline of when each worker computes, and when it waits for which
                   other; with --shards-per-server also when it pushes and reads each shard
  codec NAME     a small vector before, on the wire bit by bit, and afterwards; NAME is one of
                   {_CODECS}
  gossip         the graph on which ranks average with neighbours, its weights, how fast they
                   agree, and what they send; --topology takes
                   {_TOPOLOGIES}
  pipeline       a timeline of the stages of pipeline parallelism, with its bubbles;
                   --pipeline-schedule takes
                   {_PIPELINES}
  pipeline compare
                   all pipeline schedules in a table
  compare        predicted times of all all-reduces, and the sizes from which one is faster

  psrt explain ring --ranks 4
  psrt explain ring --order A,B,D,C --values example.csv
  psrt explain ssp:staleness=2 --slow 1:3
  psrt explain local-sgd:quorum=2,grace=0.5 --html merges.html
  psrt explain sync --shards-per-server 4
  psrt explain codec sign --steps 2
  psrt explain gossip --topology exponential --ranks 16 --svg graph.svg
  psrt explain butterfly --ranks 8 --html butterfly.html
  psrt explain pipeline --stages 4 --micro-batches 8 --pipeline-schedule zero-bubble
  psrt explain compare --ranks 2:1024 --bytes 1K:1G

With --html FILE, all except the comparisons become a page that plays them step by step in any
browser. psrt explain WHAT --help lists the flags of each."""


def main(argv: Sequence[str]) -> int:
    """Run ``psrt explain`` and return the exit status.

    Raises:
        ConfigError: if there is nothing with that name, or its flags are invalid.
        SystemExit: after ``--help`` was printed.
    """
    what, rest = (argv[0] if argv else ""), list(argv[1:])
    if what in ("-h", "--help"):
        say(_HELP)
        return 0
    _explainer(what)(what, rest)
    return 0


def _explainer(what: str) -> Callable[[str, list[str]], None]:
    """Return the function that explains ``what``."""
    pages = {"codec": _codec, "gossip": _gossip, "pipeline": _pipeline, "compare": _compare}
    if what in SCHEDULES:
        return _schedule
    if what.partition(":")[0] in TIMELINES:
        return _timeline
    if what in pages:
        return pages[what]
    if not what or what.startswith("-"):
        raise ConfigError(
            "give what to explain, such as psrt explain ring; psrt explain --help lists all"
        )
    known = (*SCHEDULES, *TIMELINES, *pages)
    topologies = {name: f"gossip --topology {name}" for name in TOPOLOGIES if name not in SCHEDULES}
    pipelines = {name: f"pipeline --pipeline-schedule {name}" for name in PIPELINES}
    others = {name: f"codec {name}" for name in CODECS} | topologies | pipelines
    guess = did_you_mean(what.partition(":")[0], (*known, *others.values()), others)
    raise ConfigError(f"cannot explain {what!r}{guess}, expected one of {', '.join(known)}")


def _schedule(what: str, argv: list[str]) -> None:
    """Explain an all-reduce or a phase."""
    given = checked(schedule_parser(what).parse(argv))
    if given.json and given.all:
        raise ConfigError("--json is always complete: leave --all out")
    explanation = _explanation(what, given)
    from psrt.views.explain import output

    publish(
        given,
        document=lambda: output.as_document(explanation),
        text=lambda: output.as_text(explanation, everything=given.all),
        film=lambda: film_of("collective", explanation),
    )


def _explanation(what: str, given: argparse.Namespace) -> Explanation:
    """Return the explanation that the flags ask for."""
    from psrt.core.arrays import ITEMSIZE
    from psrt.views.explain.explanation import MOST_RANKS, default_names, explain
    from psrt.views.explain.inputs import rank_of, read_example, read_order

    schedule = SCHEDULES[what]
    if given.order is not None and not (isinstance(schedule, Algorithm) and schedule.ordered):
        having = ", ".join(name for name, row in ALGORITHMS.items() if row.ordered)
        raise ConfigError(f"order has no effect with {what}, only with {having}")
    if given.root is not None and not schedule.rooted:
        having = ", ".join(name for name, row in PHASES.items() if row.rooted)
        raise ConfigError(f"root has no effect with {what}, only with {having}")
    if given.values is None:
        example = None
        size = read_flag("ranks", WHOLE, given.ranks or "4", min=1, max=MOST_RANKS)
        nbytes = read_flag("bytes", BYTES, given.bytes or "1M")
        if nbytes % ITEMSIZE:
            raise ConfigError(f"bytes must be a multiple of {ITEMSIZE}, for float32, got {nbytes}")
        names, n = default_names(size), nbytes // ITEMSIZE
    else:
        if given.ranks is not None or given.bytes is not None:
            raise ConfigError(
                f"{given.values} sets the number of ranks and the size: leave --ranks and --bytes "
                "out"
            )
        example = read_example(given.values)
        names, size, n = example.names, len(example.names), example.n
    return explain(
        schedule,
        size=size,
        n=n,
        costs=costs_of(given),
        example=example,
        op=given.op,
        order=None if given.order is None else read_order(given.order, names),
        root=0 if given.root is None else rank_of(given.root, names, "root"),
    )


def _timeline(what: str, argv: list[str]) -> None:
    """Explain a mode."""
    try:
        mode = MODES.read(what)
    except ConfigError as error:
        raise ConfigError(f"mode {error}") from None
    given = with_defaults(mode, checked(timeline_parser(mode).parse(argv)))
    if given.shards_per_server is not None:
        _exchange(mode, given)
        return
    config = config_of(mode, given)
    from psrt.views.explain import timeline, timeline_document

    workers = read_flag("workers", WHOLE, given.workers, min=1, max=timeline.MOST_WORKERS)
    slow = slow_of(given, workers)
    found = timeline.run(config, workers=workers, slow=slow)
    publish(
        given,
        document=lambda: timeline_document.as_document(found),
        film=lambda: film_of("timeline", found),
    )


def _exchange(mode: Mode, given: argparse.Namespace) -> None:
    """Explain how a mode exchanges the shards of its servers."""
    config = config_of(mode, given)
    if config.shards_per_server == AUTO:
        raise ConfigError("shards-per-server auto depends on the job: give the number to draw")
    from psrt.views.explain import exchange, exchange_document

    workers = read_flag("workers", WHOLE, given.workers, min=1, max=exchange.MOST_WORKERS)
    found = exchange.run(config, workers=workers, slow=slow_of(given, workers))
    publish(
        given,
        document=lambda: exchange_document.as_document(found),
        film=lambda: film_of("exchange", found),
    )


def _codec(what: str, argv: list[str]) -> None:
    """Explain a codec."""
    given = checked(codec_parser().parse(argv))
    from psrt.views.explain import codec, codec_output

    wanted = given.error_feedback
    try:
        row, asked = CODECS.parsed(given.codec)
        row = replace(row, **{**row.small, **asked}).settled(scales=not wanted)
    except ConfigError as error:
        raise ConfigError(f"codec {error}") from None
    TrainConfig(codec=row, error_feedback=wanted)  # or one line that says why not
    values = codec.example_of(row)
    if given.values is not None:
        texts = given.values.split(",", MOST_VALUES)
        if len(texts) > MOST_VALUES:
            raise ConfigError(f"values must be at most {MOST_VALUES} numbers")
        values = tuple(read_flag("values", REAL, text, min=-1e30, max=1e30) for text in texts)
    found = codec.run(
        row,
        values,
        error_feedback=row.is_fed_back if wanted is None else wanted,
        steps=read_flag("steps", WHOLE, given.steps or "1", min=1, max=9),
        seed=read_flag("seed", WHOLE, given.seed or "0", min=0),
    )
    publish(
        given,
        document=lambda: codec_output.as_document(found),
        text=lambda: codec_output.as_text(found),
        film=lambda: film_of("codec", found),
    )


def _gossip(what: str, argv: list[str]) -> None:
    """Explain a topology."""
    given = checked(gossip_parser().parse(argv))
    from psrt.views.explain import gossip, gossip_output

    hosts: list[int] = []
    if given.hosts is not None:
        if given.ranks is not None:
            raise ConfigError(f"--hosts {given.hosts} sets the number of ranks: leave --ranks out")
        hosts = [read_flag("hosts", WHOLE, text, min=1) for text in given.hosts.split(",")]
    text = str(sum(hosts)) if hosts else given.ranks or "8"
    found = gossip.explained(
        given.topology,
        read_flag("ranks", WHOLE, text, min=1, max=gossip.MOST_RANKS),
        nbytes=read_flag("bytes", BYTES, given.bytes or "1M"),
        push_sum=given.push_sum,
        seed=read_flag("seed", WHOLE, given.seed or "0", min=0),
        hosts=hosts,
    )
    publish(
        given,
        document=lambda: gossip_output.as_document(found),
        text=lambda: gossip_output.as_text(found),
        canvas=lambda: gossip_output.draw(found),
        film=lambda: film_of("gossip", found),
    )


def _pipeline(what: str, argv: list[str]) -> None:
    """Explain a schedule of a pipeline, or compare all."""
    if argv[:1] == ["compare"]:
        given = pipeline_compare_parser().parse(argv[1:])
        from psrt.views.explain import pipeline, pipeline_output

        rows = pipeline.compared(*_sizes(given))
        say(
            json_of(pipeline_output.compared_document(rows))
            if given.json
            else pipeline_output.compared_text(rows)
        )
        return
    if argv and not argv[0].startswith("-"):
        named = argv[0].partition(":")[0] in PIPELINES
        guess = "" if named else did_you_mean(argv[0], ("compare", *PIPELINES))
        raise ConfigError(
            f"explain pipeline: give the schedule as --pipeline-schedule {argv[0]}"
            if named
            else f"cannot explain pipeline {argv[0]!r}{guess}, expected compare, or a schedule as "
            "--pipeline-schedule NAME"
        )
    given = checked(pipeline_parser().parse(argv))
    from psrt.views.explain import pipeline, pipeline_output

    try:
        chosen = schedule_of(given.pipeline_schedule)
    except ConfigError as error:
        raise ConfigError(f"pipeline-schedule {error}") from None
    found = pipeline.explained(
        chosen.row, *_sizes(given), chosen.chunks, deferred=given.defer_weights
    )
    publish(
        given,
        document=lambda: pipeline_output.as_document(found),
        film=lambda: film_of("pipeline", found),
    )


def _sizes(given: argparse.Namespace) -> tuple[int, int]:
    """Return the numbers of stages and of micro-batches."""
    from psrt.views.explain.pipeline import MOST_MICRO_BATCHES, MOST_STAGES

    if "," in given.stages:
        count = given.stages.count(",") + 1
        raise ConfigError(
            f"--stages {given.stages} lists layers, as for psrt train; explain takes the number of "
            f"stages, --stages {count}"
        )
    return (
        read_flag("stages", WHOLE, given.stages, min=1, max=MOST_STAGES),
        read_flag("micro-batches", WHOLE, given.micro_batches, min=1, max=MOST_MICRO_BATCHES),
    )


def _compare(what: str, argv: list[str]) -> None:
    """Explain which all-reduce is the fastest at which size."""
    given = compare_parser().parse(argv)
    from psrt.report import figure
    from psrt.views.explain import compare
    from psrt.views.explain.inputs import read_ranks, read_sizes

    if given.plot is not None:
        figure.check_path(given.plot)
    found = compare.compare(read_ranks(given.ranks), read_sizes(given.bytes), costs_of(given))
    if given.plot is not None:
        compare.plot(found, given.plot)
    say(json_of(compare.as_document(found)) if given.json else compare.as_text(found))
