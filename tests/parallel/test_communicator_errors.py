"""Ranks that do not call the same: every one is told so soon, by names; none adds what is wrong."""

import re
import time

import numpy as np
import pytest

from psrt.core.errors import ConfigError, ProtocolError, PsrtError, TransportError
from psrt.faults.vitals import HERE
from psrt.mpi.communicator import Communicator
from support.cases import also

pytestmark = pytest.mark.mpi(min_size=2)
#: Longer than this nobody may be left in the dark, on a machine that is busy with other things.
SOON_S = 60.0


@pytest.fixture(autouse=True)
def tell_soon(monkeypatch):
    """Let ranks that wait tell each other sooner than usual what they call."""
    monkeypatch.setattr("psrt.mpi.collectives.matcher.TELL_AFTER_S", 0.03)
    monkeypatch.setattr("psrt.mpi.collectives.matcher._LOOK_EVERY_S", 0.01)
    yield
    assert HERE.waiting_for is None


def error_of(action):
    """Return the error that an action ends with, soon."""
    start = time.monotonic()
    with pytest.raises(PsrtError) as caught:
        action()
    assert time.monotonic() - start < SOON_S
    return caught.value


def assert_of_no_use(communicator):
    """Every later call says so at once; to close is this rank's own affair."""
    for call in (communicator.all_reduce, communicator.all_reduce_async):
        error = error_of(lambda call=call: call(np.zeros(3, np.float32)))
        assert isinstance(error, ProtocolError)
        assert "cannot be used after an error" in str(error)
    assert "cannot be used after an error" in str(error_of(lambda: communicator.empty(3)))
    communicator.close()


def ones(n=10, dtype="float32"):
    return np.ones(n, dtype)


