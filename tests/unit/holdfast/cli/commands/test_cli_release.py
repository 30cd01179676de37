"""`holdfast nodes release`: one node, or all that are on the blocklist."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from click.testing import CliRunner, Result

import holdfast.cli.commands.cluster.nodes as command
from holdfast.cli.main import main
from holdfast.requests import Answer, ReleaseNode


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []

    async def require(bus: Any, request: ReleaseNode, subject: str, service: str) -> Answer:
        names.append(request.node)
        return Answer(accepted=True)

    @asynccontextmanager
    async def connected(url: str, name: str) -> AsyncIterator[None]:
        yield

    monkeypatch.setattr(command, "require", require)
    monkeypatch.setattr(command, "connected", connected)
    monkeypatch.setattr(command, "read_rows", lambda url, query: [{"key": "node-1"}, {"key": "node-3"}])
    return names


def release(*arguments: str) -> Result:
    urls = {"HOLDFAST_NATS_URL": "nats://127.0.0.1", "HOLDFAST_DATABASE_URL": "postgresql://127.0.0.1"}
    return CliRunner().invoke(main, ["nodes", "release", *arguments], env=urls)


def test_all_are_those_on_the_blocklist(released: list[str]) -> None:
    assert release("--all").exit_code == 0
    assert released == ["node-1", "node-3"]


def test_one_or_all_and_not_both(released: list[str]) -> None:
    assert release("node-2").exit_code == 0
    assert (release().exit_code, release("node-2", "--all").exit_code) == (2, 2)
    assert released == ["node-2"]


def test_an_address_of_the_list_does_not_go_unheard(released: list[str]) -> None:
    told = CliRunner().invoke(main, ["nodes", "--database-url", "postgresql://127.0.0.1", "release", "node-2"])
    assert told.exit_code == 2 and "give it after `release`" in told.output
    assert released == []
