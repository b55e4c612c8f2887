"""What a grid of cases in one test does where one of them fails."""

from __future__ import annotations

import pytest

from support.cases import each


def test_all_cases_are_tried():
    seen = []

    @each("a", [1, 2])
    @each(("b", "c"), [(3, 4), (5, 6)])
    def test(a, b, c, fixture):
        seen.append((a, b, c, fixture))

    test(fixture="f")
    assert seen == [(1, 3, 4, "f"), (1, 5, 6, "f"), (2, 3, 4, "f"), (2, 5, 6, "f")]


@pytest.mark.parametrize("fails", [lambda: 1 // 0, lambda: pytest.fail("it was me")])
def test_what_fails_says_for_which_case(fails):
    @each("a", [1, 2, 3])
    @each("b", ["x"])
    def test(a, b):
        if a == 2:
            fails()

    with pytest.raises(BaseException) as caught:  # noqa: PT011 - one of them is pytest's own
        test()
    assert caught.value.__notes__ == ["with b = 'x'", "with a = 2"]


def test_a_grid_without_cases_is_refused():
    with pytest.raises(ValueError, match="no values of size"):
        each("size", [])
