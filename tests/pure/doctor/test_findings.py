"""What is made of facts: every rule notices its own case, says whom it is about, and has a cure."""

from dataclasses import replace

import pytest

from psrt.doctor import findings
from psrt.doctor.facts import Facts, pair_from_json, rank_from_json, to_json
from psrt.doctor.findings import FAILS, NOTE, RULES, SLOW, judge
from support.doctor import OPEN_MPI, VERSIONS, healthy, pair, rank, with_pair, with_rank

#: Rule → its severity, facts that it is about, and words of what it says and of the cure.
CASES = {
    "_singletons": (
        FAILS,
        Facts(ranks=(rank(0, started=4),)),
        ("one of 4 ranks", "sees this one only"),
        "--mpi=pmi2",
    ),
    "_unreachable": (
        FAILS,
        with_pair(error="no answer within 15 s"),
        ("node01 and node02", "no answer within 15 s"),
        "firewall",
    ),
    "_windows": (
        FAILS,
        with_rank(healthy(), 3, window_error="no space"),
        ("node02", "no space"),
        "--no-shared-memory",
    ),
    "_same_name": (
        FAILS,
        with_rank(healthy(1, 2), 1, host="node01"),
        ("2 machines", "node01"),
        "hostname",
    ),
    "versions that must agree": (
        FAILS,
        with_rank(healthy(), 2, versions={**VERSIONS, "psrt": "0.0.9"}),
        ("same psrt", "0.1.0 on node01, node02; 0.0.9 on node02"),
        "same environment",
    ),
    "_out_of_reach": (
        FAILS,
        replace(healthy(), out="/x", out_error="Permission denied"),
        ("/x", "Permission denied"),
        "--out",
    ),
    "_half_duplex": (
        SLOW,
        with_pair(both_ways_s=0.066),
        ("4 MiB", "34 ms", "66 ms", "take turns"),
        "ethtool",
    ),
    "_long_way": (SLOW, with_pair(alpha_s=2e-3), ("2 ms", "node02"), "--interface"),
    "_odd_link": (
        SLOW,
        replace(healthy(1, 3), pairs=(pair((0, 1)), pair((0, 2)), pair((1, 2), beta_s=9e-8))),
        ("node02 and node03", "90 ns", "8 ns"),
        "cable",
    ),
    "_tied": (
        SLOW,
        with_rank(with_rank(healthy(2, 1), 0, cores=(1,)), 1, cores=(1,)),
        ("ranks 0, 1", "1 core (1)", "has 4"),
        "--bind-to none",
    ),
    "_oversubscribed": (SLOW, healthy(5, 1), ("5 ranks share 4 cores", "node01"), "no more ranks"),
    "_threads": (
        SLOW,
        healthy(2, 1, blas_threads=4),
        ("4 threads", "2 ranks", "4 cores"),
        "OMP_NUM_THREADS=1",
    ),
    "_apart": (
        SLOW,
        with_rank(healthy(2, 1), 1, node=1),
        ("2 ranks on node01", "2 groups"),
        "container",
    ),
    "_earlier_run": (
        NOTE,
        replace(healthy(), out="runs/x", out_holds=("config.toml", "history")),
        ("runs/x holds a run already (config.toml, history)",),
        "--overwrite",
    ),
    "_unseen_out": (
        NOTE,
        replace(with_rank(healthy(), 2, sees_out=False), out="runs/x"),
        ("node02 cannot see", "node01", "runs/x"),
        "--record",
    ),
    "_little_shm": (
        NOTE,
        healthy(2, 1, shm_free=64 << 20),
        ("64 MiB", "2 ranks"),
        "/dev/shm",
    ),
    "versions that may differ": (
        NOTE,
        with_rank(healthy(), 3, versions={**VERSIONS, "numpy": "1.26"}),
        ("same numpy", "1.26 on node02"),
        "replay",
    ),
    "_several_networks": (
        NOTE,
        with_rank(healthy(), 0, networks={"eth0": "10.0.0.1", "docker0": "172.17.0.1"}),
        ("node01 has 2 networks", "docker0"),
        "--interface",
    ),
    "_clocks": (NOTE, with_rank(healthy(), 2, clock_s=-90.0), ("node02", "90 s behind"), "chrony"),
}


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


def test_open_mpi_has_cures_of_its_own():
    facts = CASES["_singletons"][1]
    ranks = tuple(replace(each, versions=OPEN_MPI) for each in facts.ranks)
    (finding,) = judge(replace(facts, ranks=ranks))
    assert "--mpi=pmix" in finding.cure


def test_the_worst_comes_first():
    facts = with_rank(with_rank(healthy(5, 2), 2, window_error="x"), 5, clock_s=5.0)
    severities = [finding.severity for finding in judge(facts)]
    assert severities == [FAILS, SLOW, SLOW, NOTE]


def test_what_is_wrong_with_every_host_is_told_of_some():
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


def test_a_network_that_was_named_is_no_question_any_more():
    facts = CASES["_several_networks"][1]
    for name in findings._NETWORK:
        assert judge(with_rank(facts, 0, settings={name: "eth0"})) == []


def test_facts_travel_as_text():
    whole = rank(3, window_error="a\nb", sees_out=False, settings={"A": "b"})
    assert rank_from_json(to_json(whole)) == whole
    assert "\n" not in to_json(whole)
    some = pair((1, 4), error="none")
    assert pair_from_json(to_json(some)) == some
