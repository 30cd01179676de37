"""Answers of a job's nodes to trace orders: stacks, records of collectives and the state of links.

Programs of all ranks run until nothing goes on (`holdfast_proving.emulated_hangs`), so who waits where follows from the
fault and the mesh. Of a job that is slow, a snapshot shows its ranks wait for one that is late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

import msgspec

from holdfast.engines.hang.event_times import to_event_times
from holdfast.events import CollectiveTrace, Event, StackDump
from holdfast.events.parts.devices import NodeActivity
from holdfast.events.parts.traces import NodeLinks, ProcessStacks
from holdfast.ids import named_id
from holdfast.orders.trace import TraceOrder
from holdfast_proving.emulated_hangs.places import COMPUTES, thread
from holdfast_proving.emulated_hangs.published import PUBLISHED, as_published
from holdfast_proving.emulated_hangs.scenes import HungJob, Seen, hang_late, hung_in, observe
from holdfast_proving.evidence.layouts import fresh, layout_of
from holdfast_proving.scenario.scenario import JobPlan
from holdfast_proving.truth.faults import Fault
from holdfast_proving.world.agenda import Agenda
from holdfast_proving.world.training import Run

OF_MACHINES = ("kernel stuck", "GPU error", "link cut")
OF_SCRIPTS = ("deadlock in user code", "data loader stuck", "collective skipped", "size mismatch")
"""Kinds of hangs that a scenario leaves open: of a machine that has to be repaired, and all others."""
TRIES = 20
WRITTEN_BYTES_PER_S = 3e8


def hang_in(plan: JobPlan, fault: Fault, where: range | None, chance: Random) -> Seen:
    """Return what is seen of a job that hangs by this fault, whose cause is in the ranks `where`; None: in any."""
    kind = fault.kind.form or fault.stream("form").choice(OF_MACHINES if fault.culprit else OF_SCRIPTS)
    if kind in PUBLISHED:
        return as_published(kind, layout_of(plan), where[0] if where else 0)
    # Not every place of a program stops the others.
    for _ in range(TRIES):
        seed = chance.getrandbits(32)
        hung = hung_in(kind, seed, Random(seed), fresh(layout_of(plan)), where)
        if hung is not None:
            return observe(hung, "launched")
    stopped = hung_in("process stopped", 1, Random(1), fresh(layout_of(plan)), where)
    assert stopped is not None, "a stopped process stops every job"
    seen = observe(stopped, "launched")
    if not fault.culprit:
        return seen
    stuck = [msgspec.structs.replace(it, state="D") if it.state == "T" else it for it in seen.stacks]
    return replace(seen, stacks=stuck)


def writing_in(plan: JobPlan, chance: Random) -> Seen:
    """Return what is seen of a job whose ranks wait for one that writes a checkpoint."""
    for _ in range(TRIES):
        seed = chance.getrandbits(32)
        hung = hung_in("storage hangs", seed, Random(seed), fresh(layout_of(plan)))
        if hung is None:
            continue
        seen = observe(hung, "launched")
        stacks = [
            msgspec.structs.replace(process, io_bytes_per_s=WRITTEN_BYTES_PER_S)
            if process.rank in seen.ranks
            else process
            for process in seen.stacks
        ]
        return replace(seen, stacks=stacks)
    raise AssertionError("no program of this job writes checkpoints")


def late_in(plan: JobPlan, where: range, chance: Random) -> HungJob:
    """Return a moment of a job whose ranks wait for one of `where`, which still works."""
    return hang_late(chance, fresh(layout_of(plan)), where)


def at_work(plan: JobPlan) -> list[ProcessStacks]:
    """Return the stacks of a moment in which every rank computes."""
    layout = layout_of(plan)
    main = thread(COMPUTES["forward"], layout.style)
    return [
        ProcessStacks(rank=rank, node=str(layout.node(rank)), pid=1000 + rank, threads=(main,), state="R")
        for rank in range(layout.ranks)
    ]


class TraceAnswers:
    """Publishes what nodes see as their agents' answers."""

    def __init__(self, agenda: Agenda, publish: Callable[[Event], None]) -> None:
        self._agenda = agenda
        self._publish = publish

    def answer(self, run: Run, order: TraceOrder, seen: Seen) -> None:
        stacks = by_node(seen.stacks)
        links = {link.node: link for link in seen.links}
        for node, node_rank in run.up.items():
            own = [trace for trace in seen.traces if seen.layout.node(trace.rank) == node_rank]
            origin, traces = to_event_times(msgspec.structs.replace(trace, node=node) for trace in own)
            self._dump(
                run,
                order,
                node,
                stacks.get(node_rank, ()),
                links.get(str(node_rank)),
                seen.activity.get(str(node_rank)),
            )
            self._publish(CollectiveTrace(**self._common(run, order, node, "trace"), ranks=traces, origin=origin))

    def answer_with_stacks(self, run: Run, order: TraceOrder, stacks: list[ProcessStacks]) -> None:
        of_node = by_node(stacks)
        for node, node_rank in run.up.items():
            self._dump(run, order, node, of_node.get(node_rank, ()), None)
            common = self._common(run, order, node, "trace")
            self._publish(CollectiveTrace(**common, ranks=(), origin=self._agenda.now()))

    def _dump(
        self,
        run: Run,
        order: TraceOrder,
        node: str,
        stacks: tuple[ProcessStacks, ...],
        links: NodeLinks | None,
        activity: NodeActivity | None = None,
    ) -> None:
        processes = tuple(msgspec.structs.replace(process, node=node) for process in stacks)
        links = msgspec.structs.replace(links, node=node) if links is not None else None
        common = self._common(run, order, node, "stacks")
        self._publish(StackDump(**common, processes=processes, links=links, activity=activity))

    def _common(self, run: Run, order: TraceOrder, node: str, what: str) -> dict[str, Any]:
        now = self._agenda.now()
        return {
            "id": named_id(now, node, order.id, what),
            "at": now,
            "source": f"agent/{node}",
            "node": node,
            "job": run.job,
            "generation": run.generation,
            "trace": order.id,
        }


def by_node(stacks: list[ProcessStacks]) -> Mapping[int, tuple[ProcessStacks, ...]]:
    """Return stacks by the node rank that emulations name their nodes by."""
    found: dict[int, list[ProcessStacks]] = {}
    for process in stacks:
        found.setdefault(int(process.node), []).append(process)
    return {node_rank: tuple(of_node) for node_rank, of_node in found.items()}
