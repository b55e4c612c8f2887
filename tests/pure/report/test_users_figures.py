"""What evaluate() returns beside loss and accuracy is kept, wherever figures are shown."""

import io
import json
from dataclasses import fields

import numpy as np
import pytest

import psrt
from psrt import ConfigError, TrainConfig
from psrt.history.check.run import check_run
from psrt.pages.run.page import page_of
from psrt.report import Record
from psrt.report.console import final_table
from psrt.runs.comparison import compare
from psrt.runs.metrics_csv import write_csv
from psrt.runtime.problem_rules import TAKEN
from support.least_squares import UnevenSquares

CONFIG = TrainConfig(mode="serial", epochs=2, lr=0.05)


class Measured(UnevenSquares):
    """Finds figures of its own."""

    found = {"f1": 0.25, "rmse": np.float32(1.5)}  # noqa: RUF012

    def evaluate(self, theta):
        return super().evaluate(theta) | self.found


def test_they_are_kept_logged_and_printed(tmp_path):
    said, folders = [], [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        config = TrainConfig(mode="async", epochs=2, lr=0.05, out=str(folder), record=True)
        run = psrt.simulate(config, Measured(), workers=3)
        assert check_run(folder).ok
    text = (folders[0] / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["f1"] for line in lines if "f1" in line] == [0.25] * len(
        [line for line in lines if line["test_loss"] is not None]
    )
    assert run.summary.test_figures == {"f1": 0.25, "rmse": 1.5}
    assert psrt.Summary.from_json(run.summary.to_json()) == run.summary
    assert [it.figures for it in run.records if it.figures][-1] == {"f1": 0.25, "rmse": 1.5}
    assert "f1  " in final_table(json.loads(run.summary.to_json()))
    psrt.run(CONFIG, Measured(), say=said.append)
    assert any("f1 0.2500  rmse 1.5000" in line for line in said)
    table = io.StringIO()
    write_csv(folders, table)
    assert {"f1", "rmse"} <= set(table.getvalue().splitlines()[0].split(","))
    compared = compare(folders)
    assert compared.outcome["test f1"] == [0.25, 0.25]
    words = " ".join(compared.lines()).split()
    assert "test f1 0.25;" in " ".join(words), "equal in all, so said once"
    assert "test rmse" in page_of([str(it) for it in folders])


@pytest.mark.parametrize("name", [*sorted(TAKEN), "", 3])
def test_a_name_is_free(name):
    problem = Measured()
    problem.found = {name: 1.0}
    with pytest.raises(ConfigError, match=r"a figure the name .*, expected text that"):
        psrt.run(CONFIG, problem)


def test_every_column_of_the_metrics_is_taken():
    own = {it.name for it in fields(Record)} - {"loss", "accuracy"}
    assert own <= TAKEN


@pytest.mark.parametrize("value", ["high", None, [1.0], np.ones(2), 1j])
def test_a_figure_is_a_number(value):
    problem = Measured()
    problem.found = {"f1": value}
    with pytest.raises(ConfigError, match=r"evaluate\(\) gives .* for f1, expected a number"):
        psrt.run(CONFIG, problem)


def test_a_loop_of_ones_own_says_them_too():
    with psrt.Trainer(CONFIG, np.zeros(1, np.float32)) as trainer:
        while trainer.epoch():
            trainer.step(np.ones(1, np.float32), samples=1)
            trainer.metrics(loss=1.0, f1=0.5)
    assert trainer.result.summary.test_figures == {"f1": 0.5}
