"""``psrt simulate``: a whole job in one process and in virtual time. Needs no MPI."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from psrt.cli.flags import RANK_WORDS, FlagParser, config_of, train_parser
from psrt.cli.printing import say
from psrt.cli.progress import Shown
from psrt.config import TrainConfig
from psrt.config.faults import KINDS, read_fault
from psrt.config.knobs import knobs_of
from psrt.core.errors import ConfigError
from psrt.launch import started_ranks
from psrt.rows.knobs import Knob, dashed, read, read_by_worker
from psrt.rows.values import WHOLE, Number

if TYPE_CHECKING:
    from psrt.checkpoint.failures import FailureCosts
    from psrt.cli.like import Like
    from psrt.job.scenario import Scenario

_DESCRIPTION = """\
Run a whole job in one process, in virtual time: the same servers and workers as with
`psrt launch -n N train`, but the time of computing and sending is drawn from the distributions
below. The flags of `psrt train` mean the same here. The same --seed gives the same files, bit for
bit, except for "environment" in summary.json.

  psrt simulate --mode ssp:staleness=3 --workers 16 --servers 2 --inject 1:slow:4
  psrt simulate --mode async --workers 1000 --servers 8 --timing-only --parameters 10000000 \\
    --steps 50 --compute lognormal:0.1:0.3 --link 5e-5:1.25e9

