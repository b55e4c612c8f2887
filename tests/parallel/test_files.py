"""Files that travel from rank to rank."""

import time
from types import SimpleNamespace

import pytest

from psrt.errors import OutputError
from psrt.mpi.files import _PIECE, receive_file, send_file

pytestmark = pytest.mark.mpi(min_size=2)


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


@pytest.mark.parametrize("size", [0, 1, _PIECE, 2 * _PIECE + 5])
def test_a_file_of_any_length_comes_whole(comm, shared_folder, size):
    carry(comm, shared_folder, bytes(i % 251 for i in range(size)), shared_folder / "copy")


def test_what_cannot_be_written_is_told_when_all_has_come(comm, shared_folder):
    if comm.rank == 0:
        with pytest.raises(OutputError, match=r"cannot write .*: No such file or directory"):
            carry(comm, shared_folder, b"", shared_folder / "no" / "copy")
        comm.Barrier()
    else:
        carry(comm, shared_folder, bytes(3 * _PIECE), None)
    carry(comm, shared_folder, b"next", shared_folder / "copy")


def test_other_bytes_than_were_sent_are_noticed(comm, shared_folder, monkeypatch):
    if comm.rank == 0:
        with pytest.raises(OutputError, match=f"damaged on its way from rank {comm.size - 1}"):
            carry(comm, shared_folder, b"", shared_folder / "copy")
        comm.Barrier()
    else:
        wrong = SimpleNamespace(crc32=lambda data, crc: crc + 1)
        monkeypatch.setattr("psrt.mpi.files.zlib", wrong)
        carry(comm, shared_folder, bytes(100), None)
