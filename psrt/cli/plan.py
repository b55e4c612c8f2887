"""``psrt plan``: which mode, servers and codec suit a model and its ranks, before it is trained."""

from __future__ import annotations

import argparse
import math
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from psrt.cli.flags import FlagParser, train_parser, values_of
from psrt.cli.printing import say
from psrt.cli.progress import Shown
from psrt.config import TrainConfig, to_toml
from psrt.config.knobs import knobs_of
from psrt.config.modes import MODES, PROMISES
from psrt.core.errors import ConfigError
from psrt.core.files import check_writable, read_text, write_text
from psrt.core.progress import PROGRESS
from psrt.launch import started_ranks
from psrt.launch.hints import launch_line
from psrt.rows.knobs import Knob, dashed, read
from psrt.rows.values import REAL, WHOLE, Number, read_numbers

if TYPE_CHECKING:
    from psrt.planning.candidates import Candidate, Places
    from psrt.planning.known import Known, Site
    from psrt.planning.planner import Question
    from psrt.planning.ranking import Plan

_DESCRIPTION = """\
Say which mode, how many servers and which codec make a step short, before the ranks are booked:
list what is possible, leave out what closed forms show to be slow, simulate the rest, and print a
table, the best first, with the command that runs each row.

  psrt plan my_model.py --my-flag 3
  psrt plan --ranks 4 --hidden 512,512
  psrt plan --hosts my-hosts my_model.py
  psrt plan --parameters 25000000 --gradient-ms 120 --workers 64 --link 5e-5:1.25e9
  psrt plan --like runs/recorded --workers 16 --link 5e-5:1.25e8

The time of a gradient is measured on ranks: of SCRIPT, which calls psrt.run, or of the MLP that the
flags of psrt train describe. With --parameters, --like or --known nothing is measured. Flags of
psrt train that choose, such as --mode, --servers or --codec, are kept as given; all others are
tried. --mode ssp still tries its knobs, and --mode ssp:staleness=3 does not.

With --workers a job has that many workers, and servers come on top. Otherwise the number of ranks
is fixed, by --ranks, the slots of --hosts, the run or the file, and servers are some of them. All
words after SCRIPT belong to it."""

_GROUP = "planning"
_MOST = 4096
_WORKERS = Knob(WHOLE, "", min=1, max=_MOST)
_COUNT = Knob(WHOLE, "", min=1, max=1000)
#: Bytes per second that are as good as infinite.
_RATE = 1e15
_SECONDS = Knob(REAL, "", exclusive_min=0, max=1e6)
_PARAMETERS = Knob(WHOLE, "", min=1, max=10**12)
_GRADIENT = (Number("MILLISECONDS", 1e-6, 1e9), Number("SD", 0.0, 1e9, default=0))
#: Gradients that stand for a mean and a standard deviation.
_DRAWS = 256
#: Flags of `psrt train` that keep their meaning although they do not describe a run.
_KEPT = ("inject", "machine_costs", "mtbf", "out", "overwrite", "checkpoint_every")
_REFUSED = {
    name: "it has no effect on a plan"
    for name, knob in knobs_of(TrainConfig).items()
    if (not knob.of_run or knob.real_time) and name not in _KEPT
} | {"parallel": "psrt plan does not split models; compare splits with psrt simulate --parallel"}
#: Ways to give what would be measured: one at most.
_SOURCES = ("parameters", "like", "known")
#: Ways to give the ranks: one at most.
_SIZES = ("workers", "ranks", "hosts")
_FAILURES = ("checkpoint_cost", "restart_cost")
#: A script that is not there yet.
_SOME_SCRIPT = "my_model.py"


