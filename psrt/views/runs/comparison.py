"""Differences between runs: their configurations and results. Pure, except for reading files."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from psrt.config import TrainConfig
from psrt.config.knobs import knobs_of
from psrt.core.errors import ConfigError
from psrt.core.units import time_text
from psrt.history.differences import differences
from psrt.history.header import Header
from psrt.history.reading import read_header
from psrt.report.environment import WORDS, environment_rows
from psrt.report.files import SIMULATION
from psrt.report.metrics import seconds_to_accuracy
from psrt.rows.knobs import dashed, shown
from psrt.rows.row import Row
from psrt.rows.suggest import did_you_mean
from psrt.views.runs.figures import FIGURES, OF_RUN, TEST, Figure, Told, user_figure, user_figures
from psrt.views.runs.folder import RunFolder, as_written, labels, read_run
from psrt.views.runs.seeds import Group, alone, deviation_of, grouped, mean_of

#: Characters of a line, unless one column needs more.
_WIDEST = 100
#: Where a run writes, and whether it may, does not count as a difference.
_NOT_COMPARED = ("out", "overwrite")


_ROWS = (*OF_RUN, *FIGURES)


def _told(run: RunFolder) -> Told:
    last = run.records[-1] if run.records else {}
    return Told(run.summary, last, (run.path / SIMULATION).exists(), run.records)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences between runs, by run."""

    runs: list[str]
    #: The run that others are compared with, by its place in ``runs``.
    baseline: int
    #: Knob → values; only of those that differ.
    config: dict[str, list[Any]]
    #: Figure → values, None where a run does not have it.
    outcome: dict[str, list[Any]]
    #: Part of the environment that differs → values; empty if it is not known.
    environment: dict[str, list[str]]
    #: Further differences from the baseline, according to the history; empty without one.
    otherwise: list[list[str]]
    #: The seeds of each run: several where it is a mean of runs that differ in nothing else.
    seeds: list[tuple[int, ...]]
    #: Figure → standard deviations of these means; only of those that have any.
    deviation: dict[str, list[float | None]]

    def document(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return asdict(self)

    def lines(self) -> Iterator[str]:
        """Yield tables with a line for each run, and once what is equal in all of them."""
        columns = [[dashed(name), *map(_value, its)] for name, its in self.config.items()]
        equal = []
        known = {it.name: it for it in _ROWS}
        for name, its in self.outcome.items():
            is_users = name.startswith(TEST)
            other = user_figure(name[len(TEST) :]) if is_users else _to_accuracy(1.0)
            figure = known.get(name) or other
            spread = self.deviation.get(name, [None] * len(its))
            if all(it == its[0] for it in its) and not any(spread):
                equal.append(f"{name} {figure.text(its[0])}")
            else:
                columns.append([name, *_cells(figure, its, spread, its[self.baseline])])
        first = ["", *self.runs]
        while columns:
            taken, width = [first], max(map(len, first))
            while columns and (len(taken) == 1 or width + 2 + _width(columns[0]) <= _WIDEST):
                width += 2 + _width(columns[0])
                taken.append(columns.pop(0))
            yield from _table(list(zip(*taken, strict=True)))
            yield ""
        if not self.config:
            yield "no knob differs"
        for count in sorted({len(it) for it in self.seeds} - {1}):
            of = (run for run, its in zip(self.runs, self.seeds, strict=True) if len(its) == count)
            said = f"mean ± standard deviation over {count} seeds"
            yield from _wrapped(f"{said}: {'; '.join(of)}")
        if equal:
            yield from _wrapped(f"equal in all: {'; '.join(equal)}")
        for name, texts in self.environment.items():
            by_text: dict[str, list[str]] = {}
            for run, text in zip(self.runs, texts, strict=True):
                by_text.setdefault(text or "unknown", []).append(run)
            said = "; ".join(f"{it} ({', '.join(of)})" for it, of in by_text.items())
            yield from _wrapped(f"{name}: {said}")
        for name, phrases in zip(self.runs, self.otherwise, strict=True):
            if phrases:
                yield f"{name} has {', '.join(phrases)}, compared with {self.runs[self.baseline]}"


def compare(
    runs: Sequence[str | Path],
    target: float | None = None,
    *,
    sort: str | None = None,
    rank: str | None = None,
    baseline: str | Path | None = None,
    each: bool = False,
) -> Comparison:
    """Compare runs with one of them.

    Args:
        runs: their folders.
        target: accuracy in (0, 1] to whose first reaching the time is compared; None: no such row.
        sort: a figure or knob to order runs by, as it is shown, with a ``-`` in front from the
            largest down; runs without it come last. None leaves their order.
        rank: a figure to order runs by, the best one first.
        baseline: the run to compare the others with; None is the first one after sorting.
        each: whether runs that differ only in their seed are not taken together.

    Raises:
        ConfigError: if there are fewer than two, or one is not the folder of a run; if no run has
            that figure, or the baseline is not one of them.
    """
    if len(runs) < 2:
        for run in runs:
            read_run(run)  # which may have a better reason
        raise ConfigError("compare needs at least two runs")
    named = list(zip(labels(runs), [read_run(run) for run in runs], strict=True))
    groups = alone(named) if each else grouped(named)
    if len(groups) == 1:
        groups = alone(named)
    asked = [] if target is None else [_to_accuracy(target)]
    found = user_figures(_told(run) for _, run in named)
    figures = {it.name: it for it in [*_ROWS, *asked, *found]}
    if rank is not None:
        if sort is not None:
            raise ConfigError("give --sort or --rank, not both")
        sort = _best_first(rank, figures)
    if sort is not None:
        groups = _sorted(groups, sort, figures)
    base = 0
    if baseline is not None:
        paths = [[run.path.absolute() for run in it.runs] for it in groups]
        wanted = Path(baseline).absolute()
        if not any(wanted in its for its in paths):
            raise ConfigError(f"--baseline {baseline} is not one of the runs to compare")
        base = next(i for i, its in enumerate(paths) if wanted in its)
    values = {name: [_values(group, it) for group in groups] for name, it in figures.items()}
    outcome = {name: [*map(mean_of, its)] for name, its in values.items()}
    deviation = {name: [*map(deviation_of, its)] for name, its in values.items()}
    firsts = [group.runs[0] for group in groups]
    knobs = _knobs([run.config for run in firsts])
    if any(len(group.runs) > 1 for group in groups):
        knobs["seed"] = [it.seeds if len(it.runs) > 1 else it.seeds[0] for it in groups]
    return Comparison(
        [it.name for it in groups],
        base,
        knobs,
        {name: its for name, its in outcome.items() if any(it is not None for it in its)},
        _environments(firsts),
        _otherwise([run.path for run in firsts], base),
        [it.seeds for it in groups],
        {name: its for name, its in deviation.items() if any(its)},
    )


def _values(group: Group, figure: Figure) -> list[Any]:
    """Return a figure of each run of a group; of labels that differ none."""
    found = []
    for run in group.runs:
        with as_written(run.path):
            found.append(figure.of(_told(run)))
    return [None] * len(found) if figure.is_label and len({*found}) > 1 else found


def _best_first(name: str, figures: Mapping[str, Figure]) -> str:
    """Return the order, as ``--sort`` takes it, in which the best run is the first.

    Raises:
        ConfigError: if no value of that figure is better than another.
    """
    named = {_plain(it): of for it, of in figures.items()}
    figure = named.get(name)
    if figure is None or figure.best is None:
        better = [it for it, of in named.items() if of.best is not None]
        raise ConfigError(
            f"--rank {name}: expected one of {'; '.join(better)}{did_you_mean(name, better)}; "
            "--sort takes any figure"
        )
    return f"-{name}" if figure.best is max else name


def _plain(name: str) -> str:
    return "time to target" if name[:8] == "time to " else name


def _sorted(groups: Sequence[Group], sort: str, figures: Mapping[str, Figure]) -> list[Group]:
    """Return runs in the order of a figure or knob; those without it last."""
    name, down = sort.removeprefix("-"), sort.startswith("-")
    flat = [dict(_flat(_given(it.runs[0].config))) for it in groups]
    knobs = {dashed(it): it for config in flat for it in config}
    figures = {_plain(it): of for it, of in figures.items()}
    if name not in figures and name not in knobs:
        names = "; ".join(figures)
        raise ConfigError(f"--sort {sort}: expected a knob such as lr, or one of {names}")
    values: list[Any] = []
    for group, config in zip(groups, flat, strict=True):
        is_figure = name in figures
        values.append(
            mean_of(_values(group, figures[name])) if is_figure else config.get(knobs[name])
        )
    known = [i for i, it in enumerate(values) if it is not None]
    try:
        known.sort(key=values.__getitem__, reverse=down)
    except TypeError:  # numbers beside words
        known.sort(key=lambda i: str(values[i]), reverse=down)
    return [groups[i] for i in [*known, *(i for i, it in enumerate(values) if it is None)]]


def _environments(runs: Sequence[RunFolder]) -> dict[str, list[str]]:
    """Return the differences between the environments of runs, as far as they are recorded."""
    found = []
    for run in runs:
        said = (run.summary or {}).get("environment")
        found.append(dict(environment_rows(said)) if isinstance(said, dict) else {})
    rows = {it: [one.get(it, "") for one in found] for it in WORDS.values()}
    return {name: texts for name, texts in rows.items() if len({*texts} - {""}) > 1}


def _to_accuracy(target: float) -> Figure:
    return Figure(
        f"time to {100 * target:g} %",
        lambda told: seconds_to_accuracy(told.records, target),
        time_text,
        relative=True,
        best=min,
    )


def _knobs(configs: Sequence[TrainConfig]) -> dict[str, list[Any]]:
    """Return the values of the knobs that differ."""
    flat = [dict(_flat(_given(config))) for config in configs]
    found = {}
    for name in dict.fromkeys(name for config in flat for name in config):
        values = [config.get(name) for config in flat]
        if name not in _NOT_COMPARED and any(value != values[0] for value in values):
            found[name] = values
    return found


def _given(config: TrainConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in knobs_of(TrainConfig)}


def _flat(knobs: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield knobs and their values; a row's own knobs follow its knob's name and a dot."""
    for name, it in knobs.items():
        yield f"{before}{name}", it.name if isinstance(it, Row) else it
        if isinstance(it, Row):
            yield from _flat(it.knobs, f"{before}{name}.")


def _otherwise(runs: Sequence[Path], base: int) -> list[list[str]]:
    """Return the differences from the baseline other than knobs, if there are histories."""
    headers: list[Header | None] = []
    for run in runs:
        try:
            headers.append(read_header(run))
        except ConfigError:
            headers.append(None)  # not recorded, or by another version of psrt
    first = headers[base]
    if first is None:
        return [[] for _ in runs]
    # Knobs are compared already; ``differences`` wants the all-reduce that was chosen.
    chosen = {"allreduce": first.algorithm} if first.algorithm_chosen else {}
    config = first.config | chosen
    return [
        [] if it is None else differences(dataclasses.replace(it, config=config), first)
        for it in headers
    ]


def _value(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return value if isinstance(value, str) else shown(value)


def _cells(
    figure: Figure, values: Sequence[Any], spread: Sequence[float | None], base: Any
) -> Iterator[str]:
    """Yield a figure's values, each with its deviation and its difference from the baseline's."""
    for value, deviation in zip(values, spread, strict=True):
        if value is None:
            yield "–"
            continue
        text = figure.text(value)
        if deviation is not None:
            text += f" ± {figure.text(deviation)}"
        changed = figure.relative and base and value != base
        if changed and math.isfinite(change := value / base - 1):
            text += f" ({change:+.0%})" if abs(change) < 10 else f" ({value / base:.3g} ×)"
        yield text


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDEST, subsequent_indent="  ", break_long_words=False)


def _width(column: Sequence[str]) -> int:
    return max(map(len, column))


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows as lines with aligned columns."""
    widths = [*map(_width, zip(*rows, strict=True))]
    for first, *others in rows:
        cells = [f"{it:>{width}}" for it, width in zip(others, widths[1:], strict=True)]
        yield "  ".join([f"{first:<{widths[0]}}", *cells]).rstrip()
