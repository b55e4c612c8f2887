"""end.json: how a run ended early, for whoever looks at its folder later."""

import pytest

from psrt.errors import ConfigError
from psrt.report.end import EndFile, RunEnd, one_line

CONFIG = 'mode = "sync"\n'


@pytest.fixture
def run(tmp_path):
    (tmp_path / "config.toml").write_text(CONFIG)
    return tmp_path


def test_it_is_read_as_it_was_written(run):
    EndFile(str(run), CONFIG).write("psrt: error: worker 1 was killed\n", 5)
    end = RunEnd.read(run)
    assert (end.text, end.status) == ("worker 1 was killed", 5)
    assert str(end) == f"ended early, {end.ended}, with status 5: worker 1 was killed"
    assert sorted(it.name for it in run.iterdir()) == ["config.toml", "end.json"]


def test_who_knows_better_replaces_it(run):
    file = EndFile(str(run), CONFIG)
    for text, replaces in (("first", True), ("vague", False), ("better", True)):
        file.write(text, 5, replaces=replaces)
    assert RunEnd.read(run).text == "better"


def test_neither_another_run_nor_a_finished_one_is_touched(run):
    EndFile(str(run), CONFIG + "steps = 3\n").write("other", 5)
    EndFile(str(run / "not there"), CONFIG).write("other", 5)
    (run / "summary.json").write_text("{}")
    EndFile(str(run), CONFIG).write("late", 5)
    assert RunEnd.read(run) is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "7", '{"text": "a", "status": "b", "ended": "c"}', "[" * 100_000]
)
def test_a_damaged_one_is_one_line(run, text):
    (run / "end.json").write_text(text)
    with pytest.raises(ConfigError, match=r"end\.json: "):
        RunEnd.read(run)


def test_the_line_that_counts_of_a_traceback():
    frames = 'Traceback (most recent call last):\n  File "a.py", line 1\n    f()\n      ^\n'
    chained = f"{frames}KeyError: 1\n\nDuring handling of the above:\n\n{frames}Mine: no\nmore\n"
    ranks = "".join(f"[rank 2] {line}\n" for line in chained.splitlines())
    assert one_line(chained) == "Mine: no"
    assert one_line(ranks) == "[rank 2] Mine: no"
    assert one_line(f"{frames}ValueError: a\n  b\n") == "ValueError: a"
    assert one_line("psrt: interrupted\n") == "interrupted"
    assert one_line("a\x1b[2Jb") == "a\\x1b[2Jb"
