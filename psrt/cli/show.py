"""``psrt show``: the configuration of a run with these flags, as TOML. Needs no MPI."""

from __future__ import annotations

from collections.abc import Sequence

from psrt.cli.flags import RANK_WORDS, FlagParser, config_of, train_parser
from psrt.cli.printing import say
from psrt.config import TrainConfig, resolve, to_toml
from psrt.config.dealing import IID
from psrt.config.resolve import mode_of, servers_of
from psrt.core.errors import ConfigError
from psrt.core.units import plural
from psrt.rows.knobs import Knob, read
from psrt.rows.values import WHOLE

_DESCRIPTION = """\
Print the configuration of `psrt train` with the same flags, with all defaults filled in, as TOML
for --config."""

_RANKS = Knob(WHOLE, "number of ranks of the job (default: as few as these flags need)", min=1)


def show_parser() -> FlagParser:
    """Return the parser: the flags of `psrt train`, and the number of ranks."""
    parser = train_parser("psrt show", _DESCRIPTION)
    parser.synonyms |= dict.fromkeys(RANK_WORDS, "ranks")
    parser.add_argument("--ranks", metavar="N", help=_RANKS.help)
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the resolved config and return the exit status.

    Raises:
        ConfigError: for invalid flags.
        SystemExit: after ``--help`` was printed.
    """
    namespace = show_parser().parse(argv)
    config = config_of(namespace)
    ranks = fewest_ranks(config) if config.replay is None else _recorded(config.replay)
    if hasattr(namespace, "ranks"):
        ranks = read("ranks", _RANKS, namespace.ranks)
    config = resolve(config, ranks=ranks)
    about = [*_averages(config, ranks), *_dealt(config, ranks - (config.servers or 0))]
    about += _layout(config, ranks)
    mode = f"# on {plural(ranks, 'rank')}: {config.scheme.described()}"
    say("\n".join([mode, *about, to_toml(config).rstrip()]))
    return 0


def _averages(config: TrainConfig, ranks: int) -> list[str]:
    """Return the comment on what streaming local SGD sends at once.

    Raises:
        ConfigError: if there are more fragments than layers.
    """
    if not config.scheme.streams:
        return []
    from psrt.job.problems import timing_problem
    from psrt.runtime.strategies.builders import fragment_period, fragments_for  # need numpy
    from psrt.runtime.strategies.streaming import described

    try:
        problem = timing_problem(config, workers=ranks)
    except ConfigError:
        return []  # the data is elsewhere
    mode = config.scheme
    fragments = fragments_for(mode, problem, problem.n)
    sizes = [sum(span.size for span in spans) for spans in fragments]
    return [f"# {described(fragment_period(mode), sizes, eager=mode.eager)}"]


def _dealt(config: TrainConfig, workers: int) -> list[str]:
    """Return the comment on how the samples are split among workers.

    Raises:
        ConfigError: if they cannot be split.
    """
    if config.partition == IID:
        return []
    from psrt.job.problems import deal_text, dealt_out, timing_problem  # need numpy

    try:
        problem = timing_problem(config, workers=workers)
    except ConfigError:
        return []  # the data is elsewhere
    deal = dealt_out(config, problem, workers=workers)
    return [] if deal is None else [f"# {deal_text(deal)}"]


def _layout(config: TrainConfig, ranks: int) -> list[str]:
    """Return the comment on which rank has which part of a split model, on one host.

    Raises:
        ConfigError: if the config's model cannot be split like that.
    """
    if config.parallel is None:
        return []
    from psrt.job.cells import layout_lines  # need numpy
    from psrt.job.cut import cut_plan
    from psrt.job.problems import timing_problem
    from psrt.job.roles import who_is_who

    try:
        problem = timing_problem(config, workers=config.axes.data)
    except ConfigError:
        problem = None  # the data is elsewhere
    if problem is not None:
        cut_plan(config, problem, problem.n)
    _, workers = who_is_who(config, [0] * ranks)
    return [f"# {line}" for line in layout_lines(config.axes, workers, [0] * ranks)]


def _recorded(run: str) -> int:
    from psrt.job.recorded import recorded_ranks  # needs numpy

    return sum(recorded_ranks(run))


def fewest_ranks(config: TrainConfig) -> int:
    """Return the smallest number of ranks that a config can run on; 1 if any number will do.

    >>> fewest_ranks(TrainConfig(mode="softsync:k=3", servers=2))
    5
    """
    named = [injection.worker for injection in config.inject if injection.worker is not None]
    axes, mode = config.axes, None if config.mode is None else config.scheme
    copies = axes.data or max(
        (mode and mode.share) or 1,
        mode.backup + 1 if mode else 1,
        *(worker // axes.cells + 1 for worker in named),
    )
    servers = config.servers
    if servers is None:
        workers = copies * axes.cells
        servers = servers_of(mode_of(config, workers), axes, workers)
    return servers + copies * axes.cells
