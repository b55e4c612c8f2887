"""What the table of pushes and pulls in ``docs/hosts.md`` makes of a benchmark's rows."""

from itertools import product

import hosts_ps
import pytest


def rows(times):
    """Return rows: psrt with several shards takes ``times`` the bound, all else twice the bound."""
    found = []
    for servers, mode, shards in product(hosts_ps.SERVERS, hosts_ps.MODES, hosts_ps.SHARDS):
        bound = hosts_ps.bound_s(servers, 100)
        psrt = (2 if shards == 1 else times) * bound
        found.append({
            "servers": servers, "mode": mode, "shards_per_server": shards,
            "psrt_s": {"median": psrt}, "plain_s": {"median": 2 * bound},
        })  # fmt: skip
    return found


def test_each_time_is_held_against_the_bytes_of_one_direction():
    # Of 4 workers, 4 MiB each, at 12.5 MB/s.
    assert hosts_ps.bound_s(1, 100) == pytest.approx(4 * (4 << 20) / 12.5e6)
    lines = hosts_ps.table(rows(1.2), 100)
    assert lines[2].split(" | ")[1:] == [
        "sync", "1.34 s", "2.68 s", "2.00", "2.68 s", "2.00", "1.61 s", "1.20 |"
    ]  # fmt: skip
    assert lines[-2] == "Nothing missed."


def test_what_falls_short_is_named():
    missed = hosts_ps.table(rows(1.3), 100)[-2]
    assert missed.count("1.30 times its bound") == 4  # with 4 servers that is enough
    assert "sync with 1 server takes 1.30 times its bound, the aim is 1.25" in missed


def test_what_the_cores_need_stands_beside():
    lines = hosts_ps.table(rows(1.2), 100, rows(0.25))
    assert lines[0].endswith("| over the bound | without a limit |")
    assert lines[2].endswith("| 1.61 s | 1.20 | 336 ms |")


def test_what_was_not_measured_is_left_out():
    some = [row for row in rows(1.2) if row["mode"] == "sync" and row["shards_per_server"] > 1]
    lines = hosts_ps.table(some, 100)
    assert len(lines) == 2 + len(hosts_ps.SERVERS) + 3
    assert lines[2] == "| 1 | sync | 1.34 s | – | – | – | – | 1.61 s | 1.20 |"
