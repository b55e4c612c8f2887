"""Topologies × ways to mix, and a decay that begins between two numbers."""

from __future__ import annotations

import itertools

import numpy as np

from psrt.codec import CODECS
from psrt.config import TrainConfig, resolve
from psrt.config.names import ADAPT_THEN_COMBINE, COMBINE_THEN_ADAPT, VARIANTS
from psrt.core.errors import ConfigError
from psrt.job.gossip import topology_for
from psrt.job.virtual import simulate
from psrt.optim.table import Steps
from support.cases import each
from support.knobs import together

ORDERS = (None, COMBINE_THEN_ADAPT, ADAPT_THEN_COMBINE)
#: Files of edges.
FILES = {
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
    "exponential": (IN_ROUNDS, PUSH_SUM),
    "one-peer-exponential": (IN_ROUNDS, PUSH_SUM),
    "torus": ANY,
    "hypercube": ANY,
    "random-regular:3": (IN_ROUNDS, PUSH_SUM, BY_HOST, CODED),
    "random-regular:4": (),
    "rign": (),
    "triangle": (IN_ROUNDS, PUSH_SUM, BY_HOST, CODED),
    "one way": (IN_ROUNDS, PUSH_SUM),
    "uneven": (PUSH_SUM,),
    "weighted": (IN_ROUNDS, PUSH_SUM, CODED),
    "apart": (),
    "beyond": (),
    "empty": (),
}


def possible(topology, order, codec, variant):
    """Return whether workers can mix so, as the documentation says."""
    names = {"by-host": BY_HOST, "push-sum": PUSH_SUM, "pairs": ASYNCHRONOUS}
    if codec is not None and (variant != "plain" or not CODECS[codec].sends_differences):
        return False
    known = TOPOLOGIES[topology]
    if names.get(variant, IN_ROUNDS) not in known or (codec and CODED not in known):
        return False
    if variant == "pairs":
        return order is None
    return variant != "push-sum" or order != COMBINE_THEN_ADAPT


@each("topology", TOPOLOGIES)
def test_every_way_to_mix_on_a_graph_of_four_is_possible_or_refused_in_a_line(
    topology, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    edges = FILES.get(topology)
    if edges is not None:
        (tmp_path / topology).write_text(edges)
    coded = itertools.product([None], VARIANTS, ["sign", "ternary"])
    for order, variant, codec in (*itertools.product(ORDERS, VARIANTS, [None]), *coded):
        given = {"topology": topology, "variant": variant, "order": order, "codec": codec}
        given = {name: value for name, value in given.items() if value is not None}
        # If its nodes are hosts, one of them has two workers.
        hosts = [0, 0, 1, 2, 3] if variant == "by-host" else [0, 1, 2, 3]
        line = ""
        try:
            config = resolve(TrainConfig(**together({"mode": "gossip"} | given)), ranks=len(hosts))
            topology_for(config, hosts, edges=edges)
        except ConfigError as error:
            line = str(error)
            assert "\n" not in line
            told = [*given, *(str(value) for value in given.values())]
            assert any(it.replace("_", "-") in line for it in told), line
        assert (not line) == possible(topology, order, codec, variant), (given, line)


@each("decay", [0.3, 0.7, 0.9])
def test_sync_is_allreduce_where_a_decay_begins_between_two_float32_numbers(decay):
    """10 steps an epoch, and the progress of an all-reduce has been through float32."""
    own = {
        "dataset": "synthetic:240x5x3", "hidden": (6,), "activation": "tanh", "epochs": 2,
        "lr": 0.1, "schedule": Steps(decay),
    }  # fmt: skip
    thetas = [
        simulate(TrainConfig(**own, mode=mode, batch_size=size), workers=24 // size)
        .theta
        for mode, size in (("serial", 24), ("sync", 8), ("allreduce", 8))
    ]  # fmt: skip
    for theta in thetas[1:]:
        np.testing.assert_allclose(theta, thetas[0], rtol=2e-4, atol=2e-5)
