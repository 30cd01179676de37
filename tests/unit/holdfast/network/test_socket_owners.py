"""Who owns a TCP socket: the kernel's answer about one, and the tables of all."""

from __future__ import annotations

import os
import socket

import pytest

from holdfast.network import socket_owners
from holdfast.network.socket_owners import owners_of_end, owners_of_listener


@pytest.mark.parametrize("is_answered", [True, False], ids=["asked", "listed"])
@pytest.mark.parametrize(
    ("bound", "reached"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "::1"), ("::", "::1"), ("::", "127.0.0.1")],
)
def test_the_owner_of_what_listens_and_of_a_connection(
    monkeypatch: pytest.MonkeyPatch, bound: str, reached: str, is_answered: bool
) -> None:
    if is_answered:
        monkeypatch.setattr(socket_owners, "_listed", lambda *_: pytest.fail("the kernel did not answer"))
    else:
        monkeypatch.setattr(socket_owners, "_asked", lambda *_: None)
    family = socket.AF_INET6 if ":" in bound else socket.AF_INET
    with socket.create_server((bound, 0), family=family, dualstack_ipv6=bound == "::") as server:
        place = (reached, server.getsockname()[1])
        assert owners_of_listener(place) == {os.geteuid()}
        with socket.create_connection(place) as client:
            accepted, _ = server.accept()
            with accepted:
                own = client.getsockname()[:2]
                assert owners_of_end(place, own) == owners_of_end(own, place) == {os.geteuid()}
    monkeypatch.undo()
    assert owners_of_listener(place) == set()