By default a model is trained, and the result is accuracy over virtual time. With --timing-only no
gradient is computed, and the result is time and staleness: thousands of workers are cheap, and with
--steps no data is read."""

#: Flags of `psrt train` that have no effect here.
_MTBF = "mtbf"
_REAL_TIME = tuple(
    name for name, knob in knobs_of(TrainConfig).items() if knob.real_time and name != _MTBF
)
_GROUP = "virtual time"
_WORKERS = Knob(
    WHOLE, "number of workers, in addition to the servers", metavar="W", min=1,
    max=1_000_000, default_text="4",
)  # fmt: skip
_PARAMETERS = Knob(
    WHOLE, "number of parameters, with --timing-only", metavar="N", min=1, max=10**12,
    default_text="those of the model that the flags describe",
)  # fmt: skip
#: Costs with model parallelism.
_OF_FAILURES = ("checkpoint_cost", "restart_cost")
_OF_STAGES = ("stage_costs", "small_products", "pass_overhead")
_RESTARTS = Knob(
    WHOLE, "restarts in a row without a new checkpoint", metavar="N", min=0, max=1000,
    default_text="0",
)  # fmt: skip
_CRASH = Number("SECONDS", 0.0, 1e9)


def main(argv: Sequence[str]) -> int:
    """Run ``psrt simulate``.

    Returns:
        The exit status 0.

    Raises:
        ConfigError: for invalid flags.
        TransportError: if the job deadlocks.
        DivergedError: if the loss diverges.
        SystemExit: after ``--help`` was printed.
    """
    given = simulate_parser().parse(argv)
    with Shown() as progress:
        progress.begin(given)
        config, scenario = scenario_of(given)
        if started_ranks() > 1:
            raise ConfigError(
                "psrt simulate runs all ranks in one process: start it without mpirun"
            )
        from psrt.job.scenario import run_in_virtual_time

        run_in_virtual_time(config, scenario, say=say)
    return 0


def simulate_parser() -> FlagParser:
    """Return the parser: the flags of `psrt train` and those of virtual time."""
    parser = train_parser("psrt simulate", _DESCRIPTION)
    parser.synonyms |= dict.fromkeys(RANK_WORDS, "workers")
    for action in parser._actions:
        if action.dest in _REAL_TIME:
            action.help = argparse.SUPPRESS
        if action.dest == _MTBF:
            action.help = (
                "mean time between failures of the whole job, in seconds: print what failures "
                "cost at --checkpoint-every and at other intervals"
            )
    add = parser.add_argument_group(_GROUP).add_argument
    add(
        "--workers", metavar="W",
        help=f"{_WORKERS.help} (default: {_WORKERS.default_text}; with --parallel, as many as "
        "one copy needs)",
    )  # fmt: skip
    add(
        "--hosts", metavar="N,N,...",
        help="number of ranks of each host, servers included, in gossip and with --parallel. The "
        "ranks of a host share its --link; messages inside it take no time, and sums inside it "
        "cost what --machine-costs has for shared memory (default: a link for each rank)",
    )  # fmt: skip
    add(
        "--like", metavar="RUN",
        help="imitate a run made with --record: its config, number of workers, and the times of "
        "computing, messages, updates and sums; other flags override it; implies --timing-only",
    )  # fmt: skip
    add(
        "--compute", metavar="LAW",
        help="draw the seconds of a gradient from constant:SECONDS, normal:MEAN:SD, "
        "lognormal:MEDIAN:SIGMA, pareto:SCALE:SHAPE, exponential:MEAN, or run:DIR, the times in "
        "a run made with --record (default: lognormal:0.001:0.1)",
    )  # fmt: skip
    add(
        "--link", metavar="LATENCY_S:BYTES_PER_S",
        help="latency and bandwidth of each rank's link, in each direction; bandwidth may be inf "
        "(default: 5e-5:1.25e9)",
    )  # fmt: skip
    add(
        "--server-apply", metavar="BYTES_PER_S",
        help="rate at which a server applies gradients; inf: it takes no time (default: 2e9)",
    )  # fmt: skip
    add(
        "--worker-apply", metavar="BYTES_PER_S",
        help="rate at which a worker applies gradients to parameters that it updates itself, "
        "except in gossip; with --like, recorded sums include it (default: inf, no time)",
    )  # fmt: skip
    add(
        "--codec-speed", metavar="FACTOR",
        help="speed of codecs relative to the machine of docs/compression.md; inf: they take no "
        "time; with --like, the recorded times of a run with a codec include it (default: 1)",
    )  # fmt: skip
    add(
        "--stage-costs", metavar="F:B:W,...",
        help="with --parallel, the costs of each part of the model for a whole batch, in the order "
        "of the layers: forward, backward to its inputs and backward to its weights, in any unit; "
        "their sum is the time of a gradient (default: in proportion to the parameters)",
    )  # fmt: skip
    add(
        "--small-products", metavar="ROWS:F:B:W,...",
        help="with --parallel, time of a row in products of ROWS rows, relative to a product of a "
        "whole batch, in each of these passes (default: 1)",
    )  # fmt: skip
    add(
        "--pass-overhead", metavar="SECONDS",
        help="with --parallel, time of each pass of a micro-batch in addition to its products "
        "(default: 0)",
    )  # fmt: skip
    add(
        "--crash", metavar="WORKER:SECONDS", action="append",
        help="kill a worker at this time, like --fault crash:workerW@SECONDSs; may be repeated",
    )  # fmt: skip
    forms = "; ".join(f"{it.form}: {it.does}" for it in KINDS.values())
    add(
        "--fault", metavar="KIND:WHO@WHEN", action="append",
        help="inject a fault; may be repeated. WHO is like worker1,server0,rank3,host1, WHEN "
        f"like event120 (before that event) or 2.5s, DURATION like 2.5s. {forms}",
    )  # fmt: skip
    add(
        "--restarts", metavar="N",
        help="restart the job when it dies, up to N times in a row without a new checkpoint, like "
        "psrt launch; needs --out, --checkpoint-every and --resume auto; the time of faults counts "
        "from the first start (default: 0)",
    )  # fmt: skip
    add_failure_costs(add)
    add(
        "--timing-only", action=argparse.BooleanOptionalAction,
        help="simulate time and staleness without computing gradients (default: no; with --like: "
        "yes)",
    )  # fmt: skip
    add(
        "--parameters", metavar="N",
        help=f"{_PARAMETERS.help} (default: {_PARAMETERS.default_text})",
    )  # fmt: skip
    return parser


def add_failure_costs(add: Callable[..., object]) -> None:
    """Add the flags that ``failures_of`` reads beside ``--mtbf``."""
    add(
        "--checkpoint-cost", metavar="STALL_S[:WRITE_S]",
        help="with --mtbf, seconds for which a checkpoint stops training, and then seconds until "
        "it is written (default: 0:0)",
    )  # fmt: skip
    add(
        "--restart-cost", metavar="SECONDS",
        help="with --mtbf, seconds from a failure until the job trains again (default: 0)",
    )  # fmt: skip


def parse_simulate(argv: Sequence[str]) -> tuple[TrainConfig, Scenario]:
    """Return the training's config, not resolved, and the arguments of the virtual launcher.

    Raises:
        ConfigError: for invalid flags; one line.
        SystemExit: after ``--help`` was printed to stdout.
    """
    return scenario_of(simulate_parser().parse(argv))


def scenario_of(namespace: argparse.Namespace) -> tuple[TrainConfig, Scenario]:
    """Return the same as ``parse_simulate``, from parsed flags."""
    given = vars(namespace)
    for name in _REAL_TIME:
        if name in given:
            raise ConfigError(f"--{dashed(name)} {given[name]} has no effect in virtual time")
    failures = failures_of(given)
    like = _like(namespace)
    config = like.config if like else config_of(namespace)
    if like and config.parallel is not None:
        raise ConfigError(
            f"--like {given['like']} is not possible with --parallel, since it does not read the "
            "times of stages: use --compute, --link and --stage-costs"
        )
    hosts = _hosts(given.get("hosts"), given.get("workers"))
    usual = str(like.workers) if like else _default_workers(config)
    ranks = sum(hosts) - (config.servers or 0)
    workers = ranks if hosts else read("workers", _WORKERS, given.get("workers", usual))
    crashes = read_by_worker("crash", _CRASH, given.get("crash", ()), workers)
    numerics = not given.get("timing_only", like is not None)
    parameters = given.get("parameters")
    if parameters is not None and numerics:
        raise ConfigError(
            f"--parameters {parameters} has no effect when a model is trained; it belongs to "
            "--timing-only"
        )
    from psrt.job.scenario import Scenario
    from psrt.simulation.cost_flags import VirtualCosts

    names = ("compute", "link", "server_apply", "worker_apply", "codec_speed", *_OF_STAGES)
    costs = {name: given[name] for name in names if name in given}
    for name in _OF_STAGES:
        if name in costs and config.parallel is None:
            raise ConfigError(f"--{dashed(name)} {costs[name]} has no effect without --parallel")
    model: dict[str, Any] = {}
    if parameters is not None:
        model = {"parameters": read("parameters", _PARAMETERS, parameters)}
    elif like:
        model = {"parameters": like.parameters, "parts": like.parts, "matrices": like.matrices}
    return config, Scenario(
        workers=workers,
        costs=VirtualCosts.like(given["like"], **costs) if like else VirtualCosts(**costs),
        crashes=tuple(crashes.items()),
        faults=tuple(map(read_fault, given.get("fault", ()))),
        restarts=read("restarts", _RESTARTS, given.get("restarts", _RESTARTS.default_text)),
        numerics=numerics,
        samples=like.samples if like else None,
        deal=like.deal if like else (),
        hosts=hosts,
        failures=failures,
        **model,
    )


def failures_of(given: dict[str, Any]) -> FailureCosts | None:
    """Remove the flags about failures, and return what they set."""
    from psrt.checkpoint.failures import FailureCosts
    from psrt.simulation.cost_flags import read_checkpoint_cost, read_seconds

    texts = {name: given.pop(name, None) for name in (_MTBF, *_OF_FAILURES)}
    if texts[_MTBF] is None:
        for name in _OF_FAILURES:
            if texts[name] is not None:
                raise ConfigError(f"--{dashed(name)} {texts[name]} has no effect without --mtbf")
        return None
    stall_s, write_s = read_checkpoint_cost(texts["checkpoint_cost"] or "0")
    every = None
    if "checkpoint_every" in given:
        every = read(
            "checkpoint-every", knobs_of(TrainConfig)["checkpoint_every"], given["checkpoint_every"]
        )
        if isinstance(every, str) or "out" not in given:
            del given["checkpoint_every"]  # only its cost is asked for; nothing is saved
    return FailureCosts(
        read(_MTBF, knobs_of(TrainConfig)[_MTBF], texts[_MTBF]),
        stall_s,
        write_s,
        read_seconds("restart-cost", texts["restart_cost"] or "0"),
        every,
    )


def _hosts(text: str | None, workers: str | None) -> tuple[int, ...]:
    """Return the number of workers of each host; empty without ``--hosts``."""
    if text is None:
        return ()
    if workers is not None:
        raise ConfigError(f"--hosts {text} sets the number of workers: leave --workers out")
    return tuple(read("hosts", _WORKERS, part) for part in text.split(","))


def _like(namespace: argparse.Namespace) -> Like | None:
    """Return the run that ``--like`` imitates; None without the flag."""
    if "like" not in namespace:
        return None
    from psrt.cli.like import read_like  # needs numpy
    from psrt.job.recorded import unconfirmed

    like = read_like(namespace)
    if unsure := unconfirmed(namespace.like):
        say(unsure)
    return like


def _default_workers(config: TrainConfig) -> str:
    if config.parallel is not None:
        return str(config.axes.cells * (config.axes.data or 1))
    if config.replay is None:
        return _WORKERS.default_text
    from psrt.job.recorded import recorded_ranks

    return str(recorded_ranks(config.replay)[0])
