"""A service in its shell, over bus and store in memory, that is given one event after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.bus.in_memory import MemoryBroker
from holdfast.daemon.service_shell import Decider, ServiceShell
from holdfast.effects import Effect
from holdfast.events import AnyEvent, Event, GenerationStarted, encode
from holdfast.fresh_ids import uuid7
from holdfast.store.in_memory import MemoryDatabase, MemoryStore
from holdfast.subjects import event_subject
from tests.scenes.order_keys import SIGNER

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Handed:
    """A delivery of an event, settled once."""

    def __init__(self, event: Event) -> None:
        self.subject = event_subject(event)
        self.body = encode(event)
        self.headers: dict[str, str] = {}
        self.deliveries = 1
        self.stored_at = NOW
        self.settled = ""

    async def ack(self) -> None:
        self._settle("handled")

    async def retry(self, delay_s: float) -> None:
        self._settle("to be delivered again")

    async def drop(self) -> None:
        self._settle("rejected")

    def _settle(self, how: str) -> None:
        assert not self.settled
        self.settled = how


class FedService:
    """`made` are the events and orders that followed, of all lives of the service."""

    def __init__(self, make: Callable[[], Decider], signer: str = "ckpt") -> None:
        self._make = make
        self._signer = signer
        self._database = MemoryDatabase()
        self.now = NOW
        self.made: list[object] = []

    async def start(self) -> None:
        """Start the service, or start it again with what it has stored."""
        bus, store = MemoryBroker().client("service"), MemoryStore(self._database, now=lambda: self.now)
        decider = self._make()
        adopt = decider.adopt

        def noting(effect: Effect) -> None:
            adopt(effect)
            self.made += [*effect.events, *effect.orders]

        decider.adopt = noting  # type: ignore[method-assign]
        self._shell = ServiceShell(decider, bus, store, lambda: self.now, SIGNER[self._signer])
        await self._shell.load()

    async def feed(self, *received: AnyEvent) -> list[object]:
        """Return what these events led to."""
        before = len(self.made)
        for event in received:
            handed = Handed(event)
            await self._shell.handle(handed)
            assert handed.settled == "handled"
        return self.made[before:]

    def rejections(self) -> list[str]:
        """Return the subjects of what the service has given to the dead letters."""
        return [it.subject for it in self._database.unpublished.values() if "deadletter" in it.subject]

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def begun(generation: int, nodes: Iterable[str], job: str = "job") -> GenerationStarted:
    nodes = tuple(nodes)
    return GenerationStarted(
        id=uuid7(),
        at=NOW,
        source="controller",
        job=job,
        generation=generation,
        reason="test",
        nodes=nodes,
        world_size=len(nodes),
        nproc_per_node=1,
        submitted_at=NOW,
        vaults=tuple(f"{node}:1" for node in nodes),
    )


def of(node: str, kind: type[AnyEvent], generation: int = 1, job: str = "job", **fields: Any) -> Any:
    common = {"id": uuid7(), "at": NOW, "source": f"agent/{node}", "job": job, "generation": generation, "node": node}
    return kind(**common, **fields)
