"""What --parallel and its flags say, and what is refused in one line."""

import pytest

from psrt.config import TrainConfig, resolve
from psrt.config.axes import Axes, axes_of
from psrt.core.errors import ConfigError
from psrt.pipeline.registry import ScheduleName, schedule_of
from support.cases import each


def refusal(ranks=4, **knobs):
    with pytest.raises(ConfigError) as caught:
        resolve(TrainConfig(**knobs), ranks=ranks)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_axes_in_any_order_and_a_schedule_with_its_chunks():
    for text, axes in (
        ("pipeline:2", Axes(0, 2, 1)), ("tensor:3 , data:2", Axes(2, 1, 3)),
        ("data:1,pipeline:2,tensor:3", Axes(1, 2, 3)),
    ):  # fmt: skip
        assert axes_of(text) == axes
        assert axes_of(str(axes)) == axes
    assert schedule_of("interleaved:3") == ScheduleName("interleaved", 3)
    assert str(schedule_of("interleaved:3")) == "interleaved:3"


@each(("text", "message"), [
    ("pipe:2", "did you mean pipeline?"),
    ("pipeline", "must have a number from 1 to 1000000 after pipeline:"),
    *((it, "after pipeline:") for it in ("pipeline:0", "pipeline:-1", "pipeline:1.5")),
    ("pipeline:2,pipeline:2", "must have pipeline only once"),
])  # fmt: skip
def test_no_axes(text, message):
    assert message in refusal(parallel=text)


@pytest.mark.parametrize(("text", "message"), [
    ("gpip", "did you mean gpipe?"),
    ("interleaved:1", "as in interleaved:2"),
    ("gpipe:2", "must be one of sequential, gpipe, 1f1b, interleaved:V"),
])  # fmt: skip
def test_no_schedule(text, message):
    assert message in refusal(parallel="pipeline:2", pipeline_schedule=text)


@pytest.mark.parametrize(("ranks", "knobs", "wanted"), [
    (4, {"parallel": "pipeline:2"}, "data:2,pipeline:2"),
    (6, {"parallel": "tensor:2,pipeline:3"}, "data:1,pipeline:3,tensor:2"),
    (6, {"parallel": "tensor:2"}, "data:3,tensor:2"),
    (6, {"parallel": "pipeline:2", "mode": "sync"}, "data:2,pipeline:2"),
    (6, {"parallel": "pipeline:2", "servers": 4}, "data:1,pipeline:2"),
])  # fmt: skip
def test_copies_are_what_the_ranks_allow(ranks, knobs, wanted):
    config = resolve(TrainConfig(**knobs), ranks=ranks)
    assert config.parallel == wanted
    assert resolve(config, ranks=ranks) == config


def test_modes_and_micro_batches_by_default():
    config = resolve(TrainConfig(parallel="pipeline:2"), ranks=2)
    assert config.scheme.name == "allreduce"
    assert (config.pipeline_schedule, config.micro_batches) == ("1f1b", 8)
    alone = resolve(TrainConfig(parallel="tensor:2"), ranks=2)
    assert alone.micro_batches == 1
    few = resolve(TrainConfig(parallel="pipeline:2", batch_size=3), ranks=2)
    assert few.micro_batches == 3


@pytest.mark.parametrize(("ranks", "knobs", "message"), [
    (4, {"parallel": "data:2,pipeline:3"}, "needs 6 ranks, got 4 ranks"),
    (2, {"parallel": "pipeline:2", "pipeline_schedule": "pipedream", "defer_weights": True},
     "--defer-weights has no effect with --pipeline-schedule pipedream"),
    (4, {"parallel": "pipeline:3"}, "needs 3 ranks or a multiple, got 4 ranks"),
    (5, {"parallel": "pipeline:2", "servers": 3}, "each of the 2 parts"),
    (3, {"parallel": "pipeline:2", "mode": "sync"}, "--parallel pipeline:2 needs 2 ranks or a "
     "multiple, got 3 ranks, of which 2 are servers"),
    (4, {"micro_batches": 2}, "--micro-batches 2 has no effect without --parallel"),
    (4, {"parallel": "pipeline:2", "stages": "1,1,1"}, "--stages 1,1,1 has 3 numbers, --parallel "
     "pipeline:2 has 2 stages"),
    (2, {"parallel": "pipeline:2", "pipeline_schedule": "pipedream", "micro_batches": 2},
     "--micro-batches 2 has no effect with --pipeline-schedule pipedream"),
    (2, {"parallel": "pipeline:2", "pipeline_schedule": "sequential", "defer_weights": True},
     "--defer-weights is not possible with --pipeline-schedule sequential"),
    (2, {"parallel": "tensor:2", "pipeline_schedule": "sequential"},
     "--pipeline-schedule sequential has no effect with one stage"),
    (2, {"parallel": "tensor:2", "defer_weights": True}, "--defer-weights has no effect with one "
     "micro-batch; --micro-batches M splits a batch"),
    (2, {"parallel": "tensor:2", "pipeline_schedule": "pipedream", "staleness_rate": "inverse"},
     "--staleness-rate inverse has no effect with one stage, whose gradients are fresh"),
    (2, {"parallel": "pipeline:2", "micro_batches": 33}, "--micro-batches 33 is more than a batch "
     "has samples, --batch-size 32"),
    (2, {"parallel": "pipeline:2", "recompute": True, "defer_weights": True},
     "--recompute is not possible with --defer-weights, whose weight gradients need the "
     "activations later"),
    (6, {"parallel": "pipeline:2", "mode": "softsync:k=3"},
     "--mode softsync:k=3 needs at least 3 workers, got 2"),
], ids=str)  # fmt: skip
def test_what_cannot_be_is_refused(ranks, knobs, message):
    assert message in refusal(ranks, **knobs)