#: Name → what the others do when a rank leaves its block with an error.
WAITS = {
    "a window": lambda g, w: g.all_reduce(w),
    "the library's": lambda g, w: g.all_reduce(ones(100), "sum", "mpi"),
    "handles": lambda g, w: [h.wait() for h in [g.all_reduce_async(ones(9)) for _ in range(3)]],
    "a buffer to be made": lambda g, w: g.empty(10),
    "the end": lambda g, w: None,
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("under_way", [False, True])
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_a_rank_that_leaves_with_an_error_is_not_waited_for(comm, host, wait, under_way):
    communicator = Communicator(comm, timeout_s=20.0, host=host)
    window, leaver = communicator.empty(3000), comm.size - 1

    def block():
        with communicator:
            communicator.all_reduce(window)
            if comm.rank == leaver:
                if under_way:
                    communicator.all_reduce_async(window)
                raise ValueError("no more\nof this")
            wait(communicator, window)

    if comm.rank == leaver:
        # What it has begun may be found to differ before it comes to its own error.
        with pytest.raises((ValueError, ProtocolError) if under_way else ValueError):
            block()
    elif not under_way:
        assert f"rank {leaver} left with ValueError: no more of this" in str(error_of(block))
    else:
        assert isinstance(error_of(block), ProtocolError)


#: What most ranks call, and the last one, where some neither send nor receive anything.
ROOTED = {
    "root of nothing": (lambda g: g.broadcast(ones(0), 0), lambda g: g.broadcast(ones(0), 1)),
    "type": (lambda g: g.gather(ones(1)), lambda g: g.gather(ones(1, "int32"))),
    "operation": (lambda g: g.reduce(ones(0)), lambda g: g.reduce(ones(0), "max")),
}


@pytest.mark.one_in(3)
def test_a_rank_without_elements_notices_a_difference(comm, open_communicator, host):
    for name, (most, last) in ROOTED.items():
        communicator = open_communicator(host=host)
        call = last if comm.rank == comm.size - 1 else most
        error = error_of(lambda call=call, communicator=communicator: call(communicator))
        assert isinstance(error, ProtocolError), name
        assert "make different calls" in str(error), name


def poll(handle):
    """Wait for a handle without waiting."""
    while not handle.test():
        pass


def end(g):
    """Let a rank that needs nothing from the others, such as a root, hear of a difference."""
    g.all_reduce(ones(2), "sum", "ring")


def of(shape, *words, call="all_reduce", dtype="float32"):
    """Return a call on new ones of a shape, or on the window."""

    def action(g, window):
        result = getattr(g, call)(window if shape is WINDOW else ones(shape, dtype), *words)
        if call.endswith("_async"):
            result.wait()
        if call in ("gather", "scatter", "reduce"):
            end(g)

    return action


WINDOW = None
#: Name → what most ranks call, what one rank calls, and what each side's message must hold.
DIFFERENCES = {
    "shape": (of(10), of(11), ("all_reduce", "(10,)", "(11,)")),
    "shape, none on one rank": (
        of(10, "sum", "ring"),
        lambda g, w: [g.all_reduce(ones(n), "sum", "ring") for n in (0, 10)],
        ("all_reduce", "(10,)", "(0,)"),
    ),
    "type": (
        of(10, "sum", "ring"), of(10, "sum", "ring", dtype="int32"), ("float32", "int32"),
    ),
    "operation": (of(WINDOW, "sum"), of(WINDOW, "max"), ("all_reduce", "sum", "max")),
    "algorithm, the library's on most": (
        of(WINDOW, "sum", "mpi"), of(WINDOW, "sum", "node"), ("all_reduce", "mpi", "node"),
    ),
    "kind of buffer": (of(WINDOW), of(100), ("all_reduce", "any array", "communicator.empty")),
    "place in a buffer": (
        lambda g, w: g.all_reduce(w[:50], "sum", "node"),
        lambda g, w: g.all_reduce(w[1:51], "sum", "node"),
        ("all_reduce", "communicator.empty 0+0", "communicator.empty 0+4"),
    ),
    "call, one that a root could make alone": (
        of(10, "sum", "ring"),
        lambda g, w: [g.broadcast(ones(), g.rank), end(g)],
        ("all_reduce", "broadcast"),
    ),
    "root": (
        of(WINDOW, 0, call="broadcast"), of(WINDOW, 1, call="broadcast"), ("root 0", "root 1"),
    ),
    "gather and scatter, where some ranks only send": (
        of(10, 0, call="gather"), of(10, 0, call="scatter"), ("gather(", "scatter("),
    ),
    "a buffer to be made": (
        lambda g, w: g.empty(10), of(WINDOW), ("empty((10,), float32)", "all_reduce"),
    ),
    "the end, of one": (of(WINDOW), lambda g, w: g.close(), ("all_reduce", "close()")),
    "the end, of most": (
        lambda g, w: g.close(), of(WINDOW, "sum", "ring"), ("all_reduce", "close()"),
    ),
    "nonblocking, and not": (
        of(10, "sum", "ring", call="all_reduce_async"), of(10, "sum", "ring"),
        ("all_reduce_async", "all_reduce("),
    ),
    "nonblocking, polled": (
        lambda g, w: poll(g.all_reduce_async(ones(), "sum", "tree")),
        lambda g, w: poll(g.all_reduce_async(ones(), "sum", "mpi")),
        ("all_reduce_async", "tree", "mpi"),
    ),
}  # fmt: skip


@pytest.mark.one_in(2)
@pytest.mark.parametrize("difference", DIFFERENCES)
def test_what_differs_is_told_to_every_rank(
    comm, open_communicator, enough_on_few, host, difference
):
    """One rank calls something else: every rank is told what it, and who has called otherwise."""
    if "only send" not in difference:
        enough_on_few()
    communicator, odd = open_communicator(host=host), comm.size - 1
    usual, other, words = DIFFERENCES[difference]
    window = communicator.empty(100)
    window[:] = 1
    communicator.all_reduce(window)
    action = other if comm.rank == odd else usual
    error = error_of(lambda: action(communicator, window))
    assert isinstance(error, ProtocolError)
    text = str(error)
    ranks = {int(rank) for rank in re.findall(r"rank (\d+) has", text)}
    assert {odd, comm.rank} <= ranks, text
    assert len(ranks) == 2, text
    assert [word for word in words if word not in text] == [], text
    if "end" not in difference:
        assert_of_no_use(communicator)


#: Name → a call that a rank cannot take part in, and a word of the reason.
REFUSED = {
    "read-only": (lambda g: g.all_reduce(locked(ones())), "read-only"),
    "every other element": (lambda g: g.all_reduce(ones(20)[::2]), "not contiguous"),
    "a list": (lambda g: g.all_reduce([1.0, 2.0]), "list"),
    "masked": (lambda g: g.all_reduce(np.ma.ones(10, np.float32)), "MaskedArray"),
    "bool": (lambda g: g.reduce_scatter(ones(10, "bool")), "b1"),
    "text": (lambda g: g.broadcast(np.array(["abc"])), "<U3 elements cannot be sent"),
    "a tensor": (lambda g: g.all_reduce(Tensor()), "pass its .detach().numpy()"),
    "the other endian": (lambda g: g.all_reduce(ones(10, ">f4")), ">f4"),
    "float16 by the library": (lambda g: g.all_reduce(ones(9, "float16"), "sum", "mpi"), "float16"),
    "unknown operation, long": (lambda g: g.all_reduce(ones(), "é" * 1200), "ééé"),
    "unknown algorithm": (lambda g: g.all_reduce(ones(), "sum", "star"), "star"),
    "no such root": (lambda g: g.broadcast(ones(), g.size), "is not a rank from 0 to"),
    "no such root of a gather": (lambda g: g.gather_async(ones(), -1), "root -1"),
    "bits of decimal numbers": (lambda g: g.all_reduce(ones(), "xor"), "xor is for integers"),
    "no blocks for all": (lambda g: g.all_to_all(ones(g.size + 1)), "equal blocks"),
    "blocks by column": (lambda g: g.all_to_all(ones((3, g.size)).T), "scattered"),
    "a result of no array": (lambda g: g.all_to_all(ones(g.size), [0.0]), "out: a list"),
    "a result of another type": (
        lambda g: g.all_to_all_async(ones(g.size), ones(g.size, "int32")),
        "int32, expected",
    ),
    "a result that is read-only": (
        lambda g: g.all_to_all(ones(g.size), locked(ones(g.size))),
        "out: the array is read-only",
    ),
    "a result on what is sent": (
        lambda g: (lambda both: g.all_to_all(both[: g.size], both[1:]))(ones(g.size + 1)),
        "shares memory",
    ),
    "two arrays to reduce": (lambda g: g.all_reduce(ones(), ones()), "on one array, but got two"),
    "a buffer of negative length": (lambda g: g.empty((2, -1)), "(2, -1)"),
}


class Tensor:
    """What torch's have."""

    def detach(self):
        return self


def locked(array):
    array.flags.writeable = False
    return array


def test_the_same_mistake_on_all_ranks_spoils_nothing(open_communicator, host):
    communicator = open_communicator(host=host)
    window = communicator.empty(3000)
    for call, reason in list(REFUSED.values())[:: 1 if host is None else 6]:
        error = error_of(lambda call=call: call(communicator))
        assert isinstance(error, ConfigError)
        assert reason in str(error)
        window[:] = 1
        begun = ones(5)
        handle = communicator.all_reduce_async(begun, "sum", "mpi")
        error_of(lambda call=call: call(communicator))
        assert (communicator.all_reduce(window) == communicator.size).all()
        assert (communicator.all_reduce(ones(7), "sum", "ring") == communicator.size).all()
        handle.wait()
        assert (begun == communicator.size).all()


@pytest.mark.parametrize("first", ["the one", "the others"])
def test_one_rank_s_mistake_is_told_to_the_others(comm, open_communicator, first):
    """Whoever comes first; the others call something that would do."""
    for call, reason in list(REFUSED.values())[:: 6 if first == "the one" else 11]:
        communicator, odd = open_communicator(), comm.size - 1
        communicator.all_reduce(ones())
        if (comm.rank == odd) == (first == "the others"):
            time.sleep(0.05)
        if comm.rank == odd:
            error = error_of(lambda call=call, group=communicator: call(group))
            assert isinstance(error, ConfigError)
            assert reason in str(error)
        # That the others were told otherwise, the one hears at its next call.
        error = error_of(lambda group=communicator: group.all_reduce(ones()))
        assert isinstance(error, ProtocolError)
        if comm.rank != odd:
            assert f"rank {odd} cannot take part in call " in str(error)
            assert reason in str(error)
        assert_of_no_use(communicator)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "where"),
    [("auto", "window"), ("ring", "plain"), ("node+tree", "plain"), ("mpi", "plain")],
)
def test_a_rank_that_never_calls_is_named(
    comm, open_communicator, enough_on_few, monkeypatch, host, name, where
):
    enough_on_few()
    # A rank that gets no core between its announcement and the deadline names nobody.
    monkeypatch.setattr("psrt.mpi.collectives.matcher.TELL_AFTER_S", 0.1)
    communicator = open_communicator(host=host, timeout_s=0.7)
    odd = comm.size - 1
    buffer = communicator.empty(5000) if where == "window" else ones(5000)
    comm.Barrier()
    if communicator.rank != odd:
        error = error_of(lambda: communicator.all_reduce(buffer, "sum", name))
        assert isinstance(error, TransportError)
        assert "no answer within 0.7 s" in str(error)
        assert "all_reduce(shape (5000,), float32" in str(error)
        assert re.search(rf"ranks? [\d, ]*\b{odd} did not announce this call$", str(error))
        assert_of_no_use(communicator)
    with HERE.blocked("the others"):  # it does not compute
        comm.Barrier()
    if communicator.rank == odd and name != "mpi":
        # It finds nobody there; what MPI delivers late must do no harm.
        error_of(lambda: communicator.all_reduce(buffer, "sum", "tree"))
    comm.Barrier()


