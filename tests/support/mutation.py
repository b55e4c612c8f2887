"""What a stranger, or a bad disk, may make of a file: its bytes, its fields, and what kind it is.

All of it is drawn from one seed, so that a case can be had again.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
import resource
import signal
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

T = TypeVar("T")

#: Bytes that one case may have at a time beyond what was there: the files are small, but a device
#: in the place of one is read for 64 MiB before it is refused.
MOST_BYTES = 200 << 20
#: Bytes of address space beyond those in use: what is asked for and not touched counts, too.
_MOST_SPACE = 2 << 30
#: Seconds after which a case hangs; no case takes a hundredth of them.
_HANGS_S = 60
#: Numbers that a length, a count or a place must not be.
NUMBERS = (
    0, -1, 1, 2, 3, 7, 255, 256, 65535, 2**25, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**53,
    2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63), 10**30, 10**400,
)  # fmt: skip
_FLOATS = (0.5, -0.0, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf"))
_TEXTS = (
    "", "/", ".", "..", "../../etc/passwd", "/etc/passwd", "a\0b", "\n", "é", "\ud800", "nan",
    "1", "true", "x" * 5000, "__class__", "%s%n", "{0}", "auto", "$(id)",
)  # fmt: skip
#: What nobody expects in JSON.
STRANGE: tuple[Any, ...] = (
    *(None, True, False, [], [[]], [0], [0, 0], ["a"], [None] * 3, [1.5] * 4, [{}]),
    *({}, {"": 0}, {"a": {}}, {"float": "nan"}, {"0": 1}, *NUMBERS, *_FLOATS, *_TEXTS),
)
#: Of an IEEE number that is none, and of the largest whole ones, little-endian.
_WORDS = (
    b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff\xff\xff\x7f", b"\xff" * 4, b"\0\0\0\x80",
    b"\xff" * 7 + b"\x7f", b"\xff" * 8, b"\0" * 8,
)  # fmt: skip


class Mutator:
    """Changes bytes, JSON and files."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def one(self, choices: Sequence[T]) -> T:
        return self.rng.choice(choices)

    def damaged(self, data: bytes) -> bytes:
        """Change some bytes, one to four times."""
        found = bytearray(data)
        for _ in range(self.rng.choice((1, 1, 1, 2, 4))):
            self.one((_flip, _cut, _word, _replace, _digits))(self.rng, found)
        return bytes(found)

    def values(self, values: Any) -> Any:
        """Change something in a tree of lists and dictionaries, one to three times."""
        found = copy.deepcopy(values)
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            places = list(_places(found))
            if not places or self.rng.random() < 0.02:
                return self.one(STRANGE)
            where, key = self.one(places)
            with contextlib.suppress(OverflowError):  # of a whole number beyond all floats
                self._change(where, key, places)
        return found

    def _change(self, where: Any, key: Any, places: Sequence[tuple[Any, Any]]) -> None:
        """Change what is at a place of a tree."""
        old, what = where[key], self.rng.random()
        if what < 0.15:
            del where[key]
        elif what < 0.2 and isinstance(where, dict):
            where[self.one(_TEXTS)] = where.pop(key)
        elif what < 0.2:
            where.insert(key, copy.deepcopy(old))
        elif what < 0.45 and type(old) in (int, float):
            where[key] = old + self.one((-1, 1, 0.5, 2**31, 1e300))
        elif what < 0.4 and isinstance(old, str) and old:
            at = self.rng.randrange(len(old))
            where[key] = old[:at] + self.one(_TEXTS)[:40] + old[at + 1 :]
        else:
            other, its = self.one(places)
            strange = self.one(STRANGE)
            where[key] = copy.deepcopy(self.one((strange, strange, other[its], [old], {"a": old})))

    def json(self, values: Any) -> bytes:
        """Return changed JSON: most of it is JSON still."""
        what = self.rng.random()
        if what < 0.75:
            return _dumped(self.values(values))
        text = _dumped(values)
        if what < 0.85:
            return self.damaged(text)
        if what < 0.9:
            deep = 10 ** self.rng.randrange(1, 6)
            return text.replace(b"0", self.one((b"[", b'{"a":')) * deep, 1)
        if what < 0.95:  # twice the same name
            name = self.one([*values] if isinstance(values, dict) and values else ["a"])
            twice = json.dumps(name).encode() + b":" + _dumped(self.one(STRANGE)) + b","
            return text.replace(b"{", b"{" + twice, 1)
        return self.one(
            (b"", b"null", b"[]", b"{}", b"\xff\xfe", b"\xef\xbb\xbf" + text, b"9" * 5000)
        )

    def lines(self, text: str) -> bytes:
        """Return a text whose lines are changed, or its bytes."""
        lines = text.splitlines()
        if not lines or self.rng.random() < 0.4:
            return self.damaged(text.encode())
        at = self.rng.randrange(len(lines))
        line = self.one((
            lines[self.rng.randrange(len(lines))], "", "#", str(self.one(NUMBERS)),
            lines[at].partition("=")[0] + "=" + _dumped(self.one(STRANGE)).decode(),
            lines[at].replace(" ", self.one(_TEXTS)[:40], 1),
            self.one(("", "a = ")) + "[" * 10 ** self.rng.randrange(5),
        ))  # fmt: skip
        lines[at : at + self.rng.randrange(2)] = [line]
        return ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass")

    def kind(self, path: Path) -> None:
        """Make something else of a file: a link, a folder, a pipe, nothing."""
        path.unlink()
        target = self.one(
            (path.name, "/dev/zero", "/dev/full", "/etc/passwd", "/", "nowhere/there")
        )
        changes: tuple[Callable[[], object], ...] = (
            path.mkdir,
            path.touch,
            lambda: path.touch(0o000),
            lambda: os.mkfifo(path),
            lambda: path.symlink_to(target),
            lambda: None,
        )
        self.one(changes)()


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    if not isinstance(tree, dict | list):
        return
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield tree, key
        yield from _places(value)


