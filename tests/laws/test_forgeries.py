"""Law: whatever one changes in a history, its summary or its metrics, ``psrt check`` finds it.

Promised in docs/guarantees.md, "Check a run", and docs/history.md, whose table says what is taken
on trust; ``ON_TRUST`` and ``EITHER_FIRST`` below say it anew. Every kind of event that modes of one
kind have is left out, doubled, put behind the next one, moved in time, and changed in each of its
fields once, in some job; the exhaustive variant does so in all jobs.

Seen red: a check without its rules of sums, of the final version, of the elastic force or of
frames; and by what it found when it was written: sums that nobody conserves, a mean before its
parts, a frame before it was made, a step before its passes.
"""

from __future__ import annotations

import functools
import json
import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from psrt.core.errors import ConfigError
from psrt.history import EVENT, Kind, kinds
from psrt.history.check.run import check_run
from support.cases import also
from support.forgeries import (
    FIRST_DIGEST,
    LATE,
    LEFT_OUT,
    SWAPPED,
    Told,
    draw,
    figures_of,
    forged,
    other_figure,
    told_by,
    ways_of,
    with_figure,
)
from support.jobs import FACTORS, JOBS, KINDS, MIXED, SERVED, SPLIT, SUMMED, Job, plain

#: Learners whose merges, weights, windows and steps are no level of a mode.
LEARNED = {
    name: replace(plain(mode=mode, copies="5", way=way), more=(("mode", f"local-sgd:{knobs}"),))
    for name, mode, way, knobs in (
        ("radial", "learners", "1 server",
         "local-steps=4,quorum=2,merge=radial,merge-weights=quality,dynamic=true"),
        ("trimmed", "windows", "2 servers",
         "local-steps=2,quorum=3,grace=0.002,merge=trimmed,outer=nesterov"),
        ("slack", "fragments", "2 servers",
         "local-steps=4,fragments=2,sync-delay=2,quorum=2,grace=auto,merge=median"),
    )
}  # fmt: skip
#: By name, modes whose histories have the same kinds of events.
GROUPS = {
    **{kind: modes for kind, modes in KINDS["mode"].items() if kind != "mixed"},
    **{mode: (mode,) for mode in MIXED},
    **{name: (name,) for name in LEARNED},
}


#: Of the histories with an event, how many it is forged in: a check takes as long as they are.
SHORTEST = 6


@dataclass(frozen=True)
class Forgery:
    """What was done, and where."""

    job: Job
    told: Told
    cell: int
    kind: Kind
    way: str
    #: Place of the event among those of its cell, and these.
    at: int
    events: np.ndarray

    @property
    def before(self) -> np.void:
        """The event as it was."""
        return self.told.events(self.cell)[self.at]

    @property
    def next(self) -> np.void:
        """The event behind it, as it was."""
        return self.told.events(self.cell)[self.at + 1]

    @property
    def is_taken(self) -> bool:
        """Whether a neighbour takes what this event offers."""
        events, it = self.told.events(self.cell), self.before
        taken = (events["kind"] == Kind.TAKE) & (events["shard"] == it["worker"])
        same = (events["version"] == it["version"]) & (events["flag"] == it["flag"])
        return bool((taken & same).any())

    @property
    def is_message_of_pass(self) -> bool:
        """Whether of this event and the next one is a message and one the pass that needs it, or
        that makes it: not that to the weights alone.
        """
        both = self.before, self.next
        weights = any(it["kind"] == Kind.PASS and it["flag"] == TO_WEIGHTS for it in both)
        same = all(self.before[it] == self.next[it] for it in ("clock", "shard", "tau"))
        return same and not weights

    @property
    def is_frame_and_source(self) -> bool:
        """Whether of this event and the next one decodes what the other needs, or has made."""
        first, then = self.before, self.next
        if first["progress"] != then["progress"]:
            return False
        if first["kind"] == Kind.SUM_DECODE:
            return first["flag"] < then["flag"]  # a mean, of this and others
        return then["shard"] == then["worker"] and first["flag"] == then["flag"]

    def is_found_out(self) -> bool:
        told = self.told.with_events(self.cell, self.events)
        return told is None or told.is_found_out()

    def __str__(self) -> str:
        behind = f", then {self.next}" if self.way == SWAPPED else ""
        return f"{self.job}: {self.kind.name} {self.way}: {self.before}{behind} in part {self.cell}"


