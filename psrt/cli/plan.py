"""``psrt plan``: which mode, servers and codec suit a model and its ranks, before it is trained."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psrt.cli.flags import FlagParser, train_parser, values_of
from psrt.cli.page_file import check_page_file, write_page
from psrt.cli.printing import say
from psrt.cli.progress import Shown
from psrt.cli.simulate import add_failure_costs, failures_of
from psrt.config import TrainConfig
from psrt.config.knobs import knobs_of
from psrt.config.modes import MODES, PROMISES
from psrt.core.errors import ConfigError
from psrt.core.files import check_writable, read_text, write_text
from psrt.core.progress import PROGRESS
from psrt.launch import launch_line, started_ranks
from psrt.rows.knobs import Knob, accept, dashed, read
from psrt.rows.values import REAL, TEXT, WHOLE

if TYPE_CHECKING:
    from psrt.collective.analysis.machine import MachineCosts
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

#: Bytes/s that are as good as infinite.
_RATE = 1e12
#: Flags of ``psrt train`` that no row keeps; those among them that have another meaning here.
_APART = {name for name, it in knobs_of(TrainConfig).items() if not it.of_run or it.real_time}
_APART = (_APART - {"inject"}) | {"tune"}
_TAKEN = {
    "out": "write the config of the best row to this TOML file, for psrt train --config",
    "overwrite": "replace the file of --html if it exists",
    "mtbf": "mean time between failures of the whole job, in seconds: count what failures cost, at "
    "the checkpoint interval that costs least unless --checkpoint-every is given",
    "checkpoint_every": "with --mtbf, steps between checkpoints, or seconds (30s)",
}
_HELP = dict.fromkeys(_APART, argparse.SUPPRESS) | _TAKEN
_HELP["inject"] = "plan for slow workers, as psrt train makes them; the commands make none"
#: Flags of which one at most is given: what would be measured, or where.
_ONE_OF = (
    ("parameters", "like", "known"), ("workers", "ranks", "hosts"),
    ("like", "known", "ranks", "hosts"),
)  # fmt: skip
#: Flag → the one without which it has no effect.
_NEEDS = {
    "parameters": "gradient_ms", "gradient_ms": "parameters", "link": "workers",
    "ranks_per_host": "link", "checkpoint_every": "mtbf", "try_seconds": "try",
}  # fmt: skip
_COUNT = Knob(WHOLE, "", min=1, max=4096)
#: Flags that are numbers or names.
_KNOBS = {
    **dict.fromkeys(("workers", "ranks", "ranks_per_host", "top", "try"), _COUNT),
    "parameters": Knob(WHOLE, "", min=1, max=10**12),
    "gradient_ms": Knob(REAL, "", exclusive_min=0, max=1e9),
    "try_seconds": Knob(REAL, "", exclusive_min=0, max=1e6),
    "promise": Knob(TEXT, "", choices=("same", "bounded", "any")),
}
#: Name, value and help of each other flag.
_FLAGS = (
    ("workers", "W", "number of workers, in addition to the servers"),
    ("ranks", "N", "number of ranks on this machine, servers included (default: its cores)"),
    ("hosts", "FILE", "hostfile of the ranks, as psrt launch --hostfile takes it"),
    ("like", "RUN", "take the times of a run made with --record"),
    ("parameters", "N", "number of parameters, with --gradient-ms"),
    ("gradient-ms", "MS", "milliseconds of a gradient; see --inject for what varies"),
    ("known", "FILE", "take what an earlier plan has measured: its --json file"),
    ("link", "LATENCY_S:BYTES_PER_S", "with --workers, latency and bandwidth of each host's link, "
     "in each direction (default: all ranks are on one host)"),
    ("ranks-per-host", "N", "with --link, ranks of each host, which have a core each (default: 1)"),
    ("budget", "WHAT", "say the time for samples:N, or the samples in seconds:T"),
    ("promise", "{same,bounded,any}", "leave out rows that promise less about the parameters: same "
     "as one process; bounded: by staleness, dropped gradients or a codec's loss (default: any)"),
    ("top", "N", "rows to print, of every mode and promise the best (default: 12)"),
    ("json", "FILE", "write all rows, and what is known, to this file"),
    ("html", "FILE", "write a page about the plan"),
    ("try", "N", "then train the best N rows on ranks"),
    ("try-seconds", "T", "seconds of each try, as predicted (default: 120)"),
)  # fmt: skip


def plan_parser() -> FlagParser:
    """Return the parser: the flags of `psrt train`, and those of planning."""
    parser = train_parser("psrt plan", _DESCRIPTION)
    parser.usage, parser.notes = "psrt plan [flags] [SCRIPT ...]", {}
    parser.synonyms |= {"n": "ranks", "np": "ranks", "hostfile": "hosts"}
    for action in parser._actions:
        action.help = _HELP.get(action.dest, action.help)
    add = parser.add_argument_group("planning").add_argument
    add("script", metavar="SCRIPT", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    add("-m", dest="module", metavar="MODULE", nargs=argparse.REMAINDER, help="instead of SCRIPT")
    for name, metavar, text in _FLAGS:
        add(*["-n"] * (name == "ranks"), f"--{name}", metavar=metavar, help=text)
    add_failure_costs(add)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run ``psrt plan`` and return the exit status.

    Raises:
        ConfigError: for invalid flags, or if nothing can be planned.
        SystemExit: after ``--help`` was printed, or if measuring failed.
    """
    parsed = plan_parser().parse(argv)
    given = vars(parsed)
    if (module := given.pop("module", None)) is not None:
        given["script"] = ["-m", *module]
    with Shown() as progress:
        progress.begin(parsed)
        _check(given)
        from psrt.planning.planner import make_plan
        from psrt.planning.table import plan_text

        question = _question(given)
        if "try" in given and not (given["script"] or question.places.is_mlp):
            raise ConfigError("--try has nothing to train: give a script, or flags of such a model")
        command = _command(question, given)
        plan = make_plan(question, command)
        say(plan_text(plan, given.get("top", 12)))
        if "out" in given:
            write_text(given["out"], _toml(plan.rows[0]))
        if "json" in given:
            write_text(given["json"], plan.to_json())
        if "html" in given:
            from psrt.planning.page import page_of

            say(write_page(given["html"], page_of(plan), "the plan"))
    if "try" in given:
        from psrt.planning.trying import try_best

        seconds = given.get("try_seconds", 120.0)
        return try_best(plan.rows[: given["try"]], command, seconds=seconds, say=say)
    return 0