@pytest.mark.exhaustive
def test_a_deadline_counts_from_the_last_sign_of_life(comm, open_communicator):
    """A call in several parts, each of them late but in time."""
    communicator = open_communicator(timeout_s=2)
    buffer = ones(5)
    for turn in range(3):
        time.sleep(0.75 * (communicator.rank == turn % communicator.size))
        communicator.all_reduce(buffer, "max")
    np.testing.assert_array_equal(buffer, 1)


@pytest.mark.parametrize("behind", [also(1), 40])
def test_a_rank_that_has_gone_on_is_told_of_an_old_call(comm, open_communicator, host, behind):
    """A root goes on as soon as its numbers are sent: it hears much later that nobody took them."""
    communicator = open_communicator(host=host, timeout_s=SOON_S + 10)
    odd = comm.size - 1
    buffer = ones(3)
    communicator.all_reduce(buffer)
    communicator.broadcast(buffer)  # in the first of its kind all ranks meet
    if communicator.rank != odd:
        error = error_of(
            lambda: [communicator.broadcast(buffer) for _ in range(behind)] + [end(communicator)]
        )
    else:
        error = error_of(lambda: communicator.all_reduce(ones(4), "sum", "ring"))
    assert isinstance(error, ProtocolError)
    assert f"rank {odd} has all_reduce(shape (4,)" in str(error)
    assert "has broadcast(shape (3,)" in str(error)
    assert_of_no_use(communicator)


