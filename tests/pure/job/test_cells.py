"""Which ranks are servers, who has which part of a model that is cut, and what it sends of it."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psrt.codec import CODECS, ErrorFeedback, matrices_of_part
from psrt.codec.randomness import draws, seed_of_part
from psrt.config import TrainConfig, resolve
from psrt.config.axes import Axes
from psrt.core.errors import ConfigError
from psrt.core.partition import Span, even_spans
from psrt.job.build import role_map_for
from psrt.job.cells import Place, in_order, number_of, place_of, ranks_of_cell
from psrt.job.cut import cut_of, cut_plan
from psrt.job.problems import supervised_problem
from psrt.job.roles import assign_roles, resolved_on
from psrt.job.virtual import simulate
from psrt.runtime import push_codec, reply_codec
from psrt.runtime.push_codec import PushEncoder
from psrt.runtime.strategies import choco
from psrt.transport import coded_sum
from support.cases import each


@each(
    ("hosts", "servers", "placement", "expected"),
    [
        ([0, 0, 0, 0], 2, "first", (0, 1)),
        ([0, 0, 0, 0], 2, "last", (2, 3)),
        ([0, 0, 0, 0], 2, "spread", (2, 3)),
        ([0, 0, 1, 1], 2, "spread", (1, 3)),
        ([0, 1, 0, 1], 2, "spread", (2, 3)),
        ([0, 0, 0, 1, 1], 3, "spread", (1, 2, 4)),
        ([7, 3, 3], 2, "spread", (0, 2)),
        ([0, 0, 1, 1], 1, "spread", (1,)),
        ([0, 0], 0, "spread", ()),
    ],
)
def test_placements(hosts, servers, placement, expected):
    assert assign_roles(hosts, servers, placement)[0] == expected
    with pytest.raises(ConfigError, match=r"servers among .* ranks leave no worker"):
        assign_roles(hosts, len(hosts), placement)


@given(
    hosts=st.lists(st.integers(0, 4), min_size=1, max_size=12),
    placement=st.sampled_from(["first", "last", "spread"]),
    data=st.data(),
)
def test_every_rank_has_one_role_and_hosts_share_evenly(hosts, placement, data):
    count = data.draw(st.integers(0, len(hosts) - 1))
    servers, workers = assign_roles(hosts, count, placement)
    assert sorted(servers + workers) == list(range(len(hosts)))
    assert (len(servers), sorted(servers), sorted(workers)) == (count, [*servers], [*workers])
    if placement == "spread":
        on = {host: sum(hosts[rank] == host for rank in servers) for host in hosts}
        with_room = [on[host] for host in on if on[host] < hosts.count(host)]
        assert not with_room or max(on.values()) - min(with_room) <= 1


def test_shards_are_dealt_out_to_the_servers_in_turn():
    """So the shards of the last layers, which are pushed first, are at all of them."""
    layers = [Span(4, 12), Span(0, 4)]
    role_map = role_map_for(12, (5, 2), (0, 1, 3, 4), shards_per_server=3, layers=layers)
    assert role_map.servers == (5, 2, 5, 2, 5, 2)
    assert [role_map.shards_of(rank) for rank in (5, 2)] == [(0, 2, 4), (1, 3, 5)]
    assert role_map.spans == even_spans(12, 6)
    with pytest.raises(ConfigError, match="14 shards of 12 parameters"):
        role_map_for(12, (5, 2), (0, 1), shards_per_server=7)


# --- parts of a model ----------------------------------------------------------------------------

AXES = [Axes(*it) for it in itertools.product((1, 2, 3), repeat=3)]


@each("axes", AXES)
def test_every_place_has_one_worker(axes):
    workers = range(axes.data * axes.cells)
    places = [place_of(worker, axes) for worker in workers]
    wanted = itertools.product(range(axes.data), range(axes.pipeline), range(axes.tensor))
    assert places == [Place(*it) for it in wanted]
    assert [number_of(place, axes) for place in places] == list(workers)


@each("axes", AXES)
def test_every_rank_is_in_one_cell(axes):
    count = axes.data * axes.cells
    servers, workers = range(2 * axes.cells), range(2 * axes.cells, 2 * axes.cells + count)
    found = []
    for stage, slice_ in itertools.product(range(axes.pipeline), range(axes.tensor)):
        own_servers, own = ranks_of_cell(stage, slice_, axes, workers, servers)
        assert len(own_servers) == 2
        assert len(own) == axes.data
        assert {place_of(workers.index(it), axes)[1:] for it in own} == {(stage, slice_)}
        found += [*own_servers, *own]
    assert sorted(found) == [*servers, *workers]


@each(
    ("hosts", "axes", "wanted"),
    [
        ([0, 0, 0, 0], Axes(1, 2, 2), [0, 1, 2, 3]),
        ([0, 1, 0, 1], Axes(1, 2, 2), [0, 2, 1, 3]),  # ranks that are dealt out to hosts in turn
        ([0, 0, 0, 3, 3, 3], Axes(1, 3, 2), [0, 1, 3, 4, 2, 5]),  # only those left are apart
        ([0, 1, 2, 3], Axes(1, 4, 1), [0, 1, 2, 3]),
        ([0, 0, 0, 3, 3, 3, 6, 6], Axes(4, 2, 1), [0, 1, 3, 4, 6, 7, 2, 5]),
        ([0] * 5 + [5] * 3, Axes(2, 2, 2), [0, 1, 2, 3, 5, 6, 4, 7]),
    ],
)
def test_slices_and_copies_share_a_host_as_far_as_they_can(hosts, axes, wanted):
    assert list(in_order(range(len(hosts)), hosts, axes)) == wanted


def cut(ranks, **knobs):
    config = resolve(TrainConfig(hidden=(24, 20, 16), **knobs), ranks=ranks)
    problem = supervised_problem(config, workers=config.axes.data)
    plan = cut_plan(config, problem, problem.model.n)
    servers = config.servers
    return cut_of(config, plan, range(servers), range(servers, ranks), None), problem.model.n


@pytest.mark.parametrize(
    ("ranks", "knobs"),
    [
        (2, {"parallel": "pipeline:2", "pipeline_schedule": "interleaved:2"}),
        (6, {"parallel": "pipeline:2,tensor:3"}),
        (12, {"parallel": "pipeline:2,tensor:2", "mode": "sync", "servers": 4}),
    ],
    ids=str,
)
def test_every_parameter_is_in_one_part(ranks, knobs):
    found, n = cut(ranks, **knobs)
    whole = np.arange(n, dtype=np.float32)
    parts = [cell.part.take(whole) for cell in found.cells]
    assert np.array_equal(np.sort(np.concatenate(parts)), whole)
    back = np.zeros_like(whole)
    for cell, part in zip(found.cells, parts, strict=True):
        assert cell.role_map.n == part.size
        cell.part.put(part, back)
    assert np.array_equal(back, whole)


@each("axes", ["pipeline:4", "tensor:2", "tensor:3,pipeline:2"])
def test_a_part_has_the_matrices_of_its_layers(axes):
    found, n = cut(TrainConfig(parallel=axes).axes.cells, parallel=axes)
    config = resolve(TrainConfig(hidden=(24, 20, 16)), ranks=1)
    whole = supervised_problem(config, workers=1).matrices()
    indices, seen = np.arange(n), []
    for cell in found.cells:
        part = cell.part.take(indices)
        for matrix in matrices_of_part(whole, cell.part):
            block = matrix.of(part)
            [of] = [it for it in whole if it.start <= block[0, 0] < it.stop]
            rows, columns = np.divmod(block - of.start, of.columns)
            assert (rows == rows[:, :1]).all()
            assert (columns == columns[:1]).all()
            seen.append(block.reshape(-1))
    wanted = np.concatenate([np.arange(it.start, it.stop) for it in whole])
    assert np.array_equal(np.sort(np.concatenate(seen)), wanted)


@each(
    ("knobs", "message"),
    [
        ({"parallel": "pipeline:2", "stages": "2,3"}, "says 5 layers, the model has 4"),
        ({"parallel": "pipeline:5"}, "4 layers cannot be split into 5 parts"),
        ({"parallel": "tensor:17"}, "17 tensor slices of layer 2, which has 16 columns"),
    ],
)
def test_what_cannot_be_cut_is_refused(knobs, message):
    axes = TrainConfig(**knobs).axes
    with pytest.raises(ConfigError, match=message):
        cut(axes.cells, **knobs)


# --- codecs of parts ------------------------------------------------------------------------------

#: A job with enough layers for two stages.
OWN = {
    "dataset": "synthetic:40x12x4", "hidden": (16, 12, 8), "batch_size": 4, "steps": 3, "lr": 0.02,
    "micro_batches": 2,
}  # fmt: skip
LOCAL = {"mode": "local-sgd:local-steps=2"}
CODED = {
    "sums": {},
    "averages": LOCAL,
    "averages at servers": LOCAL | {"servers": 2},
    "rounds": {"mode": "sync"},
    "replies": {"mode": "sync", "codec_reply": "nonzero"},
    "elastic": {"mode": "easgd:local-steps=2"},
}


def trained(parallel, **knobs):
    axes = TrainConfig(parallel=parallel).axes
    config = TrainConfig(**OWN | knobs, parallel=parallel)
    return simulate(config, workers=axes.data * axes.cells)


@each("name", CODED)
def test_a_codec_that_loses_nothing_trains_as_the_whole_does(name):
    """In rounds: elsewhere workers do not take turns alike."""
    knobs = CODED[name] | {"codec": "nonzero", "codec_everywhere": True}
    whole = trained("data:2", **knobs)
    assert whole.summary.frame_bytes
    more = {"servers": 4} if "servers" in knobs else {}
    found = trained("data:2,pipeline:2", **knobs | more)
    np.testing.assert_array_equal(found.theta, whole.theta)


STEPS = 4
#: Of the knobs that a codec has, those that suit vectors as small as parts are here.
SMALL = {"rank": 2, "density": 0.05, "chunk": 4, "kept": 4}


@each("name", ["sign", "low-rank", "int8", "top-k", "dgc", "demo", "random-k"])
def test_a_part_is_encoded_as_a_vector_of_its_own(name):
    """Frame by frame as one that is alone; what is kept back and what arrived are all there was."""
    pushed = {}
    encode = PushEncoder.encode

    def noting(self, push, gradient):
        frame = encode(self, push, gradient)
        pushed.setdefault(id(self), (self, []))[1].append((gradient.copy(), frame.copy()))
        return frame

    row = replace(CODECS[name], **{it: SMALL[it] for it in CODECS[name].knobs if it in SMALL})
    coded = {"codec": row, "codec_everywhere": True, "optimizer": "sgd"}
    for axes in ("data:1,pipeline:2", "data:1,tensor:2")[: 2 if name == "low-rank" else 1]:
        knobs = {"mode": "sync", "steps": STEPS, "lr": 1.0, "servers": 2, "seed": 3} | coded
        config = resolve(TrainConfig(**OWN | knobs | {"parallel": axes}), ranks=4)
        problem = supervised_problem(config, workers=1)
        parts = cut_of(config, cut_plan(config, problem, problem.model.n), (0, 1), (2, 3), None)
        pushed.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PushEncoder, "encode", noting)
            moved = problem.initial() - trained(axes, **knobs).theta
        by_size = {pushes[0][0].size: (made, pushes) for made, pushes in pushed.values()}
        assert len(by_size) == len(parts.cells) == 2
        for number, cell in enumerate(parts.cells):
            made, pushes = by_size[cell.part.size]
            matrices = matrices_of_part(problem.matrices(), cell.part)
            alone = config.codec.encoder(cell.part.size, matrices=matrices)
            codec = config.codec.codec(cell.part.size, matrices=matrices)
            given, arrived = np.zeros((2, cell.part.size))
            for clock, (gradient, frame) in enumerate(pushes):
                rng = draws(seed_of_part(3, number), 0, clock, 0)
                alone.begin_epoch(0)
                assert alone.encode(gradient, rng).tobytes() == frame.tobytes()
                decoded = np.empty(cell.part.size, np.float32)
                codec.decode(frame, decoded)
                given, arrived = given + gradient, arrived + decoded
            assert clock == STEPS - 1
            np.testing.assert_allclose(cell.part.take(moved), arrived, rtol=1e-4, atol=1e-5)
            (sender,) = made._senders
            if isinstance(sender, ErrorFeedback):
                np.testing.assert_allclose(arrived + sender.residual, given, rtol=1e-4, atol=1e-5)
                assert np.abs(sender.residual).max() > 0


@pytest.mark.parametrize(
    "knobs", [{"mode": "sync", "servers": 4}, {"mode": "allreduce"}, {"mode": "gossip"}], ids=str
)
def test_no_two_parts_or_copies_draw_alike(knobs, monkeypatch):
    """What is rounded up in one stage is not what is rounded up in another."""
    drawn = []

    def noting(*key, **way):
        drawn.append(draws(*key, **way).random())
        return draws(*key, **way)

    for module in coded_sum, push_codec, reply_codec, choco:
        monkeypatch.setattr(module, "draws", noting)
    knobs = knobs | {"codec": "ternary" if knobs["mode"] != "gossip" else "int8", "steps": 3}
    knobs |= {"codec_reply": "int8"} if "servers" in knobs else {}
    for axes in "data:2,pipeline:4", "data:2,pipeline:2,tensor:2":
        drawn.clear()
        trained(axes, codec_everywhere=True, **knobs)
        assert len(drawn) >= 2 * 4 * 3
        assert len(set(drawn)) == len(drawn)


@each(
    ("hosts", "quorum", "mode"),
    [
        ((0, 1, 1, 2, 2), 1, "quorum=1,learner-ranks=2"),
        ((0, 1, 1, 2, 2), 2, "learner-ranks=2"),  # all of them
        ((0, 0, 0), 1, "learner-ranks=2"),
        ((0, 1, 2), 1, "quorum=1"),  # each is alone
    ],
)
def test_a_learner_has_the_workers_of_a_host(hosts, quorum, mode):
    asked = TrainConfig(mode=f"local-sgd:quorum={quorum},learner-ranks=host", servers=1)
    found = resolved_on(lambda _: hosts, asked, len(hosts))
    assert found == resolve(TrainConfig(mode=f"local-sgd:{mode}", servers=1), ranks=len(hosts))
    with pytest.raises(ConfigError, match=", 3 workers, and learners need equally many"):
        resolved_on(lambda _: (*hosts, 9, 9, 9), asked, len(hosts) + 3)