def _toml(row: Row) -> str:
    """Return the knobs of a row as a config: a script has others of its own."""
    knobs, names = knobs_of(TrainConfig), [it.replace("-", "_") for it in row.knobs]
    said = f"# psrt plan predicts {row.prediction.samples_per_s:.4g} samples/s: {row.command}"
    lines = (f"{it} = {knobs[it].kind.write(getattr(row.config, it))}" for it in names)
    return "\n".join([said, *lines, ""])


def _check(given: dict[str, Any]) -> None:
    """Read numbers and names; check what is given together, and that files can be written."""
    if started_ranks() > 1:
        raise ConfigError("psrt plan runs in one process: start it without mpirun")
    said = {name: f"--{dashed(name)}" + f" {it}" * (it is not True) for name, it in given.items()}
    for name in given.keys() & _APART - _TAKEN.keys():
        raise ConfigError(f"{said[name]} has no effect on a plan")
    for names in _ONE_OF:
        if len(both := [said[name] for name in names if name in given]) > 1:
            raise ConfigError(f"{' and '.join(both)} cannot be combined: give one of them")
    for name, other in _NEEDS.items():
        if name in given and other not in given:
            raise ConfigError(f"{said[name]} has no effect without --{dashed(other)}")
    if "parameters" in given and not given.keys() & {"workers", "ranks", "hosts"}:
        raise ConfigError("--parameters needs ranks: give --workers W, --ranks N or --hosts FILE")
    script = given["script"]
    if script and script[0] != "-m" and not Path(script[0]).is_file():
        raise ConfigError(f"no script {script[0]}")
    if script and "parallel" in given:
        raise ConfigError(f"{said['parallel']}: psrt plan does not know the layers of a script")
    for word in script[1:]:
        if word.partition("=")[0] in {f"--{name}" for name, *_ in _FLAGS}:
            say(f"note: {word} goes to {script[0]}; flags of psrt plan stand before it")
    if "html" in given:
        check_page_file(given["html"], "--html", overwrite=given.get("overwrite", False))
    for name in ("out", "json"):
        check_writable(given.get(name))
    given |= {name: read(name, it, given[name]) for name, it in _KNOBS.items() if name in given}


def _question(given: dict[str, Any]) -> Question:
    """Return what the flags ask for; ranks may have to be measured."""
    from psrt.planning.candidates import Places
    from psrt.planning.planner import Question
    from psrt.planning.ranking import Budget, read_budget

    failures = failures_of(given)
    budget = read_budget(given["budget"]) if "budget" in given else Budget()
    found = values_of(argparse.Namespace(**given))
    values = {name: it for name, it in found.items() if name not in _APART}
    fixed = dict(values)
    if "mode" in values:  # a flag may say what is usual
        own = values["mode"].given
        fixed["mode"] = MODES.parsed(given["mode"])[1] if "mode" in given else own
    known = _known(given, values)
    values["batch_size"] = known.workload.batch_size
    # A script has its own.
    usual = TrainConfig(batch_size=values["batch_size"]) if given["script"] else TrainConfig()
    base = TrainConfig(**values)
    mlp = None if given["script"] else _with_layers(known, base)
    promises, least = [*PROMISES], given.get("promise", "any")
    return Question(
        base=base,
        usual=usual,
        fixed=fixed,
        places=Places(mlp or known, given.get("workers"), is_mlp=mlp is not None),
        budget=budget,
        promises=promises if least == "any" else promises[: promises.index(least) + 1],
        failures=failures,
    )


