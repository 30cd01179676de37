"""Profiles of a node's ranks on request, and tests of the node while training is held.

Requests are under a key of the job (`slow.<job>`): first a profile, then possibly a hold with tests, transfers once all
nodes are held, and the release. Each stage is executed once. A hold expires by itself if no release arrives.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import structlog

from holdfast.clock import Now
from holdfast.engines.slow.sent_profiles import ITERATIONS_MAX
from holdfast.events import CollectivesProfiled, Event, SlownessTested
from holdfast.events.parts.job import Endpoint
from holdfast.events.parts.samples import RankProfile
from holdfast.events.parts.traces import RankTrace
from holdfast.ids import derived_id
from holdfast.node.collectives.hold import Hold, Product
from holdfast.node.collectives.ring_path import ring_path
from holdfast.node.collectives.ring_reader import RingError
from holdfast.node.machine import Machine
from holdfast.orders.slow import SlowOrder, SlowTests
from holdfast.trainer.hooks.flight_recorder import socket_path
from holdfast_agent.files.directories import Directories
from holdfast_agent.plan.node_state import Crew
from holdfast_agent.slow_tests.rings import profile
from holdfast_agent.slow_tests.transfers import TransferServer, transfer_s
from holdfast_agent.tracer.recorder import NoAnswer, recorder_of

POLL_S = 0.01
REPEATS = 5
TURNS = 5
"""Turns of matrix products: all ranks run each turn at about the same time and are compared turn by turn."""
STAGES_APART_S = 60.0
"""Wait for the next stage after the last; the requester may be gone."""

LASTS_S_MAX = 86400.0

log = structlog.get_logger(__name__)


class Probing:
    """The slow-job tests of one node. `crew` returns its ranks, `publish` emits events."""

    def __init__(
        self,
        node: str,
        address: str,
        directories: Directories,
        crew: Callable[[], Crew | None],
        publish: Callable[..., None],
        now: Now,
        on_question: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_question` is called for each request about a slow job."""
        self._node = node
        self._address = address
        self._boot_id = Machine().boot_id
        self._directories = directories
        self._crew = crew
        self._publish = publish
        self._now = now
        self._on_question = on_question
        self._done: set[tuple[str, str]] = set()
        self._server = TransferServer(address)
        self._holds: dict[int, Hold] = {}
        self._holds_for = ""
        self._held_since: float | None = None
        self._testing: asyncio.Task[None] | None = None

    async def follow(self, orders: AsyncIterator[tuple[SlowOrder, Crew]]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                async for wanted, crew in orders:
                    stage = (wanted.id, wanted.stage)
                    if stage not in self._done:
                        self._done = {done for done in self._done if done[0] == wanted.id} | {stage}
                        await self._obey(wanted, crew, group)
        finally:
            self._release()
            self._server.close()

    async def _obey(self, wanted: SlowOrder, crew: Crew, group: asyncio.TaskGroup) -> None:
        if self._testing is not None and not self._testing.done():
            self._testing.cancel()
            await asyncio.wait([self._testing])
        if wanted.stage != "transfers" or wanted.id != self._holds_for:
            self._release()
            self._holds_for = wanted.id
        if wanted.is_over:
            self._server.close()
            return
        self._on_question()
        if wanted.tests is not None:
            self._testing = group.create_task(self._test(wanted, wanted.tests, crew), name="slowness tests")
        else:
            await self._publish_profiles(wanted, crew)

    async def _publish_profiles(self, wanted: SlowOrder, crew: Crew) -> None:
        placement = crew.order.placement
        assert placement is not None
        files = {rank: self._directories.ledger(wanted.job, crew.order.fence, rank) for rank in crew.pids}
        last = max(1, min(wanted.iterations, ITERATIONS_MAX))

        devices = dict(zip(files, await asyncio.gather(*map(_device_of, files, files.values())), strict=True))

        def profiles() -> tuple[RankProfile, ...]:
            return tuple(profile(rank, file, last, devices[rank]) for rank, file in sorted(files.items()))

        ranks = await asyncio.to_thread(profiles)
        event = CollectivesProfiled(
            **self._common(wanted, "profiled"),
            ranks=ranks,
            node_rank=placement.node_rank,
            nnodes=placement.job.nnodes,
            nproc_per_node=placement.job.nproc_per_node,
            mesh=placement.job.mesh or None,
            endpoint=await self._endpoint(wanted.until),
            boot_id=self._boot_id,
        )
        self._publish(event)

    async def _endpoint(self, until: datetime) -> Endpoint | None:
        try:
            port = await self._server.port()
        except (OSError, ValueError) as error:
            log.warning("no test transfers can be taken", address=self._address, reason=str(error))
            return None
        self._server.keep_open(self._left_s(until) + STAGES_APART_S)
        return Endpoint(address=self._address, port=port)

    async def _test(self, wanted: SlowOrder, tests: SlowTests, crew: Crew) -> None:
        assert crew.order.placement is not None
        node_rank = crew.order.placement.node_rank
        began = time.monotonic()
        unread: list[str] = []
        self._server.keep_open(self._left_s(tests.until) + STAGES_APART_S)
        self._hold(tests, crew, unread)
        held = await self._await_held(tests)
        if held and self._held_since is None:
            self._held_since = time.monotonic()
        turns = await self._multiply(tests, held, unread)
        turns_s = {rank: [product.took_s for product in of_rank] for rank, of_rank in sorted(turns.items())}
        transfers = await self._transfer(tests, node_rank, unread)
        event: Event = SlownessTested(
            **self._common(wanted, wanted.stage),
            node_rank=node_rank,
            stage=wanted.stage,
            held=tuple(sorted(held)),
            compute_s=tuple((rank, statistics.median(took_s)) for rank, took_s in turns_s.items()),
            compute_turns_s=tuple((rank, tuple(took_s)) for rank, took_s in turns_s.items()),
            compute_waited_s=tuple((rank, tuple(it.waited_s for it in turns[rank])) for rank in turns_s),
            transfers=tuple(transfers),
            unread=tuple(unread),
            took_s=time.monotonic() - began,
            held_s=0.0 if self._held_since is None else time.monotonic() - self._held_since,
        )
        self._publish(event)
        # Ranks stay held until all nodes have tested: a rank that resumes early disturbs the others.
        await asyncio.sleep(self._left_s(tests.until))
        self._release()

    def _hold(self, tests: SlowTests, crew: Crew, unread: list[str]) -> None:
        until_ns = time.monotonic_ns() + int(min(self._left_s(tests.until), LASTS_S_MAX) * 1e9)
        assert crew.order.job is not None
        for hold in self._holds.values():
            hold.begin(tests.after_step, until_ns)
        for rank in set(crew.pids) - set(self._holds):
            ledger = self._directories.ledger(crew.order.job, crew.order.fence, rank)
            try:
                self._holds[rank] = hold = Hold(ring_path(ledger))
                hold.begin(tests.after_step, until_ns)
            except (OSError, RingError) as error:
                unread.append(f"rank {rank} could not be held: {error}")

    async def _await_held(self, tests: SlowTests) -> set[int]:
        while self._now() < tests.held_by and not all(hold.is_held for hold in self._holds.values()):  # noqa: ASYNC110 - no word of it
            await asyncio.sleep(POLL_S)
        return {rank for rank, hold in self._holds.items() if hold.is_held}

    async def _multiply(self, tests: SlowTests, held: set[int], unread: list[str]) -> dict[int, list[Product]]:
        """Return the products of each rank, one for each turn."""
        chosen = {rank: hold for rank, hold in self._holds.items() if rank in tests.compute_ranks}
        for rank in set(chosen) - held:
            unread.append(f"rank {rank} did not reach the end of step {tests.after_step} in time")
        took: dict[int, list[Product]] = {}
        waits = {rank: hold for rank, hold in chosen.items() if rank in held}
        began = time.monotonic()
        for turn in range(TURNS):
            # Slow products need fewer turns to show, and the requester waits for the answer.
            if turn and time.monotonic() - began > 2 * tests.compute_s:
                break
            for hold in waits.values():
                hold.multiply(tests.compute_s / TURNS)
            at_work = dict(waits)
            while at_work and self._now() < tests.until:
                await asyncio.sleep(POLL_S)
                for rank, hold in list(at_work.items()):
                    if (product := hold.product) is not None:
                        took.setdefault(rank, []).append(product)
                        del at_work[rank]
            for rank in at_work:
                unread.append(f"rank {rank} did not finish its matrix products")
                del waits[rank]
        return took

    async def _transfer(self, tests: SlowTests, node_rank: int, unread: list[str]) -> list[tuple[int, int, float]]:
        done: list[tuple[int, int, float]] = []
        if tests.passes_at is None:
            return done
        await asyncio.sleep(self._left_s(tests.passes_at))
        began = time.monotonic()
        for number, transfers in enumerate(tests.passes):
            if self._now() >= tests.until:
                unread.append(f"no time was left for pass {number + 1} of {len(tests.passes)}")
                break
            await asyncio.sleep(max(0.0, began + number * tests.pass_s - time.monotonic()))
            for sender, receiver in transfers:
                if sender != node_rank or (endpoint := tests.endpoints.get(receiver)) is None:
                    continue
                over_at = began + (number + 1) * tests.pass_s
                try:
                    took_s = await _best_s(endpoint, tests.transfer_bytes, over_at)
                except (OSError, ValueError) as error:
                    # The address comes from another node and may be invalid.
                    unread.append(f"a transfer to node {receiver} failed: {error}")
                    continue
                done.append((sender, receiver, took_s))
        return done

    def _release(self) -> None:
        for hold in self._holds.values():
            hold.end()
            hold.close()
        self._holds.clear()
        self._held_since = None

    def _left_s(self, moment: datetime) -> float:
        return max(0.0, (moment - self._now()).total_seconds())

    def _common(self, wanted: SlowOrder, what: str) -> dict[str, Any]:
        return {
            "id": derived_id(wanted.id, what, self._node),
            "at": self._now(),
            "source": f"agent/{self._node}",
            "node": self._node,
            "job": wanted.job,
            "generation": wanted.generation,
            "cause": wanted.id,
            "asked": wanted.id,
        }


async def _best_s(endpoint: Endpoint, size: int, over_at: float) -> float:
    """Return the shortest of several transfers within the time limit. Raises OSError, ValueError like `transfer_s`."""
    took: list[float] = []
    while len(took) < REPEATS:
        limit_s = max(0.01, over_at - time.monotonic())
        if took and limit_s < 2 * min(took):
            break
        took.append(await transfer_s(endpoint.address, endpoint.port, size, limit_s))
        if took[-1] > limit_s:
            break
    return min(took)


async def _device_of(rank: int, ledger: Path) -> RankTrace | None:
    """Return the content of the flight recorder of a rank's device; None if it does not answer."""
    try:
        return (await recorder_of(socket_path(ledger), rank)).device
    except NoAnswer:
        return None
