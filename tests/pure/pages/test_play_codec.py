"""A codec as a film: what it shows are the vectors and the bits of the explanation."""

import numpy as np
import pytest

from psrt.arrays import ITEMSIZE
from psrt.codec.table import TABLE
from psrt.explain.codec import example_of, run, small_knobs
from psrt.pages.play.codec import film_of
from psrt.pages.play.page import MOST_NBYTES, page_of
from psrt.units import size_text


def coded(name, *, steps=2, values=None, feedback=None):
    knobs = small_knobs(name)
    feedback = TABLE[name].feeds_back_with(knobs) if feedback is None else feedback
    values = example_of(name) if values is None else values
    return run(name, values, knobs=knobs, error_feedback=feedback, steps=steps)


@pytest.fixture(params=TABLE)
def pair(request):
    found = coded(request.param)
    return found, film_of(found)


def texts(cells):
    return [cell.text for cell in cells]


def written(vector):
    return [f"{it:.4g}" for it in vector.tolist()]


def test_every_field_goes_over_the_wire_in_order(pair):
    found, film = pair
    lines = [
        it.line
        for frame in film.frames
        if frame.label.endswith("on the wire")
        for it in frame.messages
    ]
    fields = [field for step in found.steps for field in step.fields]
    assert [line.partition(": ")[2] for line in lines] == [
        f"{field.bits}   {field.meaning}" for field in fields
    ]


def test_it_ends_with_what_is_decoded_and_kept_back(pair):
    found, film = pair
    held, last = film.holds(-1), found.steps[-1]
    assert texts(held[0]) == written(last.given)
    if found.error_feedback:
        assert texts(held[1]) == written(last.encoded)
        assert texts(held[2]) == written(last.decoded)
        assert texts(held[3]) == written(last.residual)
    else:
        assert texts(held[1]) == written(last.decoded)
        assert len(held) == 2


def test_bytes_are_beside_those_of_the_vector(pair):
    found, film = pair
    sent = sum(step.nbytes for step in found.steps)
    assert film.bound == "uncompressed"
    assert film.costs[0].whole == film.frames[-1].costs[0].text == size_text(sent)
    assert film.costs[0].least == size_text(2 * ITEMSIZE * found.steps[0].given.size)
    shares = [frame.costs[0].share for frame in film.frames]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0, 1)
    # After each field of the first frame, the bytes up to its end.
    bits = [field.at + field.size for field in found.steps[0].fields]
    wire = [frame for frame in film.frames if frame.label == "step 0: on the wire"]
    if len(wire) == len(bits):
        assert [it.costs[0].share * sent * 8 for it in wire] == pytest.approx(bits)
    assert wire[-1].costs[0].share * sent == pytest.approx(found.steps[0].nbytes)


def test_feedback_of_the_first_step_is_added_in_the_second():
    found = coded("sign")
    film = film_of(found)
    labels = [frame.label for frame in film.frames]
    at = labels.index("step 1: with what was kept back")
    assert texts(film.holds(at)[1]) == written(found.steps[0].given + found.steps[0].residual)
    # What came of the step before is gone by then.
    assert texts(film.holds(at)[2]) == [""] * 8
    assert [it.label for it in film.frames[at].messages] == ["", "+"]


def test_what_is_lost_is_said():
    found = coded("sign", steps=1)
    step = found.steps[0]
    lost = np.linalg.norm(step.encoded - step.decoded) / np.linalg.norm(step.encoded)
    said = next(it.caption for it in film_of(found).frames if it.label == "decoded")
    assert said.endswith(f"What is lost has {lost:.1%} of the length of what was encoded.")


def test_many_numbers_are_coloured_and_their_fields_put_together():
    film = film_of(coded("int8", steps=1, values=tuple(range(-128, 128))))
    assert len(film.frames) <= 28
    assert set(texts(film.holds(-1)[0])) == {""}
    assert [cell.style for cell in film.holds(-1)[0][:1] + film.holds(-1)[0][-1:]] == [1, 0]
    assert len(page_of(film)[0].encode()) < MOST_NBYTES / 2


@pytest.mark.parametrize("value", [float("nan"), 0.0])
def test_strange_numbers_are_shown_as_they_are(value):
    film = film_of(coded("float16", steps=1, values=(value, 0.0)))
    assert texts(film.holds(-1)[0]) == [f"{value:g}", "0"]
    page_of(film)
