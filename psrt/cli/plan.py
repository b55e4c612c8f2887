"""``psrt plan``: which mode, servers and codec suit a model and its ranks, before it is trained."""

from __future__ import annotations

import argparse
import json
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
    from psrt.checkpoint.failures import FailureCosts
    from psrt.planning.candidates import Places
    from psrt.planning.known import Known, Site
    from psrt.planning.planner import Question
    from psrt.planning.ranking import Row

_DESCRIPTION = """\
Say which mode, how many servers and which codec make steps short, before the ranks are booked: list
what is possible, leave out what closed forms show to be slow, simulate the rest, and print a table,
the best first, with the command that runs each row.

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

_MOST = 4096
_COUNT = Knob(WHOLE, "", min=1, max=_MOST)
_PARAMETERS = Knob(WHOLE, "", min=1, max=10**12)
_SECONDS = Knob(REAL, "", exclusive_min=0, max=1e6)
_GRADIENT = (Number("MILLISECONDS", 1e-6, 1e9), Number("SD", 0.0, 1e9, default=0))
#: Gradients that stand for a mean and a standard deviation; bytes/s that are as good as infinite.
_DRAWS, _RATE = 256, 1e12
#: Flags of `psrt train` with another meaning, and those without any.
_OTHERS = {
    "out": "write the config of the best row to this TOML file, for psrt train --config",
    "overwrite": "replace the file of --html if it exists",
    "mtbf": "mean time between failures of the whole job, in seconds: count what failures cost, at "
    "the checkpoint interval that costs least unless --checkpoint-every is given",
    "checkpoint_every": "with --mtbf, steps between checkpoints, or seconds (30s)",
    "inject": "plan for slow workers, as psrt train makes them; the commands make none",
    "machine_costs": "take the costs of messages from the file of psrt bench allreduce --fit",
}
_REFUSED = {
    name: "it has no effect on a plan"
    for name, knob in knobs_of(TrainConfig).items()
    if (not knob.of_run or knob.real_time) and name not in _OTHERS
} | {
    "tune": "a plan says what it would find",
    "parallel": "psrt plan does not split models; compare splits with psrt simulate --parallel",
}
#: Ways to give what would be measured, and ways to give the ranks: one at most.
_SOURCES, _SIZES = ("parameters", "like", "known"), ("workers", "ranks", "hosts")
#: Flag → the one without which it has no effect.
_NEEDS = {
    "parameters": "gradient_ms", "gradient_ms": "parameters", "link": "workers",
    "ranks_per_host": "link", "checkpoint_cost": "mtbf", "restart_cost": "mtbf",
    "checkpoint_every": "mtbf", "try_seconds": "try",
}  # fmt: skip
_FLAGS = (
    ("workers", "W", "number of workers, in addition to the servers"),
    ("ranks", "N", "number of ranks on this machine, servers included (default: its cores)"),
    ("hosts", "FILE", "hostfile of the ranks, as psrt launch --hostfile takes it"),
    ("like", "RUN", "take the times of a run made with --record"),
    ("parameters", "N", "number of parameters, with --gradient-ms"),
    ("gradient-ms", "MS[:SD]", "milliseconds of a gradient, and their standard deviation (0)"),
    ("known", "FILE", "take what an earlier plan has measured: its --json file"),
    ("link", "LATENCY_S:BYTES_PER_S", "with --workers, latency and bandwidth of each host's link, "
     "in each direction (default: all ranks are on one host)"),
    ("ranks-per-host", "N", "with --link, ranks of each host (default: 1)"),
    ("cores", "N", "cores of a host (default: those that were measured; with --link or --hosts one "
     "for each rank, else those of this machine)"),
    ("checkpoint-cost", "STALL_S[:WRITE_S]", "with --mtbf, seconds for which a checkpoint stops "
     "training, and then seconds until it is written (default: 0:0)"),
    ("restart-cost", "SECONDS", "with --mtbf, seconds from a failure until the job trains again "
     "(default: 0)"),
    ("budget", "WHAT", "rank by the time for samples:N, by the samples in seconds:T, or by "
     "staleness, bytes or memory and then by speed (default: samples/s)"),
    ("promise", "{same,bounded,any}", "leave out rows that promise less about the parameters: same "
     "as one process; bounded: by staleness, dropped gradients or a codec's loss (default: any)"),
    ("top", "N", "rows to print, of every mode and promise the best (default: 12)"),
    ("json", "FILE", "write all rows, and what is known, to this file"),
    ("html", "FILE", "write a page about the plan"),
    ("try", "N", "then train the best N rows on ranks"),
    ("try-seconds", "T", "seconds of each try (default: 120)"),
)  # fmt: skip


def plan_parser() -> FlagParser:
    """Return the parser: the flags of `psrt train`, and those of planning."""
    parser = train_parser("psrt plan", _DESCRIPTION)
    parser.usage, parser.notes = "psrt plan [flags] [SCRIPT ...]", {}
    parser.synonyms |= {"n": "ranks", "np": "ranks", "hostfile": "hosts"}
    for action in parser._actions:
        if action.dest in _REFUSED:
            action.help = argparse.SUPPRESS
        action.help = _OTHERS.get(action.dest, action.help)
    add = parser.add_argument_group("planning").add_argument
    add("script", metavar="SCRIPT", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    add("-m", dest="module", metavar="MODULE", nargs=argparse.REMAINDER, help="instead of SCRIPT")
    for name, metavar, text in _FLAGS:
        add(*["-n"] * (name == "ranks"), f"--{name}", metavar=metavar, help=text)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run ``psrt plan`` and return the exit status.

    Raises:
        ConfigError: for invalid flags, or if nothing can be planned.
        SystemExit: after ``--help`` was printed.
    """
    parsed = plan_parser().parse(argv)
    given = vars(parsed)
    if (module := given.pop("module", None)) is not None:
        given["script"] = ["-m", *module]
    with Shown() as progress:
        progress.begin(parsed)
        _check(given)
        from psrt.planning.planner import make_plan
        from psrt.planning.table import plan_text, toml_comment

        top = read("top", _COUNT, given.get("top", "12"))
        tries = read("try", _COUNT, given.get("try", "1"))
        seconds = read("try-seconds", _SECONDS, given.get("try_seconds", "120"))
        question = _question(given)
        plan = make_plan(question, _command(question, given))
        say(plan_text(plan, question.budget, top))
        if "out" in given:
            write_text(given["out"], toml_comment(plan.rows[0]) + _toml(plan.rows[0], given))
        if "json" in given:
            write_text(given["json"], plan.to_json())
        if "html" in given:
            from psrt.planning.page import write_page

            write_page(given["html"], plan)
    if "try" in given:
        from psrt.planning.trying import try_best

        try_best(plan, tries, seconds=seconds, say=say)
    return 0


