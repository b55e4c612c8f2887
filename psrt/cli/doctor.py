"""``psrt doctor``: looks at ranks and hosts, and says what is wrong and how to fix it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from psrt.cli.flags import FlagParser
from psrt.cli.printing import flush, say
from psrt.cli.progress import add_flags, shown
from psrt.core.errors import TransportError, line_of
from psrt.core.files import check_writable, write_text
from psrt.core.progress import PROGRESS
from psrt.doctor.facts import Facts
from psrt.doctor.findings import FAILS, Finding, judge, verdict
from psrt.doctor.preflight import here, is_first_here
from psrt.doctor.watch import Watch
from psrt.launch import started_rank
from psrt.rows.knobs import Knob, read
from psrt.rows.values import REAL

_DESCRIPTION = """\
Look at the ranks of a job and at their hosts, and say what would make it fail or slow it down, and
how to fix it. Start it like the job itself, or alone to look only at this process:

  psrt launch --hostfile my-hosts doctor --out runs/next
  srun --mpi=pmix python -m psrt doctor

Shows ranks, hosts, MPI, launcher, cores, threads, shared memory, which ranks see --out, the
difference of the clocks, and the cost of messages between each two hosts: α per exchange, and β per
byte that is sent while another is received. The exit status is 1 if something would make a job
fail."""

_TIMEOUT = Knob(
    REAL, "stop if a rank waits this long for another", metavar="SECONDS",
    exclusive_min=0, max=1e6,
)  # fmt: skip
_DEFAULT_S = 30.0
#: Seconds that rank 0, which knows more, has to print its reason first.
_AFTER_FIRST_S = 3.0


def doctor_parser() -> FlagParser:
    """Return the parser."""
    parser = FlagParser(prog="psrt doctor", description=_DESCRIPTION)
    add = parser.add_argument
    add("--out", metavar="DIR", help="check whether every rank could use this folder as --out")
    add("--json", metavar="FILE", help="also write JSON to this file; - prints only JSON")
    add("--timeout-s", metavar="SECONDS", help=f"{_TIMEOUT.help} (default: {_DEFAULT_S:g})")
    add_flags(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Look at the ranks; rank 0 prints.

    Returns:
        1 at rank 0 if something would make a job fail; else 0.

    Raises:
        ConfigError: for invalid flags, or where there is no MPI.
        SystemExit: after ``--help`` was printed.
    """
    given = doctor_parser().parse(argv)
    timeout_s = _DEFAULT_S
    if given.timeout_s is not None:
        timeout_s = read("--timeout-s", _TIMEOUT, given.timeout_s)
    first = started_rank() == 0
    if first and given.json not in (None, "-"):
        check_writable(given.json)
    failures = here()
    if failures:  # MPI would not start, or would fail without a reason
        if is_first_here():
            publish_failures(argv, failures)
        flush()
        os._exit(1)
    watch = Watch(timeout_s, first=first)
    from psrt.doctor.gather import end_all, gather  # starts MPI

    try:
        with shown(given), PROGRESS.doing("looking at ranks and hosts"):
            facts = gather(watch, out=given.out, timeout_s=timeout_s)
    except TransportError as error:
        time.sleep(0 if first else _AFTER_FIRST_S)
        print(f"psrt: {line_of(error)}", file=sys.stderr)
        end_all(error.exit_status)
    watch.step("MPI to end on every rank")
    if facts is None or not first:  # only the first prints if MPI did not connect the processes
        return 0
    findings = judge(facts)
    _publish(facts, findings, given.json)
    status = int(any(finding.severity == FAILS for finding in findings))
    if any(pair.error for pair in facts.pairs):
        flush()
        end_all(status)
    return status


def publish_failures(argv: Sequence[str], findings: Sequence[Finding]) -> None:
    """Print what keeps ranks from starting, if anything does, as text or JSON.

    Raises:
        ConfigError: for invalid flags.
    """
    given = doctor_parser().parse(argv)
    if not findings:
        return
    text = json.dumps({"ranks": [], "findings": [asdict(it) for it in findings]}, indent=2)
    say(text if given.json == "-" else "\n".join(verdict(findings)))
    if given.json not in (None, "-"):
        write_text(given.json, text + "\n")


def _publish(facts: Facts, findings: Sequence[Finding], path: str | None) -> None:
    from psrt.doctor.page import page  # numpy, whose threads a fork should not meet

    document = {**facts.document(), "findings": [asdict(finding) for finding in findings]}
    text = json.dumps(document, indent=2, allow_nan=False)
    if path == "-":
        say(text)
        return
    say(page(facts, findings))
    if path is not None:
        write_text(path, text + "\n")
