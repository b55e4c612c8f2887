"""Files with examples, orders of ranks: read as they are meant, refused in one line."""

from __future__ import annotations

import pytest

from psrt.errors import ConfigError
from psrt.explain.inputs import Example, rank_of, read_example, read_order


def read(tmp_path, text):
    path = tmp_path / "example.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_example(str(path))


@pytest.mark.parametrize(
    "text",
    [
        "A,1,2.5\nB,-3,4\n",
        "A, 1, 2.5\r\nB, -3, 4",
        "# a remark\n\nA,+1,2.5\n , \nB,-3,04\n",
        '"A","1","2.5"\n"B","-3","4"\n',
        "\ufeffA,1,25e-1\nB,-3,4\n",
    ],
)
def test_a_line_per_rank(tmp_path, text):
    example = read(tmp_path, text)
    assert example == Example(("A", "B"), ((1, 2.5), (-3, 4)))
    assert example.n == 2
    assert [type(x) for x in example.values[0]] == [int, float]


def test_whole_numbers_stay_exact(tmp_path):
    assert read(tmp_path, "A,123456789012345678").values == ((123456789012345678,),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "{path}: empty, expected a line per rank: its name, then its numbers"),
        ("\n# nothing\n", "{path}: empty, expected a line per rank: its name, then its numbers"),
        ("A\nB\n", "{path}: names without numbers, expected lines such as A,17,13,2"),
        ("A;1;2\n", "{path}: names without numbers, expected lines such as A,17,13,2"),
        ("A,1,2\nB,3\n", "{path}, line 2: rank 'B' has 1 number, rank 'A' has 2 numbers"),
        ("A,1\n\nB,2,3\n", "{path}, line 3: rank 'B' has 2 numbers, rank 'A' has 1 number"),
        ("A,1,x\n", "{path}, line 1: 'x' is not a number"),
        ("A,1,\n", "{path}, line 1: '' is not a number"),
        ("A,0x10\n", "{path}, line 1: '0x10' is not a number"),
        ("A,nan\n", "{path}, line 1: 'nan' is not a finite number"),
        ("A,1e999\n", "{path}, line 1: '1e999' is not a finite number"),
        ("A,1\nA,2\n", "{path}, line 2: a second rank 'A'"),
        (",1,2\n", "{path}, line 1: '' cannot be the name of a rank"),
        ("A\x01,1\n", "{path}, line 1: 'A\\x01' cannot be the name of a rank"),
        (b"\xff\xfe1", "{path}: not a CSV file in UTF-8"),
    ],
)
def test_files_that_will_not_do(tmp_path, text, message):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert str(caught.value) == message.format(path=tmp_path / "example.csv")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.csv: cannot be read: No such file"):
        read_example(str(tmp_path / "none.csv"))
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_example(str(tmp_path))
    with pytest.raises(ConfigError, match="not a CSV file"):
        read_example("a\0b")


def test_orders():
    assert read_order("A,B,D,C", "ABCD") == (0, 1, 3, 2)
    assert read_order(" 1, 0 ", ["0", "1"]) == (1, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A,B", "order leaves out C, expected every rank once"),
        ("A,B,B", "order names 'B' twice, expected every rank once"),
        ("A,B,X", "order names 'X', the ranks are A, B, C"),
        ("", "order names '', the ranks are A, B, C"),
    ],
)
def test_orders_that_are_none(text, message):
    with pytest.raises(ConfigError) as caught:
        read_order(text, list("ABC"))
    assert str(caught.value) == message


def test_a_rank_that_is_not_there_but_nearly():
    with pytest.raises(ConfigError, match=r"root names 'nod1' \(did you mean node1\?\)"):
        rank_of("nod1", ["node1", "node2"], "root")
