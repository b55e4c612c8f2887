"""What ranks count, and how vectors, memory and sizes are divided and written."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import psrt
from psrt.core.errors import ConfigError
from psrt.core.partition import ShardPlan, Span, even_span, even_spans, layered_spans
from psrt.core.sharding import Memory, Sharing, memory
from psrt.core.stats import Stats
from psrt.core.units import size_text
from psrt.model import MLP
from psrt.report.summary import FIELDS
from support.cases import each

ROOT = Path(psrt.__file__).parents[1]


def test_numbers_add_up_or_the_largest_counts():
    """A figure that merges in another way than it should is seen here by its name."""
    ranks = [
        Stats(**{name: 2 + i for i, name in enumerate(Stats().figures())}),
        Stats(**{name: 9 - i for i, name in enumerate(Stats().figures())}),
    ]
    summed = {"samples", "dropped", "bytes_sent", "bytes_received"}
    summed |= {"frame_bytes", "framed_bytes", "cut_bytes_sent", "cut_bytes_received"}
    first, second = ranks
    for name, value in Stats.merged(ranks).figures().items():
        a, b = getattr(first, name), getattr(second, name)
        assert value == (a + b if name in summed else max(a, b)), name


def test_every_figure_is_a_field_of_the_summary():
    assert set(Stats().figures()) <= set(FIELDS)


def test_counts_add_up_by_key():
    ranks = [
        Stats(skew={0: 1, 3: 2}, staleness=[{}, {1: 1}], gaps=(1, 0.5, 0.5), waited={"a": 1.0}),
        Stats(skew={3: 1}, staleness=[{0: 2}, {1: 3, 4: 1}, {}], gaps=(2, 0.5, 0.25)),
    ]
    both = Stats.merged(ranks)
    assert (both.skew, both.gaps, both.waited) == ({0: 1, 3: 3}, (3, 1.0, 0.5), {"a": 1.0})
    assert both.staleness == [{0: 2}, {1: 4, 4: 1}, {}]
    assert both.histogram == [2, 4, 0, 0, 1]
    assert ranks[0].staleness == [{}, {1: 1}], "what a rank counted stays as it is"
    assert Stats().histogram == []
    for stats in (both, *ranks):
        assert Stats.from_text(stats.to_text()) == stats
        assert "\n" not in stats.to_text()


@pytest.mark.exhaustive
def test_a_new_counter_is_what_the_page_shows(tmp_path):
    """Do what CONTRIBUTING.md shows, on a copy, and find the figure in the summary."""
    shutil.copytree(ROOT / "psrt", tmp_path / "psrt", ignore=shutil.ignore_patterns("__pycache__"))
    page = (
        (ROOT / "CONTRIBUTING.md")
        .read_text()
        .split("### A figure of the summary")[1]
        .split("\n### ")[0]
    )
    hunks = re.findall(r"`(psrt/\S+\.py)`.*?```diff\n(.*?)```", page, re.DOTALL)
    assert len({name for name, _ in hunks}) == 2
    for name, hunk in hunks:
        path, lines = tmp_path / name, hunk.splitlines()
        before = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("+"))
        after = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("-"))
        assert path.read_text().count(before) == 1, f"{name} does not hold what the page shows"
        path.write_text(path.read_text().replace(before, after))
    job = "simulate --workers 3 --mode sync --dataset synthetic:100x4x2 --hidden 3 --epochs 1"
    words = [*job.split(), "--batch-size", "19", "--out", "run"]  # three of 19, then 15, 14, 14
    subprocess.run([sys.executable, "-m", "psrt", *words], cwd=tmp_path, check=True)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["short_steps"] == 3
    # Every worker has taken its second step, the shorter one, by the last line.
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(metrics[-1])["short_steps"] == 3


@each(("sharing", "due"), [
    (None, (4000, 4000, 8000, 0)),
    (Sharing.OPTIMIZER, (4000, 4000, 1000, 0)),
    (Sharing.GRADIENTS, (4000, 2400, 1000, 0)),
    (Sharing.PARAMETERS, (500, 2400, 1000, 2400)),
])  # fmt: skip
def test_the_memory_of_adam_on_eight_workers(sharing, due):
    """k = 2 vectors; buckets of 300, 300, 300 and 100 parameters, two of which are there."""
    found = memory(sharing, 1000, workers=8, vectors=2, buckets=[300, 300, 300, 100])
    assert found == Memory(*due)
    assert found.total == sum(due)
    alone = memory(Sharing.PARAMETERS, 100, workers=2, vectors=0, buckets=[100])
    assert alone == Memory(200, 400, 0, 400)  # a single bucket is there once


@st.composite
def cuts(draw):
    """Return n, a number of parts, and layers from the last to the first."""
    n = draw(st.integers(1, 60))
    inner = draw(st.sets(st.integers(1, n - 1), max_size=6)) if n > 1 else set()
    bounds = sorted({0, n} | inner)
    return n, draw(st.integers(1, n)), [Span(a, b) for a, b in pairwise(bounds)][::-1]


@given(cuts())
def test_the_spans_make_up_the_whole_and_none_is_empty_or_long(cut):
    n, parts, layers = cut
    spans = layered_spans(n, parts, layers)
    assert [span.start for span in spans] == [0, *(span.stop for span in spans[:-1])]
    assert (len(spans), spans[-1].stop) == (parts, n)
    sizes = [span.size for span in spans]
    assert min(sizes) > 0
    assert max(sizes) <= max(1.25 * n / parts, -(-n // parts))
    assert layered_spans(n, parts, [Span(0, n)]) == even_spans(n, parts)


@pytest.mark.parametrize("parts", [2, 3, 4, 8, 16])
def test_the_cut_is_between_the_large_layers_of_a_model(parts):
    model = MLP((784, 512, 512, 10), batch_size=1)
    *_, first = model.gradient_spans()
    spans = layered_spans(model.n, parts, model.gradient_spans())
    assert first.stop in {span.stop for span in spans}


def test_a_layer_that_would_make_a_long_span_is_cut():
    assert layered_spans(100, 2, [Span(0, 70), Span(70, 100)]) == even_spans(100, 2)
    assert layered_spans(100, 2, [Span(0, 60), Span(60, 100)]) == (Span(0, 60), Span(60, 100))


def test_every_shard_owns_something():
    for cut in (ShardPlan.even, lambda n, k: ShardPlan.layered(n, k, ())):
        assert len(cut(3, 3).spans) == 3
        with pytest.raises(ConfigError, match="4 shards of 3 parameters: each must own at least "):
            cut(3, 4)


def test_one_even_span_is_that_of_all():
    for n, parts in itertools.product((0, 1, 7, 100), (1, 3, 8)):
        assert tuple(even_span(n, parts, i) for i in range(parts)) == even_spans(n, parts)


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
