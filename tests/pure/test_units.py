import pytest

from psrt.units import size_text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (999, "999 B"), (1023, "1023 B"), (1023.5, "1 KiB"), (1024, "1 KiB"), (10_000, "9.77 KiB"),
        (1_048_000, "1023 KiB"), (1_048_300, "1 MiB"), (12_345_678, "11.8 MiB"),
        (5e9, "4.66 GiB"), (2e12, "1.82 TiB"), (5e15, "4547 TiB"),
    ],
)  # fmt: skip
def test_a_size_has_three_digits_and_the_unit_that_suits(nbytes, text):
    assert size_text(nbytes) == text
