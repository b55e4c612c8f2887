"""Every pipeline schedule, one row each: a new one is one file with its order and one row here.

``PIPELINES[name](stage, stages, micro_batches)`` yields what a stage does, in order. All code that
uses schedules by name reads this registry: flags and their help, prices, explanations, tests.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from psrt.core.errors import ConfigError
from psrt.pipeline.schedule import Passes, PipelineSchedule
from psrt.pipeline.schedules.gpipe import gpipe_order
from psrt.pipeline.schedules.interleaved import interleaved_order, warm_up
from psrt.pipeline.schedules.one_f_one_b import one_f_one_b_order
from psrt.pipeline.schedules.pipedream import pipedream_order, pipedream_staleness
from psrt.pipeline.schedules.sequential import sequential_order
from psrt.pipeline.schedules.zero_bubble import zero_bubble_order
from psrt.rows.registry import Registry
from psrt.rows.suggest import did_you_mean


def _behind(stage: int, stages: int, micro_batches: int, chunks: int) -> int:
    """Return min(M, P − s): the micro-batches in flight between this stage and the last."""
    return min(micro_batches, stages - stage)


def _ends(stages: int, micro_batches: int, chunks: int, passes: Passes) -> float:
    """Return (P − 1)·(f + b): the waits of the first and of the last stage, added."""
    return (stages - 1) * (passes.forward + passes.backward_input)


def _interleaved(stages: int, micro_batches: int, chunks: int, passes: Passes) -> float:
    forward, to_input, to_weight = passes.forward, passes.backward_input, passes.backward_weight
    around, missing = chunks - 1, max(0, stages - micro_batches)
    idle = (stages - 1 + around * missing) * (forward + to_input)
    idle -= around * min(micro_batches * to_weight, missing * to_input)
    if chunks > 1 and micro_batches >= 2 * stages:
        idle = max(idle, (stages - 2) * (to_input + to_weight))
    return idle / chunks


def _zero_bubble(stages: int, micro_batches: int, chunks: int, passes: Passes) -> float:
    forward, to_input = passes.forward, passes.backward_input
    filled = min(forward, to_input, passes.backward_weight)
    short = max(0, stages - micro_batches)
    return (stages - 1) * (forward + to_input - filled) + short * filled


#: By name.
PIPELINES: Final = Registry(
    "pipeline schedule",
    "psrt.pipelines",
    PipelineSchedule,
    (
        PipelineSchedule(
            "sequential",
            sequential_order,
            "one micro-batch through all stages, then the next; the baseline",
            alive=lambda s, p, m, v: 1,
            idle=lambda p, m, v, passes: (p - 1) * m * passes.seconds,
            formula="1 − 1/P",
            source="",
            sends_first=False,
            defers=False,
        ),
        PipelineSchedule(
            "gpipe",
            gpipe_order,
            "all micro-batches forward, then all backward",
            alive=lambda s, p, m, v: m,
            idle=_ends,
            formula="(2P − 2)/(3M + 2P − 2)",
            source="Huang et al., NeurIPS 2019 (1811.06965)",
        ),
        PipelineSchedule(
            "1f1b",
            one_f_one_b_order,
            "one forward, one backward in turn: activations of P − s micro-batches, not of all",
            alive=_behind,
            idle=_ends,
            formula="(2P − 2)/(3M + 2P − 2)",
            source="Narayanan et al., SOSP 2019; ICML 2021 (2006.09503)",
        ),
        PipelineSchedule(
            "interleaved",
            interleaved_order,
            "1F1B with V pieces of the model in each stage: a V-th of the bubble, V times the "
            "messages",
            alive=lambda s, p, m, v: min(v * m, warm_up(s, p, m, v) + 1),
            idle=_interleaved,
            formula="(2P − 2)/(3V·M + 2P − 2)",
            source="Narayanan et al., SC 2021 (2104.04473)",
            chunked=True,
        ),
        PipelineSchedule(
            "zero-bubble",
            zero_bubble_order,
            "1F1B whose gradients of weights fill the bubble (ZB-H1)",
            alive=lambda s, p, m, v: min(m, p),
            idle=_zero_bubble,
            formula="(P − 1)/(3M + P − 1)",
            source="Qi et al., ICLR 2024 (2401.10241)",
            splits=True,
        ),
        PipelineSchedule(
            "pipedream",
            pipedream_order,
            "1F1B over the whole run, an update after each backward pass, on weights P − s − 1 "
            "updates old",
            alive=_behind,
            idle=_ends,
            formula="(2P − 2)/(3K + 2P − 2) of a run of K batches",
            source="Narayanan et al., SOSP 2019",
            defers=False,
            staleness=pipedream_staleness,
        ),
    ),
)


def forms() -> tuple[str, ...]:
    """Return the schedules as users write them."""
    return tuple(f"{name}:V" if row.chunked else name for name, row in PIPELINES.items())


class ScheduleName(NamedTuple):
    """A schedule as users write it: its name, and the chunks of a stage where it has several.

    >>> schedule_of("interleaved:2")
    ScheduleName(name='interleaved', chunks=2)
    """

    #: In ``PIPELINES``.
    name: str
    #: Pieces of each stage, V.
    chunks: int = 1

    def __str__(self) -> str:
        return f"{self.name}:{self.chunks}" if self.row.chunked else self.name

    @property
    def row(self) -> PipelineSchedule:
        """The schedule's row in the registry."""
        return PIPELINES[self.name]


def schedule_of(text: str) -> ScheduleName:
    """Return the schedule that a text names.

    Args:
        text: a name, followed by ``:V`` where stages have chunks.

    Raises:
        ConfigError: with the end of a sentence that begins with the flag's name.
    """
    name, colon, number = text.partition(":")
    row = PIPELINES.get(name)
    if row is None or (colon and not row.chunked):
        hint = did_you_mean(name, tuple(PIPELINES))
        raise ConfigError(f"must be one of {', '.join(forms())}{hint}, got {text!r}")
    if not row.chunked:
        return ScheduleName(name)
    if not (number.isascii() and number.isdigit() and len(number) < 8 and int(number) >= 2):
        raise ConfigError(
            f"must have the chunks of a stage, 2 or more, as in {name}:2, got {text!r}"
        )
    return ScheduleName(name, int(number))
