"""The checks of codecs are checked by breaking codecs: each mutant must go red.

A mutant is one change of the source, of a codec or of what it is made of. What is sound passes the
same checks, which know the wire format from its documentation alone.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import NamedTuple

import pytest

import psrt.codec
from psrt.codec.matrices import Matrix
from psrt.codec.registry import CODECS
from support import codecs
from support.cases import some


class Mutant(NamedTuple):
    codec: str
    #: File, and the text behind which the change is.
    file: str
    after: str
    old: str
    new: str


def of(names, file, after, *changes):
    """Return a mutant of each codec and change."""
    return [Mutant(name, file, after, *change) for name in names for change in changes]


_SMALL = ("float8-e4m3", "float8-e5m2", "float4-e3m0")
MUTANTS = [
    *of(
        ["float16"], "casts", "class Float16",
        ("vector, casting", "vector * np.float32(1 - 2**-11), casting"),
    ),
    *of(
        ["bfloat16"], "casts", "class BFloat16",
        ("np.bitwise_and(odd, 1, out=odd)", "np.bitwise_and(odd, 0, out=odd)"),
        ("result[at + nan]", "result[nan - 1]"),
    ),
    *of(
        _SMALL, "small_floats", "def ",
        ("(fraction > limit)", "(fraction >= limit + 1)"),
        ("below % 2 == 0, below, above", "below % 2 == 0, above, below + 1"),
    ),
    *of(
        ["int8", "qsgd", "ternary", "ternary-base3"], "quantize", "class _Levels",
        ("np.add(steps, random, out=steps)", "np.add(steps, random[0], out=steps)"),
        ("random_raw(count)", "random_raw(1).repeat(count)"),
        ("scales[first : first + len(rows)] = scale", "scales[: len(rows)] = scale"),
    ),
    *of(["int8"], "quantize", "class Int8", ("127, bucket", "126, bucket")),
    *of(["qsgd"], "quantize", "class Qsgd", ("np.sqrt(np.einsum", "np.cbrt(np.einsum")),
    *of(
        ["ternary-base3"], "packing", "def pack_trits",
        ("[: out.size - whole * TRITS]", "[whole * TRITS - out.size :]"),
    ),
    *of(
        ["sign"], "sign", "class Sign",
        ("scales[whole:] /= np.float32(rest)", "scales[whole:] /= np.float32(self._buckets.size)"),
        ("scales[first : first + len(rows)]", "scales[: len(rows)]"),
    ),
    *of(
        ["top-k"], "sparse", "class Search",
        ("out=below), at)", "out=below), 0)"),
        ("[-surplus:]", "[:surplus]"),
        ("if found.size >= k:", "if True:"),
    ),
    *of(
        ["top-k", "threshold", "dgc"], "indices", "def pack_indices",
        ("more = gaps > 0x7F", "more = gaps > 0xFF"),
    ),
    *of(
        ["nonzero", "top-k"], "indices", "def pack_indices",
        ("-(-n // 8)) > 4 * n", "-(-n // 8)) > 5 * n"),
        ("-(-n // 8)) > 4 * n", "-(-n // 8)) >= 4 * n"),
    ),
    *of(
        ["nonzero"], "sparse", "class Nonzero",
        ("vector.view(np.uint32) != 0", "vector != 0"),
        ("_nonzero(vector.view(np.uint32) != 0, 0)", "_nonzero(vector.view(np.uint32) != 0, 1)"),
    ),
    *of(
        ["threshold"], "sparse", "class Search",
        ("np.less(magnitudes", "np.less_equal(magnitudes"),
    ),
    *of(
        ["random-k"], "sparse", "def drawn",
        ("np.uint64(n) >> np.uint64(32)", "np.uint64(n // 2) >> np.uint64(32)"),
        ("int(rng.bit_generator.random_raw())", "7"),
    ),
    *of(
        ["low-rank"], "low_rank", "class LowRank",
        ("np.dot(given, q, out=p)", "np.dot(given, q * q, out=p)"),
        ("np.dot(given.T, p, out=q)", "np.dot(given.T, p, out=q.copy())"),
        ("rank * (it.rows + it.columns) < it.rows * it.columns", "True"),
    ),
    *of(
        ["dgc"], "dgc", "class Dgc",
        ("momentum[self.chosen] = velocity[self.chosen] = 0.0", "velocity[self.chosen] = 0.0"),
        ("min(1.0, self._clip_norm / norm)", "self._clip_norm / norm"),
    ),
    *of(
        ["demo"], "demo", "class Demo",
        ("given), self._bases[columns].T", "given), self._bases[columns]"),
        ("axis=1)[:, first:]", "axis=1)[:, :k]"),
    ),
    *of(
        CODECS, "codec", "def encode",
        ("(header.code, header.parameter, header.n) != expected", "False"),
        ("[: HEADER_BYTES + nbytes]", "[: HEADER_BYTES + nbytes - 1]"),
    ),
]  # fmt: skip
#: What a module is made of: these are loaded again, in this order, with the change.
PARTS = (
    "codec", "buckets", "packing", "indices", "casts", "small_floats", "quantize", "sign", "sparse",
    "low_rank", "dgc", "demo",
)  # fmt: skip
FOLDER = Path(psrt.codec.__file__).parent


def changed(mutant):
    """Return the source of a mutant."""
    source = (FOLDER / f"{mutant.file}.py").read_text(encoding="utf-8")
    at = source.index(mutant.old, source.index(mutant.after) if mutant.after in source else 0)
    return source[:at] + mutant.new + source[at + len(mutant.old) :]


def load(monkeypatch, file, source):
    """Load the parts of the package again, one of them from another source."""
    for part in PARTS:
        name = f"psrt.codec.{part}"
        module = types.ModuleType(name)
        module.__file__ = str(FOLDER / f"{part}.py")
        text = source if part == file else Path(module.__file__).read_text(encoding="utf-8")
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(text, module.__file__, "exec"), module.__dict__)


def maker(codec):
    """Return what makes a codec of the modules that are loaded now."""
    known = CODECS[codec]
    made = getattr(sys.modules.get(known.__module__) or importlib.import_module(known.__module__),
                   known.__name__)  # fmt: skip

    def make(n, **knobs):
        if known.row.takes_matrices:
            knobs["matrices"] = tuple(Matrix(*it) for it in codecs.matrices_in(n))
        return made(n, **knobs)

    return make


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_is_as_documented(codec):
    codecs.check(codec, maker(codec))


@pytest.mark.parametrize(
    "mutant", some(MUTANTS, one_in=8), ids=lambda it: f"{it.codec}: {it.old!r} -> {it.new!r}"
)
def test_a_broken_codec_goes_red(mutant, monkeypatch):
    source = changed(mutant)

    def check():
        load(monkeypatch, mutant.file, source)
        codecs.check(mutant.codec, maker(mutant.codec))

    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever shows that it is broken
        check()


def test_the_text_that_each_mutant_changes_is_there():
    assert all(map(changed, MUTANTS))  # of the exhaustive ones, too
