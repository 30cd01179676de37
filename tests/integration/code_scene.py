"""The controller's librarian with its bus, and a node's code, for tests of the way between them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from holdfast.bus.in_memory import MemoryBroker, MemoryBus
from holdfast.code.manifest import encode
from holdfast.code.snapshot import Snapshot
from holdfast.events.parts.job import JobSpec
from holdfast.fresh_ids import uuid7
from holdfast.orders.code import CodeOrder
from holdfast.orders.node import NodeOrder, Placement
from holdfast.requests import CODE_REQUESTS, Answer, KeepCode, OfferCode
from holdfast.subjects import CODE_BUCKET
from holdfast_agent.files.code_store import CodeNeed, CodeStore, FetchedCode
from holdfast_agent.order_watch import OrderReader
from holdfast_controller.code.librarian import Librarian
from holdfast_controller.code.shelf import PostgresShelf
from tests.scenes.order_keys import KEYS

WITHIN_S = 10.0


class House:
    """A controller's librarian, and the bus."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.broker = MemoryBroker()
        self.person = self.broker.client("person")
        self.librarian = Librarian(self.broker.client("controller"), _NoShelf())  # type: ignore[arg-type]

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Librarian]:
        """A controller runs."""
        shelf = await PostgresShelf.connect(self.url)
        self.librarian = Librarian(self.broker.client("controller"), shelf)
        await self.librarian.load()
        serving = asyncio.create_task(self.librarian.run())
        try:
            while not self.broker.servers.get(CODE_REQUESTS):  # noqa: ASYNC110 - the bus offers no event for it
                await asyncio.sleep(0)
            yield self.librarian
        finally:
            serving.cancel()
            await asyncio.wait([serving])
            await shelf.close()

    async def ask(self, kind: type[KeepCode] | type[OfferCode], version: str) -> Answer:
        request = kind(id=uuid7(), asked_by="ada", version=version)
        body = await self.person.request(CODE_REQUESTS, msgspec.json.encode(request), WITHIN_S)
        return msgspec.json.decode(body, type=Answer)

    async def put(self, found: Snapshot, *, but: str = "") -> None:
        objects = {**found.contents, found.version: encode(found.manifest)}
        await self.person.put_objects(CODE_BUCKET, {name: body for name, body in objects.items() if name != but})

    async def keep(self, found: Snapshot) -> None:
        await self.put(found)
        assert await self.ask(KeepCode, found.version) == Answer(accepted=True)

    def forget(self) -> None:
        """The bus loses everything."""
        self.broker.objects[CODE_BUCKET].clear()


class _NoShelf:
    pass


class Place:
    """A node's code."""

    def __init__(self, root: Path, give_up_s: float = WITHIN_S) -> None:
        self.in_place: frozenset[str] = frozenset()
        self.brought: list[FetchedCode] = []
        self.failures: list[tuple[str, str]] = []
        self.store = CodeStore("n", root, give_up_s, self._changed, self.brought.append, self._failed)

    def _changed(self, code: frozenset[str]) -> None:
        self.in_place = code

    def _failed(self, need: CodeNeed, reason: str) -> None:
        self.failures.append((need.key, reason))

    @asynccontextmanager
    async def running(self, bus: MemoryBus) -> AsyncIterator[Place]:
        orders = OrderReader("n", KEYS, lambda *_: None).for_jobs(bus, CodeOrder, lambda: None)
        task = asyncio.create_task(self.store.run(bus, orders))
        try:
            yield self
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def get(self, found: Snapshot, job: str = "job", root: str = "/elsewhere") -> Path:
        self.store.order(order(found, job, root))
        await until(lambda: f"{job}/{found.version}" in self.in_place and not self.store._needs)
        return self.store.place(job, found.version)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():  # noqa: ASYNC110 - files and callbacks tell nobody
            await asyncio.sleep(0.005)


def order(found: Snapshot, job: str, root: str = "/elsewhere") -> NodeOrder:
    """Return an order for the version, whose source tree lies at `root`: elsewhere, as on another machine."""
    spec = JobSpec(
        name=job, script=f"{root}/train.py", cwd="/", directory="/", code_root=root, code_outside=found.outside
    )
    placement = Placement(job=spec, node_rank=0, master_addr="here", master_port=1, code_version=found.version)
    return NodeOrder(node="n", epoch=1, generation=1, job=job, placement=placement)


def lies(path: Path) -> dict[str, str]:
    return {str(file.relative_to(path)): file.read_text() for file in path.rglob("*") if file.is_file()}
