"""NATS by hand: what no client library would send, and every answer and error as it comes."""

from __future__ import annotations

import itertools
import json
import socket
from typing import NamedTuple

WITHIN_S = 5.0


class Received(NamedTuple):
    """One message."""

    subject: str
    reply: str
    headers: bytes
    body: bytes


class Refused(Exception):
    """The server closed the connection, or denies what was asked; the text is its own."""


class Wire:
    """One connection. Every error of the server is kept in `errors`."""

    def __init__(self, port: int, user: str | None = None, password: str = "", **more: object) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S)
        self._stream = self._socket.makefile("rb")
        self.errors: list[str] = []
        self.arrived: list[Received] = []
        self.greeting = self._stream.readline()
        self._numbers = itertools.count(1)
        self.inbox = f"_INBOX.{user}.attempt{self._socket.getsockname()[1]}" if user else "_INBOX.attempt"
        login = {} if user is None else {"user": user, "pass": password}
        self.options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, **login, **more}

    def connect(self) -> Wire:
        """Log in. Raises Refused."""
        self.raw(b"CONNECT " + json.dumps(self.options).encode() + b"\r\n")
        self.flush()
        self.subscribe(f"{self.inbox}.*")
        return self

    def raw(self, data: bytes) -> None:
        """Send this. Raises Refused if the server has closed the connection."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise Refused(f"closed: {error}") from error

    def send(self, subject: str, body: bytes = b"", reply: str = "", headers: dict[str, str] | None = None) -> None:
        block = b""
        if headers:
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            block = f"NATS/1.0\r\n{lines}\r\n".encode()
        counts = f"{len(block)} {len(block) + len(body)}" if headers else str(len(body))
        head = f"{'HPUB' if headers else 'PUB'} {subject} {reply + ' ' if reply else ''}{counts}\r\n"
        self.raw(head.encode() + block + body + b"\r\n")

    def subscribe(self, subject: str, queue: str = "") -> None:
        self.raw(f"SUB {subject} {queue + ' ' if queue else ''}{next(self._numbers)}\r\n".encode())

    def flush(self) -> list[Received]:
        """Return what has arrived once the server has handled all that was sent. Raises Refused if it closes."""
        self.raw(b"PING\r\n")
        while self._next() != "PONG":
            continue
        arrived, self.arrived = self.arrived, []
        return arrived

    def ask(self, subject: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Received:
        """Send a request and return its answer. Raises Refused if the server denies it, TimeoutError without one."""
        answer = f"{self.inbox}.{next(self._numbers)}"
        errors = len(self.errors)
        self.send(subject, body, answer, headers)
        while True:
            for message in self.arrived:
                if message.subject == answer:
                    self.arrived.remove(message)
                    return message
            self._next()
            if len(self.errors) > errors:
                raise Refused(self.errors[-1])

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def _next(self) -> str:
        """Take one operation of the server; return its name."""
        try:
            line = self._stream.readline()
        except ConnectionError as error:
            raise Refused(str(error)) from error
        name, _, rest = line.decode().strip().partition(" ")
        if not line:
            raise Refused(self.errors[-1] if self.errors else "closed")
        if name == "-ERR":
            self.errors.append(rest)
        elif name == "PING":
            self.raw(b"PONG\r\n")
        elif name in ("MSG", "HMSG"):
            subject, _, *middle, size = rest.split(" ")
            head = int(middle.pop()) if name == "HMSG" else 0
            data = self._stream.read(int(size) + 2)[:-2]
            self.arrived.append(Received(subject, middle[0] if middle else "", data[:head], data[head:]))
        return name
