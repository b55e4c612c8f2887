import pytest
from studies.compression_table import cells

pytest.importorskip("matplotlib")
from studies import compression_plot
from studies.compression import LOCAL_SETTINGS, SETTINGS


def run(setting, seconds, link, mode="sync"):
    return {
        "mode": mode, "setting": setting, "link": link, "lr": 0.1, "bytes_sent": 2e6,
        "test_accuracy": 0.9, "seconds_to_accuracy": seconds,
    }  # fmt: skip


def test_a_row_for_each_mode_and_a_plot_for_each_link(tmp_path, figures):
    path = tmp_path / "compression.png"
    rows = [
        run(setting, seconds, link, mode)
        for mode in ("sync", "async")
        for link in ("slow", "fast")
        for setting, seconds in (("none", 3.0), ("sign", 2.0), ("int8", None))
    ]
    compression_plot.draw(cells(rows), path, target=0.9, note="on a note")
    assert path.read_bytes().startswith(b"\x89PNG")
    axes = figures[0].axes
    assert len(axes) == 6
    assert axes[0].get_ylabel() == "sync: accuracy [%]"
    assert [it.get_title() for it in axes[1:3]] == ["slow", "fast"]
    marks = [line for line in axes[1].lines if line.get_marker() not in ("x", "None")]
    assert [list(line.get_ydata()) for line in marks] == [[3.0], [2.0]]
    assert [list(line.get_xdata()) for line in axes[1].lines if line.get_marker() == "x"] == [[2.0]]


def test_where_nobody_reaches_the_target_there_are_no_times(tmp_path, figures):
    path = tmp_path / "compression.png"
    rows = [run("none", None, "slow"), run("sign", None, "slow"), run("none", 1.0, "fast")]
    compression_plot.draw(cells(rows), path, target=0.9, note="")
    assert path.exists()
    assert [it.get_yscale() for it in figures[0].axes[1:]] == ["linear", "log"]


def test_no_two_settings_look_alike():
    settings = {*SETTINGS, *LOCAL_SETTINGS}
    looks = [compression_plot._look(i) for i in range(len(settings))]
    assert len({tuple(look.values()) for look in looks}) == len(settings) > 40
