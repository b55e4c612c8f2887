"""The table of codecs, a row each: all metadata of a codec. Needs no numpy.

A row has a codec's knobs and what they can be combined with, and makes its sending and receiving
side; flags, help, wire format and documentation come from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from psrt.core.errors import ConfigError
from psrt.core.ways import Way
from psrt.rows.knobs import knob
from psrt.rows.row import Row, Rows
from psrt.rows.values import REAL, SWITCH, WHOLE

if TYPE_CHECKING:
    from psrt.codec.codec import Codec, Encoder
    from psrt.codec.matrices import Matrix


@dataclass(frozen=True)
class CodecRow(Row):
    """One codec. A new one needs a file with its class, and a row here or in another package."""

    #: Its number in the header of frames.
    code: ClassVar[int]
    #: Whether decoding is unbiased: the expected decoded vector is the encoded one.
    is_unbiased: ClassVar[bool] = False
    #: Whether error feedback is on by default; None if it cannot be.
    feeds_back: ClassVar[bool | None] = False
    #: Whether it may encode differences to what the receiver holds: it has no residual of its own,
    #: and its error is smaller than the vector.
    sends_differences: ClassVar[bool] = True
    #: Knobs and the values that they always have for such differences.
    differences: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    #: Knobs and their values for means sent back, if vectors went through the codec before.
    back: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    #: Whether it needs to know where the matrices of a vector are.
    takes_matrices: ClassVar[bool] = False
    #: Ways in which an all-reduce may send its sums; ``auto`` takes the fastest.
    ways: ClassVar[tuple[Way, ...]] = (Way.TWO_PHASES, Way.GATHERED)
    #: More ways, with larger errors: only for a schedule that is requested by name.
    ways_if_asked: ClassVar[tuple[Way, ...]] = ()
    #: Microseconds per call and nanoseconds per element, to encode and to decode; see ``times``.
    times: ClassVar[tuple[tuple[float, float], tuple[float, float]]]
    #: Knobs for examples of a few elements.
    small: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    @property
    def is_fed_back(self) -> bool:
        """Whether error feedback is on by default."""
        return bool(self.feeds_back)

    @property
    def can_feed_back(self) -> bool:
        """Whether error feedback is possible."""
        return self.feeds_back is not None

    @property
    def contraction(self) -> float | None:
        """δ of E‖C(v) − v‖² ≤ (1 − δ)‖v‖²; None if unknown, 1 if the error is negligible."""
        return 1.0

    def settled(self, *, scales: bool) -> Self:
        """Return the row with open knobs set.

        Args:
            scales: whether elements may be scaled to make the codec unbiased: not with error
                feedback, where residuals would grow from step to step.
        """
        return self

    def of_differences(self) -> Self:
        """Return the row that encodes differences to what the receiver holds."""
        return replace(self, **self.differences)

    def of_means(self) -> Self:
        """Return the row that encodes means of vectors that it has encoded before."""
        return replace(self, **self.back)

    def check_matrices(self, shapes: Iterable[tuple[int, int]]) -> None:
        """Check the knobs against a model's matrices, given as (rows, columns).

        Raises:
            ConfigError: in one line, which begins with the row.
        """

    def codec(self, n: int, *, matrices: Sequence[Matrix] = ()) -> Codec:
        """Make a codec for vectors of n elements: the receiving side.

        Args:
            n: elements of a vector.
            matrices: of the vector, disjoint and in order; most codecs ignore them.

        Raises:
            ConfigError: if the codec cannot be made for such vectors.
        """
        more = {"matrices": matrices} if self.takes_matrices else {}
        codec: Codec = self.made(n, **self.settled(scales=True).knobs, **more)
        return codec

    def encoder(
        self, n: int, *, error_feedback: bool | None = None, matrices: Sequence[Matrix] = ()
    ) -> Encoder:
        """Make the sending side, with its residual if any.

        Args:
            n: elements of a vector.
            error_feedback: whether to add error feedback; None for the row's default.
            matrices: as in ``codec``.

        Raises:
            ConfigError: as ``codec``.
        """
        from psrt.codec.feedback import ErrorFeedback  # needs numpy

        feeds_back = self.is_fed_back if error_feedback is None else error_feedback
        if feeds_back and not self.settled(scales=True).can_feed_back:
            what = "which is unbiased or has its own residual" if self.feeds_back is None else ""
            raise ConfigError(
                f"error feedback around {self.name}, {what or 'scaled'}: residuals would grow, or "
                "errors count twice"
            )
        codec = self.codec(n, matrices=matrices)
        return ErrorFeedback(codec) if feeds_back else codec


def _bucket(default: int) -> Any:
    help = "number of elements that share a scale"
    return knob(default, WHOLE, help, min=1, max=65535)


def _density(default: float) -> Any:
    return knob(default, REAL, "share of the elements that are sent", exclusive_min=0, max=1)


def _momentum(default: float) -> Any:
    help = "fraction of a worker's momentum kept from step to step, instead of the optimizer's"
    return knob(default, REAL, help, min=0, exclusive_max=1)


_FEW: Final = MappingProxyType({"bucket": 4})


class Float16(CodecRow):
    """Half precision. Sums may be taken in it, as they are rounded a few times either way."""

    name, code = "float16", 1
    summary = "IEEE half precision"
    synonyms = ("fp16", "half")
    home = "psrt.codec.casts:Float16"
    ways = (Way.STRAIGHT, Way.TWO_PHASES)
    ways_if_asked = (Way.GATHERED,)
    times = ((3, 1.72), (2, 0.9))


class BFloat16(CodecRow):
    """The upper half of each number."""

    name, code = "bfloat16", 2
    summary = "the upper half of a float32"
    synonyms = ("bf16",)
    home = "psrt.codec.casts:BFloat16"
    times = ((6, 1.04), (3, 0.35))


@dataclass(frozen=True)
class Float8E4M3(CodecRow):
    """Eight bits, and a scale for each bucket."""

    name, code = "float8-e4m3", 3
    summary = "8 bits, 3 of them mantissa, and a scale for each bucket"
    synonyms = ("fp8", "float8")
    home = "psrt.codec.small_floats:Float8E4M3"
    times = ((24, 3.99), (8, 1.38))
    small = _FEW
    bucket: int = _bucket(128)


@dataclass(frozen=True)
class Float8E5M2(CodecRow):
    """Eight bits, and a scale for each bucket."""

    name, code = "float8-e5m2", 4
    summary = "8 bits, 2 of them mantissa, and a scale for each bucket"
    home = "psrt.codec.small_floats:Float8E5M2"
    times = ((23, 3.97), (8, 1.34))
    small = _FEW
    bucket: int = _bucket(128)


@dataclass(frozen=True)
class Float4E3M0(CodecRow):
    """Four bits, and a scale for each bucket."""

    name, code = "float4-e3m0", 5
    summary = "powers of two in 4 bits, and a scale for each bucket"
    home = "psrt.codec.small_floats:Float4E3M0"
    times = ((36, 4.41), (18, 1.77))
    feeds_back = True
    small = _FEW
    bucket: int = _bucket(128)


@dataclass(frozen=True)
class Int8(CodecRow):
    """Levels of the largest magnitude."""

    name, code = "int8", 6
    summary = "127 levels of the largest magnitude, rounded at random"
    home = "psrt.codec.quantize:Int8"
    times = ((13, 2.68), (7, 0.7))
    is_unbiased, feeds_back = True, None
    small = _FEW
    bucket: int = _bucket(1024)


@dataclass(frozen=True)
class Qsgd(CodecRow):
    """Levels of the norm."""

    name, code = "qsgd", 7
    summary = "levels of the l2 norm, rounded at random"
    home = "psrt.codec.quantize:Qsgd"
    times = ((26, 3.01), (19, 1.1))
    is_unbiased, feeds_back = True, None
    small = _FEW
    levels: int = knob(
        7, WHOLE, "levels of a magnitude; with signs and 0 they fit into 8 bits", min=1, max=127
    )
    bucket: int = _bucket(128)

    @property
    def contraction(self) -> float:
        """δ = 1/(1 + ω), for frames scaled by that factor.

        Rounding to levels at random has a variance of ω‖v‖², ω = min(d/s², √d/s) for s levels and
        buckets of d (Alistarh et al., "QSGD", NeurIPS 2017).

        >>> round(Qsgd(levels=7, bucket=128).contraction, 2)
        0.38
        """
        variance = min(self.bucket / self.levels**2, math.sqrt(self.bucket) / self.levels)
        return 1.0 / (1.0 + variance)


@dataclass(frozen=True)
class Ternary(CodecRow):
    """Signs of elements drawn at random."""

    name, code = "ternary", 8
    summary = "-1, 0 or 1 times the largest magnitude, drawn at random, in 2 bits"
    home = "psrt.codec.quantize:Ternary"
    times = ((24, 2.89), (17, 1.11))
    is_unbiased, feeds_back = True, None
    sends_differences = False
    small = _FEW
    bucket: int = _bucket(4096)


class TernaryBase3(Ternary):
    """The same in fewer bits."""

    name, code = "ternary-base3", 9
    summary = "as ternary, five elements in a byte"
    home = "psrt.codec.quantize:TernaryBase3"
    times = ((15, 3.03), (8, 0.69))


@dataclass(frozen=True)
class Sign(CodecRow):
    """One bit of each element."""

    name, code = "sign", 10
    summary = "signs, and the mean magnitude of each bucket"
    synonyms = ("signsgd", "1bit")
    home = "psrt.codec.sign:Sign"
    times = ((8, 0.68), (5, 0.64))
    feeds_back = True
    small = MappingProxyType({"bucket": 8})
    bucket: int = _bucket(1024)

    def check(self) -> None:
        """Check that a bucket fills whole bytes."""
        if self.bucket % 8:
            raise ConfigError(f"bucket must be a multiple of 8, got {self.bucket}")


@dataclass(frozen=True)
class TopK(CodecRow):
    """The k largest elements, uncompressed."""

    name, code = "top-k", 11
    summary = "the largest elements"
    home = "psrt.codec.sparse:TopK"
    times = ((31, 0.88), (15, 0.28))
    feeds_back = True
    small = MappingProxyType({"density": 0.25})
    density: float = _density(0.01)

    @property
    def contraction(self) -> float:
        """The density: at least that of elements drawn at random."""
        return self.density


@dataclass(frozen=True)
class Threshold(CodecRow):
    """All elements above a threshold, however many."""

    name, code = "threshold", 12
    summary = "the elements that reach a threshold"
    home = "psrt.codec.sparse:Threshold"
    times = ((30, 0.83), (15, 0.27))
    feeds_back = True
    small = MappingProxyType({"threshold": 1.0})
    threshold: float = knob(
        1e-3, REAL, "magnitude from which on elements are sent", exclusive_min=0, max=1e30
    )


@dataclass(frozen=True)
class RandomK(CodecRow):
    """Elements drawn at random. If scaled, it is unbiased and has no error feedback."""

    name, code = "random-k", 13
    summary = "elements drawn at random, known by a seed"
    home = "psrt.codec.sparse:RandomK"
    ways = (Way.STRAIGHT,)
    # In two phases, means are encoded again: few of the elements drawn first are drawn again.
    ways_if_asked = (Way.TWO_PHASES, Way.GATHERED)
    times = ((17, 0.5), (13, 0.67))
    is_unbiased, feeds_back = True, True
    differences = MappingProxyType({"scaled": False})
    small = MappingProxyType({"density": 0.25})
    density: float = _density(0.01)
    scaled: bool | None = knob(
        None, SWITCH, "multiply the elements that are sent, so that their mean is right",
        is_open=True,
        default_text="true, but not with --error-feedback, or of differences to a centre",
    )  # fmt: skip

    @property
    def is_fed_back(self) -> bool:
        """Whether it is known not to be scaled."""
        return self.scaled is False

    @property
    def can_feed_back(self) -> bool:
        """Unless it is scaled: residuals would grow from step to step."""
        return not self.scaled

    @property
    def contraction(self) -> float:
        """The density."""
        return self.density

    def settled(self, *, scales: bool) -> Self:
        """Return the row with ``scaled`` set."""
        return self if self.scaled is not None else replace(self, scaled=scales)


@dataclass(frozen=True)
class LowRank(CodecRow):
    """Two thin matrices for each matrix."""

    name, code = "low-rank", 14
    summary = "each matrix as the product of two thin ones"
    synonyms = ("powersgd",)
    home = "psrt.codec.low_rank:LowRank"
    ways = (Way.STRAIGHT,)
    # In two phases, matrices are split, and each piece has its own P.
    ways_if_asked = (Way.TWO_PHASES, Way.GATHERED)
    times = ((16, 0.68), (5, 0.6))
    feeds_back = True
    takes_matrices = True
    small = MappingProxyType({"rank": 1})
    rank: int = knob(
        2, WHOLE, "columns of the two thin matrices that stand for each matrix", min=1, max=65535
    )

    @property
    def contraction(self) -> None:
        """None: it depends on the matrices."""
        return None

    def check_matrices(self, shapes: Iterable[tuple[int, int]]) -> None:
        """Check that some matrix has at least ``rank`` rows and columns."""
        most = max((min(shape) for shape in shapes), default=0)
        if not most:
            raise ConfigError(
                f"{self} compresses matrices, but the model has none; a problem of your own names "
                "them in matrices()"
            )
        if self.rank > most:
            raise ConfigError(
                f"{self}: rank {self.rank} is higher than that of any matrix of the model, at most "
                f"{most}"
            )


@dataclass(frozen=True)
class Dgc(CodecRow):
    """The largest elements of a velocity, which is its own residual."""

    name, code = "dgc", 15
    summary = "the largest elements of a momentum that each worker keeps"
    home = "psrt.codec.dgc:Dgc"
    times = ((34, 1.71), (16, 0.18))
    sends_differences = False
    feeds_back = None
    back = MappingProxyType({"momentum": 0.0, "clip_norm": None})
    small = MappingProxyType({"density": 0.25, "warmup_epochs": 0})
    density: float = _density(0.001)
    momentum: float = _momentum(0.9)
    clip_norm: float | None = knob(
        None, REAL, "scale gradients with an L2 norm above X down to X before the momentum",
        exclusive_min=0, max=1e30, default_text="no clipping",
    )  # fmt: skip
    warmup_epochs: int = knob(
        4, WHOLE, "send more in the first N epochs: a quarter, a 16th, and so on", min=0
    )


@dataclass(frozen=True)
class Demo(CodecRow):
    """DCT coefficients of a momentum, which is its own residual."""

    name, code = "demo", 16
    summary = "the largest cosine coefficients of a momentum that each worker keeps"
    home = "psrt.codec.demo:Demo"
    times = ((7, 10.35), (22, 2.34))
    sends_differences = False
    feeds_back = None
    back = MappingProxyType({"momentum": 0.0})
    takes_matrices = True
    ways = (Way.GATHERED,)
    ways_if_asked = (Way.TWO_PHASES,)
    small = MappingProxyType({"chunk": 4, "kept": 1})
    # At most 256: a place within a square must fit into a uint16.
    chunk: int = knob(
        64, WHOLE, "cut matrices into squares with sides of N for the cosine transform",
        min=1, max=256,
    )  # fmt: skip
    kept: int = knob(32, WHOLE, "coefficients of each square that are sent", min=1, max=65536)
    momentum: float = _momentum(0.999)

    def check(self) -> None:
        """Check that a chunk has that many coefficients."""
        if self.kept > self.chunk**2:
            raise ConfigError(f"kept {self.kept} is more than chunk {self.chunk} squared")


class Nonzero(CodecRow):
    """All elements but zeros: lossless."""

    name, code = "nonzero", 17
    summary = "the elements that are not zero, or all where that is shorter: nothing is lost"
    home = "psrt.codec.sparse:Nonzero"
    times = ((20, 0.9), (14, 0.45))
    is_unbiased, feeds_back = True, None


#: Every codec by its name.
CODECS: Final = Rows("codec", "psrt.codecs", CodecRow, (
    Float16, BFloat16, Float8E4M3, Float8E5M2, Float4E3M0, Int8, Qsgd, Ternary, TernaryBase3, Sign,
    TopK, Threshold, RandomK, LowRank, Dgc, Demo, Nonzero,
))  # fmt: skip
