"""A vault that cannot serve one connection serves the next."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from holdfast.node.vault import vault_socket
from holdfast_vault import acceptor
from holdfast_vault.acceptor import Acceptor
from holdfast_vault.peers import peer_server
from holdfast_vault.peers.peer_server import PeerServer
from holdfast_vault.peers.trust import PeerTrust


class Failing(socket.socket):
    """Its first `accept` calls fail for want of descriptors."""

    failures = 2

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


@contextmanager
def echoing(listening: socket.socket) -> Iterator[None]:
    def echo(link: socket.socket) -> None:
        with link:
            link.sendall(link.recv(1))

    serving = Acceptor(listening)
    thread = threading.Thread(target=serving.run, args=(echo,))
    thread.start()
    yield
    serving.close()
    thread.join()


def answer(address: tuple[str, int]) -> bytes:
    with socket.create_connection(address, timeout=30) as link:
        link.sendall(b"?")
        try:
            return link.recv(1)
        except ConnectionResetError:
            return b""


def test_a_failed_accept_is_not_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "RETRY_S", 0.001)
    with Failing(socket.AF_INET) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        with echoing(listening):
            assert answer(listening.getsockname()) == b"?"
        assert not listening.failures


def test_a_connection_for_which_there_is_no_thread_is_ended_and_the_next_one_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acceptor, "RETRY_S", 0.001)
    with socket.create_server(("127.0.0.1", 0)) as listening, echoing(listening):
        start = threading.Thread.start

        def fail_once(thread: threading.Thread) -> None:
            monkeypatch.setattr(threading.Thread, "start", start)
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", fail_once)
        assert answer(listening.getsockname()) == b""
        assert answer(listening.getsockname()) == b"?"


def test_a_stranger_gives_way_to_a_newer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_server, "STRANGERS_MAX", 3)
    server = PeerServer(tmp_path, "127.0.0.1", lambda hello: None, lambda link, hello: None, PeerTrust())
    thread = threading.Thread(target=server.run)
    thread.start()
    with ExitStack() as stack:
        number = vault_socket.port(tmp_path)
        links: list[socket.socket] = []
        while len(links) < 4:
            links.append(stack.enter_context(socket.create_connection(("127.0.0.1", number or 0), 30)))
            while len(server._strangers) < min(len(links), 3):
                time.sleep(0.001)
        # The silent one that came first, long before its time is over; each of the others has its own still.
        assert links[0].recv(1) == b""
        links[3].sendall(b"\x01\x00\x00\x00?")
        assert links[3].recv(1) == b""
        for waiting in links[1:3]:
            waiting.setblocking(False)
            with pytest.raises(BlockingIOError):
                waiting.recv(1)
        server.close()
    thread.join()