def _toml(row: Row, given: Mapping[str, Any]) -> str:
    """Return a row's config; without model and data, which a script has of its own."""
    text = to_toml(row.config)
    if not given["script"]:
        return text
    kept = {name.replace("-", "_") for name in row.knobs}
    return "\n".join([*(it for it in text.splitlines() if it.partition(" = ")[0] in kept), ""])


def _check(given: Mapping[str, Any]) -> None:
    """Check which flags are given together, and that files can be written."""
    if started_ranks() > 1:
        raise ConfigError("psrt plan runs in one process: start it without mpirun")
    said = {name: f"--{dashed(name)} {it}" for name, it in given.items()}
    for name in given.keys() & _REFUSED.keys():
        raise ConfigError(f"{said[name]}: {_REFUSED[name]}")
    own = [("like", "ranks"), ("like", "hosts"), ("known", "ranks"), ("known", "hosts")]
    for names in (_SOURCES, _SIZES, *own):
        if len(both := [said[name] for name in names if name in given]) > 1:
            raise ConfigError(f"{' and '.join(both)} cannot be combined: give one of them")
    for name, other in _NEEDS.items():
        if name in given and other not in given:
            raise ConfigError(f"{said[name]} has no effect without --{dashed(other)}")
    if "parameters" in given and not given.keys() & set(_SIZES):
        raise ConfigError("--parameters needs ranks: give --workers W, --ranks N or --hosts FILE")
    if given.get("promise", "any") not in ("same", "bounded", "any"):
        raise ConfigError(f"promise must be one of same, bounded, any, got {given['promise']!r}")
    if "html" in given:
        from psrt.cli.page_file import check_page_file

        check_page_file(given["html"], "--html", overwrite=given.get("overwrite", False))
    for name in ("out", "json"):
        check_writable(given.get(name))


