"""Where a process is called by the ranks of a job: on its own host, and from others if need be."""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import resource
import selectors
import socket
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

from psrt.faults.connection import Address, Connection, addresses, not_for_children

#: Descriptors of the process that are not the callers'.
_OTHER_FILES = 512


class Caller(Protocol):
    """What is known of somebody who has called."""

    connection: Connection


CallerT = TypeVar("CallerT", bound=Caller)


@dataclass(eq=False)
class Listener(Generic[CallerT]):
    """Takes calls and hears the callers; who waits for both does so with a selector of its own."""

    #: Gets what is listened on, with None as data, and connections, with callers.
    selector: selectors.BaseSelector
    #: The largest number of connections that there will be at a time.
    most: InitVar[int]
    #: Makes a caller of a connection.
    caller: Callable[[Connection], CallerT]
    #: Takes one message of a caller; returns whether the connection stays open.
    heard: Callable[[CallerT, Mapping[str, Any]], bool]
    #: Those who are connected.
    callers: set[CallerT] = field(default_factory=set, init=False)
    _sockets: list[socket.socket] = field(default_factory=list, init=False)

    def __post_init__(self, most: int) -> None:
        """Listen to this host."""
        name, secret = f"psrt-{os.urandom(8).hex()}", os.urandom(16).hex()
        #: Where it is called.
        self.address = Address(name, socket.gethostname(), secret)
        _allow_files(most + _OTHER_FILES)
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        local.bind(f"\0{name}")
        self._listen(local)

    def listen_on_network(self) -> None:
        """Listen to other hosts as well."""
        if not self.address.port:
            wide = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            wide.bind(("", 0))
            self._listen(wide)
            port = int(wide.getsockname()[1])
            self.address = replace(self.address, addresses=tuple(addresses()), port=port)

    def _listen(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        listener.listen(1024)
        self._sockets.append(not_for_children(listener))
        self.selector.register(listener, selectors.EVENT_READ)

    def take(self, key: selectors.SelectorKey) -> CallerT | None:
        """Take what the selector reports: a call, or what a caller says.

        Returns:
            The caller whose connection has ended by that; None if none has.
        """
        if key.data is None:
            listener = key.fileobj
            assert isinstance(listener, socket.socket), "what was registered above"
            self._accept(listener)
            return None
        caller: CallerT = key.data
        for message in caller.connection.receive():
            if message is None or not self.heard(caller, message):
                self.selector.unregister(caller.connection)
                self.callers.discard(caller)
                caller.connection.close()
                return caller
        return None

    def _accept(self, listener: socket.socket) -> None:
        try:
            connected, _ = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # a new caller is refused
                self.selector.unregister(listener)
                listener.close()
            return
        connection = Connection(connected)
        caller = self.caller(connection)
        self.callers.add(caller)
        self.selector.register(connection, selectors.EVENT_READ, caller)

    def knows(self, message: Mapping[str, Any]) -> bool:
        """Return whether a caller's first message is that of a rank of this job."""
        secret = str(message.get("secret")).encode()
        return hmac.compare_digest(secret, self.address.secret.encode())

    def close(self) -> None:
        """Listen no longer."""
        for listener in self._sockets:
            listener.close()


def _allow_files(number: int) -> None:
    """Let this process have that many files open, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < number:
        allowed = number if hard == resource.RLIM_INFINITY else min(number, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
