"""What people read: the whole of a small ring, the worked example, and what is left out."""

from __future__ import annotations

import re

import pytest

from psrt.collective import SCHEDULES
from psrt.explain.inputs import Example
from psrt.explain.output import as_text
from support.cases import each
from support.explanations import EXAMPLE, explained

RING = """\
ring, an all-reduce of 4 ranks: A B C D
  {summary}
  vector: 32 B = 8 float32, chunks 0–3 of 2 elements
  Σ is the sum of all 4

round 1
  A → B: chunk 0 (A)   B holds A+B
  B → C: chunk 1 (B)   C holds B+C
  C → D: chunk 2 (C)   D holds C+D
  D → A: chunk 3 (D)   A holds A+D

round 2
  A → B: chunk 3 (A+D)   B holds A+B+D
  B → C: chunk 0 (A+B)   C holds A+B+C
  C → D: chunk 1 (B+C)   D holds B+C+D
  D → A: chunk 2 (C+D)   A holds A+C+D

round 3
  A → B: chunk 2 (A+C+D)   B holds A+B+C+D = Σ
  B → C: chunk 3 (A+B+D)   C holds A+B+C+D = Σ
  C → D: chunk 0 (A+B+C)   D holds A+B+C+D = Σ
  D → A: chunk 1 (B+C+D)   A holds A+B+C+D = Σ

round 4
  A → B: chunk 1 (Σ)   B holds Σ
  B → C: chunk 2 (Σ)   C holds Σ
  C → D: chunk 3 (Σ)   D holds Σ
  D → A: chunk 0 (Σ)   A holds Σ

round 5
  A → B: chunk 0 (Σ)   B holds Σ
  B → C: chunk 1 (Σ)   C holds Σ
  C → D: chunk 2 (Σ)   D holds Σ
  D → A: chunk 3 (Σ)   A holds Σ

round 6
  A → B: chunk 3 (Σ)   B holds Σ
  B → C: chunk 0 (Σ)   C holds Σ
  C → D: chunk 1 (Σ)   D holds Σ
  D → A: chunk 2 (Σ)   A holds Σ

all ranks end with A+B+C+D = Σ in chunks 0–3

wires     4 of the 12 from one rank to another
messages  24, 6 a rank

                            this one   least   ratio   in time   at least
rounds                             6       2    3.00      6 ms       2 ms
bytes of the busiest rank       48 B    48 B    1.00     48 µs      48 µs
bytes it combines               24 B    24 B    1.00    2.4 µs     2.4 µs
time                         6.05 ms    2 ms    3.03
at α = 1 ms a message, β = 1e+03 ns/byte on the wire, γ = 100 ns/byte combined"""


def test_a_ring_of_four():
    summary = SCHEDULES["ring"].summary
    assert as_text(explained("ring")) == RING.format(summary=summary)


def test_the_worked_example_number_by_number():
    text = as_text(explained("ring", example=EXAMPLE, order=(0, 1, 3, 2)))
    assert "  ring: A → B → D → C → A\n" in text
    assert "  A → B: chunk 0 (17)   B: 17 + 5 = 22\n" in text
    assert "  B → D: chunk 0 (22)   D: 22 + 12 = 34\n" in text
    assert "  D → C: chunk 0 (34)   C: 34 + 3 = 37\n" in text
    assert (
        "chunk 0: 17 → 22 → 34 → 37\n"
        "chunk 1: 13 → 20 → 26 → 37\n"
        "chunk 2: 2 → 12 → 13 → 36\n"
        "chunk 3: 8 → 17 → 31 → 43\n"
        "all ranks end with (37, 37, 36, 43)\n"
    ) in text


@pytest.mark.parametrize(
    ("op", "line", "end"),
    [
        ("sum", "17 + 5 = 22", "(37, 37, 36, 43)"),
        ("mean", "17 + 5 = 22", "(9.25, 9.25, 9, 10.75)"),
        ("min", "min of 17 and 5 = 5", "(3, 6, 1, 8)"),
        ("max", "max of 17 and 5 = 17", "(17, 13, 23, 14)"),
        ("prod", "17 × 5 = 85", "(3060, 6006, 460, 12096)"),
    ],
)
def test_operations(op, line, end):
    text = as_text(explained("ring", example=EXAMPLE, op=op))
    assert f"B: {line}\n" in text
    assert f"all ranks end with {end}\n" in text
    assert ("divided by the 4 ranks" in text) == (op == "mean")


def test_several_numbers_to_a_chunk():
    example = Example(("left", "right"), ((1, 2, 3), (10, 20, 30.5)))
    text = as_text(explained("ring", example=example))
    assert "left → right: chunk 0 (1, 2)" in text
    assert "right: (1, 2) + (10, 20) = (11, 22)" in text
    assert "all ranks end with (11, 22, 33.5)" in text


def test_a_workspace_and_what_ranks_do_alone():
    text = as_text(explained("naive", 2))
    assert "  A → B: vector into w0 (A)   B holds A in w0\n" in text
    assert "  A folds w0 into vector      A holds A+B = Σ in vector\n" in text


def test_phases_tell_what_each_rank_ends_with():
    assert "A ends with A+B+C = Σ in chunk 0\nB ends with" in as_text(
        explained("reduce-scatter", 3)
    )
    assert "all ranks end with 0: A, 1: B, 2: C\n" in as_text(explained("all-gather", 3))
    assert "\nB ends with A+B+C = Σ in the vector\n" not in as_text(explained("reduce", 3, root=1))
    text = as_text(explained("reduce", 3, root=1))
    assert "  root: B\n" in text
    assert "\nB ends with A+B+C = Σ in vector\n" in text
    assert "A ends with" not in text


@pytest.mark.parametrize("name", ["ring", "tree", "butterfly", "naive"])
def test_one_rank_and_no_elements_have_nothing_to_send(name):
    assert "\nnothing to send\n" in as_text(explained(name, 1))
    text = as_text(explained(name, 4, 0))
    assert "\nnothing to send\n" in text
    assert "end with" not in text


def test_what_is_left_out_is_said_and_can_be_had():
    shown = explained("ring", 30, 30)
    text, whole = as_text(shown), as_text(shown, everything=True)
    assert len(text.splitlines()) < 80
    assert "… rounds 4 to 56 with 1590 steps are left out; --all prints them" in text
    assert "  … and 24 more; --all prints them" in text
    assert len(re.findall(" → ", whole)) == 58 * 30
    assert "left out" not in whole


def test_few_long_rounds_are_shortened_too():
    text = as_text(explained("butterfly", 128, 1))
    assert len(text.splitlines()) < 140
    assert "more; --all prints them" in text
    assert "  0 → 1: vector (0)   1 holds 0+1\n" in text


@each("size", range(1, 10))
@pytest.mark.parametrize("name", list(SCHEDULES))
def test_everything_can_be_written(name, size):
    text = as_text(explained(name, size, 100))
    assert text.startswith(name)
    assert not re.search(r"[ \t]+$", text, re.MULTILINE)
    assert "None" not in text


def test_long_results_are_shortened():
    assert "15: P, … 20 in all\n" in as_text(explained("all-gather", 20, 20))
    values = tuple(range(100))
    text = as_text(explained("tree", example=Example(("A", "B"), (values, values))))
    assert "124, 126, … 100 in all)\n" in text
