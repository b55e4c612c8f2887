"""Runs the tests that a landing does not wait for, those first that have waited longest.

python .ci/long.py              all; what passes gets its commit and date into .ci/long.tsv
python .ci/long.py WORD...      those whose command has one of the words
python .ci/long.py --list       when each last passed, on which commit, and how long it took

The list is the file: a line each, a make command behind what is known of it. Where files that are
tracked differ from the commit, nothing is written down.
"""

from __future__ import annotations

import datetime
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
NAME = ".ci/long.tsv"
LIST = ROOT / NAME


class Part(NamedTuple):
    """A line of the list; "-" for what has not been seen yet."""

    date: str
    commit: str
    seconds: str
    command: str


def read() -> list[Part]:
    """Return the list, without its heading."""
    lines = LIST.read_text(encoding="utf-8").splitlines()
    return [Part(*line.split("\t")) for line in lines[1:]]


def note(part: Part) -> None:
    """Replace the line of a command; others may have been replaced since it began."""
    parts = [part if it.command == part.command else it for it in read()]
    lines = ["\t".join(it) for it in [Part._fields, *parts]]
    LIST.write_text("\n".join(lines) + "\n", encoding="utf-8")


def git(*arguments: str) -> str:
    """Return what git prints."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def main(words: list[str]) -> int:
    """Run what was asked for, all of it, and return 1 if anything failed."""
    parts = sorted(read(), key=lambda it: (it.date != "-", it.date))
    if words == ["--list"]:
        for part in parts:
            passed = "never passed" if part.date == "-" else f"passed {part.date} at {part.commit}"
            print(f"{passed:32}{part.command}")
        return 0
    parts = [it for it in parts if not words or any(word in it.command for word in words)]
    if not parts:
        print(f"no command in {NAME} has {' or '.join(words)}", file=sys.stderr)
        return 2
    failed = []
    for part in parts:
        print(f"\n== make {part.command}", flush=True)
        commit, begin = git("rev-parse", "--short", "HEAD"), time.monotonic()
        command = ["make", "--no-print-directory", *shlex.split(part.command)]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        seconds = round(time.monotonic() - begin)
        print(f"== make {part.command}: status {status}, {seconds} s", flush=True)
        if status != 0:
            failed.append(part.command)
        elif not git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{NAME}"):
            today = datetime.datetime.now(datetime.UTC).date().isoformat()
            note(Part(today, commit, str(seconds), part.command))
    for command in failed:
        print(f"failed: make {command}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
