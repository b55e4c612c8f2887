"""Builds a release into ``dist/`` and says what stands against it; uploads only with ``--upload``.

python .ci/release.py              build, check; everything has to name one version: code,
                                   CHANGELOG.md, CITATION.cff, and a tag of this very commit
python .ci/release.py --rehearse   the same on any day: no date and no tag yet
python .ci/release.py --upload     and twine uploads to PyPI what was built

Needs the extra ``release``; ``make release`` has it. Knows nothing of psrt but its files.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def version(root: Path) -> str:
    """Return the version that the code gives itself."""
    return _found(root / "psrt/core/version.py", r'^__version__ = "(.+)"$')


def contradictions(root: Path, tags: Sequence[str] | None) -> Iterator[str]:
    """Yield what does not fit to the version of the code, one line each.

    Args:
        root: the repository.
        tags: those of this commit; None before the day of the release.
    """
    ours = version(root)
    cited = _found(root / "CITATION.cff", r"^version: (.+)$")
    if cited != ours:
        yield f"CITATION.cff cites {cited}, the code is {ours}"
    day = _found(root / "CITATION.cff", r"^date-released: (\S+)")
    # The newest heading; what came after the release would be under one that has no version.
    name = _found(root / "CHANGELOG.md", r"^## (.+)$")
    date = r"(\d{4}-\d\d-\d\d|unreleased)" if tags is None else r"\d{4}-\d\d-\d\d"
    if not re.fullmatch(rf"\[{re.escape(ours)}\] - {date}", name):
        expected = f"[{ours}] - YYYY-MM-DD"
        yield f"the newest heading of CHANGELOG.md is {name!r}, expected {expected!r}"
    elif not name.endswith((day, "unreleased")):
        yield f"CITATION.cff has date-released {day}, CHANGELOG.md {name!r}"
    if tags is not None and f"v{ours}" not in tags:
        yield f"this commit has no tag v{ours}: git tag -a v{ours}"


def _found(path: Path, pattern: str) -> str:
    match = re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    return match[1].strip() if match else "none"


def _git(*words: str) -> list[str]:
    done = subprocess.run(("git", *words), cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE)
    return done.stdout.splitlines()


def _build(folder: Path) -> list[Path]:
    """Build sdist and wheel, the wheel from the sdist, and have twine read what PyPI would.

    Of the files of the repository only: setuptools would also take what earlier builds had.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as name:
        for path in _git("ls-files"):
            (Path(name) / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, Path(name) / path)
        _python("build", "--outdir", str(folder), name)
    built = sorted(folder.iterdir())
    _python("twine", "check", "--strict", *map(str, built))
    return built


def _python(*words: str) -> None:
    subprocess.run((sys.executable, "-m", *words), cwd=ROOT, check=True)


def main(words: Sequence[str]) -> int:
    """Return 0 if there is a release in ``dist/``, and nothing stands against it; else 1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--rehearse", action="store_true", help="do not ask for a date and a tag")
    when.add_argument("--upload", action="store_true", help="upload to PyPI what was built")
    flags = parser.parse_args(words)
    against = list(contradictions(ROOT, None if flags.rehearse else _git("tag", "--points-at")))
    if not flags.rehearse and _git("status", "--porcelain"):
        against.append("there are changes that are not committed")
    for line in against:
        print(f"release: {line}", file=sys.stderr)
    if against:
        return 1
    built = _build(ROOT / "dist")
    if flags.upload:
        _python("twine", "upload", *map(str, built))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
