"""What ranks agree on: errors that all raise together, texts that all have, files that travel."""

import os
import tempfile
import time
from itertools import product
from types import SimpleNamespace

import pytest

from psrt.core.errors import ConfigError, DivergedError, OutputError, PsrtError, StoppedError
from psrt.faults.vitals import HERE
from psrt.mpi import agreement
from psrt.mpi.agreement import bcast_text, raise_on_all
from psrt.mpi.files import _PIECE, receive_file, send_file
from psrt.mpi.monitor import wait_until_read
from psrt.mpi.star import Star
from psrt.transport.backoff import Backoff


def raise_at(comm, errors):
    """Raise the error of this rank, if it has one, together with all others."""
    with raise_on_all(comm):
        if comm.rank in errors:
            raise errors[comm.rank]


@pytest.mark.mpi
def test_an_error_is_raised_on_all_whole_and_the_lowest_rank_is_heard(comm):
    text = "no such file: é\nsecond\n\nfourth"
    for kind in (ConfigError, DivergedError, StoppedError):
        raise_at(comm, {})
        for culprit in range(comm.size):
            later = {rank: ConfigError("later") for rank in range(culprit + 1, comm.size)}
            with pytest.raises(kind) as caught:
                raise_at(comm, {culprit: kind(text), **later})
            assert str(caught.value) == text
            assert caught.value.exit_status == kind.exit_status
            assert caught.value.agreed


@pytest.mark.mpi
def test_text_of_any_rank_reaches_all(comm):
    for root, text in product(range(comm.size), ["", "Σ θ_i ÷ W", "line\n" * 10_000]):
        assert bcast_text(comm, text if comm.rank == root else "other", root) == text


def test_last_words_are_waited_for_but_into_a_file(monkeypatch):
    launcher, words = os.pipe()
    heard = []
    with os.fdopen(words, "w") as stream, monkeypatch.context() as patch:
        patch.setattr(time, "sleep", lambda seconds: heard.append(os.read(launcher, 100)))
        print("last words", file=stream, flush=True)
        wait_until_read(stream)
    os.close(launcher)
    assert heard == [b"last words\n"]
    with tempfile.TemporaryFile("w+") as stream, monkeypatch.context() as patch:
        patch.setattr(time, "sleep", lambda seconds: pytest.fail("waits for a file"))
        print("last words", file=stream, flush=True)
        wait_until_read(stream)


@pytest.mark.mpi
def test_another_version_of_psrt_is_named_with_its_host(comm, monkeypatch):
    agreement.same_psrt(comm)
    if comm.size == 1:
        return
    last = comm.size - 1
    if comm.rank == last:
        monkeypatch.setattr(agreement, "__version__", "9.9.9")
    with pytest.raises(ConfigError, match=rf"rank {last} on \S+ runs psrt 9.9.9, rank 0 on \S+ "):
        agreement.same_psrt(comm)


# --- between rank 0 and those that are there ------------------------------------------------------


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


def raised(star, error, last=None):
    try:
        with star.raise_on_all(lambda: last):
            if error is not None:
                raise error
    except PsrtError as found:
        return found
    return None


def test_texts_go_to_rank_0_and_back_and_errors_to_all(comm, star, there):
    """That of the lowest rank; where there is none rank 0 has the last word."""
    if comm.rank not in there:
        return
    for size in (0, 1, 1_000_000):
        texts = star.collect(f"{comm.rank}" * size)
        assert texts == ({rank: f"{rank}" * size for rank in there} if comm.rank == 0 else {})
        assert star.tell("é" * size if comm.rank == 0 else "") == "é" * size
    last = ConfigError("the last word")
    mine = OutputError(f"of {comm.rank}") if comm.rank == there[-1] else None
    error = raised(star, mine, last)
    assert (type(error), str(error), error.agreed) == (OutputError, f"of {there[-1]}", True)
    assert error.echo == (mine is None)
    error = raised(star, None, last if comm.rank == 0 else None)
    assert (type(error), str(error), error.echo) == (ConfigError, str(last), comm.rank > 0)
    assert raised(star, None) is None


# --- files ----------------------------------------------------------------------------------------


def wait(done, waiting_for):
    deadline = time.monotonic() + 120
    while not done():
        assert time.monotonic() < deadline, waiting_for()


def carry(comm, folder, data, path):
    """Bring a file of the last rank to rank 0; return what there is then."""
    last = comm.size - 1
    if comm.rank == last:
        (folder / "mine").write_bytes(data)
        with (folder / "mine").open("rb") as file:
            file.read(3)  # wherever it is
            send_file(comm, file, 0, wait)
    elif comm.rank == 0:
        receive_file(comm, last, path, wait)
        assert path.read_bytes() == data
    comm.Barrier()


@pytest.mark.mpi(min_size=2)
def test_a_file_of_any_length_comes_whole(comm, shared_folder):
    for size in (0, 1, _PIECE, 2 * _PIECE + 5):
        carry(comm, shared_folder, (b"%d," % size * size)[:size], shared_folder / "copy")


@pytest.mark.mpi(min_size=2)
def test_what_cannot_be_written_is_told_when_all_has_come(comm, shared_folder):
    if comm.rank == 0:
        with pytest.raises(OutputError, match=r"cannot write .*: No such file or directory"):
            carry(comm, shared_folder, b"", shared_folder / "no" / "copy")
        comm.Barrier()
    else:
        carry(comm, shared_folder, bytes(3 * _PIECE), None)
    carry(comm, shared_folder, b"next", shared_folder / "copy")


@pytest.mark.mpi(min_size=2)
def test_other_bytes_than_were_sent_are_noticed(comm, shared_folder, monkeypatch):
    if comm.rank == 0:
        with pytest.raises(OutputError, match=f"damaged on its way from rank {comm.size - 1}"):
            carry(comm, shared_folder, b"", shared_folder / "copy")
        comm.Barrier()
    else:
        wrong = SimpleNamespace(crc32=lambda data, crc: crc + 1)
        monkeypatch.setattr("psrt.mpi.files.zlib", wrong)
        carry(comm, shared_folder, bytes(100), None)
