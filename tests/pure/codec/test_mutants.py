"""The checks of codecs are checked by breaking codecs: each mutant must go red.

A mutant is one change of the source, of a codec or of what it is made of. What is sound passes the
same checks, which know the wire format from its documentation alone.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

import psrt.codec
from psrt.codec.matrices import Matrix
from psrt.codec.table import CODECS
from support import codecs
from support.cases import some


class Mutant(NamedTuple):
    codec: str
    #: File, and the text behind which the change is.
    file: str
    after: str
    old: str
    new: str


CASTS, SMALL, LEVELS, SIGN = "casts", "small_floats", "quantize", "sign"
SPARSE, INDICES, PACKING, BUCKETS = "sparse", "indices", "packing", "buckets"
LOW_RANK, DGC, DEMO, CODEC = "low_rank", "dgc", "demo", "codec"


def of(names, file, after, *changes):
    """Return a mutant of each codec and change."""
    return [Mutant(name, file, after, *change) for name in names for change in changes]


_SMALL = ("float8-e4m3", "float8-e5m2", "float4-e3m0")
_QUANTIZED = ("int8", "qsgd", "ternary", "ternary-base3")
MUTANTS = [
    *of(
        ["float16"], CASTS, "class Float16",
        ("2 * n)", "2 * n + 2)"),
        ('vector, payload.view("<f2")', 'vector, payload.view(">f2")'),
        ('out, payload.view("<f2")', 'out, payload.view("<i2")'),
        ("(block), casting", "(np.abs(block)), casting"),
        ("(block), casting", "(block * np.float32(1 - 2**-11)), casting"),
        ('"float16"]', '"bfloat16"]'),
    ),
    *of(
        ["bfloat16"], CASTS, "class BFloat16",
        ("np.add(odd, _HALF, out=odd)", "pass"),
        ("np.bitwise_and(odd, 1, out=odd)", "np.bitwise_and(odd, 0, out=odd)"),
        ("np.right_shift(bits, 16, out=bits)", "np.right_shift(bits, 15, out=bits)"),
        ("given[at : at + BLOCK]", "given[:BLOCK]"),
        ("if is_odd:", "if False:"),
        ("result[at + nan]", "result[nan - 1]"),
        ("np.left_shift(out.view(np.uint32), 16", "np.left_shift(out.view(np.uint32), 15"),
    ),
    *of(
        _SMALL, SMALL, "def ",
        ("(fraction > limit)", "(fraction >= limit + 1)"),
        ("below % 2 == 0, below, above", "below % 2 == 0, above, below + 1"),
        ("power + _BIAS, _NAN)", "power + _BIAS, 0)"),
        ("half | np.uint8(1 << (exponent + mantissa))", "half"),
        ("upper |= (bits & 0xFFFF) != 0", "upper &= 0x7FFF"),
        ("numbers[:-1].astype(np.float64) + numbers[1:]", "2 * numbers[1:].astype(np.float64)"),
        ("np.ldexp(1.0, bytes_ - _BIAS)", "np.ldexp(1.0, bytes_ - 126)"),
    ),
    *of(
        _QUANTIZED, LEVELS, "class _Levels",
        ("np.add(steps, random, out=steps)", "np.add(steps, np.float32(0.5), out=steps)"),
        ("np.add(steps, random, out=steps)", "np.add(steps, random[0], out=steps)"),
        ("np.add(steps, random, out=steps)", "np.add(steps, random * random, out=steps)"),
        ("random_raw(count)", "random_raw(1).repeat(count)"),
        ("np.float32(levels) / scale", "np.float32(levels) / scale / 2"),
        ("/ np.float32(self._levels)", "/ np.float32(self._levels + 1)"),
        ("scales[first : first + len(rows)] = scale", "scales[: len(rows)] = scale"),
    ),
    *of(["int8"], LEVELS, "class Int8", ("127, bucket", "126, bucket")),
    *of(["qsgd"], LEVELS, "class Qsgd", ("np.sqrt(np.einsum", "np.cbrt(np.einsum")),
    *of(["ternary"], LEVELS, "class Ternary", ("n, 1, bucket", "n, 2, bucket")),
    *of(["ternary"], PACKING, "def _merges", ("(8 - bits) << i", "(8 - bits) << (i + 1)")),
    *of(
        ["ternary-base3"], PACKING, "def pack_trits",
        ("digits @ _POWERS", "digits @ _POWERS[::-1]"),
        ("digits @ _POWERS", "digits @ (_POWERS - 1)"),
        ("rest @ _POWERS[: rest.size]", "rest.sum()"),
        ("[: out.size - whole * TRITS]", "[whole * TRITS - out.size :]"),
        ("BALANCED, packed[:whole]", "-BALANCED, packed[:whole]"),
    ),
    *of(
        ["qsgd"], PACKING, "def pack_bits",
        ("last[: numbers.size - whole]", "last[whole - numbers.size :]"),
        ("out[whole * bits // 8 :]", "out[: numbers.size - whole]"),
    ),
    *of(
        ["sign"], SIGN, "class Sign",
        ("np.add.reduce(magnitudes", "np.maximum.reduce(magnitudes"),
        ("scales[:whole] /=", "scales[:whole] *= 0.5; scales[:whole] /="),
        ("scales[whole:] /= np.float32(rest)", "scales[whole:] /= np.float32(self._buckets.size)"),
        ("or_nan(scales)", "pass"),
        ("np.signbit(block, out=signs)", "np.less_equal(block, 0.1, out=signs)"),
        ("[: rows.size - 8 * whole]", "[: rows.size - 8 * whole][::-1]"),
        ("-(-n // 8)", "-(-n // 7)"),
        ("np.packbits(signs)", 'np.packbits(signs, bitorder="little")'),
        ("scales[first : first + len(rows)]", "scales[: len(rows)]"),
    ),
    *of(
        ["top-k"], SPARSE, "class Search",
        ("out=below), at)", "out=below), 0)"),
        ("magnitudes.size - k)[magnitudes.size - k]",
         "magnitudes.size - k)[magnitudes.size - k + 1]"),
        ("[-surplus:]", "[:surplus]"),
        (".view(np.uint32) & _MAGNITUDE\n        least", ".view(np.uint32)\n        least"),
        ("at >> 3", "at >> 4"),
        ("at &= 7", "at &= 3"),
        ("if found.size >= k:", "if True:"),
    ),
    *of(
        ["top-k", "threshold", "dgc"], INDICES, "def pack_indices",
        ("more = gaps > 0x7F", "more = gaps > 0xFF"),
        ("gaps[:1] += 1", "pass"),
        ("gaps[left] >> 7", "gaps[left] >> 8"),
        ("places[left] + 1", "places[left] + 2"),
        ("sizes.index(min(sizes))", "sizes.index(max(sizes))"),
        ("np.cumsum(lengths) - lengths", "np.cumsum(lengths)"),
        ("gaps[1:] += 1", "gaps += 1"),
    ),
    *of(["top-k"], SPARSE, "class Chosen", ("out.fill(0)", "pass")),
    *of(
        ["nonzero", "top-k"], SPARSE, "class Chosen",
        ("values.fill(0)", "values.fill(1)"),
        ("values[chosen] = vector[chosen]", "values[: chosen.size] = vector[chosen]"),
        ("return form, self.n, 4 * self.n", "return form, k, 4 * self.n"),
        ('np.copyto(out, payload.view("<f4"))', 'np.copyto(out[1:], payload.view("<f4")[1:])'),
    ),
    *of(
        ["nonzero", "top-k"], INDICES, "def pack_indices",
        ("-(-n // 8)) > 4 * n", "-(-n // 8)) > 5 * n"),
        ("+ min(indices.size, -(-n // 8)) > 4 * n", "> 4 * n"),
        ("-(-n // 8)) > 4 * n", "-(-n // 8)) > 3 * n"),
        ("-(-n // 8)) > 4 * n", "-(-n // 8)) >= 4 * n"),
    ),
    *of(
        ["nonzero"], SPARSE, "class Nonzero",
        ("vector.view(np.uint32) != 0", "vector != 0"),
        ("vector.view(np.uint32) != 0", "vector > 0"),
        ("_nonzero(vector.view(np.uint32) != 0, 0)", "_nonzero(vector.view(np.uint32) != 0, 1)"),
    ),
    *of(
        ["threshold"], SPARSE, "class Search",
        ("np.less(magnitudes", "np.less_equal(magnitudes"),
        ("np.abs(block", "np.positive(block"),
        ("found.append(_nonzero(np.logical_not(below, out=below), at))",
         "found = [_nonzero(np.logical_not(below, out=below), at)]"),
    ),
    *of(
        ["random-k"], SPARSE, "def drawn",
        ("n / self.k if scaled", "self.k / n if scaled"),
        ("scaled and self.k", "self.k"),
        ("left[drawn(seed, n, n - k)] = False", "left[drawn(seed, n, k)] = False"),
        ("np.uint64(n) >> np.uint64(32)", "np.uint64(n // 2) >> np.uint64(32)"),
        ("int(rng.bit_generator.random_raw())", "7"),
        ("missing = k - int(np.count_nonzero(taken))", "missing = 0"),
    ),
    *of(
        ["low-rank"], LOW_RANK, "class LowRank",
        ("np.dot(given, q, out=p)", "np.dot(given, q * q, out=p)"),
        ("orthonormalize(p)", "pass"),
        ("np.dot(given.T, p, out=q)", "np.dot(given.T, p, out=q.copy())"),
        ("np.dot(left, right.T", "np.dot(left, right.T * 2"),
        ("column -= before", "column += before"),
        ("rank * (it.rows + it.columns) < it.rows * it.columns", "True"),
        ("values[at : at + span.size] = span.of(vector)", "values[at : at + span.size] = 0"),
    ),
    *of(
        ["dgc"], DGC, "class Dgc",
        ("np.multiply(momentum, self._momentum, out=momentum)", "pass"),
        ("np.add(velocity, momentum, out=velocity)", "np.add(velocity, vector, out=velocity)"),
        ("momentum[self.chosen] = velocity[self.chosen] = 0.0", "velocity[self.chosen] = 0.0"),
        ("momentum[self.chosen] = velocity[self.chosen] = 0.0", "momentum[self.chosen] = 0.0"),
        ("min(1.0, self._clip_norm / norm)", "self._clip_norm / norm"),
        ("min(1.0, self._clip_norm / norm)", "1.0"),
        ("vector, kept(self.n, self.density(self._epoch))", "vector, kept(self.n, 0.5)"),
    ),
    *of(
        ["demo"], DEMO, "class Demo",
        ("given -= self._back(chunks, values, indices)", "pass"),
        ("given[:] = 0", "pass"),
        ("np.multiply(momentum, self._momentum, out=momentum)", "pass"),
        ("np.add(momentum, vector,", "np.add(momentum, 0.5 * vector,"),
        ("given), self._bases[columns].T", "given), self._bases[columns]"),
        ("basis[0] /= np.sqrt(2)", "pass"),
        ("axis=1)[:, first:]", "axis=1)[:, :k]"),
        ("places[:, 1:] > places", "places[:, 1:] <= places"),
    ),
    *of(
        CODECS, CODEC, "def encode",
        ("(header.code, header.parameter, header.n) != expected", "False"),
        ("[: HEADER_BYTES + nbytes]", "[: HEADER_BYTES + nbytes - 1]"),
    ),
]  # fmt: skip
#: What a module is made of: these are loaded again, in this order, with the change.
PARTS = (CODEC, BUCKETS, PACKING, INDICES, CASTS, SMALL, LEVELS, SIGN, SPARSE, LOW_RANK, DGC, DEMO)
FOLDER = Path(psrt.codec.__file__).parent


def changed(mutant):
    """Return the source of a mutant."""
    source = (FOLDER / f"{mutant.file}.py").read_text(encoding="utf-8")
    at = source.index(mutant.old, source.index(mutant.after) if mutant.after in source else 0)
    return source[:at] + mutant.new + source[at + len(mutant.old) :]


def load(monkeypatch, sources):
    """Load the parts of the package again, some of them from other sources."""
    for part in PARTS:
        name = f"psrt.codec.{part}"
        module = types.ModuleType(name)
        module.__file__ = str(FOLDER / f"{part}.py")
        source = sources.get(part) or Path(module.__file__).read_text(encoding="utf-8")
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(source, module.__file__, "exec"), module.__dict__)


def maker(codec):
    """Return what makes a codec of the modules that are loaded now."""
    row = CODECS[codec]
    module, _, name = row.home.partition(":")
    made = getattr(sys.modules.get(module) or importlib.import_module(module), name)

    def make(n, **knobs):
        if row.takes_matrices:
            knobs["matrices"] = tuple(Matrix(*it) for it in codecs.matrices_in(n))
        return made(n, **knobs)

    return make


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_is_as_documented(codec, monkeypatch):
    load(monkeypatch, {})  # once more, as mutants are
    codecs.check(codec, maker(codec))


@pytest.mark.parametrize(
    "mutant", some(MUTANTS, one_in=8), ids=lambda it: f"{it.codec}: {it.old!r} -> {it.new!r}"
)
def test_a_broken_codec_goes_red(mutant, monkeypatch):
    source = changed(mutant)

    def check():
        load(monkeypatch, {mutant.file: source})
        codecs.check(mutant.codec, maker(mutant.codec))

    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever shows that it is broken
        check()


def test_the_text_that_each_mutant_changes_is_there():
    for mutant in MUTANTS:  # the exhaustive ones, too
        assert changed(mutant)


def test_each_codec_is_broken_in_at_least_five_ways_of_its_own():
    count = Counter(it.codec for it in MUTANTS if it.file != CODEC)
    assert all(count[name] >= 5 for name in CODECS), count