def _dumped(values: Any) -> bytes:
    return json.dumps(values).encode("utf-8", "surrogatepass")


def _flip(rng: random.Random, data: bytearray) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _cut(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _word(rng: random.Random, data: bytearray) -> None:
    """Write a number where one may be, which is most often near the beginning."""
    nbytes = rng.choice((1, 2, 4, 8))
    order: Literal["little", "big"] = "little" if rng.random() < 0.5 else "big"
    word = rng.choice(_WORDS)
    if rng.random() < 0.7:
        word = (rng.choice(NUMBERS) % (1 << 8 * nbytes)).to_bytes(nbytes, order)
    at = rng.randrange(1 + min(len(data), rng.choice((32, 1 << 30))))
    data[at : at + len(word)] = word


def _replace(rng: random.Random, data: bytearray) -> None:
    """Remove some bytes, repeat them, or put others there."""
    at = rng.randrange(len(data) + 1)
    end = at + rng.randrange(1, 40)
    data[at:end] = rng.choice((b"", data[at:end] * 2, data[at:end] + rng.randbytes(5)))


def _digits(rng: random.Random, data: bytearray) -> None:
    """Make a number that is written in digits another one."""
    places = [i for i, byte in enumerate(data[:4096]) if 48 <= byte < 58]
    if places:
        at = rng.choice(places)
        data[at : at + 1] = str(rng.choice(NUMBERS[:-1])).encode()


@contextlib.contextmanager
def confined() -> Iterator[Callable[[], contextlib.AbstractContextManager[None]]]:
    """Limit what cases may have; yields what is entered for each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = signal.signal(signal.SIGALRM, _hangs)
    tracemalloc.start(1)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _MOST_SPACE, hard))
    try:
        yield _case
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        tracemalloc.stop()


@contextlib.contextmanager
def _case() -> Iterator[None]:
    base, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    signal.alarm(_HANGS_S)
    yield
    _, peak = tracemalloc.get_traced_memory()
    assert peak - base <= MOST_BYTES, f"it had {peak - base} bytes at a time"


def _hangs(*_: Any) -> None:
    raise AssertionError(f"it hangs: not done after {_HANGS_S} seconds")
