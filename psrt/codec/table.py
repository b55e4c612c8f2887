"""The codecs, one row each: everything about a codec that is data. Needs no numpy.

Classes, flags and their help, the wire format and the documentation read these rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from psrt.ways import Way


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One codec."""

    #: As ``--codec`` spells it.
    name: str
    #: On the wire.
    code: int
    #: In a few words.
    summary: str
    #: Other names that a user may try.
    synonyms: tuple[str, ...] = ()
    #: Its knobs with their defaults, by the names of its class's arguments.
    knobs: Mapping[str, float | None] = field(default_factory=dict)
    #: Whether the mean of what is decoded is the vector.
    is_unbiased: bool = False
    #: Whether what is lost is added to the next vector where nobody says; None where it cannot be.
    #: Never while it is ``scaled``.
    feeds_back: bool | None = False
    #: What the elements of a bucket must be a multiple of.
    bucket_multiple: int = 1
    #: Knobs that have other values where a mean is sent back that has been through them already.
    back: Mapping[str, float | None] = field(default_factory=dict)
    #: Whether differences to what the receiver holds may be sent by it: it keeps nothing back by
    #: itself, and what it loses is less than what it is given.
    sends_differences: bool = True
    #: Knobs that have these values in such differences, whatever is asked.
    differences: Mapping[str, float | None] = field(default_factory=dict)
    #: Whether it is told of the matrices in the vector.
    takes_matrices: bool = False
    #: In what ways its sums may travel: ``auto`` takes the fastest of these.
    ways: tuple[Way, ...] = (Way.TWO_PHASES, Way.GATHERED)
    #: And where a schedule is asked for by its name, which may lose more.
    ways_if_asked: tuple[Way, ...] = ()
    #: Microseconds of a call and nanoseconds of an element, to encode and to decode; see ``times``.
    times: tuple[tuple[float, float], tuple[float, float]]

    def feeds_back_with(self, knobs: Mapping[str, float | None]) -> bool:
        """Return whether what is lost is added to the next vector where nobody says.

        Args:
            knobs: those given, by name.

        >>> [TABLE["random-k"].feeds_back_with({"scaled": it}) for it in (True, False)]
        [False, True]
        """
        return bool(self.feeds_back) and not {**self.knobs, **knobs}.get("scaled")


