"""Breaks psrt in one place after the other, and says which test sees it first, and how soon.

python .ci/mutants.py run OUT       a line of JSON for each mutant; goes on where OUT ends
python .ci/mutants.py table OUT     how many were seen, by part, how soon, and by which tests
python .ci/mutants.py table OLD NEW and which were seen by OLD's tests and are not by NEW's

Mutants are drawn by a seed, so that a list repeats for the same code: most are changes of an
operator, a number or a branch by cosmic-ray, the others are the changes of codecs that
``tests/pure/codec/test_mutants.py`` knows. What only changes annotations is none. Seconds are of
the processor, so that what else the machine does hardly matters.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import json
import os
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
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: Packages that are broken.
PARTS = ("sync", "collective", "codec", "topology", "pipeline", "checkpoint", "optim", "runtime")
#: The tests without MPI that `make test` runs. Of the tree, whatever is installed.
PYTEST = (
    sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist",
    "-m", "not exhaustive and not soak", "--tb=no",
)  # fmt: skip
#: What holds for every job.
LAWS = "tests/laws"
#: What of the tests has most to do with any part, after the part's own.
NEAR = ("runtime", "history", "job", "sync")
#: How many times as long a mutant has by the clock: beside other work, or where it hangs.
IDLE = 5
_RED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def of_cosmic_ray(number: int, seed: int) -> list[dict[str, Any]]:
    """Draw mutants: file, operator, occurrence, and the changed source."""
    from cosmic_ray.ast import Visitor, get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    class Places(Visitor):
        """Counts what each operator can change, and notes where."""

        def __init__(self) -> None:
            self.count: Counter[str] = Counter()
            self.found: dict[Any, list[tuple[str, int]]] = {}

        def visit(self, node: Any) -> Any:
            for name, operator in operators.items():
                for start, _ in operator.mutation_positions(node):
                    self.found.setdefault(start, []).append((name, self.count[name]))
                    self.count[name] += 1
            return node

    operators = {}
    for name in sorted(operator_names()):
        with contextlib.suppress(TypeError):  # of those that need arguments
            operators[name] = get_operator(name)()
    places = []
    for part in PARTS:
        for path in sorted((ROOT / "psrt" / part).rglob("*.py")):
            seen, text = Places(), path.read_text(encoding="utf-8")
            seen.walk(get_ast(text))
            before: Counter[str] = Counter()
            for (line, _), ways in sorted(seen.found.items()):
                # By what stands there, so that a change elsewhere changes no mutant.
                place = f"{path.relative_to(ROOT)} {text.splitlines()[line - 1].strip()}"
                key = f"{seed} {place} {before[place]}"
                before[place] += 1
                digest = hashlib.sha256(key.encode()).digest()
                places.append((digest, path, f"{place} ({before[place]})", ways))
    found: list[dict[str, Any]] = []
    for key, path, place, ways in sorted(places, key=lambda it: it[0]):
        if len(found) == number:
            break
        name, i = random.Random(key).choice(ways)
        source, file = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
        changed = mutate_code(source, operators[name], i)
        if changed is not None and _meaning(changed) not in (None, _meaning(source)):
            found.append({"name": f"{place} {name}", "file": file, "source": changed})
    return found


def of_tests(number: int, seed: int) -> list[dict[str, Any]]:
    """Draw mutants of those that the tests of codecs make themselves."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/pure/codec")]
    import test_mutants as known

    drawn = random.Random(seed).sample(known.MUTANTS, number)
    return [
        {
            "name": f"psrt/codec/{it.file}.py {it.codec}: {it.old!r} -> {it.new!r}",
            "file": f"psrt/codec/{it.file}.py",
            "source": known.changed(it),
        }
        for it in drawn
    ]


def _meaning(source: str) -> str | None:
    """Return what a source does, as text: without annotations and docstrings; None if nothing."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(0)
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value = ast.Constant(0)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body, node.orelse = [ast.Pass()], []
    return ast.dump(tree)


class Trees:
    """Copies of this repository, of which each is broken in one place at a time."""

    def __init__(self, folder: Path, *, laws: bool) -> None:
        self._folder, self._laws = folder, laws
        self._local = threading.local()

    def judged(self, mutant: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Return a mutant's name, the first test that sees it, and after how many seconds."""
        tree = self._tree()
        path = tree / mutant["file"]
        kept = path.read_text(encoding="utf-8")
        path.write_text(mutant["source"], encoding="utf-8")
        try:
            test, took = _first_red(tree, mutant["file"].split("/")[1], seconds, laws=self._laws)
        finally:
            path.write_text(kept, encoding="utf-8")
        return {"name": mutant["name"], "test": test, "seconds": round(took, 1)}

    def _tree(self) -> Path:
        if not hasattr(self._local, "tree"):
            tree = self._local.tree = Path(tempfile.mkdtemp(dir=self._folder))
            names = subprocess.run(
                ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
            ).stdout
            for name in filter(None, names.split("\0")):
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, tree / name)
        found: Path = self._local.tree
        return found