def plan_parser() -> FlagParser:
    """Return the parser: the flags of `psrt train`, and those of planning."""
    parser = train_parser("psrt plan", _DESCRIPTION)
    parser.usage = "psrt plan [flags] [SCRIPT ...]"
    parser.notes, parser.synonyms = {}, {**parser.synonyms, "n": "ranks", "hostfile": "hosts"}
    helps = {
        "out": ("FILE", "write the config of the best row to this TOML file, for --config"),
        "inject": (
            "WORKER:KIND:NUMBERS",
            "plan for slow workers, as psrt train slows them down; the commands do not",
        ),
        "overwrite": (None, "replace the file of --html if it exists"),
        "mtbf": (
            "SECONDS",
            "mean time between failures of the whole job, in seconds: count what failures cost at "
            "the checkpoint interval that costs least",
        ),
        "machine_costs": (
            "FILE",
            "take the costs of messages from the file of psrt bench allreduce --fit",
        ),
    }
    for action in parser._actions:
        if action.dest in _REFUSED or action.dest == "parallel":
            action.help = argparse.SUPPRESS
        elif action.dest in helps:
            metavar, action.help = helps[action.dest]
            action.metavar = metavar or action.metavar
    add = parser.add_argument_group(_GROUP).add_argument
    add("script", metavar="SCRIPT", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    add(
        "-m", dest="module", metavar="MODULE", nargs=argparse.REMAINDER,
        help="instead of SCRIPT, a module; all words after it belong to it",
    )  # fmt: skip
    add("--workers", metavar="W", help="number of workers, in addition to the servers")
    add(
        "-n", "--ranks", metavar="N",
        help="number of ranks on this machine, servers included (default: its cores)",
    )  # fmt: skip
    add("--hosts", metavar="FILE", help="hostfile of the ranks, as psrt launch --hostfile takes it")
    add("--like", metavar="RUN", help="take the times of a run made with --record")
    add("--parameters", metavar="N", help="number of parameters, with --gradient-ms")
    add(
        "--gradient-ms", metavar="MS[:SD]",
        help="milliseconds of a gradient of a batch, and their standard deviation (default: 0)",
    )  # fmt: skip
    add("--known", metavar="FILE", help="take what an earlier plan has measured: its --json file")
    add(
        "--link", metavar="LATENCY_S:BYTES_PER_S",
        help="with --workers, latency and bandwidth of a link of each host, in each direction "
        "(default: all ranks are on one host)",
    )  # fmt: skip
    add("--ranks-per-host", metavar="N", help="with --link, ranks of each host (default: 1)")
    add(
        "--cores", metavar="N",
        help="cores of a host (default: those that were measured; with --link one for each rank, "
        "else those of this machine)",
    )  # fmt: skip
    add(
        "--checkpoint-cost", metavar="STALL_S[:WRITE_S]",
        help="with --mtbf, seconds for which a checkpoint stops training, and then seconds until "
        "it is written (default: 0:0)",
    )  # fmt: skip
    add(
        "--restart-cost", metavar="SECONDS",
        help="with --mtbf, seconds from a failure until the job trains again (default: 0)",
    )  # fmt: skip
    add(
        "--budget", metavar="WHAT",
        help="rank by the time for samples:N, by the samples in seconds:T, or by staleness, bytes "
        "or memory and then by speed (default: by samples/s)",
    )  # fmt: skip
    add(
        "--promise", metavar="{same,bounded,any}",
        help="leave out rows that promise less about the parameters: same as one process; bounded: "
        "by staleness, dropped gradients or a codec's loss (default: any)",
    )  # fmt: skip
    add("--top", metavar="N", help="rows to print, from every mode the best (default: 12)")
    add("--json", metavar="FILE", help="write all rows, and what is known, to this file")
    add("--html", metavar="FILE", help="write a page about the plan")
    add(
        "--try", metavar="N", help="then train the best N rows on the ranks, for --try-seconds each"
    )
    add("--try-seconds", metavar="T", help="seconds of each try (default: 120)")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run ``psrt plan`` and return the exit status.

    Raises:
        ConfigError: for invalid flags, or if nothing can be planned.
        SystemExit: after ``--help`` was printed.
    """
    parsed = plan_parser().parse(argv)
    with Shown() as progress:
        progress.begin(parsed)
        given = vars(parsed)
        if (module := given.pop("module", None)) is not None:
            given["script"] = ["-m", *module]
        if started_ranks() > 1:
            raise ConfigError("psrt plan runs in one process: start it without mpirun")
        _check(given)
        from psrt.planning.planner import make_plan
        from psrt.planning.ranking import read_budget
        from psrt.planning.table import commands_text, plan_text, shown_rows, toml_comment

        budget = read_budget(given.get("budget"))
        top = read("top", _COUNT, given.get("top", "12"))
        question = question_of(parsed)
        plan = make_plan(replace(question, budget=budget), _command_of(question, given))
        rows = shown_rows(plan, top)
        say(f"{plan_text(plan, rows, budget)}\n\n{commands_text(rows)}")
        if (path := given.get("out")) is not None:
            best = plan.rows[0]
            write_text(path, toml_comment(best) + to_toml(best.config))
        if (path := given.get("json")) is not None:
            write_text(path, plan.to_json())
        if (path := given.get("html")) is not None:
            from psrt.planning.page import write_page

            write_page(path, plan)
    if "try" in given:
        _try(plan, given)
    return 0


def _try(plan: Plan, given: Mapping[str, Any]) -> None:
    from psrt.planning.trying import try_best

    seconds = read(
        "try-seconds", Knob(REAL, "", exclusive_min=0, max=1e6), given.get("try_seconds", "120")
    )
    try_best(plan, read("try", _COUNT, given["try"]), seconds=seconds, say=say)


def _check(given: Mapping[str, Any]) -> None:
    """Check which flags are given together, and that files can be written."""
    for name, why in _REFUSED.items():
        if name in given:
            raise ConfigError(f"--{dashed(name)} {given[name]}: {why}")
    for names in (_SOURCES, _SIZES):
        both = [f"--{name} {given[name]}" for name in names if name in given]
        if len(both) > 1:
            raise ConfigError(f"{' and '.join(both)} cannot be combined: give one of them")
    for name, other in (
        ("parameters", "gradient_ms"), ("gradient_ms", "parameters"), ("link", "workers"),
        ("ranks_per_host", "link"), ("checkpoint_cost", "mtbf"), ("restart_cost", "mtbf"),
        ("checkpoint_every", "mtbf"), ("try_seconds", "try"),
    ):  # fmt: skip
        if name in given and other not in given:
            raise ConfigError(
                f"--{dashed(name)} {given[name]} has no effect without --{dashed(other)}"
            )
    if "try" in given and "link" in given:
        raise ConfigError(
            f"--try {given['try']} trains on ranks that exist, and --link describes others"
        )
    if "parameters" in given and not any(name in given for name in _SIZES):
        raise ConfigError("--parameters needs ranks: give --workers W, --ranks N or --hosts FILE")
    for name in ("like", "known"):
        for other in ("ranks", "hosts"):
            if name in given and other in given:
                raise ConfigError(
                    f"--{other} {given[other]} cannot be combined with --{name}, which has its own "
                    "ranks; --workers W plans for others"
                )
    if given.get("promise", "any") not in ("same", "bounded", "any"):
        raise ConfigError(f"promise must be one of same, bounded, any, got {given['promise']!r}")
    if (path := given.get("html")) is not None:
        from psrt.cli.page_file import check_page_file

        check_page_file(path, "--html", overwrite=given.get("overwrite", False))
    for name in ("out", "json"):
        check_writable(given.get(name))


def question_of(parsed: argparse.Namespace) -> Question:
    """Return what parsed flags ask for, except for the budget; ranks may have to be measured.

    Raises:
        ConfigError: for invalid flags; one line.
    """
    given = vars(parsed)
    own = argparse.Namespace(
        **{
            name: it
            for name, it in given.items()
            if name in knobs_of(TrainConfig) or name == "config"
        }
    )
    for name in _KEPT[1:]:
        vars(own).pop(name, None)
    values = values_of(own)
    for name, why in _REFUSED.items():
        if name in values:
            raise ConfigError(f"{given['config']}: {name}: {why}")
    for name in _KEPT[1:]:
        values.pop(name, None)
    from psrt.planning.planner import Question
    from psrt.planning.ranking import read_budget

    fixed: dict[str, Any] = dict(values)
    if "mode" in values:
        text = getattr(own, "mode", None)
        fixed["mode"] = values["mode"].given if text is None else MODES.parsed(text)[1]
    known = _known(given, values)
    values["batch_size"] = known.workload.batch_size
    usual = TrainConfig()
    if given["script"]:  # which has its own
        usual = replace(usual, batch_size=values["batch_size"])
    order, least = [*PROMISES], given.get("promise", "any")
    return Question(
        base=TrainConfig(**values),
        usual=usual,
        fixed=fixed,
        places=_places(given, known),
        budget=read_budget(None),
        promises=order if least == "any" else order[: order.index(least) + 1],
        failures=_failures(given),
    )


def _is_measured(given: Mapping[str, Any]) -> bool:
    return not any(name in given for name in _SOURCES)


def _known(given: Mapping[str, Any], values: dict[str, Any]) -> Known:
    """Return what is known of the model and the machine: given, recorded or measured."""
    if "known" in given:
        found = _read_known(given["known"])
    elif "like" in given:
        found = _like(given["like"], values)
    elif "parameters" in given:
        found = _given(given, values)
    else:
        found = _measured(given, values)
    if found.runs:
        from psrt.planning.fitting import fitted

        with PROGRESS.doing("fitting to short runs"):
            found = fitted(found, _fit_config(values))
    costs = found.site.costs
    if "machine_costs" in given:
        from psrt.collective.analysis.machine import read_costs

        costs = read_costs(given["machine_costs"])
    if "link" in given:
        from psrt.collective.costs import LinkCosts
        from psrt.simulation.cost_flags import read_link

        latency, bandwidth = read_link(given["link"])
        rate = min(bandwidth, _RATE)
        costs = replace(costs, between=LinkCosts(latency, 1 / rate, costs.between.gamma))
    return replace(found, site=replace(found.site, costs=costs))


def _fit_config(values: Mapping[str, Any]) -> TrainConfig:
    """Return the config of short runs, as far as it matters to their speed."""
    return TrainConfig(**{it: values[it] for it in ("optimizer", "batch_size") if it in values})


def _like(run: str, values: dict[str, Any]) -> Known:
    """Return what a recorded run says, and add the knobs of its model to ``values``."""
    from psrt.cli.like import batch_of, parts_of, samples_of
    from psrt.history import read_history
    from psrt.planning.like import known_of, values_like

    history = read_history(run)
    for name, value in values_like(history.header).items():
        values.setdefault(name, value)
    return known_of(
        run, history, batch=batch_of(history), samples=samples_of(history), parts=parts_of(history)
    )


def _read_known(path: str) -> Known:
    """Return what a file of --json has, or one that was measured."""
    import json

    from psrt.planning.known import Known

    text = read_text(path)
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, dict) and isinstance(found.get("known"), dict):
        text = json.dumps(found["known"])
    try:
        return Known.from_json(text)
    except ConfigError as error:
        raise ConfigError(f"--known {path}: {error}") from None


def _given(given: Mapping[str, Any], values: Mapping[str, Any]) -> Known:
    """Return what the flags say."""
    import numpy as np

    from psrt.planning.known import GIVEN, Known, Workload

    text = given["gradient_ms"]
    try:
        mean, sd = read_numbers(_GRADIENT, text)
    except ValueError as error:
        raise ConfigError(f"gradient-ms {error}, got {text!r}") from None
    seconds = np.full(1, mean / 1e3)
    if sd:
        # Log-normal: never negative, and with the tail of real times.
        width = math.log1p((sd / mean) ** 2)
        drawn = np.random.default_rng(0).lognormal(0.0, math.sqrt(width), _DRAWS)
        seconds = mean / 1e3 * drawn / drawn.mean()
    n = read("parameters", _PARAMETERS, given["parameters"])
    batch = values.get("batch_size", TrainConfig().batch_size)
    work = Workload(n, batch, (tuple(seconds.tolist()),))
    return Known(work, _site(given), source=GIVEN)


def _site(given: Mapping[str, Any]) -> Site:
    """Return the ranks of --hosts, or some on this machine."""
    from psrt.collective.analysis.machine import DEFAULT_COSTS
    from psrt.launch.hostfile import read_hostfile
    from psrt.planning.known import Site

    here = len(os.sched_getaffinity(0))
    if "hosts" in given:
        slots = [it.slots for it in read_hostfile(given["hosts"])]
        hosts = tuple(number for number, count in enumerate(slots) for _ in range(count))
        cores = tuple(_cores(given, count) for count in slots)
    else:
        ranks = read("ranks", _WORKERS, given.get("ranks", "1"))
        hosts, cores = (0,) * ranks, (_cores(given, here),)
    if len(hosts) > _MOST:
        raise ConfigError(f"at most {_MOST} ranks are planned, got {len(hosts)}")
    machines = tuple(range(len(cores)))
    return Site(hosts, machines, cores, replace(DEFAULT_COSTS, cores=max(cores)))


def _cores(given: Mapping[str, Any], usual: int) -> int:
    return int(read("cores", _COUNT, given["cores"])) if "cores" in given else usual


def _measured(given: Mapping[str, Any], values: Mapping[str, Any]) -> Known:
    """Return what ranks measure: those that are asked for, as many as fit here."""
    from psrt.planning.measuring import measured_on

    command = given["script"] or ["train", *_train_words(values)]
    ranks = read("ranks", _WORKERS, given["ranks"]) if "ranks" in given else None
    workers = None
    if "workers" in given:
        workers = read("workers", _WORKERS, given["workers"])
        ranks = workers + 1
    if "link" in given:  # of hosts that are not there: only a gradient is measured
        ranks, workers = 1, None
    found: Known = measured_on(
        command, hostfile=given.get("hosts"), ranks=ranks, workers=workers, say=say
    )
    return found


def _train_words(values: Mapping[str, Any]) -> list[str]:
    """Return the flags of a config's model, data and optimizer."""
    from psrt.planning.planner import flags_of
    from psrt.planning.ranking import words_of

    choices = ("mode", "servers", "inject")
    kept = {name: it for name, it in values.items() if name not in choices}
    return words_of(flags_of(TrainConfig(**kept), TrainConfig()))


def _places(given: Mapping[str, Any], known: Known) -> Places:
    """Return the ranks that the flags ask for."""
    from psrt.planning.candidates import Places

    if "workers" not in given:
        return Places(known)
    workers, site = read("workers", _WORKERS, given["workers"]), known.site
    if "link" in given:
        per_host = read("ranks-per-host", _COUNT, given.get("ranks_per_host", "1"))
        return Places(known, workers, per_host, _cores(given, per_host))
    if known.runs:  # of that many workers, on these hosts
        return Places(known, workers)
    counts = [site.hosts.count(it) for it in set(site.hosts)]
    per_host = 2 * _MOST if len(counts) == 1 else max(counts)
    return Places(known, workers, per_host, _cores(given, max(site.cores)))


def _failures(given: Mapping[str, Any]) -> Any:
    """Return what failures cost; None without --mtbf."""
    if "mtbf" not in given:
        return None
    from psrt.checkpoint.failures import FailureCosts
    from psrt.simulation.cost_flags import read_checkpoint_cost, read_seconds

    knobs = knobs_of(TrainConfig)
    stall_s, write_s = read_checkpoint_cost(given.get("checkpoint_cost", "0"))
    every = given.get("checkpoint_every")
    return FailureCosts(
        read("mtbf", knobs["mtbf"], given["mtbf"]), stall_s, write_s,
        read_seconds("restart-cost", given.get("restart_cost", "0")),
        None if every is None else read("checkpoint-every", knobs["checkpoint_every"], every),
    )  # fmt: skip


def _command_of(
    question: Question, given: Mapping[str, Any]
) -> Callable[[Candidate, Mapping[str, str]], str]:
    """Return what makes the line that runs a candidate: of psrt train, or of a script."""
    from psrt.planning.ranking import words_of

    script = given["script"]
    is_mlp = not script and (_is_measured(given) or _is_mlp(question))
    hosts = shlex.join(["--hostfile", given["hosts"]]) + " " if "hosts" in given else ""

    def command(candidate: Candidate, knobs: Mapping[str, str]) -> str:
        words = shlex.join(words_of(knobs))
        if is_mlp:
            return launch_line(candidate.ranks, f"{hosts}train {words}")
        name = shlex.join(script or [_SOME_SCRIPT])
        return launch_line(candidate.ranks, f"{hosts}--knobs {shlex.quote(words)} {name}")

    return command


def _is_mlp(question: Question) -> bool:
    """Return whether the flags describe a model of the size that is planned for."""
    from psrt.job.problems import timing_problem

    try:
        there = timing_problem(replace(question.base, steps=1, epochs=None), workers=1)
    except ConfigError:
        return False
    return there.n == question.places.known.workload.n
