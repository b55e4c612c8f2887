"""Every pipeline schedule, one row each: a new one is one file with its order and one row here.

``PIPELINES[name](stage, stages, micro_batches)`` yields what a stage does, in order. All code that
uses schedules by name reads this registry: flags and their help, prices, explanations, tests.
"""

from __future__ import annotations

from psrt.errors import ConfigError
from psrt.pipeline.schedule import Passes, PipelineSchedule
from psrt.pipeline.schedules.gpipe import gpipe_order
from psrt.pipeline.schedules.interleaved import interleaved_order, warm_up
from psrt.pipeline.schedules.one_f_one_b import one_f_one_b_order
from psrt.pipeline.schedules.pipedream import pipedream_order, pipedream_staleness
from psrt.pipeline.schedules.sequential import sequential_order
from psrt.pipeline.schedules.zero_bubble import zero_bubble_order


def _behind(stage: int, stages: int, micro_batches: int, chunks: int) -> int:
    """Return min(M, P − s): of the micro-batches that are out."""
    return min(micro_batches, stages - stage)


def _ends(stages: int, micro_batches: int, chunks: int, passes: Passes) -> float:
    """Return (P − 1)·(f + b): the first stage's wait and the last one's, together."""
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
PIPELINES: dict[str, PipelineSchedule] = {
    row.name: row
    for row in (
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
            "1F1B over the whole run, an update after each backward pass, of weights P − s − 1 "
            "updates old",
            alive=_behind,
            idle=_ends,
            formula="(2P − 2)/(3K + 2P − 2) of a run of K batches",
            source="Narayanan et al., SOSP 2019",
            defers=False,
            staleness=pipedream_staleness,
        ),
    )
}

#: As users write them.
FORMS = tuple(f"{name}:V" if row.chunked else name for name, row in PIPELINES.items())


def pipeline_of(text: str) -> tuple[PipelineSchedule, int]:
    """Return the row and the number of chunks, V, that a name says.

    Args:
        text: a name, followed by ``:V`` where stages have chunks.

    Raises:
        ConfigError: if it is none.

    >>> row, chunks = pipeline_of("interleaved:2")
    >>> row.name, chunks
    ('interleaved', 2)
    """
    name, colon, number = text.partition(":")
    row = PIPELINES.get(name)
    if row is None:
        raise ConfigError(f"no pipeline schedule {text!r}, only {', '.join(FORMS)}")
    if not row.chunked:
        if colon:
            raise ConfigError(f"{name} has one chunk a stage, got {text}")
        return row, 1
    if not (number.isascii() and number.isdigit() and int(number) >= 2):
        raise ConfigError(f"{name}:V needs the number of chunks of a stage, at least 2, got {text}")
    return row, int(number)
