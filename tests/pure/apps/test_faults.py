"""The table of faults: it has a row for each, and knows what is as promised."""

import pytest
from studies import faults
from studies.faults import BARE, FAULTS, HOSTS, MODES, ONE, Fault, Seen

DEATH = "psrt: error: worker 1 (rank 2, node02, pid 7) died\n"


def test_the_page_has_every_row_and_no_other():
    page = faults.PAGE.read_text()
    table = page[page.index(faults.BEGIN) : page.index(faults.END)].splitlines()[3:]
    rows = [(fault, mpi) for fault in FAULTS for mpi in faults.VENVS]
    for row, (fault, mpi) in zip(table, rows, strict=True):
        begin = f"{faults.key(mpi, fault)} {fault.promised(mpi)} |"
        assert row.startswith(begin)
        cells = row.removeprefix(begin).split("|")[:-1]
        tried = [mode for mode, cell in zip(MODES, cells, strict=True) if cell.strip()]
        assert tried == [mode for mode in MODES if mode in fault.modes]


@pytest.mark.parametrize(
    ("where", "mpi", "seen", "told"),
    [
        (ONE, "MPICH", (5, DEATH, False, False), "5, 2 s"),
        (HOSTS, "MPICH", (9, "", False, False), "**no line, status 9**: 9, 2 s"),
        (ONE, "MPICH", (5, 2 * DEATH, False, False), "**2 lines**: 5, 2 s"),
        (ONE, "MPICH", (5, DEATH, True, True), "**results, a process is left**: 5, 2 s"),
        (BARE, "MPICH", (9, "", False, False), "9, no line, 2 s"),
        (BARE, "Open MPI", (137, "", False, False), "**no line**: 137, 2 s"),
        (BARE, "Open MPI", (0, DEATH, False, False), "**status 0**: 0, 2 s"),
    ],
)
def test_what_is_not_as_promised_is_bold(where, mpi, seen, told):
    status, stderr, results, left = seen
    fault = Fault(where, "SIGKILL", 2)
    assert Seen(status, stderr, 2.0, results, left).told(fault, "sync", mpi) == told
