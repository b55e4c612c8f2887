"""The prover: passes every schedule, at every size, and says of broken ones what is wrong."""

import re
from functools import partial

import numpy as np
import pytest

from psrt.collective import ALGORITHMS, PHASES, CollectiveSpec, Postcondition, Step
from psrt.collective.analysis.proof import prove
from psrt.collective.analysis.rendezvous import ScheduleError, Traffic
from psrt.collective.schedules.segmented_ring import SEGMENT
from psrt.collective.spec import all_reduce
from psrt.core.errors import ConfigError
from psrt.core.partition import Span
from support.cases import also, each
from support.numbers import SUBJECTS, perform

every_subject = pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)


@every_subject
@pytest.mark.parametrize("sizes", [range(1, 18), also(range(18, 65))], ids=["to 17", "to 64"])
def test_all_are_proved(subject, sizes):
    for size in sizes:
        for n in (3 * size + 2,) if size > 13 else (0, 1, size - 1, 3 * size + 2):
            prove(subject.spec(size, n), subject.plan(size, n))


#: Schedules in which every rank talks to every other or as often: p² messages.
SQUARE = ["naive", "all-pairs", "ring", "segmented-ring"]
SQUARE += ["reduce-scatter", "all-gather", "all-to-all"]
LARGE = [
    (name, size)
    for name in (*ALGORITHMS, *PHASES)
    for size in ((127, 200) if name in SQUARE else (127, 256, 1000, 1024))
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "size"), LARGE)
def test_large_ones_are_proved(name, size):
    # Chunks that are ragged, none empty; long enough to be cut in segments and blocks.
    lengths = {"segmented-ring": size * SEGMENT + 3, "double-tree": size * 4000 + 3}
    n = lengths.get(name, 2 * size + 5)
    how = {**ALGORITHMS, **PHASES}[name]
    assert len(prove(how.spec(size, n), how.plan(size, n)).sent) == size


@every_subject
def test_proof_and_simulation_agree(subject):
    """Two programs that know nothing of each other count the same."""
    for size in (1, 2, 3, 6, 7, 13):
        for n in (1, 50):
            task, plan = subject.spec(size, n), subject.plan(size, n)
            seen = perform(task, plan, list(np.zeros((size, n))))
            proof = prove(task, plan)
            assert proof.rounds == seen.rounds
            assert proof.messages == seen.messages
            assert list(proof.sent) == seen.sent
            assert sum(proof.received) == sum(proof.sent)
            assert list(proof.combined) == seen.combined


def refuted(plan, words, *, task=None, rank=None, index=None, workspace=0):
    """Check that ``plan`` is refuted in these words, which name this rank and step."""
    task = task or all_reduce(len(plan), 4, workspace=workspace)
    with pytest.raises(ScheduleError, match=words) as caught:
        prove(task, plan)
    error = caught.value
    assert re.fullmatch(rf"rank {error.rank}[^\n]+[^.]", str(error))
    if rank is not None:
        assert error.rank == rank
        assert error.index == index
    assert error.step == (None if error.index is None else plan[error.rank][error.index])


WHOLE, FRONT, BACK = Span(0, 4), Span(0, 2), Span(2, 4)
folding = partial(Step.receiving, combine=True)
copying = partial(Step.receiving, combine=False)


def test_an_exchange_is_proved():
    swap = [[Step(1 - r, WHOLE, 1 - r, WHOLE, True)] for r in range(2)]
    assert prove(all_reduce(2, 4), swap) == Traffic(1, 2, (4, 4), (4, 4), (4, 4), 2)


BEHIND = Span(4, 8)
BROADCAST = PHASES["broadcast"].spec
FRONT_TO_BACK = CollectiveSpec(4, 0, ((FRONT,), ()), ((), (Postcondition(BACK, 0),)))
#: Each sends before it receives: fine where sends are buffered, not under rendezvous.
CIRCLE = [[Step.sending((r + 1) % 3, WHOLE), folding((r - 1) % 3, WHOLE)] for r in range(3)]


