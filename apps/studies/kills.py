"""Kills random ranks of supervised jobs at random times, and says how each job ended.

``make report-kills`` writes the table of ``docs/benchmarks.md`` with it. Each job is run once
undisturbed; then ``psrt launch --restarts`` runs it while ranks are killed, some while they start,
some while they train, save or resume. All times and victims come from ``--seed``; what a time falls
on does not.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- kills -->\n", "<!-- / -->"
VENVS = {"Open MPI": ".venv", "MPICH": ".venv-mpich"}
#: Of every job; a run takes some 8 s of training on an idle machine.
COMMON = "--hidden 32 --checkpoint-every 150 --resume auto --out run"
#: Longest silence of a job, in seconds, before it counts as a hang.
SILENCE_S = 100.0
#: A rank is killed at most this many seconds after its attempt was started.
LATEST_S = 4.0
#: Kills of one run.
EACH = 5
_OF_MPI = re.compile("sm_segment|vader_segment|osc_sm|mpich_sh|psrt")
_SHARED = Path("/dev/shm")
#: The line before a restart, and the seconds until then.
RESTART = r"; restart \d+ of \d+ in (\S+) s\n"
_RANK = re.compile(rb"(?:OMPI_COMM_WORLD_RANK|PMI_RANK)=(\d+)\0")


@dataclass(frozen=True)
class Job:
    """A job that is run again and again."""

    name: str
    ranks: int
    flags: str
    #: Whether every run of it ends with the same bits; else ``psrt check`` judges its history.
    same: bool = True


JOBS = (
    Job("serial", 1, "--mode serial --steps 45000"),
    Job("sync", 3, "--mode sync --servers 1 --optimizer adam --steps 16000"),
    Job("allreduce", 2, "--mode allreduce --optimizer adam --steps 30000"),
    Job("local-sgd", 2, "--mode local-sgd:local-steps=8 --steps 30000"),
    Job("gossip", 3, "--mode gossip --steps 10000"),
    Job("pipeline:2", 2, "--mode allreduce --parallel pipeline:2 --steps 10000"),
    Job("async", 3, "--mode async --servers 1 --steps 16000 --record", same=False),
    Job("ssp", 4, "--mode ssp:staleness=3 --servers 2 --steps 8000 --record", same=False),
)


@dataclass
class Seen:
    """What came of a run."""

    mpi: str
    job: str
    seed: int
    kills: int = 0
    #: Seconds from a kill until the next attempt trains; 1 s of them is the wait before it.
    back_s: list[float] = field(default_factory=list)
    #: What was not as promised; empty if all was.
    wrong: list[str] = field(default_factory=list)


class Running:
    """A launch, and what it says as it says it."""

    def __init__(self, words: Sequence[str], folder: Path) -> None:
        """Start it."""
        own = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMI"))}
        own |= {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            words, cwd=folder, env=own, text=True, errors="replace", stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.text: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None, "a pipe"
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def until(self, pattern: str) -> bool:
        """Read on until a line matches; return whether one did before the end.

        Raises:
            TimeoutError: if nothing is said for too long.
        """
        while True:
            try:
                line = self._lines.get(timeout=SILENCE_S)
            except queue.Empty:
                raise TimeoutError(f"nothing said for {SILENCE_S:g} s") from None
            if line is None:
                return False
            self.text.append(line)
            if re.search(pattern, line):
                return True

    def end(self) -> int:
        """Wait for its end, or make one; return its status."""
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            try:
                return self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.send_signal(number)
        return self.process.wait()


def ranks_in(folder: Path) -> Iterator[tuple[int, int]]:
    """Yield rank and process of each rank that runs in a folder, or the one without MPI."""
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if not process.name.isdecimal() or (process / "cwd").readlink() != folder:
                continue
            found = _RANK.search((process / "environ").read_bytes())
            if found and b"psrt\0train" in (process / "cmdline").read_bytes():
                yield int(found[1]), int(process.name)


def left_in(folder: Path) -> list[str]:
    """Return the processes that run in a folder, once they had some seconds to end."""
    found: list[str] = []
    for _ in range(100):
        found.clear()
        for process in Path("/proc").iterdir():
            with suppress(OSError):
                if process.name.isdecimal() and (process / "cwd").readlink() == folder:
                    found.append((process / "cmdline").read_bytes().decode(errors="replace"))
        if not found:
            break
        time.sleep(0.1)
    return found


def kill_one(folder: Path, it: random.Random, deadline: float) -> bool:
    """Kill a random rank, as soon as there is one; return whether there was one in time."""
    while time.monotonic() < deadline:
        ranks = sorted(ranks_in(folder))
        if ranks:
            with suppress(ProcessLookupError):
                os.kill(it.choice(ranks)[1], signal.SIGKILL)
                return True
        time.sleep(0.005)
    return False


def run(mpi: str, job: Job, seed: int, kills: int, wanted: str) -> tuple[Seen, str]:
    """Run a job and kill ranks of it; return what was seen, and the digest of its parameters.

    Args:
        mpi: its name.
        job: what to run.
        seed: of times and victims.
        kills: at most this many.
        wanted: the digest of an undisturbed run; empty if there is none to compare with.
    """
    seen, it = Seen(mpi, job.name, seed), random.Random(f"{seed} {mpi} {job.name}")
    psrt = ROOT / VENVS[mpi] / "bin" / "psrt"
    words = f"launch --restarts 20 -n {job.ranks} train {job.flags} {COMMON}".split()
    segments = set(_SHARED.iterdir())
    folder = Path(tempfile.mkdtemp(prefix="psrt-kills-"))
    running = Running([str(psrt), *words], folder)
    try:
        _disturb(running, folder, it, kills, seen)
    except TimeoutError as error:
        seen.wrong.append(f"hang: {error}")
    status = running.end()
    if status:
        seen.wrong.append(f"status {status}")
    digest = _judge(folder, psrt, job, wanted, seen)
    if own := left_since(segments):
        seen.wrong.append(f"left in /dev/shm: {', '.join(own)}")
    if processes := left_in(folder):
        seen.wrong.append(f"left: {processes}")
    if seen.wrong:
        (folder / "said.txt").write_text("".join(running.text))
        print(f"{seen}\nsee {folder}", file=sys.stderr, flush=True)
    else:
        shutil.rmtree(folder)
    return seen, digest


def _disturb(running: Running, folder: Path, it: random.Random, kills: int, seen: Seen) -> None:
    begin = time.monotonic()
    while True:
        killed_at: float | None = None
        if seen.kills < kills:
            time.sleep(max(0.0, begin + it.uniform(0.0, LATEST_S) - time.monotonic()))
            if kill_one(folder, it, begin + 2 * LATEST_S):
                killed_at = time.monotonic()
                seen.kills += 1
        if not running.until(RESTART):
            return
        wait_s = float(re.findall(RESTART, running.text[-1])[0])
        begin = time.monotonic() + wait_s
        # Of every other kill the time is taken, so that the rest may fall on a start.
        if killed_at is not None and wait_s == 1.0 and seen.kills % 2:
            if not running.until(r"^epoch +\d"):
                return
            seen.back_s.append(round(time.monotonic() - killed_at, 2))


def _judge(folder: Path, psrt: Path, job: Job, wanted: str, seen: Seen) -> str:
    """Look at the results; return the digest of the parameters."""
    try:
        digest = str(json.loads((folder / "run/summary.json").read_text())["parameters_sha256"])
    except OSError:
        seen.wrong.append("no summary")
        return ""
    if job.same and wanted and digest != wanted:
        seen.wrong.append("other parameters")
    if not job.same:
        done = subprocess.run(
            [psrt, "check", "run"], cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            seen.wrong.append(f"check: {done.stdout[-500:]}{done.stderr[-500:]}")
    return digest


def left_since(before: Set[Path]) -> list[str]:
    """Return the segments of shared memory that are new and unused, even after some seconds.

    Other jobs on this machine have some, too, which they have mapped, or sweep soon.
    """
    found: list[str] = []
    for _ in range(50):
        new = {path for path in set(_SHARED.iterdir()) - before if _OF_MPI.match(path.name)}
        used = "".join(_maps()) if new else ""
        found = [path.name for path in new if str(path) not in used]
        if not found:
            break
        time.sleep(0.1)
    return found


def _maps() -> Iterator[str]:
    for process in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            yield process.read_text(errors="replace")


def table(found: Sequence[Seen]) -> str:
    """Return the rows of the page."""
    heads = (f"{mpi}: runs | kills | again, s" for mpi in VENVS)
    lines = [f"| job | {' | '.join(heads)} |", "|---" * (1 + 3 * len(VENVS)) + "|"]
    for job in JOBS:
        cells = [f"`{job.name}`" + ("" if job.same else ", `psrt check`")]
        for mpi in VENVS:
            own = [it for it in found if (it.mpi, it.job) == (mpi, job.name)]
            kills, good = sum(it.kills for it in own), sum(not it.wrong for it in own)
            back = sorted(s for it in own for s in it.back_s)
            cells += [
                f"{good}" if good == len(own) else f"**{good} of {len(own)}**",
                f"{kills}",
                f"{statistics.median(back):.1f} ({back[-1]:.1f})" if back else "",
            ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the jobs in turn until there were enough kills, and write the table into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="in all; 0 writes the table only")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="run the jobs whose MPI and name match this")
    parser.add_argument("--log", type=Path, default=ROOT / "runs" / "kills.jsonl")
    given = parser.parse_args()
    given.log.parent.mkdir(parents=True, exist_ok=True)
    cells = [(mpi, job) for job in JOBS for mpi in VENVS]
    cells = [it for it in cells if re.search(given.only, f"{it[0]} {it[1].name}")]
    wanted: dict[tuple[str, str], str] = {}
    done, seed = 0, given.seed
    while done < given.kills:
        for mpi, job in cells:
            if job.same and (mpi, job.name) not in wanted:
                undisturbed, wanted[mpi, job.name] = run(mpi, job, 0, 0, "")
                assert not undisturbed.wrong, undisturbed
            seen, _ = run(mpi, job, seed, EACH, wanted.get((mpi, job.name), ""))
            done += seen.kills
            with given.log.open("a") as log:
                log.write(json.dumps(asdict(seen)) + "\n")
            print(mpi, job.name, seed, seen.kills, seen.back_s, seen.wrong or "good", flush=True)
            if done >= given.kills:
                break
        seed += 1
    found = [Seen(**json.loads(line)) for line in given.log.read_text().splitlines()]
    page = PAGE.read_text()
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END, page.index(BEGIN))
    PAGE.write_text(page[:begin] + table(found) + page[end:])
    return int(any(it.wrong for it in found))


if __name__ == "__main__":
    sys.exit(main())
