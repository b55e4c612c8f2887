"""Flags of ``psrt bench`` that will not do are refused before MPI is there."""

import pytest

from psrt.cli.bench import main
from psrt.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("step --sizes 1K", "--sizes is for bench allreduce, not for bench step"),
        ("ps --costs a.json", "--costs is for bench allreduce"),
        ("train --fit a.json", "--fit is for bench allreduce"),
        ("allreduce --fit a.json --costs b.json", "take one of them"),
        ("allreduce --rounds 0", "at least 1"),
        ("allreduce --size 1K", "unknown flag --size (did you mean --sizes?)"),
        ("allreduce", "mpirun -n 4 python -m psrt bench allreduce"),
        ("allrduce", "invalid choice"),
    ],
)
def test_refused(words, told, monkeypatch):
    monkeypatch.setattr("psrt.cli.bench.launched", lambda: False)
    with pytest.raises(ConfigError) as caught:
        main(words.split())
    assert told in str(caught.value)
