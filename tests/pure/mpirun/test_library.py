"""Which mpirun belongs to a library: that of its own folder, never one of another MPI."""

import pytest

from psrt.errors import ConfigError
from psrt.mpirun.library import Library, mpirun_of

OPEN, MPICH = "Open MPI v5.0.11", "MPICH 5.0.2"


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Make files; nothing is on the path but bin."""

    def make(*names):
        for name in names:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("#!/bin/sh\n")
            path.chmod(0o755)
        return tmp_path

    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return make


def test_an_environment_or_a_module_has_it_beside_its_libraries(made):
    folder = made("env/lib/libmpi.so.40", "env/bin/mpirun", "env/bin/prterun", "bin/mpirun")
    found = mpirun_of(Library(OPEN, str(folder / "env/lib/libmpi.so.40")))
    assert found == str(folder / "env/bin/mpirun")


def test_a_system_may_have_several(made):
    root = made("usr/bin/mpirun.openmpi", "usr/bin/orterun", "usr/bin/mpiexec.hydra")
    (root / "usr/bin/mpirun.mpich").symlink_to("mpiexec.hydra")
    (root / "usr/bin/mpirun").symlink_to("mpirun.openmpi")
    for text, name in ((OPEN, "mpirun.openmpi"), (MPICH, "mpirun.mpich")):
        library = Library(text, str(root / "usr/lib/x86_64-linux-gnu/libmpi.so"))
        assert mpirun_of(library) == str(root / "usr/bin" / name)


def test_a_library_that_is_linked_to_is_found_where_it_lies(made):
    root = made("opt/mpi/lib/libmpi.so.12", "opt/mpi/bin/mpirun")
    (root / "lib64").mkdir()
    link = root / "lib64/libmpi.so"
    link.symlink_to(root / "opt/mpi/lib/libmpi.so.12")
    assert mpirun_of(Library(MPICH, str(link))) == str(root / "opt/mpi/bin/mpirun")


def test_that_on_the_path_is_taken_if_it_is_of_the_same_kind(made):
    root = made("bin/mpirun", "bin/prterun")
    assert mpirun_of(Library(OPEN, None)) == str(root / "bin/mpirun")
    with pytest.raises(ConfigError, match=r"found no mpirun of MPICH 5\.0\.2 on the PATH"):
        mpirun_of(Library(MPICH, None))
    with pytest.raises(ConfigError, match=r"beside /nowhere/lib/libmpi\.so or on the PATH"):
        mpirun_of(Library(MPICH, "/nowhere/lib/libmpi.so"))