def _question(given: Mapping[str, Any]) -> Question:
    """Return what the flags ask for; ranks may have to be measured."""
    from psrt.planning.planner import Question
    from psrt.planning.ranking import Budget, read_budget

    budget = read_budget(given["budget"]) if "budget" in given else Budget()
    other = _OTHERS.keys() - {"inject"}
    values = values_of(argparse.Namespace(**{it: given[it] for it in given.keys() - other}))
    for name in values.keys() & _REFUSED.keys():
        raise ConfigError(f"{given['config']}: {name}: {_REFUSED[name]}")
    values = {name: it for name, it in values.items() if name not in other}
    fixed = dict(values)
    if "mode" in given:
        fixed["mode"] = MODES.parsed(given["mode"])[1]
    elif "mode" in values:
        fixed["mode"] = values["mode"].given
    failures, known = _failures(given), _known(given, values)
    values["batch_size"] = known.workload.batch_size
    # A script has its own.
    usual = TrainConfig(batch_size=values["batch_size"]) if given["script"] else TrainConfig()
    promises, least = [*PROMISES], given.get("promise", "any")
    return Question(
        base=TrainConfig(**values),
        usual=usual,
        fixed=fixed,
        places=_places(given, known),
        budget=budget,
        promises=promises[: promises.index(least) + 1] if least != "any" else promises,
        failures=failures,
    )


def _known(given: Mapping[str, Any], values: dict[str, Any]) -> Known:
    """Return what is known of the model and the machine: given, recorded or measured."""
    if "known" in given:
        found = _read_known(given["known"])
    elif "like" in given:
        found = _like(given["like"], values)
    else:
        found = _given(given, values) if "parameters" in given else _measured(given, values)
    if found.runs:
        from psrt.planning.fitting import fitted

        # As far as it matters to their speed.
        own = {it: values[it] for it in ("optimizer", "batch_size") if it in values}
        with PROGRESS.doing("fitting to short runs"):
            found = fitted(found, TrainConfig(**own))
    costs = found.site.costs
    if "machine_costs" in given:
        from psrt.collective.analysis.machine import read_costs

        costs = read_costs(given["machine_costs"])
    if "link" in given:
        from psrt.collective.costs import LinkCosts
        from psrt.simulation.cost_flags import read_link

        latency, rate = read_link(given["link"])
        between = LinkCosts(latency, 1 / min(rate, _RATE), costs.between.gamma)
        costs = replace(costs, between=between)
    return replace(found, site=replace(found.site, costs=costs))


def _read_known(path: str) -> Known:
    """Return what a file of --json has, or one that was measured."""
    from psrt.planning.known import Known

    text = read_text(path)
    try:
        found = json.loads(text)
        return Known.from_json(json.dumps(found.get("known", found)))
    except (ValueError, AttributeError, RecursionError) as error:
        why = error if isinstance(error, ConfigError) else "not what planning has measured"
        raise ConfigError(f"--known {path}: {why}") from None


def _like(run: str, values: dict[str, Any]) -> Known:
    """Return what a recorded run says, and add the knobs of its model to ``values``."""
    from psrt.cli.like import batch_of, parts_of, samples_of
    from psrt.history import read_history
    from psrt.planning.like import known_of, values_like

    history = read_history(run)
    for name, value in values_like(history.header).items():
        values.setdefault(name, value)
    batch, samples = batch_of(history), samples_of(history)
    work = {"batch_size": batch, "samples": samples, "parts": parts_of(history)}
    try:
        return known_of(run, history, work)
    except ConfigError as error:
        raise ConfigError(f"{run}: {error}") from None


def _given(given: Mapping[str, Any], values: Mapping[str, Any]) -> Known:
    """Return what the flags say."""
    import numpy as np

    from psrt.planning.known import Known, Workload

    try:
        mean, sd = read_numbers(_GRADIENT, given["gradient_ms"])
    except ValueError as error:
        raise ConfigError(f"gradient-ms {error}, got {given['gradient_ms']!r}") from None
    # Log-normal: never negative, and with a tail, as real times have.
    width = math.sqrt(math.log1p((sd / mean) ** 2))
    drawn = np.random.default_rng(0).lognormal(0.0, width, _DRAWS if sd else 1)
    seconds = mean / 1e3 * drawn / drawn.mean()
    n = read("parameters", _PARAMETERS, given["parameters"])
    batch = values.get("batch_size", TrainConfig().batch_size)
    return Known(Workload(n, batch, (tuple(seconds.tolist()),)), _site(given))