def _known(given: Mapping[str, Any], values: dict[str, Any]) -> Known:
    """Return what is known of the model and the machine: given, recorded or measured."""
    from psrt.collective.analysis.machine import DEFAULT_COSTS
    from psrt.planning.fitting import fitted
    from psrt.planning.known import Known, Workload

    if "known" in given:
        found = Known.from_json(read_text(given["known"]))
    elif "like" in given:
        found = _like(given["like"], values)
    elif "parameters" in given:
        batch = values.get("batch_size", TrainConfig().batch_size)
        work = Workload(given["parameters"], batch, ((given["gradient_ms"] / 1e3,),))
        found = Known(work, _site(given, values, DEFAULT_COSTS))
    else:
        found = _measured(given, values)
    if found.runs:
        usual = TrainConfig()  # as far as it matters to their speed
        with PROGRESS.doing("fitting to short runs"):
            own = values.get("optimizer", usual.optimizer)
            found = fitted(found, replace(usual, optimizer=own))
    if "link" in given:
        site = _site(given, values, found.site.costs)
        found = replace(found.without_factors(), site=site)
    return found


def _like(run: str, values: dict[str, Any]) -> Known:
    """Return what a recorded run says, and add the knobs of its model to ``values``."""
    from psrt.cli.like import batch_of, parts_of, samples_of
    from psrt.history import read_history
    from psrt.planning.like import known_of

    history = read_history(run)
    config = history.header.config
    for name, knob in knobs_of(TrainConfig).items():
        is_its = knob.group in ("optimizer", "data and model") and not knob.requires
        if is_its and config.get(name) is not None:
            values.setdefault(name, accept(name, knob, config[name]))
    samples, parts = samples_of(history), parts_of(history)
    return known_of(run, history, batch_size=batch_of(history), samples=samples, parts=parts)


def _site(given: Mapping[str, Any], values: Mapping[str, Any], costs: MachineCosts) -> Site:
    """Return the ranks of --hosts or --link, each with a core, or some on this machine."""
    from psrt.collective.costs import LinkCosts
    from psrt.launch.hostfile import read_hostfile
    from psrt.planning.known import Site
    from psrt.simulation.cost_flags import read_link

    if "hosts" in given:
        cores = slots = [it.slots for it in read_hostfile(given["hosts"])]
    elif "link" in given:
        latency, rate = read_link(given["link"])
        between = LinkCosts(latency, 1 / min(rate, _RATE), costs.between.gamma)
        costs, per_host = replace(costs, between=between), given.get("ranks_per_host", 1)
        ranks = 2 * max(given.get("workers", 1), values.get("servers") or 0)
        cores = slots = [per_host] * -(-ranks // per_host)  # for any number of servers
    else:
        slots, cores = [given.get("ranks", 1)], [len(os.sched_getaffinity(0))]
    hosts = tuple(number for number, count in enumerate(slots) for _ in range(count))
    return Site(hosts, tuple(range(len(slots))), tuple(cores), replace(costs, cores=max(cores)))


def _measured(given: Mapping[str, Any], values: Mapping[str, Any]) -> Known:
    """Return what ranks measure: those that are asked for, as many as fit here."""
    from psrt.planning.measuring import measured_on
    from psrt.planning.planner import flags_of
    from psrt.planning.ranking import words_of

    flags = ["--hostfile", given["hosts"]] if "hosts" in given else []
    if not given["script"]:
        apart = {"mode", "servers", "inject"}
        apart |= {it for it, knob in knobs_of(TrainConfig).items() if "model par" in knob.group}
        kept = {it: values[it] for it in values.keys() - apart}
        flags += ["--knobs", shlex.join(words_of(flags_of(TrainConfig(**kept), TrainConfig())))]
    ranks, workers = given.get("ranks"), given.get("workers")
    ranks = ranks if workers is None else workers + 1
    if "link" in given:  # of hosts that are not there: only a gradient is measured
        ranks, workers = 1, None
    return measured_on(ranks, flags, given["script"], workers)


def _command(
    question: Question, given: Mapping[str, Any]
) -> Callable[[int, Mapping[str, str]], str]:
    """Return what makes the line that runs a row: of psrt train, or of a script."""
    from psrt.planning.ranking import words_of

    script = given["script"] or ([] if question.places.is_mlp else ["my_model.py"])
    hosts = ["--hostfile", given["hosts"]] if "hosts" in given else []

    def command(ranks: int, knobs: Mapping[str, str]) -> str:
        words = words_of(knobs)
        what = ["--knobs", shlex.join(words), *script] if script else ["train", *words]
        return launch_line(ranks, shlex.join([*hosts, *what]))

    return command


def _with_layers(known: Known, base: TrainConfig) -> Known | None:
    """Return what is known, with the layers of the model of the flags; None if it has others."""
    from psrt.job.problems import timing_problem

    try:
        model = timing_problem(replace(base, steps=1, epochs=None), workers=1)
    except ConfigError:
        return None
    parts, matrices, n = model.gradient_spans(), model.matrices(), known.workload.n
    work = replace(known.workload, parts=parts, matrices=matrices, is_chain=True)
    return replace(known, workload=work) if model.n == n else None
