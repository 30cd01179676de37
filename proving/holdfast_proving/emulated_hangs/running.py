"""A job that runs until nothing can go on: hosts issue ahead of their devices, a collective ends when all are in it.

Every operation waits for others only to come, so the place where a job hangs does not depend on the order in which its
ranks are looked at: no clock is needed, and who blocks where follows from the programs and the fault alone.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from holdfast_proving.emulated_hangs.programs import JOIN, Layout, Op

NEVER = 1 << 60


@dataclass
class Faults:
    """What goes wrong, by rank: from which index of its program on.

    `host_stops`: nothing more is issued. `device_stops`: no kernel starts any more. `other_elements`: the operation
    there has another size. `cut`: two nodes, and the index from which on nothing passes between them. `passed`: what
    share of the first collective of each group has passed before that.
    """

    host_stops: dict[int, int] = field(default_factory=dict)
    device_stops: dict[int, int] = field(default_factory=dict)
    other_elements: dict[int, int] = field(default_factory=dict)
    cut: tuple[int, int, int] | None = None
    passed: float = 0.0


@dataclass
class Meeting:
    """One collective, or one message: who has come, with how many elements each, and whether it has ended.

    `through`: ranks that it has ended for already, of one that ends for no other any more.
    """

    need: int
    ranks: list[int] = field(default_factory=list)
    elements: set[int] = field(default_factory=set)
    ended: bool = False
    cannot_end: bool = False
    through: frozenset[int] = frozenset()

    def ended_for(self, rank: int) -> bool:
        return self.ended or rank in self.through


@dataclass
class Rank:
    """`host`: how many operations it has passed; `device`: how many its main stream has. `key`, `sequence` by index."""

    program: list[Op]
    host: int = 0
    device: int = 0
    started: set[int] = field(default_factory=set)
    queues: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    keys: dict[int, tuple[int, ...]] = field(default_factory=dict)
    p2p_sequence: dict[int, int] = field(default_factory=dict)
    counts: dict[tuple[int, ...], int] = field(default_factory=lambda: defaultdict(int))

    def position(self) -> tuple[int, ...]:
        return (self.host, self.device, len(self.started), *map(len, self.queues.values()))


class Run:
    """A job with faults."""

    def __init__(self, layout: Layout, faults: Faults) -> None:
        self.layout = layout
        self.faults = faults
        self.ranks = [Rank(program) for program in layout.programs]
        self.meetings: dict[tuple[int, ...], Meeting] = {}
        self._stride = layout.mesh.stride("pp") if "pp" in layout.mesh.names else 0
        self._crossing: dict[int, bool] = {}
        self._cut_into: set[int] = set()

    def until_it_hangs(self) -> None:
        todo = list(range(len(self.ranks)))
        while todo:
            todo += self._advance(todo.pop())

    def ended(self, rank: int, index: int) -> bool:
        key = self.ranks[rank].keys[index]
        return key in self.meetings and self.meetings[key].ended_for(rank)

    def _advance(self, number: int) -> list[int]:
        rank = self.ranks[number]
        program = rank.program
        host_end = min(len(program), self.faults.host_stops.get(number, NEVER))
        device_end = self.faults.device_stops.get(number, NEVER)
        woken: list[int] = []
        while True:
            before = rank.position()
            while rank.host < host_end:
                op = program[rank.host]
                if op.is_sync and rank.device < rank.host:
                    break
                if op.role:
                    self._issue(number, rank, rank.host, op)
                rank.host += 1
            while rank.device < rank.host and rank.device < device_end:
                op = program[rank.device]
                if op.role:
                    if op.stream != "main":
                        rank.queues[op.stream].append(rank.device)
                    elif not self._arrive(number, rank, rank.device, op, woken):
                        break
                elif op.name == JOIN and rank.queues["grads"]:
                    break
                rank.device += 1
            for queue in rank.queues.values():
                while (
                    queue and queue[0] < device_end and self._arrive(number, rank, queue[0], program[queue[0]], woken)
                ):
                    queue.pop(0)
            if before == rank.position():
                return woken

    def _issue(self, number: int, rank: Rank, index: int, op: Op) -> None:
        if op.is_p2p:
            peer = number + self._stride if op.role == "next" else number - self._stride
            channel = (number, peer) if op.name == "send" else (peer, number)
            group = self.layout.groups[number]["pp"]
            count = (group, *channel, 1 if op.name == "send" else 0)
            rank.counts[count] += 1
            # The library counts what a rank sends and receives in a group with one counter.
            rank.counts[group, -1] += 1
            rank.p2p_sequence[index] = rank.counts[group, -1]
            rank.keys[index] = (group, rank.counts[count], *channel)
            return
        group = self.layout.groups[number][op.role]
        rank.counts[group,] += 1
        rank.keys[index] = (group, rank.counts[group,])

    def _arrive(self, number: int, rank: Rank, index: int, op: Op, woken: list[int]) -> bool:
        key = rank.keys[index]
        if len(key) == 2 and key[1] > 1:
            before = self.meetings.get((key[0], key[1] - 1))
            if before is None or not before.ended_for(number):
                # A group has one queue on the device.
                return False
        meeting = self.meetings.get(key)
        if meeting is None:
            need = 2 if op.is_p2p else len(self.layout.members[key[0]])
            meeting = self.meetings[key] = Meeting(need)
        if index not in rank.started:
            rank.started.add(index)
            meeting.ranks.append(number)
            meeting.elements.add(self.elements(number, index))
            meeting.cannot_end |= len(meeting.elements) > 1 or self._is_cut(key, index)
            if len(meeting.ranks) == meeting.need and not meeting.cannot_end:
                meeting.ended = True
                woken += [other for other in meeting.ranks if other != number]
            elif len(meeting.ranks) == meeting.need and self._is_cut(key, index):
                meeting.through = self._through(key)
                woken += [other for other in meeting.through if other != number]
        return meeting.ended_for(number)

    def _through(self, key: tuple[int, ...]) -> frozenset[int]:
        """Who has all of a collective that a cut came into: those who need the least of what goes over the link.

        In a ring the one before the link needs nothing of that, and the one behind it everything but its own.
        """
        if not self.faults.passed or len(key) != 2 or key[0] in self._cut_into or self.faults.cut is None:
            return frozenset()
        self._cut_into.add(key[0])
        members, ends = self.layout.members[key[0]], set(self.faults.cut[:2])
        nodes = [self.layout.node(rank) for rank in members]
        last = next(at for at in range(len(members)) if {nodes[at], nodes[(at + 1) % len(members)]} == ends)
        count = int(self.faults.passed * (len(members) - 1))
        return frozenset(members[last - at] for at in range(count))

    def elements(self, rank: int, index: int) -> int:
        """How many elements a rank brings."""
        usual = self.layout.programs[rank][index].elements
        return usual // 2 + 1 if self.faults.other_elements.get(rank) == index else usual

    def _is_cut(self, key: tuple[int, ...], index: int) -> bool:
        if self.faults.cut is None or index < self.faults.cut[2]:
            return False
        ends = set(self.faults.cut[:2])
        if len(key) == 4:
            return {self.layout.node(key[2]), self.layout.node(key[3])} == ends
        if key[0] not in self._crossing:
            nodes = [self.layout.node(rank) for rank in self.layout.members[key[0]]]
            self._crossing[key[0]] = any({a, b} == ends for a, b in zip(nodes, nodes[1:] + nodes[:1], strict=True))
        return self._crossing[key[0]]
