"""Named arrays on servers: what is pushed is there, in the order that the mode promises."""

import time

import numpy as np
import pytest

import psrt
from psrt import ConfigError, ParameterServer
from support.least_squares import schemes

SHAPES = {"b": (3,), "w": (2, 3)}
KNOBS = {"lr": 1.0, "timeout_s": 20}


@pytest.mark.parametrize("flags", schemes("async", "ssp", "sync", "sync, 2 servers"))
def test_every_push_counts_once(comm, flags):
    """Each worker ticks off its own element of w, so the end says who pushed what."""
    pushes = 5
    shapes = {"b": (3,), "w": (comm.size, 3)}
    with ParameterServer(comm, shapes, **KNOBS | flags) as server:
        for push in range(0 if server.serves else pushes):
            tick = np.zeros(shapes["w"], np.float32)
            tick[server.worker] = -1
            before = server.versions
            found = server.push_pull({"w": tick}, samples=1)
            assert server.clock == push + 1
            assert all(a <= b for a, b in zip(before, server.versions, strict=True))
            assert not found["b"].any()
    if comm.rank == 0:
        workers = server.result.summary.workers
        ended = server.pull()["w"]
        # In rounds an update is the mean over all workers.
        part = 1 if flags["mode"].startswith(("async", "ssp")) else 1 / workers
        np.testing.assert_allclose(ended[:workers], np.full((workers, 3), pushes * part), rtol=1e-5)
        assert not ended[workers:].any()
    assert set(server.pull(["b"])) == {"b"}


@pytest.mark.parametrize("flags", schemes("async"))
def test_a_fresh_pull_sees_what_others_have_pushed(comm, flags):
    begun = {"w": np.full((2, 2), 7, np.float32)}
    with ParameterServer(comm, begun, **KNOBS | flags | {"servers": 1}) as server:
        if not server.serves:
            np.testing.assert_array_equal(server.pull()["w"], begun["w"])
            with pytest.raises(ValueError, match="read-only"):
                server.pull()["w"][:] = 0
            if server.worker == 0:
                server.push({"w": np.ones((2, 2), np.float32)})
            else:
                while server.pull(fresh=True)["w"][0, 0] == 7:
                    pass
                np.testing.assert_array_equal(server.pull()["w"], begun["w"] - 1)
    np.testing.assert_array_equal(server.pull()["w"], begun["w"] - 1)


@pytest.mark.mpi(min_size=3)
def test_who_only_pulls_does_not_outrun_who_computes(comm):
    """With backups a round need not wait for all, but for a gradient."""
    with ParameterServer(comm, {"w": (2,)}, mode="sync:backup=1", servers=1, **KNOBS) as server:
        if not server.serves and server.worker == 0:
            for _ in range(100):
                if server.pull(fresh=True)["w"].any():
                    break
            assert server.pull()["w"].any()
        for _ in range(0 if server.serves or server.worker == 0 else 3):
            time.sleep(0.01)
            server.push({"w": -np.ones(2, np.float32)})
    np.testing.assert_array_equal(server.pull()["w"], [3, 3])


@pytest.mark.mpi(min_size=2)
def test_a_name_that_is_left_out_has_a_gradient_of_zeros_and_an_unknown_one_is_refused(comm):
    begun = {"w": np.full(2, 3, np.float32), "b": (1,)}
    with ParameterServer(comm, begun, mode="sync", **KNOBS) as server:
        if not server.serves:
            unknown = "there is no array 'v', expected one of 'w', 'b'"
            with pytest.raises(ConfigError, match=unknown):
                server.push({"v": np.zeros(3, np.float32)})
            with pytest.raises(ConfigError, match="there is no array 'v'"):
                server.pull(["v"])
            assert server.clock == 0
            server.push({"b": np.ones(1, np.float32)})
    np.testing.assert_array_equal(server.pull()["w"], begun["w"])
    np.testing.assert_array_equal(server.pull("b")["b"], [-1])
    for knobs in ({"optimizer": "momentum"}, {"weight_decay": 0.1}):
        with psrt.ParameterServer(comm, SHAPES, **KNOBS | knobs) as server:
            if not server.serves:
                with pytest.raises(ConfigError, match=r"leaves out '\w', which .* would move"):
                    server.push({"b": np.zeros(3, np.float32)})
                assert server.clock == 0
                server.push({name: np.ones_like(it) for name, it in server.pull().items()})


def test_what_cannot_be_is_one_line():
    for shapes, knobs, line in (
        ([(2,)], {}, "got list, expected shapes by name: a dictionary"),
        ({"w": (2, -1)}, {}, "'w' is (2, -1), expected a shape such as"),
        ({"w": np.zeros(3)}, {}, "the parameters['w'] are float64, expected float32 arrays"),
        (SHAPES, {"mode": "allreduce"}, "mode must be sync, async, ssp, softsync, got allreduce"),
        (SHAPES, {"steps": 3}, "steps is for trainers: a worker pushes until it leaves"),
    ):
        with pytest.raises(ConfigError) as caught:
            ParameterServer(None, shapes, **knobs)
        assert line in str(caught.value)


@pytest.mark.mpi(min_size=2)
def test_what_comes_out_of_turn_is_told_in_its_own_words(comm):
    server = ParameterServer(comm, SHAPES, **KNOBS | {"servers": 1})
    for fresh in (True, False):
        with pytest.raises(ConfigError, match=r"entered first: with psrt\.ParameterServer"):
            server.pull(fresh=fresh)
    with server:
        if server.serves:
            with pytest.raises(ConfigError, match="this rank is a server"):
                server.push({"b": np.ones(3, np.float32)})
        else:
            server.push({"b": -np.ones(3, np.float32)})
    told = (
        "this rank is a server" if server.serves else r"the servers are done: push\(\) and pull\("
    )
    with pytest.raises(ConfigError, match=told):
        server.pull(fresh=True)
    assert server.pull("b")["b"].all()
    with pytest.raises(ConfigError, match="a ParameterServer serves once"), server:
        pass
    with (
        pytest.raises(ConfigError, match=r"^nothing was pushed by any worker$"),
        ParameterServer(comm, SHAPES, **KNOBS),
    ):
        pass


@pytest.mark.mpi(min_size=2)
def test_arrays_that_differ_between_ranks_are_refused_on_all(comm):
    """They would be summed as the one vector that they are made of, whatever each is called."""
    last, usual = comm.size - 1, "where rank 0 has ['w'] of shape (2, 3)"
    for shapes, found in (
        ({"b": (3,), "w": (3, 2)}, f"['w'] of shape (3, 2) {usual}"),
        ({"b": (3,), "x": (2, 3)}, f"['x'] of shape (2, 3) {usual}"),
        (SHAPES | {"z": ()}, "['z'] of shape () where rank 0 has no more"),
    ):
        server = ParameterServer(comm, shapes if comm.rank == last else SHAPES, **KNOBS)
        with pytest.raises(ConfigError, match="parameters differ between ranks") as caught, server:
            pass
        assert f"rank {last} has {found}" in str(caught.value)
