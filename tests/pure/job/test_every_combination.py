"""Modes × topologies × orders × ways to mix × codecs × partitions: each runs, or is refused.

A run ends with finite numbers, has every knob that was given in its config, and keeps its contract;
a refusal is one line about something that was given. There is nothing in between: no error amid a
run, no deadlock, no knob that is passed over.

So it is with models that are cut: what the table in ``docs/parallelism.md`` says yes to runs, with
the bits of copies of the whole where these are promised, and all else is refused in a line.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from psrt.codec import TABLE
from psrt.config import MODES, TrainConfig, from_toml
from psrt.config.names import ADAPT_THEN_COMBINE, COMBINE_THEN_ADAPT
from psrt.errors import ConfigError
from psrt.history.check.run import check_run
from psrt.job.combinations import COLUMNS, ROWS, SIMULATED, knobs_of, refusal, workers_of
from psrt.job.virtual import simulate
from psrt.topology.names import NAMES
from support.cases import each

WORKERS = 4
TINY = {
    "dataset": "synthetic:40x12x4", "hidden": (16, 4), "batch_size": 2, "steps": 3, "lr": 0.02,
    "record": True, "overwrite": True,
}  # fmt: skip
PARTITIONS = ("iid", "by-label:2", "dirichlet:0.4")
CODECS = (None, *TABLE)
ORDERS = (None, COMBINE_THEN_ADAPT, ADAPT_THEN_COMBINE)
#: Ways to mix, given or not.
WAYS = ("push_sum", "gradient_tracking", "asynchronous", "by_host")
#: Files of edges.
FILES = {
    "path": "0 1\n1 2\n2 3\n",
    "triangle": "0 1\n1 2\n2 0\n2 3\n",
    "one way": "0 > 1\n1 > 2\n2 > 3\n3 > 0\n",
    "uneven": "0 > 1\n1 > 2\n2 > 3\n3 > 0\n0 > 2\n",
    "weighted": "0 1 0.5\n1 2 0.25\n2 3 0.5\n",
    "apart": "0 1\n2 3\n",
    "beyond": "0 1\n1 2\n2 3\n3 4\n",
    "empty": "",
}
#: Topology → the ways to mix that it is for: in rounds, by push-sum, without rounds, of hosts
#: with unequal numbers of workers, and by a codec. The last three are for edges that go both ways
#: and in one round; without rounds they have no odd cycle, and only a codec bears weights.
IN_ROUNDS, PUSH_SUM, ASYNCHRONOUS, BY_HOST = "rounds", "push-sum", "asynchronous", "by host"
CODED = "codec"
ANY = (IN_ROUNDS, PUSH_SUM, ASYNCHRONOUS, BY_HOST, CODED)
TOPOLOGIES = {
    None: ANY,
    "ring": ANY,
    "exponential": (IN_ROUNDS, PUSH_SUM),
    "one-peer-exponential": (IN_ROUNDS, PUSH_SUM),
    "torus": ANY,
    "star": ANY,
    "full": (IN_ROUNDS, PUSH_SUM, BY_HOST, CODED),
    "hypercube": ANY,
    "random-regular:2": ANY,
    "random-regular:3": (IN_ROUNDS, PUSH_SUM, BY_HOST, CODED),
    "random-regular:4": (),
    "rign": (),
    "path": ANY,
    "triangle": (IN_ROUNDS, PUSH_SUM, BY_HOST, CODED),
    "one way": (IN_ROUNDS, PUSH_SUM),
    "uneven": (PUSH_SUM,),
    "weighted": (IN_ROUNDS, PUSH_SUM, CODED),
    "apart": (),
    "beyond": (),
    "empty": (),
}
#: Ways to train of all other modes, and the numbers of their workers.
OTHERS = {
    "serial": ({}, 1),
    "sync": ({}, WORKERS),
    "async": ({}, WORKERS),
    "ssp": ({}, WORKERS),
    "softsync": ({}, WORKERS),
    "local-sgd": ({"local_steps": 2}, WORKERS),
    "local-sgd over servers": ({"local_steps": 2, "servers": 1}, WORKERS),
    "easgd": ({"local_steps": 2}, WORKERS),
    "easgd, asynchronous": ({"local_steps": 2, "asynchronous": True}, WORKERS),
    "allreduce": ({}, WORKERS),
}


@pytest.fixture
def outcome(tmp_path, monkeypatch):
    """Return what runs a config, and returns the line of a refusal, "" if there is none."""
    monkeypatch.chdir(tmp_path)
    for name, edges in FILES.items():
        (tmp_path / name).write_text(edges)

    def outcome(given, workers=WORKERS, hosts=None):
        given = {name: value for name, value in given.items() if value is not None}
        try:
            config = TrainConfig(**TINY | given, out="run")
            # Graphs have as many nodes if these are hosts, of which one has two workers.
            hosts = (hosts or (2, *[1] * (workers - 1))) if "by_host" in given else ()
            run = simulate(config, workers=sum(hosts) or workers, hosts=hosts)
        except ConfigError as error:
            line = str(error)
            assert "\n" not in line
            told = [*given, *(str(value) for value in given.values())]
            assert any(it.replace("_", "-") in line for it in told), line
            return line
        assert np.isfinite(run.theta).all()
        written = from_toml((tmp_path / "run/config.toml").read_text())
        assert {name: getattr(written, name) for name in given} == given
        assert bool(run.summary.frame_bytes) == ("codec" in given)
        assert check_run("run").ok, "\n".join(check_run("run").lines())
        digests[tuple(given.items())] = run.summary.parameters_sha256
        return ""

    digests = outcome.digests = {}
    return outcome


def way_of(push_sum, asynchronous, by_host, **_):
    if by_host:
        return BY_HOST
    return PUSH_SUM if push_sum else ASYNCHRONOUS if asynchronous else IN_ROUNDS


def possible(topology, order, codec, ways):
    """Return whether workers can mix so, as the documentation says."""
    if way_of(**ways) not in TOPOLOGIES[topology]:
        return False
    if codec is not None:
        able = TABLE[codec].sends_differences and CODED in TOPOLOGIES[topology]
        return able and not any(ways.values())
    if ways["by_host"] and any(value for way, value in ways.items() if way != "by_host"):
        return False
    if ways["push_sum"] and (ways["gradient_tracking"] or order == COMBINE_THEN_ADAPT):
        return False
    return not (ways["asynchronous"] and (order or ways["push_sum"] or ways["gradient_tracking"]))


EVERY_WAY = [
    dict(zip(WAYS, values, strict=True))
    for values in itertools.product((None, True), repeat=len(WAYS))
]


def walk(outcome, combinations):
    """Try each combination, and return how many of them ran."""
    ran = 0
    for topology, order, ways, codec, partition in combinations:
        given = {"topology": topology, "order": order, "codec": codec, "partition": partition}
        if codec == "low-rank":
            given["consensus_rate"] = 0.1
        line = outcome({"mode": "gossip", **given, **ways})
        assert (not line) == possible(topology, order, codec, ways), (given, ways, line)
        ran += not line
    return ran


def test_there_is_no_other_topology():
    assert {*NAMES} < {*TOPOLOGIES}


def test_some_combinations_of_gossip_run_and_all_others_are_refused(outcome):
    """Of all that are walked over below, one in 61."""
    combinations = itertools.product(TOPOLOGIES, ORDERS, EVERY_WAY, CODECS, PARTITIONS)
    assert walk(outcome, itertools.islice(combinations, 7, None, 61)) > 10


@pytest.mark.rest_one_in(3)
@pytest.mark.exhaustive
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_every_combination_of_gossip_runs_or_is_refused(outcome, topology):
    ran = walk(outcome, itertools.product((topology,), ORDERS, EVERY_WAY, CODECS, PARTITIONS))
    assert bool(ran) == bool(TOPOLOGIES[topology])


@pytest.mark.parametrize("topology", ["ring", "star"])
def test_no_way_to_mix_is_passed_over(outcome, topology):
    """Of those that are possible no two train alike, but what is so by default."""
    for order, ways in itertools.product(ORDERS, EVERY_WAY):
        outcome({"mode": "gossip", "topology": topology, "order": order, **ways})
    assert len(outcome.digests) == 12
    assert len({*outcome.digests.values()}) == 12 - 4


def test_no_topology_is_passed_over(outcome):
    for topology in TOPOLOGIES:
        outcome({"mode": "gossip", "topology": topology})
    digests = {dict(given).get("topology"): it for given, it in outcome.digests.items()}
    assert digests[None] == digests["ring"]
    assert digests["full"] == digests["random-regular:3"]
    assert digests["torus"] == digests["hypercube"]  # of two by two
    assert len({*digests.values()}) >= len(digests) - 4


@each("name", OTHERS)
def test_what_is_of_gossip_is_refused_by_every_other_mode(outcome, name):
    more, workers = OTHERS[name]
    given = {"mode": name.partition(" ")[0].rstrip(","), **more}
    for knob, values in {
        "topology": TOPOLOGIES, "order": ORDERS, **dict.fromkeys(WAYS, (None, True, False)),
    }.items():  # fmt: skip
        for value in values:
            if value is None or (knob == "asynchronous" and MODES[given["mode"]].asynchronous):
                continue
            line = outcome({**given, knob: value}, workers)
            assert f"{knob.replace('_', '-')}" in line
            assert f"has no effect with --mode {given['mode']}" in line


def walk_others(outcome, combinations):
    """Try combinations of the other modes, of which each runs but for codecs that cannot be."""
    for name, partition, codec in combinations:
        more, workers = OTHERS[name]
        mode = name.partition(" ")[0].rstrip(",")
        own = {"codec_chunk": 8, "codec_kept": 4} if codec == "demo" else {}
        if workers == 1 and partition.startswith("by-label"):
            partition = "by-label:4"  # all that there are
        given = {"mode": mode, **more, "codec": codec, "partition": partition, **own}
        line = outcome(given, workers)
        refused = codec is not None and mode == "serial"
        refused |= codec in ("dgc", "demo") and mode == "easgd"  # momentum of a force
        assert bool(line) == refused, (given, line)


def test_some_combinations_of_other_modes_run(outcome):
    walk_others(
        outcome, itertools.islice(itertools.product(OTHERS, PARTITIONS, CODECS), 5, None, 11)
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", OTHERS)
def test_every_combination_of_another_mode_runs(outcome, name):
    walk_others(outcome, itertools.product((name,), PARTITIONS, CODECS))


@pytest.mark.exhaustive
@pytest.mark.parametrize("workers", [1, 2, 3, 5, 6, 8])
def test_any_number_of_workers_mixes_or_is_refused(outcome, workers):
    ran = 0
    for topology, order, ways in itertools.product(TOPOLOGIES, ORDERS, EVERY_WAY):
        given = {"mode": "gossip", "topology": topology, "order": order, **ways}
        ran += not outcome(given, workers, hosts=(2,) * workers)
    assert ran > 20


CUTS = [*itertools.product(ROWS, COLUMNS, [False]), *((row, SIMULATED, True) for row in ROWS)]
#: No promise: sums in another order, parts that are rounded or sent in turn apart.
UNLIKE = ("codec", "defer_weights", "asynchronous", "fragments")


def is_as_of_the_whole(row, column):
    """Return whether a model that is cut promises the parameters of one that is not."""
    mode = MODES[ROWS[row].get("mode", "allreduce")]
    return not mode.is_stale and column != "pipedream" and not any(it in ROWS[row] for it in UNLIKE)


def walk_cuts(cells):
    """Try jobs of cut models; return how many ran, and how many of these were compared."""
    ran = compared = 0
    whole = {}
    for row, column, simulated in cells:
        knobs = knobs_of(row, column)
        line = refusal(row, column, simulated=simulated)
        if line:
            with pytest.raises(ConfigError) as caught:
                simulate(TrainConfig(**knobs), workers=workers_of(column))
            assert "\n" not in line
            assert "\n" not in str(caught.value)
            continue
        own = {"replay": None, "record": True, "out": "run", "overwrite": True}
        found = simulate(TrainConfig(**knobs | own), workers=workers_of(column)).theta
        assert np.isfinite(found).all()
        assert check_run("run").ok, "\n".join([f"{row} {column}", *check_run("run").lines()])
        ran += 1
        if not is_as_of_the_whole(row, column):
            continue
        if row not in whole:
            given = TrainConfig(**knobs_of(row, "data") | own)
            whole[row] = simulate(given, workers=workers_of("data")).theta
        if column == "tensor" or "clip_norm" in ROWS[row]:  # a norm is summed in another order
            np.testing.assert_allclose(found, whole[row], rtol=1e-5, atol=1e-6, err_msg=row)
        else:
            np.testing.assert_array_equal(found, whole[row], err_msg=f"{row} {column}")
        compared += 1
    return ran, compared


def test_some_jobs_of_cut_models_run_and_all_others_are_refused(tmp_path, monkeypatch):
    """Of all that are walked over below, one in 13."""
    monkeypatch.chdir(tmp_path)
    ran, compared = walk_cuts(itertools.islice(CUTS, 3, None, 13))
    assert ran > compared > 5


@pytest.mark.exhaustive
def test_every_job_of_a_cut_model_runs_or_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran, compared = walk_cuts(CUTS)
    assert ran > compared > 50
