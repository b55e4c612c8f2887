"""What was run, and how to run it again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from psrt.config import TrainConfig
from psrt.core.units import plural
from psrt.report.environment import WORDS, environment_rows
from psrt.report.files import MODEL
from psrt.views.page.parts import Code, Note, Part, Section, Table
from psrt.views.page.words import NONE
from psrt.views.report.again import OF_A_FOLDER, call, command, own_knobs, plain, text_of
from psrt.views.report.folder import RunFolder
from psrt.views.report.of_each import of_each

#: Characters of a value that are shown.
_LONGEST = 200
#: The most arrays of a model that are listed, and of those that are visible at once.
_MOST_ARRAYS, _FEW_ARRAYS = 100, 10


def section(runs: Sequence[RunFolder]) -> Section:
    """Return the section: the command of each run, and its knobs that differ from the defaults."""
    parts = of_each(runs, lambda run: _of_one(run, whole=len(runs) == 1))
    return Section("run", "What was run", list(parts))


def differences(runs: Sequence[RunFolder]) -> Section:
    """Return the section on what differs between several runs."""
    configs = [_knobs(run) for run in runs]
    names = dict.fromkeys(name for config in configs for name in config)
    rows = []
    for name in names:
        cells = [_shown(config[name]) if name in config else NONE for config in configs]
        if name not in OF_A_FOLDER and len(set(cells)) > 1:
            rows.append((name.replace("_", "-"), *cells))
    rows += _of_environment(runs)
    if not rows:
        note = Note("Nothing: the runs have the same configuration, ranks and versions.")
        return Section("differences", "What differs", [note])
    head = ("", *(run.name for run in runs))
    return Section("differences", "What differs", [Table(rows, head, styles=range(len(runs)))])


def _of_one(run: RunFolder, *, whole: bool) -> Iterator[Part]:
    if run.config is None:
        yield Note("The configuration cannot be read, so there is no command to show.", "missing")
        if run.knobs:
            rows = [(name, _shown(value)) for name, value in run.knobs.items()]
            yield Table(rows, caption=f"From {run.name}/config.toml")
        return
    if _is_own(run):
        ranks = "N ranks" if run.ranks is None else plural(run.ranks, "rank")
        yield Note("A user's own problem; its script is not recorded.")
        yield Code(call(run.config, run.ranks), f"Run it again: in that script, on {ranks}")
        if whole:
            yield _arrays(run)
    else:
        yield Code(command(run, run.config), "Run it again")
    if _replays(run):
        start = "psrt train" if run.ranks == 1 else f"psrt launch -n {run.ranks or 'N'} train"
        yield Code(f"{start} --replay {run.name}", "Repeat it bit for bit, from its history")
    if run.ranks is None:
        yield Note("The number of ranks is not recorded; N stands for it.", "missing")
    own = own_knobs(run.config, run.ranks)
    rows = [
        (name.replace("_", "-"), _shown(plain(name, it)))
        for name, it in own.items()
        if name not in OF_A_FOLDER
    ]
    if rows and whole:
        yield Table(rows, caption="Settings that differ from the defaults")
    yield Note(f"All settings: {run.name}/config.toml, for --config.")


def _arrays(run: RunFolder) -> Table:
    """Return the arrays of a user's own model, the first of many."""
    shapes = [(_shown(name), " × ".join(map(str, it)) or "1") for name, it in run.tensors.items()]
    rows = shapes[:_MOST_ARRAYS]
    first = f", the first {len(rows)} of {len(shapes)}" if len(rows) < len(shapes) else ""
    return Table(rows, caption=f"Arrays of {MODEL}{first}", folded=len(rows) > _FEW_ARRAYS)


def _replays(run: RunFolder) -> bool:
    """Return whether its history can probably be replayed, without reading it."""
    if run.header is None or run.virtual or _is_own(run) or run.summary is None:
        return False
    return not (run.checkpoints or run.header.resumed or run.summary.missing)


def _is_own(run: RunFolder) -> bool:
    """Return whether the model was not psrt's own, judging by the names of its tensors."""
    return bool(run.tensors) and not all(name.startswith("layers.") for name in run.tensors)


def _knobs(run: RunFolder) -> dict[str, Any]:
    if run.config is None:
        return run.knobs
    found = {it.name: getattr(run.config, it.name) for it in dataclasses.fields(TrainConfig)}
    return {name: plain(name, value) for name, value in found.items() if value is not None}


def _of_environment(runs: Sequence[RunFolder]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each difference that is not a knob."""
    for name, cells in {
        "ranks": [NONE if run.ranks is None else f"{run.ranks:,}" for run in runs],
        "virtual time": ["yes" if run.virtual else "no" for run in runs],
        "compute": [NONE if run.simulation is None else run.simulation.compute for run in runs],
        "link": [NONE if run.simulation is None else run.simulation.link for run in runs],
        "hosts": [NONE if run.summary is None else f"{run.summary.hosts:,}" for run in runs],
        "MPI": [NONE if run.summary is None else run.summary.mpi or NONE for run in runs],
        "psrt": [NONE if run.header is None else run.header.psrt for run in runs],
        "code": [NONE if run.header is None else run.header.code_sha256[:12] for run in runs],
        "numpy": [NONE if run.header is None else run.header.numpy for run in runs],
        **{
            words: [_of_machine(run, name) for run in runs]
            for name, words in WORDS.items()
            if words not in ("psrt", "numpy", "MPI")
        },
        "data": [NONE if run.header is None else run.header.data_sha256[:12] for run in runs],
    }.items():
        if len(set(cells) - {NONE}) > 1 or (len(set(cells)) > 1 and name in ("ranks", "compute")):
            yield (name, *cells)


def _of_machine(run: RunFolder, name: str) -> str:
    environment = {} if run.summary is None else run.summary.environment
    return dict(environment_rows(environment)).get(WORDS[name], NONE)


def _shown(value: Any) -> str:
    try:
        text = text_of(value)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    text = text or NONE
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
