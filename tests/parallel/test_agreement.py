"""Errors that every rank raises together, and text that every rank has."""

import os
import tempfile
import time
from pathlib import Path

import pytest

from psrt.errors import ConfigError, DivergedError, PsrtError, StoppedError
from psrt.mpi import agreement
from psrt.mpi.agreement import bcast_text, raise_on_all
from psrt.mpi.monitor import wait_until_read

pytestmark = pytest.mark.mpi


def raise_at(comm, errors):
    """Raise the error of this rank, if it has one, together with all others."""
    with raise_on_all(comm):
        if comm.rank in errors:
            raise errors[comm.rank]


def test_nothing_happens_where_nothing_failed(comm):
    raise_at(comm, {})
    assert bcast_text(comm, f"rank {comm.rank}") == "rank 0"  # they are still in step


@pytest.mark.parametrize("kind", [ConfigError, DivergedError, StoppedError])
def test_one_rank_s_error_is_raised_on_all(comm, kind):
    for culprit in range(comm.size):
        with pytest.raises(kind) as caught:
            raise_at(comm, {culprit: kind("no such file: é")})
        assert str(caught.value) == "no such file: é"
        assert caught.value.exit_status == kind.exit_status
        assert caught.value.agreed


def test_the_lowest_of_several_ranks_is_heard(comm):
    first = comm.size // 2
    with pytest.raises(PsrtError, match=f"^rank {first}$"):
        raise_at(comm, {rank: ConfigError(f"rank {rank}") for rank in range(first, comm.size)})


def test_an_error_of_several_lines_stays_whole(comm):
    text = "first\nsecond\n\nfourth"
    with pytest.raises(PsrtError) as caught:
        raise_at(comm, {comm.size - 1: ConfigError(text)})
    assert str(caught.value) == text


@pytest.mark.parametrize("text", ["", "x", "Σ θ_i ÷ W", "line\n" * 10_000])
def test_text_of_any_rank_reaches_all(comm, text):
    for root in range(comm.size):
        assert bcast_text(comm, text if comm.rank == root else "other", root) == text


def test_last_words_are_waited_for(monkeypatch):
    launcher, words = os.pipe()
    heard = []
    with os.fdopen(words, "w") as stream, monkeypatch.context() as patch:
        patch.setattr(time, "sleep", lambda seconds: heard.append(os.read(launcher, 100)))
        print("last words", file=stream, flush=True)
        wait_until_read(stream)
    os.close(launcher)
    assert heard == [b"last words\n"]


@pytest.mark.parametrize("place", [tempfile.TemporaryFile, Path(os.devnull).open])
def test_last_words_into_a_file_or_nowhere_are_not(place, monkeypatch):
    with place("w+") as stream, monkeypatch.context() as patch:
        patch.setattr(time, "sleep", lambda seconds: pytest.fail("waits for a file"))
        print("last words", file=stream, flush=True)
        wait_until_read(stream)


def test_another_version_of_psrt_is_named_with_its_host(comm, monkeypatch):
    agreement.same_psrt(comm)
    if comm.size == 1:
        return
    last = comm.size - 1
    if comm.rank == last:
        monkeypatch.setattr(agreement, "__version__", "9.9.9")
    with pytest.raises(ConfigError, match=rf"rank {last} on \S+ runs psrt 9.9.9, rank 0 on \S+ "):
        agreement.same_psrt(comm)
