"""Flags of ``psrt explain`` and their values. Needs no numpy, no MPI."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from psrt.cli.flags import RANK_WORDS, FlagParser, rows_help, value_given
from psrt.cli.page_file import add_overwrite
from psrt.codec.table import CODECS
from psrt.collective import OPS
from psrt.config.knobs import RunKnob, knobs_of
from psrt.config.modes import MODES, Mode
from psrt.config.names import DEFAULT_PIPELINE
from psrt.config.train import TrainConfig
from psrt.pipeline import forms
from psrt.rows.knobs import dashed, read_by_worker, read_flag
from psrt.rows.values import REAL, SWITCH, Number
from psrt.topology.names import DEFAULT
from psrt.topology.names import forms as graphs

if TYPE_CHECKING:
    from psrt.collective.costs import LinkCosts

#: Knobs of a mode whose effect a timeline shows.
_SHOWN = tuple(name for name, knob in knobs_of(TrainConfig).items() if knob.drawn)
#: Most numbers of a vector that explains a codec.
MOST_VALUES = 256
#: Defaults of a timeline, and of one with shards, whose steps have more to show.
_WORKERS, _STEPS, _SEED, _SLOW = "4", "8", "0", "1:3"
_WORKERS_OF_SHARDS, _STEPS_OF_SHARDS, _SLOW_OF_SHARDS = "2", "3", "none"
_TIMES = Number("TIMES", 0.01, 1000)
#: Local SGD averages every 8 steps: this shows two averages.
_LOCAL_STEPS = "16"
#: Most steps that fit into a drawing.
_MOST_STEPS = 200


def schedule_parser(what: str) -> FlagParser:
    """Return the parser for a collective."""
    parser = FlagParser(
        prog=f"psrt explain {what}",
        description=f"Show which chunks ranks exchange in {what}, round by round, and the cost.",
    )
    add = parser.add_argument
    add("--ranks", metavar="N", help="number of ranks (4)")
    add("--bytes", metavar="BYTES", help="size of each rank's float32 vector: 64K, 1M, 1G (1M)")
    add(
        "--values",
        metavar="FILE",
        help="compute with the numbers of this CSV file: a line per rank, its name first",
    )
    add("--op", choices=tuple(OPS), default="sum", help="operation that combines the numbers (sum)")
    add("--order", metavar="A,B,...", help="order of the ranks around the ring (as numbered)")
    add("--root", metavar="A", help="root rank, if the collective has one (the first)")
    add("--all", action="store_true", help="print every round, however many there are")
    _add_costs(parser)
    _add_outputs(parser)
    return parser


def timeline_parser(mode: Mode) -> FlagParser:
    """Return the parser for a mode: size and delays of the small job."""
    parser = FlagParser(
        prog=f"psrt explain {mode}",
        description=f"Run a small {mode.name} job in virtual time, in which a usual step takes one "
        "second, and draw when each worker computes, and when it waits for which other.",
        epilog=rows_help("psrt explain", MODES, [mode.name]),
    )
    parser.synonyms |= dict.fromkeys(RANK_WORDS, "workers")
    usual, of_shards = _defaults(mode, shards=False), _defaults(mode, shards=True)

    def default(name: str) -> str:
        few = f"; {of_shards[name]} with --shards-per-server"
        has = _fits(knobs_of(TrainConfig)["shards_per_server"], mode)
        return f"({usual[name]}{few if has and of_shards[name] != usual[name] else ''})"

    add = parser.add_argument
    add("--workers", metavar="N", help=f"number of workers {default('workers')}")
    add("--steps", metavar="N", help=f"number of steps of each worker {default('steps')}")
    add(
        "--slow",
        metavar="I:TIMES,...",
        help=f"make steps of worker I take TIMES times as long; or none {default('slow')}",
    )
    add("--seed", metavar="N", default=_SEED, help=f"seed of the random delays ({_SEED})")
    for name, knob in knobs_of(TrainConfig).items():
        if name in _SHOWN:
            _add_knob(parser, name, knob.help if _fits(knob, mode) else argparse.SUPPRESS)
    _add_outputs(parser)
    return parser


def _defaults(mode: Mode, *, shards: bool) -> dict[str, str]:
    """Return the defaults of the small job's size and delays.

    Args:
        mode: mode of the job.
        shards: whether its shards are shown.
    """
    steps = _STEPS_OF_SHARDS if shards else _STEPS
    return {
        "workers": _WORKERS_OF_SHARDS if shards else _WORKERS,
        "steps": _LOCAL_STEPS if mode.averages else steps,
        "slow": _SLOW_OF_SHARDS if shards else _SLOW,
    }


def with_defaults(mode: Mode, given: argparse.Namespace) -> argparse.Namespace:
    """Return the flags of a timeline, with defaults for flags that were not given."""
    defaults = _defaults(mode, shards=given.shards_per_server is not None)
    values = {name: value for name, value in vars(given).items() if value is not None}
    return argparse.Namespace(**{**vars(given), **defaults, **values})


def codec_parser() -> FlagParser:
    """Return the parser for a codec: its knobs, and the vector."""
    parser = FlagParser(
        prog="psrt explain codec",
        description="Show a small vector before a codec, on the wire bit by bit, and after "
        "decoding, and the\nerror that is kept back for the next vector.",
    )
    add = parser.add_argument
    add("codec", metavar="NAME[:KNOB=VALUE,...]", help=", ".join(CODECS))
    add("--values", metavar="X,X,...", help="the vector (an example; 8 numbers, or 16)")
    add("--steps", metavar="N", help="send the vector N times, each with the error kept back (1)")
    add("--seed", metavar="N", help="seed of random draws (0)")
    add(
        "--error-feedback",
        action=argparse.BooleanOptionalAction,
        help="add the error of a vector to the next one (default: as in training)",
    )
    add("--json", action="store_true", help="print the same as JSON, for programs")
    _add_page(parser)
    return parser


def gossip_parser() -> FlagParser:
    """Return the parser for a topology."""
    parser = FlagParser(
        prog="psrt explain gossip",
        description="Show the graph on which ranks average with neighbours, its weights, how fast "
        "they agree,\nand what they send.",
    )
    add = parser.add_argument
    add(
        "--topology", metavar="NAME|FILE", default=DEFAULT,
        help=f"one of {', '.join(graphs())}. A file has one edge per line, such as 0 1, or 0 > 1 "
        f"for one direction, optionally with a weight ({DEFAULT})",
    )  # fmt: skip
    add("--ranks", metavar="N", help="number of ranks (8)")
    add(
        "--hosts", metavar="N,N,...",
        help="ranks of each host: they average inside it, and the hosts on the graph",
    )  # fmt: skip
    add(
        "--push-sum", action="store_true",
        help="send shares and a weight to divide by, for graphs on which a rank receives less than "
        "it sends",
    )  # fmt: skip
    add("--bytes", metavar="BYTES", help="size of the parameters: 64K, 1M, 1G (1M)")
    add("--seed", metavar="N", help="seed of random graphs and of the simulation's numbers (0)")
    _add_outputs(parser)
    return parser


def pipeline_parser() -> FlagParser:
    """Return the parser for a pipeline."""
    parser = FlagParser(
        prog="psrt explain pipeline",
        description="Show which micro-batch each pipeline stage computes when, if each pass takes "
        "one unit of time,\nand the bubble, speedup and memory that follow. psrt explain pipeline "
        "compare prints a table\nof all schedules.",
    )
    _add_pipeline_sizes(parser)
    parser.add_argument(
        "--pipeline-schedule", metavar="NAME", default=DEFAULT_PIPELINE,
        help=f"one of {', '.join(forms())}; V is the number of chunks per stage "
        f"({DEFAULT_PIPELINE})",
    )  # fmt: skip
    parser.add_argument(
        "--defer-weights", action="store_true",
        help="compute the weight gradients of all micro-batches in one product, at the end",
    )  # fmt: skip
    _add_outputs(parser)
    return parser


def pipeline_compare_parser() -> FlagParser:
    """Return the parser for the comparison of pipelines."""
    parser = FlagParser(
        prog="psrt explain pipeline compare",
        description="Show the bubble, memory, messages and staleness of every schedule, if each "
        "pass takes one\nunit of time in every stage.",
    )
    _add_pipeline_sizes(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _add_pipeline_sizes(parser: FlagParser) -> None:
    add = parser.add_argument
    add("--stages", metavar="P", default="4", help="number of stages, all equally slow (4)")
    add(
        "--micro-batches", metavar="M", default="8",
        help="number of micro-batches; with pipedream, number of batches of the run (8)",
    )  # fmt: skip


def _add_knob(parser: FlagParser, name: str, text: str) -> None:
    """Add the flag of a knob, with this help."""
    knob = knobs_of(TrainConfig)[name]
    if knob.kind is SWITCH:
        parser.add_argument(f"--{dashed(name)}", action=argparse.BooleanOptionalAction, help=text)
    else:
        metavar = knob.metavar or knob.kind.metavar
        parser.add_argument(f"--{dashed(name)}", metavar=metavar, help=text)


def compare_parser() -> FlagParser:
    """Return the parser for the comparison."""
    parser = FlagParser(
        prog="psrt explain compare",
        description="Predict the time of every all-reduce, and the sizes from which another one is "
        "the fastest.",
    )
    add = parser.add_argument
    add(
        "--ranks",
        metavar="FROM:TO",
        default="2:64",
        help="numbers of ranks, doubling from FROM to TO (2:64)",
    )
    add(
        "--bytes",
        metavar="FROM:TO",
        default="1K:1G",
        help="vector sizes, growing 4-fold from FROM to TO (1K:1G)",
    )
    _add_costs(parser)
    add("--json", action="store_true", help="print JSON")
    add("--plot", metavar="FILE", help="also plot to this file; needs matplotlib")
    return parser


def slow_of(given: argparse.Namespace, workers: int) -> dict[int, float]:
    """Return worker → factor by which its steps take longer, from the flag or the default.

    Raises:
        ConfigError: if the flag cannot be parsed or names a worker that does not exist.
    """
    text = "none" if given.slow == _SLOW and workers == 1 else given.slow
    return {} if text == "none" else read_by_worker("slow", _TIMES, [text], workers)


def config_of(mode: Mode, given: argparse.Namespace) -> TrainConfig:
    """Return the config of a timeline's job.

    Raises:
        ConfigError: for an invalid value, or a knob without effect in the mode.
    """
    knobs = dict(knobs_of(TrainConfig))
    knobs["steps"] = replace(knobs["steps"], max=_MOST_STEPS)
    values = {
        name: value_given(name, knobs[name], text)
        for name in (*_SHOWN, "steps", "seed")
        if (text := getattr(given, name)) is not None
    }
    if "overlap" in mode.knobs:
        mode = replace(mode, overlap=False)  # type: ignore[call-arg]  # the toy problem is one piece
    return TrainConfig(mode=mode, **values)


def costs_of(given: argparse.Namespace) -> LinkCosts:
    """Return the α, β and γ that the flags ask for.

    Raises:
        ConfigError: for an unreadable file or an invalid number.
    """
    from psrt.collective.analysis.machine import DEFAULT_COSTS, read_costs

    machine = DEFAULT_COSTS if given.machine_costs is None else read_costs(given.machine_costs)
    costs: LinkCosts = getattr(machine, given.link)
    chosen = {
        name: read_flag(name, REAL, text, min=0, exclusive_max=1e9)
        for name in ("alpha", "beta", "gamma")
        if (text := getattr(given, name)) is not None
    }
    return replace(costs, **chosen)


def _fits(knob: RunKnob, mode: Mode) -> bool:
    """Return whether a knob has an effect in a mode."""
    return all(mode in it.values for it in knob.requires if it.field == "mode")


def _add_costs(parser: FlagParser) -> None:
    add = parser.add_argument
    add(
        "--machine-costs", metavar="FILE",
        help="read α, β and γ from this file, which psrt bench allreduce --fit writes",
    )  # fmt: skip
    add(
        "--link", choices=("between", "inside"), default="between",
        help="use α, β and γ of messages between hosts or inside one (between)",
    )  # fmt: skip
    add("--alpha", metavar="SECONDS", help="α: latency in seconds per message of any length")
    add("--beta", metavar="SECONDS", help="β: seconds per byte on the wire")
    add("--gamma", metavar="SECONDS", help="γ: seconds per byte combined")


def _add_outputs(parser: FlagParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--svg", metavar="FILE", help="also draw to this file")
    _add_page(parser)


def _add_page(parser: FlagParser) -> None:
    parser.add_argument(
        "--html", metavar="FILE",
        help="also write a page to this file, which plays it step by step in any browser",
    )  # fmt: skip
    add_overwrite(parser, "FILE of --html")