class Row(NamedTuple):
    """What is not promised to be found."""

    why: str
    fields: tuple[str, ...]
    when: Callable[[Forgery], bool] = lambda it: True


def _nobody_else_says(it: Forgery) -> bool:
    """Return whether only who decoded a frame knows what it came to."""
    if it.told.header.config["error_feedback"]:
        return False
    events, mine = it.told.events(it.cell), it.before
    same = events["kind"] == Kind.SUM_DECODE
    for field in ("shard", "clock", "progress", "flag"):
        same &= events[field] == mine[field]
    return it.kind == Kind.DECODE or same.sum() == 1


def _is_sent_no_more(it: Forgery) -> bool:
    """Return whether its worker sends its tracked gradient no more."""
    events, at = it.told.events(it.cell), it.at
    sent = (events["kind"] == Kind.OFFER) & (events["worker"] == it.before["worker"])
    return not sent[at:].any()


def _comes_alone(it: Forgery) -> bool:
    """Return whether no neighbour comes to this checkpoint."""
    events, mine = it.told.events(it.cell), it.before
    others = (events["kind"] == Kind.PARK) & (events["worker"] != mine["worker"])
    return not (others & (events["version"] == mine["version"])).any()


def _is_not_computed_with(it: Forgery) -> bool:
    """Return whether a worker reads again, for a checkpoint, or ends, before it pushes."""
    events, mine = it.told.events(it.cell), it.before
    own = events[it.at + 1 :][events["worker"][it.at + 1 :] == mine["worker"]]
    pushes = np.flatnonzero(own["kind"] == Kind.PUSH)
    before = own[: pushes[0]] if len(pushes) else own
    again = (before["kind"] == Kind.READ) & (before["flag"] == 1)
    return bool(again.any()) or (it.job["event"] == "is killed" and not len(pushes))


def _is_of_a_last_round(it: Forgery) -> bool:
    """Return whether its worker died, and this is of its last round."""
    events, mine = it.told.events(it.cell), it.before
    offers = (events["kind"] == Kind.OFFER) & (events["worker"] == mine["worker"])
    last = events["clock"][offers].max() == mine["clock"]
    return bool(mine["worker"] in it.told.crashed and last)


def _goes_straight(it: Forgery) -> bool:
    """Return whether a schedule adds what its codec makes, so that nobody else sees that."""
    return it.told.cells[it.cell].header.way == "straight"


def _ends_later(it: Forgery) -> bool:
    late = it.job["event"] in ("is killed", "loses a worker")
    late |= it.job["mode"] in ("pairs", "teams")
    return late or it.job["cut"] == "parameters"


def _is_kept_for_good(it: Forgery) -> bool:
    """Return whether no later frame includes what was kept back."""
    events, mine = it.told.events(it.cell), it.before
    same = events["kind"] == Kind.RESIDUAL
    for field in ("worker", "shard"):
        same &= events[field] == mine[field]
    return not same[it.at + 1 :].any()


