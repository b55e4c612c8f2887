"""The command that repeats a run: the fewest flags that make the same configuration. Pure."""

from __future__ import annotations

import dataclasses
import shlex
import tomllib
from typing import Any

from psrt.checkpoint import Manifest
from psrt.config import TrainConfig, resolve
from psrt.config.knobs import knobs_of
from psrt.core.errors import ConfigError
from psrt.report.simulation import Simulation
from psrt.rows.knobs import dashed, shown
from psrt.rows.row import Row
from psrt.rows.values import SWITCH
from psrt.simulation.cost_flags import VirtualCosts
from psrt.views.report.folder import RunFolder

#: Knobs about where a run writes or what it resumed from, not about what it does.
OF_A_FOLDER = ("out", "overwrite", "record", "resume")
#: Flags of ``psrt simulate`` that set costs.
_COSTS = {it.name: it.default for it in dataclasses.fields(VirtualCosts)}


def own_knobs(config: TrainConfig, ranks: int | None) -> dict[str, Any]:
    """Return the knobs that must be given; the others follow from them.

    Each knob that is not at its default is left out in turn, and stays out if resolving the rest
    restores it.

    Args:
        config: resolved.
        ranks: number of ranks of the run; None if it is not known, and all knobs are kept.
    """
    defaults = TrainConfig()
    found = {
        it.name: getattr(config, it.name)
        for it in dataclasses.fields(config)
        if getattr(config, it.name) != getattr(defaults, it.name)
    }
    if ranks is None or not _makes(found, config, ranks):
        return found
    # The mode comes last: other knobs depend on it.
    for name in sorted(found, key=lambda it: it == "mode"):
        rest = {it: value for it, value in found.items() if it != name}
        if _makes(rest, config, ranks):
            found = rest
    for name, row in found.items():
        if isinstance(row, Row):
            for knob in row.given:
                lesser = _without(found[name], knob)
                if _makes({**found, name: lesser}, config, ranks):
                    found[name] = lesser
    return found


def _without(row: Row, knob: str) -> Row:
    """Return a row with a knob at its default, or unchanged if that is not possible."""
    [usual] = [it.default for it in dataclasses.fields(row) if it.name == knob]
    try:
        return dataclasses.replace(row, **{knob: usual})
    except ConfigError:
        return row


def call(config: TrainConfig, ranks: int | None) -> str:
    """Return the call that runs a user's own problem with this config.

    Args:
        config: resolved.
        ranks: number of ranks of the run; None if it is not known.
    """
    knobs = own_knobs(config, ranks)
    named = [f"{name}={plain(name, it)!r}" for name, it in knobs.items() if name not in OF_A_FOLDER]
    return f"psrt.run(psrt.TrainConfig({', '.join(named)}), problem)"


def command(run: RunFolder, config: TrainConfig) -> str:
    """Return the command that runs it again.

    Args:
        run: a run of psrt's own model.
        config: its config.
    """
    knobs = own_knobs(config, run.ranks)
    # The mode is given even if it is the default for this number of ranks.
    flags = {"mode": config.mode, **knobs} if config.mode else knobs
    words = [word for name, value in flags.items() if name not in OF_A_FOLDER for word in
             _flag(name, value)]  # fmt: skip
    if config.record:
        words.append("--record")
    words += ["--out", "runs/again"]
    if run.simulation is not None:
        return shlex.join(["psrt", "simulate", *words, *_simulated(run.simulation)])
    return shlex.join([*_start(run.ranks), *words])


def resume(run: RunFolder) -> str | None:
    """Return the command that resumes a run from its newest checkpoint; None if it has none."""
    newest = next((it for _, it in run.checkpoints if isinstance(it, Manifest)), None)
    if newest is None:
        return None
    start = ["psrt", "simulate"] if run.virtual else _start(run.ranks)
    line = shlex.join([*start, "--resume", run.name])
    return f"{line} (in a script: resume={run.name!r}), from step {newest.step:,}"


def _start(ranks: int | None) -> list[str]:
    if ranks == 1:
        return ["psrt", "train"]
    return ["psrt", "launch", "-n", str(ranks or "N"), "train"]


def _makes(knobs: dict[str, Any], config: TrainConfig, ranks: int) -> bool:
    """Return whether these knobs make a valid config."""
    try:
        return resolve(TrainConfig(**knobs), ranks=ranks) == config
    except ConfigError:
        return False


def _flag(name: str, value: Any) -> list[str]:
    knob = knobs_of(TrainConfig)[name]
    flag = dashed(name)
    if knob.kind is SWITCH:
        return [f"--{flag}" if value else f"--no-{flag}"]
    if knob.kind.several:
        return [word for one in plain(name, value) for word in (f"--{flag}", text_of(one))]
    return [f"--{flag}", text_of(plain(name, value))]


def plain(name: str, value: Any) -> Any:
    """Return the value of a knob as in TOML: a number, a text, or a list of these."""
    if value is None or isinstance(value, Row):
        return value and str(value)
    return tomllib.loads(f"value = {knobs_of(TrainConfig)[name].kind.write(value)}")["value"]


def text_of(value: Any) -> str:
    """Return such a value as a user would type it.

    >>> text_of("ssp"), text_of([128, 64]), text_of(0.5), text_of(None)
    ('ssp', '128,64', '0.5', 'none')
    """
    if value is None:
        return "none"
    if isinstance(value, list):
        return ",".join(map(text_of, value))
    return value if isinstance(value, str) else shown(value)


def _simulated(run: Simulation) -> list[str]:
    """Return the flags of virtual time."""
    words = ["--hosts", ",".join(map(str, run.hosts))] if run.hosts else [
        "--workers", str(run.workers)]  # fmt: skip
    for name, usual in _COSTS.items():
        if (value := getattr(run, name)) != usual:
            words += [f"--{dashed(name)}", value]
    for worker, at in run.crash:
        words += ["--crash", f"{worker}:{at:g}"]
    for fault in run.faults:
        words += ["--fault", fault]
    if not run.numerics:
        words += ["--timing-only", "--parameters", str(run.parameters)]
    return words