def _site(given: Mapping[str, Any]) -> Site:
    """Return the ranks of --hosts, or some on this machine."""
    from psrt.collective.analysis.machine import DEFAULT_COSTS
    from psrt.launch.hostfile import read_hostfile
    from psrt.planning.known import Site

    if "hosts" in given:
        cores = slots = [it.slots for it in read_hostfile(given["hosts"])]
    else:
        slots = [read("ranks", _COUNT, given.get("ranks", "1"))]
        cores = [len(os.sched_getaffinity(0))]
    if sum(slots) > _MOST:
        raise ConfigError(f"at most {_MOST} ranks are planned, got {sum(slots)}")
    if "cores" in given:
        cores = [read("cores", _COUNT, given["cores"])] * len(slots)
    hosts = tuple(number for number, count in enumerate(slots) for _ in range(count))
    costs = replace(DEFAULT_COSTS, cores=max(cores))
    return Site(hosts, tuple(range(len(slots))), tuple(cores), costs)


def _measured(given: Mapping[str, Any], values: Mapping[str, Any]) -> Known:
    """Return what ranks measure: those that are asked for, as many as fit here."""
    from psrt.planning.measuring import measured_on
    from psrt.planning.planner import flags_of
    from psrt.planning.ranking import words_of

    kept = {it: value for it, value in values.items() if it not in ("mode", "servers", "inject")}
    words = ["train", *words_of(flags_of(TrainConfig(**kept), TrainConfig()))]
    ranks = read("ranks", _COUNT, given["ranks"]) if "ranks" in given else None
    workers = read("workers", _COUNT, given["workers"]) if "workers" in given else None
    ranks = ranks if workers is None else workers + 1
    if "link" in given:  # of hosts that are not there: only a gradient is measured
        ranks, workers = 1, None
    command, hosts = given["script"] or words, given.get("hosts")
    found: Known = measured_on(command, hostfile=hosts, ranks=ranks, workers=workers, say=say)
    return found


def _places(given: Mapping[str, Any], known: Known) -> Places:
    """Return the ranks that the flags ask for."""
    from psrt.planning.candidates import Places

    if "workers" not in given:
        return Places(known)
    workers, site = read("workers", _COUNT, given["workers"]), known.site
    if known.runs and "link" not in given:  # of that many workers, on these hosts
        return Places(known, workers)
    counts = [site.hosts.count(it) for it in set(site.hosts)]
    per_host, cores = 2 * _MOST if len(counts) == 1 else max(counts), max(site.cores)
    if "link" in given:
        cores = per_host = read("ranks-per-host", _COUNT, given.get("ranks_per_host", "1"))
    if "cores" in given:
        cores = read("cores", _COUNT, given["cores"])
    return Places(known, workers, per_host, cores)


def _failures(given: Mapping[str, Any]) -> FailureCosts | None:
    """Return what failures cost; None without --mtbf."""
    if "mtbf" not in given:
        return None
    from psrt.checkpoint.failures import FailureCosts
    from psrt.simulation.cost_flags import read_checkpoint_cost, read_seconds

    asked = {
        name: read(dashed(name), knobs_of(TrainConfig)[name], given[name])
        for name in ("mtbf", "checkpoint_every")
        if name in given
    }
    stall_s, write_s = read_checkpoint_cost(given.get("checkpoint_cost", "0"))
    restart_s = read_seconds("restart-cost", given.get("restart_cost", "0"))
    every = asked.get("checkpoint_every")
    return FailureCosts(asked["mtbf"], stall_s, write_s, restart_s, every)


def _command(
    question: Question, given: Mapping[str, Any]
) -> Callable[[int, Mapping[str, str]], str]:
    """Return what makes the line that runs a row: of psrt train, or of a script."""
    from psrt.planning.ranking import words_of

    is_measured = not given.keys() & set(_SOURCES)
    is_mlp = not given["script"] and (is_measured or _is_mlp(question))
    script = shlex.join(given["script"] or ["my_model.py"])
    hosts = f"--hostfile {shlex.quote(given['hosts'])} " if "hosts" in given else ""

    def command(ranks: int, knobs: Mapping[str, str]) -> str:
        words = shlex.join(words_of(knobs))
        what = f"train {words}" if is_mlp else f"--knobs {shlex.quote(words)} {script}"
        return launch_line(ranks, hosts + what)

    return command


def _is_mlp(question: Question) -> bool:
    """Return whether the flags describe a model of the size that is planned for."""
    from psrt.job.problems import timing_problem

    try:
        there = timing_problem(replace(question.base, steps=1, epochs=None), workers=1)
    except ConfigError:
        return False
    return there.n == question.places.known.workload.n
