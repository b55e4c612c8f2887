"""``progress.json``: at most once a second, whole, and at the end."""

import json

from psrt.messages import Report
from psrt.report.files import PROGRESS, OutputFolder
from psrt.report.progress import ProgressFile


def report(worker, step, loss=0.5, seconds=1.0, samples=8, last=False, waited=0.0):
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
            "waited": waited,
        }
    )


def test_it_is_written_at_most_once_a_second_and_at_the_last_report():
    written, now = [], [0.0]
    progress = ProgressFile(lambda text: written.append(json.loads(text)), now=lambda: now[0])
    for at, step in ((0.0, 1), (0.5, 2), (0.9, 3), (1.1, 4)):
        now[0] = at
        progress.add(report(0, step, seconds=at))
    progress.add(report(1, 2, samples=0, last=True))
    assert [(one["clock"], one["seconds"]) for one in written] == [(1, 0.0), (4, 1.1), (4, 1.1)]
    assert [one["loss"] for one in written] == [0.5, 0.5, None]


def test_the_slowest_worker_is_the_one_that_computes_longest_for_a_step():
    written, now = [], [0.0]
    progress = ProgressFile(lambda text: written.append(json.loads(text)), now=lambda: now[0])
    for worker in range(3):
        now[0] += 1.0
        progress.add(report(worker, 10, seconds=1.0, waited=0.5))
    assert all("slowest" not in one for one in written)  # where it went on from is not known
    # Worker 1 computes all the time, and the others wait for it.
    for worker, waited in ((0, 1.5), (1, 0.0), (2, 1.0)):
        now[0] += 1.0
        progress.add(report(worker, 20, seconds=3.0, waited=waited))
    named = ("slowest", "slowest_step_s", "median_step_s")
    assert [tuple(one[name] for name in named) for one in written[-2:]] == [
        (1, 0.2, 0.125), (1, 0.2, 0.1),
    ]  # fmt: skip


def test_it_is_replaced_whole_and_a_full_disk_is_no_error(tmp_path):
    folder = OutputFolder(tmp_path)
    folder.write_progress("{}")
    assert [path.name for path in tmp_path.iterdir()] == [PROGRESS]
    OutputFolder(tmp_path / "missing").write_progress("{}")