def test_what_is_under_way_fails_with_the_rest(comm, open_communicator, host):
    communicator = open_communicator(host=host)
    begun = [ones(10), communicator.empty(3000), ones(4000)]
    handles = [
        communicator.all_reduce_async(b, "sum", name) for b, name in zip(begun, WAYS, strict=True)
    ]
    odd = communicator.rank == comm.size - 1
    error = error_of(lambda: communicator.all_reduce(ones(5 + odd), "sum", "ring"))
    assert isinstance(error, ProtocolError)
    assert "(5,)" in str(error)
    assert "(6,)" in str(error)
    for buffer, handle in zip(begun, handles, strict=True):
        for action in (handle.wait, handle.test):
            if handle.done:
                np.testing.assert_array_equal(buffer, communicator.size if buffer[0] else 0)
            else:
                assert "cannot be used after an error" in str(error_of(action))
    assert_of_no_use(communicator)


WAYS = ["ring", "node", "mpi"]


def test_what_is_interrupted_cannot_go_on(comm, open_communicator, monkeypatch):
    """A rank that leaves a call in its middle could be taken for one that has ended it."""
    communicator = open_communicator(timeout_s=0.5)
    window = communicator.empty(9000)
    window[:] = 1
    odd = communicator.rank == comm.size - 1

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    if odd:
        monkeypatch.setattr("psrt.mpi.collectives.plans.direct.Direct._fold", interrupt)
        with pytest.raises(KeyboardInterrupt):
            communicator.all_reduce(window, "sum", "node")
        monkeypatch.undo()
        assert "KeyboardInterrupt" in str(error_of(lambda: communicator.all_reduce(window)))
    else:
        assert isinstance(
            error_of(lambda: communicator.all_reduce(window, "sum", "node")), TransportError
        )
    assert_of_no_use(communicator)
