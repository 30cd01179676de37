"""Retries of calls to a server that is away."""

from __future__ import annotations

import pytest

from holdfast.daemon import retrying
from holdfast.daemon.retrying import until_available


class Away(Exception):
    """The server is away."""


class Server:
    """A server that is away for the first calls."""

    def __init__(self, away: int) -> None:
        self.away = away
        self.calls: list[str] = []

    async def call(self) -> str:
        return self._answer("call")

    async def again(self) -> str:
        return self._answer("again")

    def _answer(self, how: str) -> str:
        self.calls.append(how)
        if len(self.calls) <= self.away:
            raise Away(how)
        return "an answer"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "RETRY_MIN_S", 0.0)
    monkeypatch.setattr(retrying, "RETRY_MAX_S", 0.0)


async def test_a_call_that_succeeds_is_made_once() -> None:
    server = Server(away=0)
    assert await until_available(server.call, Away, "server") == "an answer"
    assert server.calls == ["call"]


async def test_a_call_is_repeated_until_the_server_is_back() -> None:
    server = Server(away=20)
    assert await until_available(server.call, Away, "server") == "an answer"
    assert server.calls == ["call"] * 21


async def test_retries_make_the_other_call() -> None:
    server = Server(away=2)
    assert await until_available(server.call, Away, "server", server.again) == "an answer"
    assert server.calls == ["call", "again", "again"]


async def test_other_errors_pass_at_the_first_call_and_later() -> None:
    calls = []

    async def fail() -> None:
        calls.append(1)
        raise Away if len(calls) == 1 else ValueError("a defect")

    with pytest.raises(ValueError, match="a defect"):
        await until_available(fail, Away, "server")
    with pytest.raises(ValueError, match="a defect"):
        await until_available(fail, Away, "server")
    assert len(calls) == 3
