"""Answers of a slow job's nodes to the analyzer: profiles of their collectives, tests while training is held.

All of it follows from who is slow (`paces.py`); a node's answer has measurements of that node and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import Random
from typing import Any

from holdfast.events import CollectivesProfiled, Event, SlownessTested
from holdfast.events.parts.job import Endpoint
from holdfast.events.parts.samples import ProfiledCalls, RankProfile
from holdfast.ids import named_id
from holdfast.orders.slow import SlowOrder, SlowTests
from holdfast.topology import Mesh
from holdfast_proving.evidence.arrivals import BUSY_S, IDLE_S, arrival_s
from holdfast_proving.evidence.paces import TRANSFER_SHARE, Iterations, Slowness, iterate, link_factor, work_s
from holdfast_proving.scenario.forms import CROWDED, HIDDEN, LINK, mesh_of
from holdfast_proving.truth.faults import Fault
from holdfast_proving.world.agenda import Agenda, seconds_of
from holdfast_proving.world.training import Run, Training

ANSWER_S = (0.05, 0.3)
BEFORE = 4
"""Healthy iterations that a profile compares with."""
PRODUCT_S, TRANSFER_S = 0.05, 0.01
NOISE = 0.02
TURNS = 5


class SlowAnswers:
    def __init__(
        self, agenda: Agenda, publish: Callable[[Event], None], noise: Random, hosts: Mapping[str, str]
    ) -> None:
        """`hosts`: of each machine the one whose processors it has; machines may share one."""
        self._agenda = agenda
        self._publish = publish
        self._noise = noise
        self._hosts = hosts
        self._faults: dict[int, Fault] = {}

    def note(self, fault: Fault) -> None:
        self._faults[fault.number] = fault

    def forms(self, run: Run) -> set[str]:
        """Return the forms of all slowness of a run."""
        return {self._faults[number].kind.form for number in run.slowed_by}

    def late_nodes(self, run: Run) -> list[str]:
        """Return the machines that the others wait for."""
        faults = (self._faults[number] for number in sorted(run.slowed_by))
        return [machine for fault in faults for machine in self._late_ones(fault, run)]

    def waited_shares(self, run: Run) -> dict[int, float]:
        """Return for which share of their own time nodes, by node rank, wait for processors that others use."""
        crowded = (self._faults[it] for it in run.slowed_by if self._faults[it].kind.form == CROWDED)
        return {
            run.up[machine]: 1.0 - 1.0 / fault.kind.slowdown
            for fault in crowded
            for machine in self._late_ones(fault, run)
        }

    def _late_ones(self, fault: Fault, run: Run) -> list[str]:
        """Return the machines of a run that a fault makes late; of nodes that share processors only one is."""
        here = sorted(machine for machine in fault.machines if machine in run.up)
        if fault.kind.form != CROWDED or not here:
            return here
        return [fault.stream(f"{run.job}/{run.generation}").choice(here)]

    def answer(self, training: Training, run: Run, order: SlowOrder) -> None:
        if order.is_over:
            return
        if order.tests is None:
            self._soon(partial(self._profile, training, run, order))
        elif order.tests.passes_at is None:
            # Ranks hold before they begin the step after this one.
            held_s = max(self._agenda.seconds, training.when(run, order.tests.after_step))
            late = self._late(training, run, order, held_s)
            self._agenda.at(held_s, partial(self._hold, training, run, order, order.tests, late))
        else:
            self._transfer(training, run, order, order.tests)

    def _soon(self, act: Callable[[], None]) -> None:
        self._agenda.after(self._noise.uniform(*ANSWER_S), act)

    def _slowness(self, run: Run) -> Slowness:
        """Return which nodes are slow; without a machine at fault all are."""
        factors: dict[int, float] = {}
        links: set[int] = set()
        for number, factor in run.slowed_by.items():
            here = [run.up[machine] for machine in self._late_ones(self._faults[number], run)]
            for node_rank in here or run.up.values():
                if factor >= factors.get(node_rank, 1.0):
                    factors[node_rank] = factor
                    (links.add if self._faults[number].kind.form == LINK else links.discard)(node_rank)
        return Slowness(factors, frozenset(links))

    def _late(self, training: Training, run: Run, order: SlowOrder, held_s: float) -> frozenset[str]:
        """Return the machines whose order comes after their ranks have met the others again, in the next step.

        Until then a rank holds at its next collective. After it, it waits for the others, which are held.
        """
        slow, step_s = self._slowness(run), training.plan.step_s
        busy = {
            machine
            for number in run.slowed_by
            if self._faults[number].kind.is_busy
            for machine in self._faults[number].machines
        }
        return frozenset(
            node
            for node, node_rank in run.up.items()
            if self._agenda.seconds + arrival_s(BUSY_S if node in busy else IDLE_S, Random(f"{order.id}/{node}"))
            > held_s + work_s(node_rank, step_s, TRANSFER_SHARE * step_s, slow)
        )

    # --- profiles ---------------------------------------------------------------------------------

    def _profile(self, training: Training, run: Run, order: SlowOrder) -> None:
        if not run.is_stepping:
            return
        plan, mesh = training.plan, mesh_of(training.plan)
        now = iterate(mesh, plan.ranks_per_node, plan.step_s, self._slowness(run), order.iterations)
        before = iterate(mesh, plan.ranks_per_node, plan.step_s, Slowness({}), BEFORE)
        step, is_hidden = training.step(run), HIDDEN in self.forms(run)
        for node, node_rank in run.up.items():
            ranks = range(node_rank * plan.ranks_per_node, (node_rank + 1) * plan.ranks_per_node)
            profiles = tuple(
                RankProfile(rank=rank, step=step) if is_hidden else _profile_of(rank, step, mesh, now, before)
                for rank in ranks
            )
            event = CollectivesProfiled(
                **self._common(run, order, node),
                ranks=profiles,
                node_rank=node_rank,
                nnodes=plan.nodes,
                nproc_per_node=plan.ranks_per_node,
                mesh=str(mesh),
                endpoint=Endpoint(address=f"10.0.{node_rank >> 8}.{node_rank & 255}", port=7000),
                boot_id=self._hosts[node],
            )
            self._publish(event)

    def _common(self, run: Run, order: SlowOrder, node: str) -> dict[str, Any]:
        now = self._agenda.now()
        return {
            "id": named_id(now, node, order.id, order.stage),
            "at": now,
            "source": f"agent/{node}",
            "node": node,
            "job": run.job,
            "generation": run.generation,
            "asked": order.id,
        }

    # --- tests ------------------------------------------------------------------------------------

    def _hold(
        self, training: Training, run: Run, order: SlowOrder, tests: SlowTests, late: frozenset[str] = frozenset()
    ) -> None:
        """Multiply matrices on the ranks under test, while training is paused; those of `late` machines are not
        held, and say so once it is too late."""
        if not run.is_stepping:
            return
        left_s = seconds_of(tests.held_by) - self._agenda.seconds
        is_held = left_s >= 0.0
        took_s = tests.compute_s + 0.1 if is_held else 0.0
        training.pause_training(run, max(took_s, left_s) if late else took_s)
        slow = self._slowness(run) if HIDDEN not in self.forms(run) else Slowness({})
        waited = self.waited_shares(run)

        def tested(nodes: Iterable[str], is_held: bool) -> None:
            for node in nodes:
                node_rank = run.up[node]
                ranks = range(node_rank * training.plan.ranks_per_node, (node_rank + 1) * training.plan.ranks_per_node)
                factor = 1.0 if node_rank in slow.by_links else slow.factors.get(node_rank, 1.0)
                turns_s = {
                    rank: tuple(self._measured(PRODUCT_S * factor) for _ in range(TURNS))
                    for rank in tests.compute_ranks
                    if is_held and rank in ranks
                }
                self._publish(
                    SlownessTested(
                        **self._common(run, order, node),
                        node_rank=node_rank,
                        stage=order.stage,
                        held=tuple(ranks) if is_held else (),
                        compute_s=tuple((rank, sorted(took)[TURNS // 2]) for rank, took in turns_s.items()),
                        compute_turns_s=tuple(turns_s.items()),
                        compute_waited_s=tuple(
                            (rank, tuple(waited.get(node_rank, 0.0) * took_s for took_s in of_rank))
                            for rank, of_rank in turns_s.items()
                        ),
                        took_s=took_s,
                        held_s=took_s,
                    )
                )

        self._agenda.after(took_s, partial(tested, [node for node in run.up if node not in late], is_held))
        if late:
            self._agenda.after(max(took_s, left_s), partial(tested, sorted(late), is_held=False))

    def _transfer(self, training: Training, run: Run, order: SlowOrder, tests: SlowTests) -> None:
        """Send between pairs of nodes, pass after pass, while training is still paused."""
        if not run.is_stepping or tests.passes_at is None:
            return
        over_s = seconds_of(tests.passes_at) + len(tests.passes) * tests.pass_s
        training.pause_training(run, max(0.0, over_s - self._agenda.seconds))
        slow = self._slowness(run) if HIDDEN not in self.forms(run) else Slowness({})

        def sent() -> None:
            for node, node_rank in run.up.items():
                transfers = tuple(
                    (
                        sender,
                        receiver,
                        min(tests.pass_s, self._sent_s(slow, sender, receiver)),
                    )
                    for links in tests.passes
                    for sender, receiver in links
                    if sender == node_rank
                )
                first = node_rank * training.plan.ranks_per_node
                self._publish(
                    SlownessTested(
                        **self._common(run, order, node),
                        node_rank=node_rank,
                        stage=order.stage,
                        held=tuple(range(first, first + training.plan.ranks_per_node)),
                        transfers=transfers,
                        held_s=len(tests.passes) * tests.pass_s,
                    )
                )

        self._agenda.at(over_s, sent)

    def _sent_s(self, slow: Slowness, sender: int, receiver: int) -> float:
        return self._measured(TRANSFER_S * max(link_factor(sender, slow), link_factor(receiver, slow)))

    def _measured(self, seconds: float) -> float:
        return seconds * self._noise.uniform(1.0, 1.0 + NOISE)


def _profile_of(rank: int, step: int, mesh: Mesh, now: Iterations, before: Iterations) -> RankProfile:
    count = len(now.seconds[rank])
    calls = []
    for dim, waits in now.waits.items():
        group, waited_s = mesh.group_of(rank, dim), waits[rank]
        calls.append(
            ProfiledCalls(
                group=f"{dim}-{group[0]}",
                description=dim,
                runs=((group.start, len(group), group.step),),
                operation="all_reduce",
                bytes=1 << 24,
                sequences=tuple(range(step - count, step)),
                seconds=tuple(waited_s),
                before=tuple(range(step - count - BEFORE, step - count)),
                before_s=tuple(before.waits[dim][rank]),
                count=count,
                total_s=sum(waited_s),
            )
        )
    in_calls_s = [sum(waits[rank][number] for waits in now.waits.values()) for number in range(count)]
    healthy_s = before.seconds[rank][-1]
    return RankProfile(
        rank=rank,
        step=step,
        iterations_s=tuple(now.seconds[rank]),
        in_calls_s=tuple(in_calls_s),
        healthy_s=healthy_s,
        healthy_work_s=healthy_s - sum(waits[rank][-1] for waits in before.waits.values()),
        calls=tuple(calls),
    )
