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


@pytest.mark.parametrize("name", ["missing/all.json", "folder", "a" * 300, "file/all.json"])
@pytest.mark.parametrize("what", ["step", "simulate"])
def test_a_file_that_cannot_be_written_is_found_before_anything_is_measured(
    what, name, tmp_path, monkeypatch
):
    def measured(*_):
        raise AssertionError("measured first")

    monkeypatch.setattr("psrt.cli.bench._run", measured)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write"):
        main([what, "--json", str(tmp_path / name)])
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "file"}


def test_two_results_do_not_share_a_file():
    with pytest.raises(ConfigError, match=r"--fit and --json would both write a\.json"):
        main(["allreduce", "--fit", "./a.json", "--json", "a.json"])