@each(
    ("plan", "words", "more"),
    [
        # What is not done, done twice, or done at another place.
        ([[], []], r"rank 0: ends with rank 0 in element 0, owed ranks 0, 1", {"rank": 0}),
        ([[Step(1 - r, FRONT, 1 - r, FRONT, True)] for r in range(2)],
         "rank 0: ends with rank 0 in element 2, owed ranks 0, 1", {"rank": 0}),
        ([[Step(1 - r, WHOLE, 1 - r, WHOLE, True)] * 2 for r in range(2)],
         r"rank 0, step 1 \(sends \[0, 4\) to 1, folds what 1 sends into \[0, 4\)\): counts "
         "ranks 0, 1 twice in element 0", {"rank": 0, "index": 1}),
        ([[Step(1 - r, FRONT, 1 - r, BACK, True)] for r in range(2)],
         "element 0 is folded into element 2", {"rank": 0, "index": 0}),
        ([[Step.sending(1, FRONT)], [copying(0, BACK)]],
         "rank 1: ends with element 0 at place 2", {"rank": 1, "task": FRONT_TO_BACK}),
        # What is not there.
        ([[], []], r"rank 1: ends where nothing is in \[0, 4\) yet, owed rank 0",
         {"rank": 1, "task": BROADCAST(2, 4)}),
        ([[Step.sending(1, WHOLE)], [Step.sending(2, BACK), copying(0, WHOLE)], [copying(1, BACK)]],
         r"is to send, but nothing is in \[2, 4\) yet",
         {"rank": 1, "index": 0, "task": BROADCAST(3, 4)}),
        ([[Step.local(0, WHOLE, BEHIND, combine=True)]], "nothing is in", {"workspace": 4}),
        # Within one rank.
        ([[Step.local(0, WHOLE, BEHIND, combine=False),
           Step.local(0, BEHIND, WHOLE, combine=True)]],
         "counts rank 0 twice", {"workspace": 4, "rank": 0, "index": 1}),
        ([[Step.local(0, FRONT, BEHIND, combine=False)]],
         "spans of different size within one rank", {"workspace": 4}),
        ([[Step.local(0, WHOLE, WHOLE, combine=True)]], "overwrites what is being sent", {}),
        # Two ends that do not meet.
        ([[Step.sending(1, FRONT)], [folding(0, WHOLE)]],
         r"rank 1, step 0 .*: 2 elements come from rank 0", {"rank": 1, "index": 0}),
        (CIRCLE,
         "deadlock: 0 waits for 1 .step 0., 1 waits for 2 .step 0., 2 waits for 0 .step 0., in a",
         {"rank": 0, "index": 0}),
        ([[Step.sending((r + 1) % 99, WHOLE)] for r in range(99)],
         r"4 waits for 5 .step 0., …, 98 waits for 0 .step 0., in a circle", {}),
        ([[folding(1, WHOLE)], []], "0 waits for 1 .step 0., and 1 has no step left", {}),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refuted_in_these_words(plan, words, more):
    refuted(plan, words, **more)


def test_local_steps_are_proved():
    there, back = (Step.local(0, *it, combine=False) for it in ((WHOLE, BEHIND), (BEHIND, WHOLE)))
    found = prove(all_reduce(1, 4, workspace=4), [[there, back]])
    assert found == Traffic(0, 0, (0,), (0,), (0,), 0)


def test_other_bits():
    """Right to all appearances, but one rank adds in another order."""
    naive = ALGORITHMS["naive"]
    plan = naive.plan(3, 4)
    plan[2][2], plan[2][3] = (
        Step.local(2, Span(8, 12), Span(4, 8), combine=True),
        Step.local(2, WHOLE, Span(4, 8), combine=True),
    )
    prove(naive.spec(3, 4), plan)
    plan[2][2], plan[2][3] = plan[2][3], plan[2][2]
    words = "rank 2: folds .* in another bracketing than rank 0: other bits"
    refuted(plan, words, task=naive.spec(3, 4))


@each(
    ("step", "words"),
    [
        (Step(1, Span(0, 3), 1, Span(2, 4), False), "overwrites what is being sent"),
        (Step.sending(2, WHOLE), "rank 2 is not one of 2"),
        (folding(-1, WHOLE), "rank -1 is not one of 2"),
        (Step.sending(0, WHOLE), "is its own peer on one side only"),
        (Step(0, FRONT, 1, BACK, False), "is its own peer on one side only"),
        (Step(None, FRONT, None, BACK, False), "neither sends nor receives"),
        (Step.sending(1, Span(0, 5)), r"sends from \[0, 5\), not within the vector of 4"),
        (Step.sending(1, Span(3, 2)), r"sends from \[3, 2\), not within"),
        (folding(1, Span(-1, 2)), r"\[-1, 2\) is in neither the vector of 4 nor the workspace"),
        (folding(1, Span(3, 5)), r"\[3, 5\) is in neither the vector of 4 nor the workspace"),
        (folding(1, Span(5, 7)), r"\[5, 7\) is in neither the vector of 4 nor the workspace"),
    ],
)
def test_a_step_that_is_wrong_by_itself(step, words):
    refuted([[step], []], words, workspace=2, rank=0, index=0)


def test_another_number_of_ranks():
    with pytest.raises(ConfigError, match="steps of 3 ranks, expected 2"):
        prove(all_reduce(2, 4), [[], [], []])
