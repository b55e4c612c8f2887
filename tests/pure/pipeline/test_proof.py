"""The prover passes every schedule; what it proves is what a program of its own computes."""

from __future__ import annotations

import pytest

from psrt.pipeline import ALL, PIPELINES, Kind, PipelineStep, ScheduleError
from psrt.pipeline.messages import sent_early
from psrt.pipeline.proof import prove, proved
from support.cases import each
from support.pipelines import is_right


def keeps_its_promises(subject, stages, micro_batches):
    proof = proved(subject.row, stages, micro_batches, subject.chunks, deferred=subject.deferred)
    assert micro_batches > 11 or is_right(
        subject.plan(stages, micro_batches),
        micro_batches,
        subject.chunks,
        alive=subject.alive(stages, micro_batches),
        late=subject.late(stages),
    )
    # Promises are exact: nothing less would do.
    assert list(proof.alive) == subject.alive(stages, micro_batches)
    # Between two virtual stages of different stages, there and back.
    hops = stages * subject.chunks - 1 if stages > 1 else 0
    assert proof.messages == 2 * hops * micro_batches
    if late := subject.late(stages):
        ages = [max(late(s, k) for k in range(micro_batches)) for s in range(stages)]
        assert list(proof.staleness) == ages
        for stage, (kept, age) in enumerate(zip(proof.versions, ages, strict=True)):
            # A short run is over before as many are.
            assert kept == age + 1 if micro_batches >= 2 * (stages - stage) else kept <= age + 1
    else:
        assert proof.staleness == (0,) * stages
        assert proof.versions == (1,) * stages


#: Few of each, among them 1, fewer micro-batches than stages, as many, and no multiple.
def test_a_thin_grid_is_proved(subject):
    for stages in (1, 2, 3, 5):
        for micro_batches in (1, 2, 3, 7):
            keeps_its_promises(subject, stages, micro_batches)


@pytest.mark.exhaustive
@pytest.mark.parametrize("stages", range(1, 17))
def test_the_whole_grid_is_proved(subject, stages):
    for micro_batches in range(1, 65):
        keeps_its_promises(subject, stages, micro_batches)


def refuted(plan, words, micro_batches, **promises):
    with pytest.raises(ScheduleError, match=words) as caught:
        prove(plan, micro_batches, **promises)
    assert "\n" not in str(caught.value)
    return caught.value


def test_early_sends_that_block_deadlock():
    """Why messages have places of their own: 1F1B's neighbours would send to each other at once."""
    plan = [sent_early(steps) for steps in PIPELINES["1f1b"].plan(2, 3)]
    error = refuted(
        plan, "deadlock: 0 waits for 1 .step 3., 1 waits for 0 .step 3., in a circle", 3
    )
    assert (error.stage, error.index) == (0, 3)
    assert str(error).startswith("stage 0, step 3 (send activation of 1 to 1): deadlock")


def test_more_alive_than_promised():
    plan = PIPELINES["gpipe"].plan(2, 3)
    refuted(plan, r"stage 0, step 4 \(forward of 2\): 3 are alive, promised 2", 3, alive=(2, 3))
    refuted(plan, r"stage 1, step 4 \(receive .*: 3 are alive, promised 2", 3, alive=(3, 2))


def told(*steps):
    """F0, B0, I0, W0, W*: a stage that computes alone."""
    kinds = {
        "F": Kind.FORWARD, "B": Kind.BACKWARD, "I": Kind.BACKWARD_INPUT, "W": Kind.BACKWARD_WEIGHT,
    }  # fmt: skip
    return [[PipelineStep(kinds[it[0]], ALL if it[1] == "*" else int(it[1])) for it in steps]]


@each(
    ("steps", "words"),
    [
        ("F1", "stage 0, step 0 .forward of 1.: expected 0 next"),
        ("F0 F1 B1", "step 2 .backward of 1.: expected 0 next"),
        ("B0", "its forward pass is still to come"),
        ("F0 F1 I0 I1 W1", "expected the gradient of the weights of 0 next"),
        ("F0 W0", "its backward pass to the input is still to come"),
        ("F0 F1 I0 W*", "of 2 backward passes there were 1"),
        ("F0 F1 I0 I1 W0 W*", "1 are added already"),
        ("F0 F1 I0 I1 W*", None),
        ("F0 F1 I0 W0 I1 W1", None),
        ("F0 F1 I0 I1 W0", "ends with 1 gradients of weights, expected 2"),
    ],
)
def test_one_stage(steps, words):
    plan = told(*steps.split())
    if words is None:
        prove(plan, 2)
    else:
        refuted(plan, words, 2)


def test_ends_that_mean_different_messages():
    """The same two stages, the same micro-batch, but of another chunk, or the other way."""
    row = PIPELINES["interleaved"]
    plan = row.plan(2, 2, 3)
    at = plan[0].index(PipelineStep(Kind.RECEIVE_ACTIVATION, 0, 1, 1))
    plan[0][at] = plan[0][at]._replace(chunk=2)
    refuted(plan, "in chunk 2 from 1.: stage 1 is at: send activation of 0 to 0", 2, chunks=3)
    plan = row.plan(2, 2, 2)
    at = plan[1].index(PipelineStep(Kind.RECEIVE_ACTIVATION, 0, 0, 0))
    plan[1][at] = plan[1][at]._replace(kind=Kind.RECEIVE_GRADIENT)
    refuted(plan, "from 0.: stage 0 is at: send activation of 0 to 1", 2, chunks=2)
    # Of one stage without messages: what a chunk needs is what the other one made.
    there, back = ([PipelineStep(kind, 0, chunk) for chunk in range(2)]
                   for kind in (Kind.FORWARD, Kind.BACKWARD))  # fmt: skip
    prove([there + back[::-1]], 1, chunks=2)
    refuted([there[::-1] + back[::-1]], "its input is not there", 1, chunks=2)
    refuted([there + back], "the gradient of its output is not there", 1, chunks=2)


def test_too_old_and_too_young():
    plan = PIPELINES["pipedream"].plan(2, 4)
    words = r"stage 0, step \d+ \(backward of 1\): its weights are 1 updates old, expected 0"
    refuted(plan, words, 4, staleness=lambda stage, batch: 0)
    fresh = PIPELINES["sequential"].plan(2, 4)
    words = r"stage 0, .* \(backward of 1\): its weights are 0 updates old, expected 1"
    refuted(fresh, words, 4, staleness=lambda stage, batch: min(batch, 1 - stage))


@each(
    ("change", "words"),
    [
        ({"micro_batch": -1}, "there is no micro-batch -1 of 3"),
        ({"chunk": -1}, "there is no chunk -1 of 1"),
        ({"kind": Kind.SEND_GRADIENT}, "there is none before it"),
        ({"peer": 2}, "expected stage 1"),
    ],
)
def test_a_step_that_is_wrong_by_itself(change, words):
    plan = PIPELINES["1f1b"].plan(3, 3)
    plan[0][1] = plan[0][1]._replace(**change)
    refuted(plan, words, 3)
    plan = PIPELINES["gpipe"].plan(2, 2)
    plan[0].insert(2, plan[0][1])
    refuted(plan, r"stage 0, step 2 .send activation of 0 to 1.: it is sent already", 2)
