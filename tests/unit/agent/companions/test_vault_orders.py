"""Orders reach each vault once: a restart that changes nothing for the vault costs no connection to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from holdfast.node import frames
from holdfast.node.frames import WireError
from holdfast.node.vault import vault_socket
from holdfast.node.vault.messages import Done, Follow, Serve, requests
from holdfast_agent.companions.vault_link import VaultLink


class Vault:
    """The agent's side of a vault: it takes every order and notes it."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self._followers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = await frames.read(reader, requests)
                if isinstance(request, Follow):
                    self._followers.append(writer)
                    continue
                assert isinstance(request, Serve)
                self.taken.append(request.job)
                writer.write(frames.framed(Done()))
        except WireError:
            writer.close()

    def end(self) -> None:
        while self._followers:
            self._followers.pop().close()


def of(job: str) -> Serve:
    return Serve(job=job, submitted_ms=1, world_size=2)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - the vault sets no events
            await asyncio.sleep(0.005)


async def test_a_vault_gets_an_order_once_and_its_successor_again(tmp_path: Path) -> None:
    vault = Vault()
    link = VaultLink(tmp_path, "127.0.0.1", 1.0, None)
    server = await asyncio.start_unix_server(vault.serve, path=str(tmp_path / vault_socket.NAME))
    async with server, asyncio.TaskGroup() as group:
        tasks = [group.create_task(link.run()), group.create_task(link.hand_over())]
        link.serve(of("a"))
        await until(lambda: vault.taken == ["a"])
        link.serve(of("a"))
        await asyncio.sleep(0)
        link.serve(of("b"))
        await until(lambda: "b" in vault.taken)
        assert vault.taken == ["a", "b"]
        vault.end()
        await until(lambda: len(vault.taken) > 2)
        assert vault.taken == ["a", "b", "b"]
        for task in tasks:
            task.cancel()
