"""psrt doctor: what is made of facts, the page that says it, and what keeps ranks from starting."""

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from psrt.doctor import host, preflight
from psrt.doctor.facts import Facts, pair_from_json, rank_from_json, to_json
from psrt.doctor.findings import FAILS, NOTE, RULES, SLOW, judge
from psrt.doctor.host import look
from psrt.doctor.page import page
from psrt.doctor.preflight import understood
from psrt.launch.hostfile import Host
from psrt.launch.reach import Answer
from support.doctor import OPEN_MPI, VERSIONS, healthy, pair, rank, with_pair, with_rank

#: Rule → its severity, facts that it is about, and words of what it says and of the cure.
CASES = {
    "_singletons": (FAILS, Facts(ranks=(rank(0, started=4),)), ("one of 4 ranks",
     "sees only this one"), "--mpi=pmi2"),
    "_unreachable": (FAILS, with_pair(error="no answer within 15 s"), ("node01 and node02",
     "no answer within 15 s"), "firewall"),
    "_windows": (FAILS, with_rank(healthy(), 3, window_error="no space"), ("node02", "no space"),
     "--no-shared-memory"),
    "_same_name": (FAILS, with_rank(healthy(1, 2), 1, host="node01"), ("2 machines", "node01"),
     "hostname"),
    "versions that must agree": (FAILS, with_rank(healthy(), 2, versions={**VERSIONS,
     "psrt": "0.0.9"}), ("same psrt", "0.1.0 on node01, node02; 0.0.9 on node02"),
     "same environment"),
    "_out_of_reach": (FAILS, replace(healthy(), out="/x", out_error="Permission denied"), ("/x",
     "Permission denied"), "--out"),
    "_half_duplex": (SLOW, with_pair(both_ways_s=0.066), ("4 MiB", "34 ms", "66 ms", "take turns"),
     "ethtool"),
    "_long_way": (SLOW, with_pair(alpha_s=2e-3), ("2 ms", "node02"), "--interface"),
    "_odd_link": (SLOW, replace(healthy(1, 3), pairs=(pair((0, 1)), pair((0, 2)), pair((1, 2),
     beta_s=9e-8))), ("node02 and node03", "90 ns", "8 ns"), "cable"),
    "_tied": (SLOW, with_rank(with_rank(healthy(2, 1), 0, cores=(1,)), 1, cores=(1,)),
     ("ranks 0, 1", "1 core (1)", "has 4"), "--bind-to none"),
    "_oversubscribed": (SLOW, healthy(5, 1), ("5 ranks share 4 cores", "node01"), "no more ranks"),
    "_threads": (SLOW, healthy(2, 1, blas_threads=4), ("4 threads", "2 ranks", "4 cores"),
     "OMP_NUM_THREADS=1"),
    "_apart": (SLOW, with_rank(healthy(2, 1), 1, node=1), ("2 ranks on node01", "2 groups"),
     "container"),
    "_earlier_run": (NOTE, replace(healthy(), out="runs/x", out_holds=("config.toml", "history")),
     ("runs/x holds a run already (config.toml, history)",), "--overwrite"),
    "_unseen_out": (NOTE, replace(with_rank(healthy(), 2, sees_out=False), out="runs/x"),
     ("node02 cannot see", "node01", "runs/x"), "--record"),
    "_little_shm": (NOTE, healthy(2, 1, shm_free=64 << 20), ("64 MiB", "2 ranks"), "/dev/shm"),
    "versions that may differ": (NOTE, with_rank(healthy(), 3, versions={**VERSIONS,
     "numpy": "1.26"}), ("same numpy", "1.26 on node02"), "replay"),
    "_several_networks": (NOTE, with_rank(healthy(), 0, networks={"eth0": "10.0.0.1",
     "docker0": "172.17.0.1"}), ("node01 has 2 networks", "docker0"), "--interface"),
    "_clocks": (NOTE, with_rank(healthy(), 2, clock_s=-90.0), ("node02", "90 s behind"), "chrony"),
}  # fmt: skip


def test_nothing_is_wrong_with_what_is_well():
    for facts in (healthy(), healthy(1, 1), healthy(4, 3), healthy(2, 2, versions=OPEN_MPI)):
        assert judge(facts) == []
    assert judge(Facts(ranks=(rank(0, clock_s=None, shm_free=None, blas_threads=None),))) == []


@pytest.mark.parametrize("name", CASES)
def test_a_rule_notices_its_case_and_nothing_else(name):
    severity, facts, says, cure = CASES[name]
    (finding,) = judge(facts)
    assert finding.severity == severity
    for words in says:
        assert words in finding.what
    assert cure in finding.cure


def test_every_rule_has_a_case():
    found = [rule.find.__name__ for rule in RULES]
    assert len(CASES) == len(RULES)
    assert {name for name in found if name != "find"} <= set(CASES)


def test_the_worst_comes_first_and_what_is_wrong_with_every_host_is_told_of_some():
    facts = with_rank(with_rank(healthy(5, 2), 2, window_error="x"), 5, clock_s=5.0)
    assert [finding.severity for finding in judge(facts)] == [FAILS, SLOW, SLOW, NOTE]
    whats = [finding.what for finding in judge(healthy(5, 64))]
    assert len(whats) == 4
    assert whats[-1] == "and 61 more like these"


def test_ranks_bound_to_cores_of_their_own_are_well():
    facts = healthy(4, 1)
    for number in range(4):
        facts = with_rank(facts, number, cores=(number,))
    assert judge(facts) == []
    # Three on two cores, one on the others: Hall's condition fails for the three.
    for number, cores in enumerate([(0,), (0, 1), (1,), (2, 3)]):
        facts = with_rank(facts, number, cores=cores)
    (finding,) = judge(facts)
    assert "ranks 0, 1, 2 are bound to 2 cores (0, 1)" in finding.what


