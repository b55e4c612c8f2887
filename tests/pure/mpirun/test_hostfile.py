"""Hostfiles as Open MPI's and MPICH's users and batch systems write them, and what is refused."""

from pathlib import Path

import pytest

from psrt.errors import ConfigError
from psrt.mpirun.hostfile import Host, parse_hosts, read_hostfile


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node01:4\nnode02:2", [("node01", 4), ("node02", 2)]),
        ("node01 slots=4\nnode02 slots = 2", [("node01", 4), ("node02", 2)]),
        ("node01\n\n  10.0.0.2 : 3  # the big one\n# node03:9\n", [("node01", 1), ("10.0.0.2", 3)]),
        ("b\na\nb\n", [("b", 2), ("a", 1)]),
        ("a.b-c_d:1", [("a.b-c_d", 1)]),
        (
            "a slots=2 max_slots=4\nb max-slots=4 slots=3\nc max_slots=9",
            [("a", 2), ("b", 3), ("c", 1)],
        ),
        ("me@a:2\nme@b slots=2\na", [("a", 3, "me"), ("b", 2, "me")]),
        ("n1:2\r\nn2:2\r\n", [("n1", 2), ("n2", 2)]),
    ],
)
def test_either_format(text, hosts):
    assert list(parse_hosts(text, "hosts")) == [Host(*host) for host in hosts]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("-oProxyCommand=evil", "no name"),
        ("--prefix:2", "no name"),
        ("a;rm", "no name"),
        ("$(id)", "no name"),
        ("-l@node01", "no name"),
        ("a@b@node01", "no name"),
        ("@node01", "no name"),
        ("node01 slots=2 slots=3", "given twice"),
        ("node01 max_slots=", "expected host"),
        ("node01,node02", "no name"),
        ("../x", "no name"),
        ("nöde", "no name"),
        ("node01:0", "1 to 100000 slots"),
        ("node01:-1", "1 to 100000 slots"),
        ("node01:²", "1 to 100000 slots"),
        ("node01 slots=many", "1 to 100000 slots"),
        ("node01:1:2", "1 to 100000 slots"),
        ("node01:99999999999", "1 to 100000 slots"),
        ("a:99999999", "1 to 100000 slots"),
        ("[::1]:2", "no IPv6 address"),
        ("::1", "no IPv6 address"),
        ("fe80::1:2", "no IPv6 address"),
        ("fe80::1 slots=2", "no IPv6 address"),
        ("a\x0bb", "expected host"),
        ("a\x85b", "expected host"),
        ("node01 4", "expected host"),
        (":4", "expected host"),
    ],
)
def test_what_is_none_is_refused_with_its_line(line, says):
    with pytest.raises(ConfigError, match=says) as caught:
        parse_hosts(f"node00:2\n{line}", "my-hosts")
    assert "my-hosts, line 2: " in str(caught.value)


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("a:2\r\nb\r\n", encoding="utf-8-sig")
    assert read_hostfile(str(path)) == (Host("a", 2), Host("b", 1))


def test_a_file_without_hosts_is_refused(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# nobody\n")
    with pytest.raises(ConfigError, match="names no host"):
        read_hostfile(str(path))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_hostfile(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("name", ["openmpi-cluster", "mpich-cluster"])
def test_the_examples_are_of_the_one_format(name):
    example = Path(__file__).parents[3] / f"hostfiles/{name}.example"
    hosts = read_hostfile(str(example))
    assert hosts == tuple(Host(f"node{k:02}", 4) for k in (1, 2, 3))