ON_TRUST = (
    Row("what is kept back for good", ("RESIDUAL.version",), _is_kept_for_good),
    Row("norms, by which rounding is judged",
        ("APPLY.gap", "OFFER.gap", "OWN.gap", "TRACK.gap", "TRACK.weight")),
    Row("how long what was merged is, if nobody knows what rates make of it", ("CENTRE.gap",),
        lambda it: it.job["rate"] in ("delay-compensated", "gap-aware")),
    Row("how far momentum moved a span", ("CENTRE.seconds",),
        lambda it: it.job["mode"] == "windows"),
    Row("the initial parameters of a shard", (f"CENTRE.{FIRST_DIGEST}",),
        lambda it: it.before["clock"] == 1),
    Row("how long what was trimmed is, if momentum moves a span by it", ("CENTRE.gap",),
        lambda it: it.job == LEARNED["trimmed"]),
    Row("the most that rounding may change", (
        "RESIDUAL.seconds", "SUM_KEEP.seconds", "DRAW.seconds", "DRAW.weight", "CENTRE.weight")),
    Row("both say how far apart they were", ("MIXED.gap",), lambda it: it.job["mode"] == "pairs"),
    Row("how long it stopped for a checkpoint", ("READ.seconds",),
        lambda it: it.before["flag"] == 1),
    Row("a digest of what nobody else has", (f"OWN.{FIRST_DIGEST}", f"MIXED.{FIRST_DIGEST}")),
    Row("a vector that nobody takes", (f"OFFER.{FIRST_DIGEST}", "OFFER.progress"),
        lambda it: not it.is_taken),
    Row("a gradient that nobody takes", (f"TRACK.{FIRST_DIGEST}",), _is_sent_no_more),
    Row("what a frame comes to", ("DECODE.version", "SUM_DECODE.version"), _nobody_else_says),
    Row("what a schedule adds", ("SUM_ENCODE.version", f"SUM_ENCODE.{FIRST_DIGEST}"),
        _goes_straight),
    Row("the step of a checkpoint to which no other worker comes", ("PARK.version",), _comes_alone),
    Row("when all is written, after a fault, or where it is waited for", (f"FINAL.{LATE}",),
        _ends_later),
    Row("that nobody else could come, where some stop for a checkpoint", (f"TICK.{LEFT_OUT}",),
        lambda it: it.job.saves and it.before["seconds"] == 0),
    Row("when a rank ends that talks to no server", (f"LEAVE.{LATE}",),
        lambda it: it.job["mode"] == "teams" and it.before["worker"] % 2 == 1),
    Row("what a worker at a checkpoint does not compute with", ("READ.version",),
        _is_not_computed_with),
    Row("where one takes part with nothing", ("REDUCE.progress",),
        lambda it: it.before["samples"] == 0),
    Row("whether who died was missed", ("LEFT.flag",),
        lambda it: it.before["worker"] in it.told.crashed),
    Row("to how many a vector went, where neighbours have left", ("OFFER.samples",),
        lambda it: it.job["mode"] in ("by host", "pairs")),
    # It may have sent to some before it could write that it did.
    Row("what who died offered last", (f"OFFER.{LEFT_OUT}",), _is_of_a_last_round),
)  # fmt: skip

#: Of two events in a row, kinds of which neither makes the other possible.
EITHER_FIRST = (
    {Kind.REPLY}, {Kind.REPLY, Kind.DROP}, {Kind.RECEIVE}, {Kind.RECEIVE, Kind.LEFT}, {Kind.LEFT},
    {Kind.FINAL}, {Kind.SUM_DECODE}, {Kind.MESSAGE},
    # What another stage sends or is sent, and what is no pass.
    *({kind, Kind.MESSAGE} for kind in (Kind.READ, Kind.OFFER, Kind.MIXED, Kind.REDUCE)),
    # What is summed meanwhile.
    {Kind.STEP, Kind.SUM_ENCODE}, {Kind.STEP, Kind.SUM_DECODE},
)  # fmt: skip
AMONG_RANKS = (Kind.STEP, Kind.REDUCE, Kind.REDUCED)
OF_STAGES = {Kind.PASS, Kind.MESSAGE}
#: Of two chunks of a sum.
OF_SUMS = {Kind.SUM_ENCODE, Kind.SUM_DECODE}
#: Flag of a pass to the weights alone.
TO_WEIGHTS = 4


