import dataclasses
import math

from psrt.report import epoch_line, final_table


def test_epoch_line(record):
    assert epoch_line(record) == (
        "epoch  3  step  135  loss 0.2143  accuracy 94.7 %  1.8e+05 samples/s  staleness 1.9"
    )


def test_epoch_line_leaves_out_what_was_not_measured(record):
    bare = dataclasses.replace(
        record, accuracy=None, samples_per_second=None, staleness_mean=None, loss=math.nan
    )
    assert epoch_line(bare) == "epoch  3  step  135  test loss 0.1900"
    assert epoch_line(dataclasses.replace(bare, test_loss=None)) == "epoch  3  step  135"


def test_final_table(summary):
    assert final_table(dataclasses.asdict(summary), "runs/first").splitlines() == [
        "mode       ssp, 1 server, 2 workers",
        "accuracy   96.25 %",
        "speed      8,640 samples/s (4,320 samples in 0.50 s)",
        "staleness  mean 0.75, max 2 versions; --staleness limits steps ahead, not this",
        "bytes      1.18 MiB sent, 999 B received",
        "files      runs/first",
    ]


def test_final_table_says_what_was_dropped(summary):
    table = final_table(dataclasses.asdict(dataclasses.replace(summary, dropped=1234)))
    assert "dropped    1,234 gradients" in table.splitlines()
    assert "files" not in table


def test_final_table_without_servers_classes_and_pushes(summary):
    fields = dataclasses.asdict(summary) | {
        "mode": "allreduce", "servers": 0, "test_accuracy": None,
        "staleness": {"mean": 0.0, "max": 0, "histogram": []},
    }  # fmt: skip
    table = final_table(fields)
    assert table.splitlines() == [
        "mode       allreduce, 2 workers",
        "test loss  0.2500",
        "speed      8,640 samples/s (4,320 samples in 0.50 s)",
        "bytes      1.18 MiB sent, 999 B received",
    ]