def test_facts_travel_as_text():
    whole = rank(3, window_error="a\nb", sees_out=False, settings={"A": "b"})
    assert rank_from_json(to_json(whole)) == whole
    assert "\n" not in to_json(whole)
    some = pair((1, 4), error="none")
    assert pair_from_json(to_json(some)) == some


def test_a_page_of_two_hosts_of_which_the_second_is_in_trouble():
    ranks = [rank(number, node=0, sees_out=True) for number in range(3)]
    ranks += [rank(it, "node02", node=3, clock_s=-0.002, sees_out=False) for it in (3, 4)]
    facts = replace(healthy(), ranks=tuple(ranks), pairs=(pair((0, 3)),), out="runs/x")
    facts = with_rank(facts, 4, window_error="no space left")
    text = page(facts, judge(facts))
    _, hosts, pairs, verdict = text.split("\n\n")
    for words in ("node01", "0-2", "3-4", "-2 ms ± 10 µs", "not seen", "fail"):
        assert words in hosts
    for words in ("node01 - node02", "34 ms", "959 Mbit/s"):
        assert words in pairs
    lines = verdict.splitlines()
    assert lines[0] == "fails  shared memory does not work on node02: no space left"
    assert lines[1].startswith("cure   give the host a larger /dev/shm")
    facts = replace(healthy(), pairs=(pair((0, 2), error="no answer within 15 s"),))
    assert "no answer within 15 s" in page(facts, [])


# Before ranks start.


PYTHON, FOLDER = "/env/bin/python", "/home/me/runs"
#: As OpenSSH 9, dash, bash, and Python 3.11 say it → the cause, and what its cure begins with.
SAID = {
    "ssh: Could not resolve hostname node02: Name or service not known": ("not known", "correct"),
    "ssh: connect to host node02 port 22: Connection refused": ("nothing answers", "start its"),
    "no answer within 15 s": ("does not answer", "see whether"),
    "me@node02: Permission denied (publickey,password).": ("a password", "ssh-copy-id node02"),
    "Host key verification failed.": ("does not know its key", "ssh node02 once"),
    "ssh: No such file or directory": ("no ssh here", "install it"),
    "sh: 1: cd: can't cd to /home/me/runs": ("no folder /home/me/runs", "start from"),
    "env: '/env/bin/python': No such file or directory": ("it has no /env/bin/", "install the"),
    "/env/bin/python: No module named psrt": ("python has no psrt", "install the"),
    "/env/bin/python: Error while finding module specification for 'psrt.doctor.host' "
    "(ModuleNotFoundError: No module named 'psrt')": ("python has no psrt", "install the"),
    "Segmentation fault": ("cannot be used (Segmentation fault)", "run this by hand"),
    "": ("cannot be used (status 255)", "run this by hand"),
}


@pytest.mark.parametrize("said", SAID)
def test_what_ssh_says_is_a_cause_with_a_cure(said):
    banner = "Warning: Permanently added 'node02' to the list of known hosts.\n"
    for text in (said, f"{banner}{said}\r\n" if said else said):
        ((what, cure),) = understood("node02", Answer(255, "", text), PYTHON, FOLDER)
        cause, begin = SAID[said]
        assert cause in what
        assert cure.startswith(begin)
        assert "{" not in what + cure


def test_what_a_host_has_found_is_taken_over_and_noise_is_not():
    found = [("it is full", "make room")]
    noisy = f"Welcome!\n{json.dumps(found)}\n"
    assert understood("a", Answer(0, noisy, ""), PYTHON, FOLDER) == found
    assert understood("a", Answer(0, "[]\n", "a warning"), PYTHON, FOLDER) == []
    for said in ("", "Welcome!", "[1]", '{"a": 1}x'):
        ((what, _),) = understood("a", Answer(0, said, ""), PYTHON, FOLDER)
        assert what.startswith("its shell answers")


def shared(monkeypatch, free):
    monkeypatch.setattr(
        host.os, "statvfs", lambda _: os.statvfs_result((1, 1, 64 << 20, free, free, *[1] * 5))
    )


@pytest.mark.parametrize(
    ("free", "ranks", "is_open_mpi", "fails"),
    [
        (16 << 10, 2, True, True),
        (16 << 10, 1, True, False),  # it shares with nobody
        (0, 1, False, True),
        (19 << 20, 4, True, True),
        (20 << 20, 4, False, True),
    ],
)
def test_a_small_or_full_shared_memory(monkeypatch, free, ranks, is_open_mpi, fails):
    shared(monkeypatch, free)
    monkeypatch.setattr(host, "refuses", lambda *_: "")
    found = look(ranks, is_open_mpi=is_open_mpi)
    assert [what.startswith("/dev/shm has ") for what, _ in found] == [True] * fails


def test_a_temporary_folder_of_no_use(monkeypatch, tmp_path):
    shared(monkeypatch, 1 << 30)
    (tmp_path / "a file").touch()
    for text, fails in ((tmp_path, False), (tmp_path / "new", False), (tmp_path / "a file", True)):
        monkeypatch.setenv("TMPDIR", str(text))
        found = look(2, is_open_mpi=True)
        assert ["no file " in what and "(TMPDIR)" in what for what, _ in found] == [True] * fails
    full = Path("/dev/full")
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: full.open("wb"))
    assert "No space left on device" in look(2, is_open_mpi=True)[0][0]


def test_ranks_fill_hosts_in_their_order():
    two = (Host("a", 2), Host("b", 4))
    for ranks, shares in ((2, {"a": 2}), (3, {"a": 2, "b": 1}), (9, {"a": 4, "b": 6})):
        assert preflight._shares(two, ranks) == shares
