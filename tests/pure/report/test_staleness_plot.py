"""The figure about staleness and waiting draws the numbers of the summary."""

import dataclasses

import numpy as np
import pytest

from psrt.report import Counts, GraphAverages, Staleness, Waiting

pytest.importorskip("matplotlib")
from studies import staleness_plot

pytestmark = pytest.mark.slow


@pytest.fixture
def draw(figures, tmp_path):
    """Draws a run and returns its panels."""

    def panels(summary, records=()):
        staleness_plot.draw(summary, records, tmp_path / "run.png", note="mine")
        assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
        return figures[-1].axes[:6]

    return panels


def bars(axes):
    """Return (place, start, length) of each horizontal bar."""
    return [
        (bar.get_y() + bar.get_height() / 2, bar.get_x(), bar.get_width())
        for container in axes.containers
        for bar in container
    ]


@pytest.mark.exhaustive
def test_staleness_by_worker_and_by_shard(summary, draw):
    by_worker, by_shard, *_ = draw(summary)
    [cells] = by_worker.images
    np.testing.assert_allclose(cells.get_array(), [[100, 0, 0], [0, 50, 50]])
    assert by_worker.lines[0].get_xdata() == pytest.approx([0, 1.5])
    [cells] = by_shard.images
    np.testing.assert_allclose(cells.get_array(), [[50, 25, 25]])


def test_many_ages_share_columns():
    rows = [Counts.of([(0, 1), (199, 3)]), Counts.of([])]
    shares, width = staleness_plot.shares_by_age(rows)
    assert (shares.shape, width) == ((2, 50), 4)
    assert (shares[0, 0], shares[0, -1]) == (0.25, 0.75)
    assert shares[1].sum() == 0
    assert staleness_plot.shares_by_age([Counts.of([(63, 1)])])[1] == 1
    assert staleness_plot.shares_by_age([Counts.of([(64, 1)])])[1] == 2


@pytest.mark.exhaustive
def test_gap_over_time_skew_of_shards_and_how_far_workers_are_apart(summary, draw):
    records = [
        {"seconds": 0.5, "gap_mean": None}, {"seconds": 1.0, "gap_mean": 0.25},
        {"seconds": 2.0, "gap_mean": 0.125},
    ]  # fmt: skip
    gap = draw(summary, records)[3]
    assert gap.lines[0].get_xdata() == pytest.approx([1, 2])
    assert gap.lines[0].get_ydata() == pytest.approx([0.25, 0.125])
    skew = draw(dataclasses.replace(summary, servers=2, skew=Counts.of([(0, 3), (2, 1)])))[2]
    assert [(bar.get_x() + 0.4, bar.get_height()) for bar in skew.patches] == [(0, 75), (2, 25)]
    mixed = GraphAverages("ring", "combine-then-adapt", False, 1, 0.5, 8.0, 2, 0.01)
    records = [it | {"consensus_distance": it["gap_mean"]} for it in records]
    apart = draw(dataclasses.replace(summary, graph_averages=mixed), records)[2]
    assert apart.lines[0].get_xydata().tolist() == [[1.0, 0.25], [2.0, 0.125]]


def test_waiting_is_stacked_by_cause_and_blamed_on_whom(summary, draw):
    waiting = (
        Waiting(0, 2.0, 0.5, 1.0, 0.5, 0.5, 0.0, {1: 1.0}),
        Waiting(1, 1.0, 0.25, 0.0, 0.0, 1.0, 0.0, {}),
        Waiting(2, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, {1: 0.5}),
    )
    *_, causes, waiting_for = draw(dataclasses.replace(summary, waiting=waiting))
    assert [text.get_text() for text in causes.get_legend().get_texts()] == [
        "other workers", "the server's work", "messages and queues",
    ]  # fmt: skip
    assert bars(causes) == [
        (0, 0, 25), (1, 0, 0), (2, 0, 0),  # for workers
        (0, 25, 12.5), (1, 0, 0), (2, 0, 0),
        (0, 37.5, 12.5), (1, 0, 25), (2, 0, 0),
    ]  # fmt: skip
    assert bars(waiting_for) == [(0, 0, 0), (1, 0, 1.5), (2, 0, 0)]
    assert causes.get_ylim()[0] > causes.get_ylim()[1]


@pytest.mark.exhaustive
def test_a_run_without_servers_has_little_to_show(summary, draw):
    waiting = (Waiting(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, {}),)
    alone = dataclasses.replace(
        summary, servers=0, staleness=Staleness.of(()), skew=Counts.of([]), waiting=waiting
    )
    assert [axes.texts[0].get_text() for axes in draw(alone)] == [
        "no gradient went through a server", "no gradient went through a server",
        "no reads from servers", "no gap was measured", "nobody waited",
        "nobody waited for another worker",
    ]  # fmt: skip
