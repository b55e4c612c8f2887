"""What the scripts share, and what they say before they begin."""

import sys

import pytest
import staleness_study
from studies import softsync, workers

from psrt.errors import ConfigError


@pytest.fixture
def no_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.mark.parametrize(("words", "study"), [((), softsync), (("--study", "workers"), workers)])
def test_that_there_will_be_no_plot_is_said_before_the_work(
    words, study, tmp_path, no_matplotlib, monkeypatch, capsys
):
    def work(*_):
        raise ConfigError(capsys.readouterr().out)

    monkeypatch.setattr(study, "row_of", work)
    with pytest.raises(ConfigError) as said:
        staleness_study.main([*words, "--out", str(tmp_path)])
    assert str(said.value) == "no plot: plots need matplotlib: pip install matplotlib\n"


def test_a_picture_that_cannot_be_drawn_is_refused_before_a_run_is_read(no_matplotlib, tmp_path):
    with pytest.raises(ConfigError, match="pip install"):
        staleness_study.main(["--run", str(tmp_path / "nowhere")])
