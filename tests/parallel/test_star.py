"""Texts and errors between rank 0 and the others, with and without a rank that is gone."""

import pytest

from psrt.errors import ConfigError, OutputError, PsrtError
from psrt.faults.vitals import HERE
from psrt.mpi.star import Star
from psrt.transport.backoff import Backoff


@pytest.fixture
def star(comm):
    own = comm.Dup()
    yield Star(own, Backoff(oversubscribed=True, timeout_s=20).wait)
    own.Free()


@pytest.fixture(params=[False, True], ids=["all there", "one gone"])
def there(comm, request):
    """The ranks that are there; the last one may be gone, and then does nothing."""
    gone = {comm.size - 1} - {0} if request.param else set()
    HERE.gone = frozenset(gone)
    yield [rank for rank in range(comm.size) if rank not in gone]
    HERE.gone = frozenset()
    comm.Barrier()


@pytest.mark.parametrize("size", [0, 1, 1_000_000])
def test_texts_go_to_rank_0_and_back(comm, star, there, size):
    if comm.rank not in there:
        return
    texts = star.collect(f"{comm.rank}" * size)
    assert texts == ({rank: f"{rank}" * size for rank in there} if comm.rank == 0 else {})
    assert star.tell("é" * size if comm.rank == 0 else "") == "é" * size


def raised(star, error, last=None):
    try:
        with star.raise_on_all(lambda: last):
            if error is not None:
                raise error
    except PsrtError as found:
        return found
    return None


def test_the_error_of_the_lowest_rank_is_raised_on_all(comm, star, there):
    if comm.rank not in there:
        return
    mine = OutputError(f"of {comm.rank}") if comm.rank == there[-1] else None
    error = raised(star, mine, ConfigError("the last word"))
    assert type(error) is OutputError
    assert str(error) == f"of {there[-1]}"
    assert error.agreed
    assert error.echo == (mine is None)


def test_rank_0_has_the_last_word_where_there_is_no_error(comm, star, there):
    if comm.rank not in there:
        return
    error = raised(star, None, ConfigError("the last word") if comm.rank == 0 else None)
    assert (type(error), str(error)) == (ConfigError, "the last word")
    assert error.echo == (comm.rank > 0)
    assert raised(star, None) is None
