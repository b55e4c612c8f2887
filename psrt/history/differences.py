"""The differences between a recorded run and its replay. Pure: headers in, phrases out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psrt.config import TrainConfig
from psrt.config.checks import flag
from psrt.config.knobs import knobs_of
from psrt.config.names import BY_HOST, by_hosts
from psrt.history.header import Header
from psrt.rows.knobs import Knob, accept, dashed
from psrt.rows.row import Row, knobs_of_row

#: Digits of a digest that a message shows.
_DIGITS = 8


def differences(now: Header, then: Header) -> list[str]:
    """Return the differences between two runs that can change the numbers.

    A difference that follows from another one is left out.

    Args:
        now: header of the replay, its ``allreduce`` as ``auto`` chose it in the recorded run.
        then: header of the recorded run.

    Returns:
        One phrase each, "seed 1 instead of 0"; empty if the replay will be the same run.
    """
    found = _code(now, then)
    known = len(found)
    config = then.config
    if then.algorithm_chosen:
        config = config | {"allreduce": then.algorithm}
    found += knob_differences(now.config, config)
    for what, here, there in (
        ("workers", len(now.workers), len(then.workers)),
        ("servers", len(now.server_ranks), len(then.server_ranks)),
    ):
        if here != there and f"{what} {here} instead of {there}" not in found:
            found.append(f"{here} {what} instead of {there}")
    if len(found) == known:
        found += _numbers(now, then)
    same_ranks = len(now.hosts) == len(then.hosts)
    if then.mode.variant == BY_HOST and same_ranks and _hosts_of(now) != _hosts_of(then):
        found.append("ranks on other hosts, within which they average")
    if by_hosts(then.algorithm) and _local_roots(now) != _local_roots(then):
        found.append(f"ranks on other hosts, which {then.algorithm} sums by")
    return found


def knob_differences(now: Mapping[str, Any], then: Mapping[str, Any]) -> list[str]:
    """Return the differences between the knobs in ``now`` that touch the numbers and ``then``'s.

    Raises:
        ConfigError: if a knob has an invalid value.
    """
    knobs = knobs_of(TrainConfig)
    found = []
    for name, given in now.items():
        if name not in knobs or not knobs[name].numeric:
            continue
        here, there = (_canonical(name, knobs[name], value) for value in (given, then.get(name)))
        if here != there and not _is_left(here, there):
            found.append(f"{_shown(name, here)} instead of {_shown(name, there, named=False)}")
    return found


def _canonical(name: str, knob: Knob, value: Any) -> Any:
    return None if value is None else accept(name, knob, value)


def _is_left(here: Any, there: Any) -> bool:
    """Return whether a row differs only in knobs that it leaves open, which keep their values."""
    if not isinstance(here, Row) or type(here) is not type(there):
        return False
    return all(
        here.knobs[name] == there.knobs[name] or (knob.is_open and here.knobs[name] is None)
        for name, knob in knobs_of_row(here).items()
    )


def _shown(name: str, value: Any, *, named: bool = True) -> str:
    """Return a knob's value as a user types it, with its name if ``named``."""
    if value is None:
        return f"no {dashed(name)}" if named else "none"
    words = flag(name, value).removeprefix("--")
    return words if named or isinstance(value, bool) else words.partition(" ")[2]


def _code(now: Header, then: Header) -> list[str]:
    found = [
        f"{what} {here} instead of {there}"
        for what, here, there in (("psrt", now.psrt, then.psrt), ("numpy", now.numpy, then.numpy))
        if here != there
    ]
    if now.code_sha256 != then.code_sha256:
        found.append(f"other source code of psrt{_digests(now.code_sha256, then.code_sha256)}")
    return found


def _numbers(now: Header, then: Header) -> list[str]:
    """Compare parameters, shards, data and initial values."""
    found = []
    if now.n != then.n:
        return [f"{now.n} parameters instead of {then.n}"]
    if now.spans != then.spans:
        found.append("shards with other bounds")
    if now.data_sha256 != then.data_sha256:
        found.append(f"other training data{_digests(now.data_sha256, then.data_sha256)}")
    if now.deal != then.deal:
        found.append("another partition of the samples")
    if now.edges != then.edges:
        found.append("other edges between neighbours")
    if now.initial_sha256 != then.initial_sha256:
        digests = _digests(now.initial_sha256, then.initial_sha256)
        found.append(f"other initial parameters{digests}")
    return found


def _digests(here: str, there: str) -> str:
    """Return the beginnings of two digests, in brackets; empty if one of them is missing."""
    if not here or not there:
        return ""
    return f" ({here[:_DIGITS]} instead of {there[:_DIGITS]})"


def _hosts_of(header: Header) -> list[int]:
    """Return, for each rank, the first rank of its host."""
    return [header.hosts.index(host) for host in header.hosts]


def _local_roots(header: Header) -> list[int]:
    """Return, for each rank, the first rank that it shares memory with."""
    if header.config.get("shared_memory") is False:
        return list(range(len(header.hosts)))
    return _hosts_of(header)