def why_it_passes(it: Forgery) -> str:
    """Return why a forgery need not be found; "" if it must be."""
    lost = it.job["mode"] == "teams" and {one // 2 for one in it.told.crashed}
    if lost and it.kind in AMONG_RANKS and it.before["worker"] // 2 in lost:
        return "what the ranks of a learner that died did among themselves"
    if it.way == SWAPPED:
        kinds = {Kind(int(one["kind"])) for one in (it.before, it.next)}
        free = kinds in EITHER_FIRST or (kinds == OF_STAGES and not it.is_message_of_pass)
        free |= kinds == OF_SUMS and not it.is_frame_and_source
        # What is kept back of a part, and the sum of the next one.
        free |= kinds == {Kind.SUM_KEEP, Kind.SUM_DECODE} and _goes_straight(it)
        # Two frames for others, of chunks that are theirs.
        free |= kinds == {Kind.SUM_ENCODE} and it.job["way"] == "all-pairs"
        ends_meanwhile = it.job["mode"] == "eager" or (
            it.job["mode"] == "streaming" and it.job["cut"] in SPLIT
        )
        free |= kinds == {Kind.LEAVE, Kind.REDUCED} and ends_meanwhile
        meanwhile = kinds in ({Kind.PASS, Kind.REDUCED}, {Kind.STEP, Kind.MESSAGE})
        free |= meanwhile and it.job["cut"] == "pipedream"
        return "neither makes the other possible" if free else ""
    name = f"{it.kind.name}.{it.way}"
    return next((row.why for row in ON_TRUST if name in row.fields and row.when(it)), "")


def jobs_of(modes: tuple[str, ...]) -> Iterator[Job]:
    yield from (job for job in JOBS if job["mode"] in modes)
    yield from (job for name, job in LEARNED.items() if name in modes)


@pytest.fixture(scope="module")
def histories(result):
    """Return what reads what jobs of some modes tell, the shortest first; of those that end."""

    @functools.cache
    def told(job):
        return told_by(result(job).out)

    def found(modes, one_in=1):
        jobs = (
            job for job in jobs_of(modes)
            if not draw(job, "histories") % one_in or job in LEARNED.values()
        )  # fmt: skip
        ended = [(job, told(job)) for job in jobs if result(job).run is not None]
        return sorted(ended, key=lambda it: sum(cell.events for cell in it[1].cells))

    return found


def forgery(job: Job, told: Told, cell: int, kind: Kind, way: str) -> Forgery | None:
    """Return what comes of it if one event, drawn by its name, is forged; None if nothing."""
    made = forged(told, cell, kind, way, draw(job, cell, kind.name, way))
    return None if made is None else Forgery(job, told, cell, kind, way, *made)


@pytest.mark.parametrize("group", GROUPS)
def test_a_forged_event_is_found_out(group, histories):
    where: dict[Kind, list[tuple[Job, Told, int]]] = {}
    for job, told in histories(GROUPS[group]):
        for cell, kind in told.kinds():
            where.setdefault(kind, []).append((job, told, cell))
    tried, missed = 0, []
    for kind, places in where.items():
        for way in ways_of(kind):
            # What a kind does not have is asked of all kinds alike.
            unused = way in EVENT.names and way not in kinds.KINDS[kind].columns() | {
                "kind",
                "worker",
            }
            if unused and draw(way, group, kind.name) % 3:
                continue
            first = draw(group, kind.name, way) % min(SHORTEST, len(places))
            for place in (*places[first:], *places[:first]):
                it = forgery(*place, kind, way)
                if it is not None and not why_it_passes(it):
                    tried += 1
                    missed += [] if it.is_found_out() else [str(it)]
                    break
    assert not missed, "\n".join(missed)
    assert tried > 8 * len(where)


@pytest.mark.exhaustive
def test_every_forged_event_is_found_out(job, result):
    if result(job).run is None:
        return
    told, tried, missed = told_by(result(job).out), 0, []
    for cell, kind in told.kinds():
        for way in ways_of(kind):
            it = forgery(job, told, cell, kind, way)
            if it is not None and not why_it_passes(it):
                tried += 1
                missed += [] if it.is_found_out() else [str(it)]
    assert not missed, "\n".join(missed)
    assert tried > 30


# --- what lies beside the events ------------------------------------------------------------------

#: Of a summary, what follows from nothing else; of all runs, and of some.
FREE_FIGURES = {
    "test_loss", "test_accuracy", "test_figures", "environment", "allreduce_why", "shards_why",
    "buckets",
    "parameters_sha256",  # held against the model below
}  # fmt: skip
BYTES = {"bytes_sent", "bytes_received"}
OF_PARTS = {"memory", "model_cut", "cut_bytes_sent", "cut_bytes_received"}
OF_PAIRS = {"skew", "skew_max", "clock_spread_max", "waiting"}
#: Of a line of the metrics.
FREE_COLUMNS = {
    "loss", "test_loss", "accuracy", "evaluated_seconds", "gap_mean", "consensus_distance", *BYTES
}  # fmt: skip
FAMILIES = {
    "serial": ("serial",),
    "served": tuple(it for it in FACTORS["mode"] if it in SERVED),
    "summed": SUMMED,
    "mixed": MIXED,
    "learners": tuple(LEARNED),
}


def is_free(job: Job, path: tuple) -> bool:
    """Return whether a figure of the summary may be another, for all that is known."""
    name = path[0]
    return (
        name in FREE_FIGURES
        or (name in BYTES and job["mode"] in (*SUMMED, "pairs", "serial"))
        or (name in OF_PARTS and job["cut"] in SPLIT)
        or name == "memory"
        or (job["mode"] == "pairs" and (name in OF_PAIRS or path[1:2] == ("by_shard",)))
        or path[-1] == "consensus_distance"
    )


def all_live(job: Job) -> bool:
    """Return whether nobody dies: of a run with a death little more is known than its events."""
    return job["event"] not in ("is killed", "loses a worker")


def named(path: tuple) -> tuple:
    """Return a path without what is only a place in a list."""
    return tuple(it for it in path if isinstance(it, str))


@pytest.fixture(scope="module")
def forged_figures(histories):
    """Yield, for each figure of jobs of some modes, one job in which it is forged."""

    def found(modes, read, one_in):
        places: dict[tuple, list] = {}
        for job, told in histories(modes, one_in):
            if all_live(job):
                for path, value in figures_of(read(told)):
                    places.setdefault(named(path), []).append((job, told, path, value))
        for name, those in places.items():
            yield those[draw(*name) % min(SHORTEST, len(those))]

    return found


#: Of a third of their jobs, which another process has run already.
every_family = pytest.mark.parametrize(
    ("family", "one_in"), [*((it, 3) for it in FAMILIES), *(also(it, 1) for it in FAMILIES)]
)


@every_family
def test_a_forged_figure_of_the_summary_is_found_out(family, one_in, forged_figures):
    tried, missed = 0, []
    found = forged_figures(FAMILIES[family], lambda told: told.summary, one_in)
    for job, told, path, value in found:
        forgeries = [] if is_free(job, path) else [(path, other_figure(value))]
        forgeries += [(path, ...)] if len(path) == 1 else []  # each must be there
        for where, new in forgeries:
            tried += 1
            summary = with_figure(told.summary, where, new)
            if not replace(told, summary=summary).is_found_out():
                missed.append(f"{job}: {where}: {new} instead of {value}")
    assert not missed, "\n".join(missed)
    assert tried > 30


@every_family
def test_a_forged_line_of_the_metrics_is_found_out(family, one_in, forged_figures):
    tried, missed = 0, []
    found = forged_figures(FAMILIES[family], lambda told: told.metrics[0], one_in)
    for job, told, path, _ in found:
        i = draw(job, *path) % len(told.metrics)
        line = told.metrics[i]
        (name,) = path
        forgeries = [] if name in FREE_COLUMNS else [other_figure(line[name])]
        lines = [with_figure(line, path, new) for new in (*forgeries, ...)]
        for these in ([], [line, line], *([it] for it in lines)):
            tried += 1
            metrics = [*told.metrics[:i], *these, *told.metrics[i + 1 :]]
            if not replace(told, metrics=metrics).is_found_out():
                missed.append(f"{job}: {path}: line {i} {these} instead of {line}")
    assert not missed, "\n".join(missed)
    assert tried > 30


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture
def copy(result, tmp_path):
    """Return what copies the folder of a job anew."""

    def made(job):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        return Path(shutil.copytree(result(job).out, tmp_path / "run"))

    return made


def says_no(out: Path) -> bool:
    """Return whether a run is refused, in a line, or found to be against its contract."""
    try:
        outcome = check_run(out)
    except ConfigError as error:
        return "\n" not in str(error)
    return not outcome.ok


def sealed(data: bytes, change: Callable[[np.ndarray], None]) -> bytes:
    """Return a file of events with others, as many, whose check sum is right.

    Its last record is END, with the CRC-32 of the events and then of numpy's header.
    """
    begin = data.index(b"\n") + 1
    events = np.frombuffer(data[begin:], EVENT).copy()
    change(events[:-1])
    events["version"][-1] = zlib.crc32(data[:begin], zlib.crc32(events[:-1].tobytes()))
    return data[:begin] + events.tobytes()


def one_of(files: list[Path], *what: object) -> Path:
    files = sorted(files)
    return files[draw(*what) % len(files)]


def in_a_few(job: Job) -> bool:
    return job["event"] not in ("is killed", "loses a worker") and not draw(job, "files") % 24


@pytest.mark.of(which=in_a_few)
def test_a_forged_file_is_found_out(job, copy):
    out = copy(job)
    assert not says_no(out)
    events = one_of([*(out / "history").glob("*.npy")], job)
    data = events.read_bytes()
    places = (*range(8), *(draw(job, i) % len(data) for i in range(8)))
    forgeries = [(events, data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :]) for i in places]
    forgeries += [(events, data[: len(data) - i]) for i in (1, 64, len(data) // 2, len(data))]
    forgeries += [(events, data + data[-64:])]

    def one_clock_off(events):
        events["clock"][draw(job, "clock") % len(events)] += 1

    assert sealed(data, lambda events: None) == data
    forgeries += [(events, sealed(data, one_clock_off))]
    header = out / "history" / "header.json"
    text = header.read_bytes()
    digits = [i for i, byte in enumerate(text) if chr(byte).isdigit()]
    for turn in range(4):
        i = digits[draw(job, "header", turn) % len(digits)]
        forgeries.append((header, text[:i] + bytes([text[i] ^ 1]) + text[i + 1 :]))
    config = out / "config.toml"
    text = config.read_bytes()
    assert b"\nbatch_size = 4" in text
    forgeries.append((config, text.replace(b"\nbatch_size = 4", b"\nbatch_size = 5")))
    model = out / "model.safetensors"
    forgeries.append((model, model.read_bytes()[:-1] + b"\1"))
    summary = out / "summary.json"
    values = json.loads(summary.read_text())
    digest = values["parameters_sha256"]
    forgeries.append((summary, summary.read_bytes().replace(digest[:8].encode(), b"01234567")))
    for file, forgery in forgeries:
        whole = file.read_bytes()
        assert forgery != whole
        file.write_bytes(forgery)
        assert says_no(out), (file.name, len(forgery))
        file.write_bytes(whole)
    assert not says_no(out)
