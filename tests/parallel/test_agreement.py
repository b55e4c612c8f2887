"""Errors that every rank raises together, and text that every rank has."""

import pytest

from psrt.errors import ConfigError, DivergedError, PsrtError
from psrt.transport.agreement import send_text, together

pytestmark = pytest.mark.mpi


def test_nothing_happens_where_nothing_failed(comm):
    with together(comm):
        pass


@pytest.mark.parametrize("error", [ConfigError("no such file: é"), DivergedError("nan")])
def test_one_rank_s_error_is_raised_on_all(comm, error):
    for culprit in range(comm.size):
        with pytest.raises(PsrtError) as caught, together(comm):
            if comm.rank == culprit:
                raise error
        assert str(caught.value) == str(error)
        assert caught.value.exit_status == error.exit_status
        assert caught.value.agreed
        error.agreed = False


def test_the_lowest_of_several_ranks_is_heard(comm):
    first = comm.size // 2
    with pytest.raises(PsrtError, match=f"^rank {first}$"), together(comm):
        if comm.rank >= first:
            raise ConfigError(f"rank {comm.rank}")


def test_an_error_of_several_lines_stays_whole(comm):
    text = "first\nsecond\n\nfourth"
    with pytest.raises(PsrtError) as caught, together(comm):
        if comm.rank == comm.size - 1:
            raise ConfigError(text)
    assert str(caught.value) == text


@pytest.mark.parametrize("text", ["", "x", "Σ θ_i ÷ W", "line\n" * 10_000])
def test_text_of_any_rank_reaches_all(comm, text):
    for root in range(comm.size):
        assert send_text(comm, text if comm.rank == root else "other", root) == text
