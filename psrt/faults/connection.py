"""A connection that carries messages, JSON objects, and never waits for its other end.

What a full socket does not take is kept and sent later, so that no message is split: a process
that is stopped for a while resumes reading where it was.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import socket
import struct
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

#: Largest message; a longer one is not ours.
_MOST = 1 << 20
#: Longest text of a message.
MOST_TEXT = 1 << 18
_SIOCGIFADDR = 0x8915

#: A process that the user forks must not hold them open: their end tells that of this process.
_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_in_child() -> None:
    for inherited in list(_sockets):
        inherited.close()


os.register_at_fork(after_in_child=_close_in_child)


def not_for_children(own: socket.socket) -> socket.socket:
    """Have a socket closed in every process that is forked."""
    _sockets.add(own)
    return own


class Connection:
    """One end. Any thread may send; one receives."""

    def __init__(self, connected: socket.socket) -> None:
        """Take over a connected socket."""
        connected.setblocking(False)
        self._socket = not_for_children(connected)
        self._lock = threading.Lock()
        self._coming, self._going = bytearray(), bytearray()

    def fileno(self) -> int:
        """Return the descriptor, for a caller that waits for several."""
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any], *, droppable: bool = False) -> bool:
        """Send a message, now or later; return whether the connection is open.

        Args:
            message: a JSON object.
            droppable: whether it may be left out where the other end has not read for long.
        """
        data = json.dumps(message).encode()
        with self._lock:
            is_open = self._flush()
            if not (droppable and self._going):
                self._going += struct.pack("!I", len(data)) + data
                is_open = self._flush()
            return is_open

    def _flush(self) -> bool:
        try:
            while self._going:
                del self._going[: self._socket.send(self._going)]
        except BlockingIOError:
            pass
        except OSError:
            return False
        return True

    def finish(self, deadline: float) -> None:
        """Wait until everything has gone, at most until ``deadline`` by ``time.monotonic``."""
        while True:
            with self._lock:
                if not self._flush() or not self._going:
                    return
            if time.monotonic() > deadline:
                return
            time.sleep(1e-3)

    def receive(self) -> Iterator[Mapping[str, Any] | None]:
        """Read all that has come; yields whole messages, and None at the end of the connection."""
        is_open = True
        while is_open:
            try:
                data = self._socket.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self._coming += data
            is_open = bool(data)
            yield from self._whole()
        if not is_open:
            yield None

    def _whole(self) -> Iterator[Mapping[str, Any] | None]:
        buffer = self._coming
        while len(buffer) >= 4:
            (length,) = struct.unpack_from("!I", buffer)
            if length > _MOST:
                yield None
                return
            if len(buffer) < 4 + length:
                return
            data = bytes(buffer[4 : 4 + length])
            del buffer[: 4 + length]
            try:
                message = json.loads(data)
            except (ValueError, RecursionError):
                message = None
            yield message if isinstance(message, dict) else None

    def wait(self, seconds: float) -> bool:
        """Wait until something has come; return whether it has."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(1000 * seconds))

    def close(self) -> None:
        """Close it; what has not gone is lost."""
        self._socket.close()


@dataclass(frozen=True, slots=True)
class Address:
    """Where the hub listens."""

    #: Name of the Unix socket, in the abstract name space of the host.
    name: str
    #: Host name of the hub.
    host: str
    #: Hex digits that a caller must know.
    secret: str
    #: Addresses of the host, and the port; 0: it does not listen on a network.
    addresses: tuple[str, ...] = ()
    port: int = 0

    def to_text(self) -> str:
        """Return the fields as one line."""
        return json.dumps([self.name, self.host, self.secret, self.addresses, self.port])

    @classmethod
    def from_text(cls, text: str) -> Address:
        """Return the address that ``to_text`` has written."""
        name, host, secret, addresses, port = json.loads(text)
        return cls(name, host, secret, tuple(addresses), port)

    def connect(self, timeout_s: float) -> Connection:
        """Connect to the listener at this address.

        Args:
            timeout_s: of one attempt.

        Raises:
            OSError: if it cannot be reached.
        """
        if socket.gethostname() == self.host:
            local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            local.settimeout(timeout_s)
            try:
                local.connect(f"\0{self.name}")
                return Connection(local)
            except OSError:  # hosts of one name
                local.close()
        failed: OSError = ConnectionRefusedError("it listens on no network")
        for place in self.addresses:
            try:
                return Connection(socket.create_connection((place, self.port), timeout=2.0))
            except OSError as error:
                failed = error
        raise failed


def addresses() -> list[str]:
    """Return the IPv4 addresses of this host's interfaces, loopback last."""
    found: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):  # an interface without an address
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, request)
                found.append(socket.inet_ntoa(answer[20:24]))
    return sorted(dict.fromkeys(found), key=lambda address: address.startswith("127."))
