"""The agent's inspections: its checks, and their findings as events."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from holdfast.clock import Now
from holdfast.events import Event, Inspection
from holdfast.events.parts.job import CheckResult
from holdfast.fresh_ids import uuid7
from holdfast.node.machine import Machine
from holdfast.settings.inspections import InspectionPolicy
from holdfast_agent.inspections.judge import InspectionReport
from holdfast_agent.inspections.node_hardware import HardwareFinder, gpus_of
from holdfast_agent.inspections.register import registered
from holdfast_agent.inspections.runner import Inspections
from holdfast_agent.inspections.sources.gpu import GpuInspection
from holdfast_agent.inspections.sources.kernel_log import KERNEL, KernelLog, Position
from holdfast_agent.plan.node_state import Crew

_POSITION = "kernel log"


class PublishEvents(Protocol):
    """Publishes events and remembers values in one transaction."""

    def __call__(self, *events: Event, memory: Mapping[str, bytes] | None = None) -> None: ...


class InspectionSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The setup of a node's inspections. `root` is the agent's state directory, `address` where others reach it."""

    node: str
    address: str
    root: Path
    policy: InspectionPolicy
    machine: Machine = Machine()


class NodeInspections:
    """The inspections of one node. `crew()` returns its ranks; `on_fitness()` is called when the self-check changes."""

    def __init__(
        self, inspected: InspectionSetup, recall: Callable[[str], bytes | None], publish: PublishEvents, now: Now
    ) -> None:
        machine, policy = inspected.machine, inspected.policy
        self._node = inspected.node
        self._publish = publish
        self._now = now
        self._boot_id = machine.boot_id
        self.crew: Callable[[], Crew | None] = lambda: None
        self.on_fitness: Callable[[], None] = lambda: None
        self._root = inspected.root
        gpus = gpus_of(machine, policy, os.environ)
        recalled = recall(_POSITION)
        self._published_position = msgspec.json.decode(recalled, type=Position) if recalled else None
        self._finder = HardwareFinder(machine, policy, gpus, self._paths, self._ranks)
        self._log = KernelLog(machine, self._finder, self._published_position)
        self._gpu = GpuInspection(policy, gpus)
        checks = registered(policy, machine, self._paths, self._ranks, self._gpu, self._log, address=inspected.address)
        self._inspections = Inspections(checks, self._found, now, policy.again_s, lambda: self.on_fitness())

    @property
    def has_looked(self) -> bool:
        """True once every check has a reading or exceeded its limit."""
        return self._inspections.has_looked

    def self_check(self) -> tuple[CheckResult, ...]:
        return self._inspections.self_check()

    def note_ranks(self) -> None:
        """Remember the crew's present ranks as the node's, however soon they end."""
        self._finder.note_started(self._ranks())

    def note_slow_job(self) -> None:
        """Look for the reason why the node's job is slow."""
        self._inspections.note_slow_job()

    async def run(self) -> None:
        try:
            await self._inspections.run()
        finally:
            self._gpu.close()

    def _paths(self) -> tuple[Path, ...]:
        crew, common = self.crew(), (self._root, Path(tempfile.gettempdir()))
        if crew is None or crew.order.placement is None or "://" in crew.order.placement.job.directory:
            return common
        return (*common, Path(crew.order.placement.job.directory))

    def _ranks(self) -> tuple[int, ...]:
        crew = self.crew()
        return tuple(crew.pids.values()) if crew is not None else ()

    def _found(self, check: str, reports: Sequence[InspectionReport]) -> None:
        memory: dict[str, bytes] = {}
        # Not with another check's reports: the position must not pass log lines whose reports are still to come.
        position = self._log.position if check == KERNEL else None
        if position is not None and position != self._published_position:
            self._published_position = position
            memory = {_POSITION: msgspec.json.encode(position)}
        if reports or memory:
            self._publish(*map(self._event, reports), memory=memory)

    def _event(self, report: InspectionReport) -> Inspection:
        crew = self.crew()
        order = crew.order if crew is not None else None
        of_job: dict[str, Any] = {"job": order.job, "generation": order.generation} if order is not None else {}
        return Inspection(
            id=uuid7(),
            at=self._now(),
            source=f"agent/{self._node}",
            node=self._node,
            boot_id=self._boot_id,
            **of_job,
            **msgspec.structs.asdict(report),
        )
