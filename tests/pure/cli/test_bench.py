"""Flags of ``psrt bench`` that will not do are refused before MPI is there."""

import json
from argparse import Namespace

import pytest

from psrt.cli.bench import main, run
from psrt.codec import TABLE
from psrt.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("train --sizes 1K", "--sizes is for bench allreduce and ps, not for bench train"),
        ("train --mode sync", "--mode is for bench ps, not for bench train"),
        ("allreduce --servers 2", "--servers is for bench ps, not for bench allreduce"),
        ("train --elements 5", "--elements is for bench codec, not for bench train"),
        ("codec --sizes 1K", "--sizes is for bench allreduce and ps, not for bench codec"),
        ("codec --elements 0", "elements must be at least 1, got 0"),
        ("codec --elements many", "elements must be a whole number, got 'many'"),
        ("codec --rounds 0", "at least 1"),
        ("ps --machine-costs a.json", "--machine-costs is for bench allreduce"),
        ("train --fit a.json", "--fit is for bench allreduce"),
        ("allreduce --fit a.json --machine-costs b.json", "give one of them"),
        ("allreduce --shards-per-server 2", "--shards-per-server is for bench ps and train"),
        ("train --shards-per-server few", "must be a whole number or auto, got 'few'"),
        ("ps --shards-per-server 0", "shards-per-server must be at least 1, got 0"),
        ("allreduce --rounds 0", "at least 1"),
        ("ps --quick", "--quick is for bench allreduce"),
        ("allreduce --force", "--force has no effect without --fit"),
        ("allreduce --size 1K", "unknown flag --size (did you mean --sizes?)"),
        ("allreduce", "launch -n 4 bench allreduce"),
        ("pipeline", "bench pipeline needs 2 ranks or more: "),
        ("pipeline --sizes 1K", "--sizes is for bench allreduce and ps, not for bench pipeline"),
        ("allrduce", "codec, got 'allrduce' (did you mean allreduce?)"),
    ],
)
def test_refused(words, told, monkeypatch):
    monkeypatch.setattr("psrt.cli.bench.launched", lambda: False)
    with pytest.raises(ConfigError) as caught:
        main(words.split())
    assert told in str(caught.value)


def test_codecs_need_no_ranks(monkeypatch, capsys, tmp_path):
    path = tmp_path / "codecs.json"
    monkeypatch.setattr("psrt.cli.bench.launched", lambda: True)
    with pytest.raises(ConfigError, match="bench codec is for one process"):
        main(["codec"])
    monkeypatch.setattr("psrt.cli.bench.launched", lambda: False)
    monkeypatch.setattr("psrt.bench.codec_limits.WORKERS", (4,))  # the rest takes 10 s
    assert main(["codec", "--elements", "1000", "--rounds", "1", "--json", str(path)]) == 0
    text = capsys.readouterr().out
    assert all(f"\n{name} " in text for name in TABLE)
    assert {row["codec"] for row in json.loads(path.read_text())["codecs"]} == {*TABLE}


@pytest.mark.parametrize("name", ["missing/all.json", "folder", "a" * 300, "file/all.json"])
def test_a_file_that_cannot_be_written_is_found_before_anything_is_measured(name, tmp_path):
    def measured(*_):
        raise AssertionError("measured first")

    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    path = str(tmp_path / name)
    with pytest.raises(ConfigError, match="cannot write"):
        run(Namespace(json=path), None, measured, (None, path))
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "file"}


def test_a_file_that_is_there_is_kept_until_the_figures_are(tmp_path):
    path = tmp_path / "all.json"
    path.write_text("figures of yesterday")

    def failing(*_):
        raise ConfigError("nothing to measure")

    with pytest.raises(ConfigError, match="nothing"):
        run(Namespace(json=str(path)), None, failing, (str(path),))
    assert path.read_text() == "figures of yesterday"


def test_two_results_do_not_share_a_file():
    with pytest.raises(ConfigError, match=r"--fit and --json would both write a\.json"):
        main(["allreduce", "--fit", "./a.json", "--json", "a.json"])
