"""``progress.json``: at most once a second, whole, and at the end."""

import json

from psrt.messages import Report
from psrt.report.files import PROGRESS, OutputFolder
from psrt.report.progress import Progress


def report(worker, step, loss=0.5, seconds=1.0, samples=8, last=False):
    figures = dict.fromkeys(Report._fields, 0)
    return Report(
        **figures
        | {
            "worker": worker,
            "step": step,
            "loss": loss,
            "seconds": seconds,
            "samples": samples,
            "last": last,
        }
    )


def test_it_is_written_at_most_once_a_second_and_at_the_last_report():
    written, now = [], [0.0]
    progress = Progress(lambda text: written.append(json.loads(text)), now=lambda: now[0])
    for at, step in ((0.0, 1), (0.5, 2), (0.9, 3), (1.1, 4)):
        now[0] = at
        progress.add(report(0, step, seconds=at))
    progress.add(report(1, 2, samples=0, last=True))
    assert [(one["clock"], one["seconds"]) for one in written] == [(1, 0.0), (4, 1.1), (4, 1.1)]
    assert [one["loss"] for one in written] == [0.5, 0.5, None]


def test_it_is_replaced_whole_and_a_full_disk_is_no_error(tmp_path):
    folder = OutputFolder(tmp_path)
    folder.write_progress("{}")
    assert [path.name for path in tmp_path.iterdir()] == [PROGRESS]
    OutputFolder(tmp_path / "missing").write_progress("{}")