def _first_red(tree: Path, part: str, seconds: float, *, laws: bool) -> tuple[str | None, float]:
    """Return the first test that fails and the seconds that it took, None where there is none.

    In turns, of which the first is of the part's own tests: to collect all of them takes longer
    than most mutants live.
    """
    own = f"tests/pure/{part}"
    near = [it for it in (f"tests/pure/{name}" for name in NEAR) if it != own]
    rest = sorted(str(it.relative_to(tree)) for it in (tree / "tests/pure").iterdir())
    took = 0.0
    left = [it for it in rest if it not in (own, *near)]
    for paths in ([own], [LAWS] if laws else [], near, left):
        there = [it for it in paths if (tree / it).is_dir() or Path(it).name.startswith("test_")]
        if not there:
            continue
        said, status, used = _run(tree, there, seconds - took)
        took += used
        if red := _RED.search(said):
            return red[1], took
        if said.strip() and status not in (0, 5):  # what stops collecting is seen, too
            return said.strip().splitlines()[-1][:100], took
        if took >= seconds or not said:
            break
    return None, took


def _run(tree: Path, paths: list[str], seconds: float) -> tuple[str, int, float]:
    """Return what tests say, "" of those that have to be stopped, their status and seconds."""
    environment = {
        **os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TMPDIR": str(tree.parent),
    }  # fmt: skip
    with tempfile.TemporaryFile("w+", dir=tree.parent) as output:
        process = subprocess.Popen(
            [*PYTEST, *paths], cwd=tree, env=environment, start_new_session=True,
            stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        begin, ended, status, used = time.monotonic(), 0, 0, None
        while not ended and time.monotonic() - begin < IDLE * seconds:
            time.sleep(0.1)
            ended, status, used = os.wait4(process.pid, os.WNOHANG)
            if not ended and _seconds_of(process.pid) > seconds:
                break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the session that has begun with it
        if not ended:
            _, _, used = os.wait4(process.pid, 0)
        process.returncode = status  # it has been waited for
        output.seek(0)
        said = output.read() if ended else ""
    return said, os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime


def _seconds_of(pid: int) -> float:
    """Return how long the processor has worked for a process and those it has waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def run(given: argparse.Namespace) -> None:
    """Judge all mutants that ``given.out`` does not have yet."""
    out, number = given.out, given.number
    mutants = [
        *of_cosmic_ray(2 * number // 3, given.seed),
        *of_tests(number - 2 * number // 3, given.seed),
    ]
    done = {it["name"] for it in read(out)} if out.exists() else set()
    if given.seen_in is not None:
        done |= {it["name"] for it in read(given.seen_in) if not it["test"]}
    left = [it for it in mutants if it["name"] not in done]
    out.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        out.open("a", encoding="utf-8") as file,
        ThreadPoolExecutor(given.processes) as pool,
    ):
        trees = Trees(Path(folder), laws=not given.no_laws)
        for i, found in enumerate(pool.map(lambda it: trees.judged(it, given.seconds), left), 1):
            file.write(json.dumps(found) + "\n")
            file.flush()
            print(f"{i}/{len(left)} {found['seconds']:5.1f} s  {found['name']}: {found['test']}")


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def table(old: Path, new: Path | None) -> Iterator[str]:
    """Yield the lines of a table of one file or two."""
    for path in filter(None, (old, new)):
        rows = read(path)
        seen = [it for it in rows if it["test"]]
        median = statistics.median(it["seconds"] for it in seen) if seen else 0.0
        yield f"{path}: {len(seen)} of {len(rows)} seen, the median one after {median:.1f} s"
        parts = Counter(it["name"].split("/")[1] for it in rows)
        for part, count in sorted(parts.items()):
            own = [it for it in seen if it["name"].split("/")[1] == part]
            yield f"  {part:11} {len(own):3} of {count:3}"
        files = Counter(str(it["test"]).split("::")[0] for it in seen)
        yield "  first: " + ", ".join(f"{name} {n}" for name, n in files.most_common(8))
        yield from (f"  not seen: {it['name']}" for it in rows if not it["test"])
    if new is not None:
        now = {it["name"] for it in read(new) if it["test"]}
        lost = [it for it in read(old) if it["test"] and it["name"] not in now]
        yield f"seen before and not now: {len(lost)}"
        yield from (f"  {it['name']}, before by {it['test']}" for it in lost)


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run")
    runs.add_argument("out", type=Path)
    runs.add_argument("--number", type=int, default=300)
    runs.add_argument("--seed", type=int, default=1)
    runs.add_argument(
        "--seconds", type=float, default=90.0, help="of the processor that a mutant has at most"
    )
    runs.add_argument("--processes", type=int, default=2)
    runs.add_argument("--no-laws", action="store_true", help=f"leave out {LAWS}")
    runs.add_argument(
        "--seen-in", type=Path, metavar="OLD", help="leave out what none of OLD's tests has seen"
    )
    tables = commands.add_parser("table")
    tables.add_argument("old", type=Path)
    tables.add_argument("new", type=Path, nargs="?")
    given = parser.parse_args()
    if given.command == "table":
        print("\n".join(table(given.old, given.new)))
    else:
        run(given)


if __name__ == "__main__":
    main()