_ROWS = (
    # Half precision is added as it is; either way it is rounded a few times.
    Row(
        name="float16",
        code=1,
        summary="IEEE half precision",
        synonyms=("fp16", "half"),
        ways=(Way.STRAIGHT, Way.TWO_PHASES),
        ways_if_asked=(Way.GATHERED,),
        times=((3, 1.72), (2, 0.9)),
    ),
    Row(
        name="bfloat16",
        code=2,
        summary="the upper half of a float32",
        synonyms=("bf16",),
        times=((6, 1.04), (3, 0.35)),
    ),
    Row(
        name="float8-e4m3",
        code=3,
        summary="8 bits, 3 of them mantissa, and a scale for each bucket",
        synonyms=("fp8", "float8"),
        times=((24, 3.99), (8, 1.38)),
        knobs={"bucket": 128},
    ),
    Row(
        name="float8-e5m2",
        code=4,
        summary="8 bits, 2 of them mantissa, and a scale for each bucket",
        times=((23, 3.97), (8, 1.34)),
        knobs={"bucket": 128},
    ),
    Row(
        name="float4-e3m0",
        code=5,
        summary="powers of two in 4 bits, and a scale for each bucket",
        times=((36, 4.41), (18, 1.77)),
        knobs={"bucket": 128},
        feeds_back=True,
    ),
    Row(
        name="int8",
        code=6,
        summary="127 levels of the largest magnitude, rounded at random",
        times=((13, 2.68), (7, 0.7)),
        knobs={"bucket": 1024},
        is_unbiased=True,
        feeds_back=None,
    ),
    Row(
        name="qsgd",
        code=7,
        summary="levels of the l2 norm, rounded at random",
        times=((26, 3.01), (19, 1.1)),
        knobs={"levels": 7, "bucket": 128},
        is_unbiased=True,
        feeds_back=None,
    ),
    Row(
        name="ternary",
        code=8,
        summary="-1, 0 or 1 times the largest magnitude, drawn at random, in 2 bits",
        times=((24, 2.89), (17, 1.11)),
        knobs={"bucket": 4096},
        is_unbiased=True,
        sends_differences=False,
        feeds_back=None,
    ),
    Row(
        name="ternary-base3",
        code=9,
        summary="as ternary, five elements in a byte",
        times=((15, 3.03), (8, 0.69)),
        knobs={"bucket": 4096},
        is_unbiased=True,
        sends_differences=False,
        feeds_back=None,
    ),
    Row(
        name="sign",
        code=10,
        summary="signs, and the mean magnitude of each bucket",
        synonyms=("signsgd", "1bit"),
        times=((8, 0.68), (5, 0.64)),
        knobs={"bucket": 1024},
        feeds_back=True,
        bucket_multiple=8,
    ),
    Row(
        name="top-k",
        code=11,
        summary="the largest elements",
        times=((31, 0.88), (15, 0.28)),
        knobs={"density": 0.01},
        feeds_back=True,
    ),
    Row(
        name="threshold",
        code=12,
        summary="the elements that reach a threshold",
        times=((30, 0.83), (15, 0.27)),
        knobs={"threshold": 1e-3},
        feeds_back=True,
    ),
    # Scaled, it is unbiased. With error feedback it must not be, as the scaled sum of what is sent
    # and what is kept back would grow from step to step.
    Row(
        name="random-k",
        code=13,
        summary="elements drawn at random, known by a seed",
        ways=(Way.STRAIGHT,),
        # In two phases little of what was drawn is drawn again of its mean.
        ways_if_asked=(Way.TWO_PHASES, Way.GATHERED),
        times=((17, 0.5), (13, 0.67)),
        knobs={"density": 0.01, "scaled": True},
        is_unbiased=True,
        feeds_back=True,
        differences={"scaled": False},
    ),
    Row(
        name="low-rank",
        code=14,
        summary="each matrix as the product of two thin ones",
        synonyms=("powersgd",),
        ways=(Way.STRAIGHT,),
        # In two phases matrices are cut, each part with a P of its own.
        ways_if_asked=(Way.TWO_PHASES, Way.GATHERED),
        times=((16, 0.68), (5, 0.6)),
        knobs={"rank": 2},
        feeds_back=True,
        takes_matrices=True,
    ),
    # What it keeps back is its velocity.
    Row(
        name="dgc",
        code=15,
        summary="the largest elements of a momentum that each worker keeps",
        times=((34, 1.71), (16, 0.18)),
        knobs={"density": 0.001, "momentum": 0.9, "clip_norm": None, "warmup_epochs": 4},
        sends_differences=False,
        feeds_back=None,
        back={"momentum": 0.0, "clip_norm": None},
    ),
    # As is its momentum.
    Row(
        name="demo",
        code=16,
        summary="the largest cosine coefficients of a momentum that each worker keeps",
        times=((7, 10.35), (22, 2.34)),
        knobs={"chunk": 64, "kept": 32, "momentum": 0.999},
        sends_differences=False,
        feeds_back=None,
        back={"momentum": 0.0},
        takes_matrices=True,
        ways=(Way.GATHERED,),
        ways_if_asked=(Way.TWO_PHASES,),
    ),
    Row(
        name="nonzero",
        code=17,
        summary="the elements that are not zero, or all where that is shorter: nothing is lost",
        times=((20, 0.9), (14, 0.45)),
        is_unbiased=True,
        feeds_back=None,
    ),
)

#: Every codec by its name.
TABLE: Final[Mapping[str, Row]] = {row.name: row for row in _ROWS}


def codecs_with(knob: str) -> tuple[str, ...]:
    """Return the names of the codecs that have a knob.

    >>> codecs_with("density")
    ('top-k', 'random-k', 'dgc')
    """
    return tuple(row.name for row in _ROWS if knob in row.knobs)


def differences_with(knob: str) -> tuple[str, ...]:
    """Return the names of the codecs of differences that obey a knob.

    >>> differences_with("density"), differences_with("scaled")
    (('top-k', 'random-k'), ())
    """
    rows = (TABLE[name] for name in codecs_with(knob))
    return tuple(row.name for row in rows if row.sends_differences and knob not in row.differences)
