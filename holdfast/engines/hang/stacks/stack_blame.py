"""Ranks to blame for a hang, by stacks. Pure.

A rank that waits for others is a victim. A rank that is stopped, or busy with something else while most wait, blocks
them. If all wait, the ranks that wait elsewhere than most share a parallel group with the one at fault (ByteRobust
§5.1), and two groups along different dimensions intersect at it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import msgspec

from holdfast.engines.hang.group_cover import GroupCover, SharedGroup, cover_with_groups, natural_order
from holdfast.engines.hang.stacks.outliers import STAGES
from holdfast.engines.hang.stacks.process_state import ProcessState
from holdfast.engines.hang.stacks.silent_ranks import silent_machines
from holdfast.engines.hang.stacks.stack_words import line_of
from holdfast.engines.wording import machines_in_words, ranks_in_words
from holdfast.events.parts.traces import Blamed, ProcessKind, ProcessStacks
from holdfast.topology import Mesh

NodeOf = Callable[[int], str]

_STOPPED = frozenset({"T", "t", "stopped"})
_DEAD = frozenset({"Z", "X", "dead", "zombie"})
_IN_KERNEL = frozenset({"D", "disk-sleep"})

_LIBRARIES = re.compile(
    r"(?:^|/)(?:torch|megatron|deepspeed|transformer_engine|apex|flash_attn|xformers|transformers|accelerate|colossalai"
    r"|fairscale|nemo|torchtitan|triton|numpy)/|^<"
)

_WAIT_MOST = 1 / 2
"""Minimum share of ranks that wait for others before any rank is blamed."""

_STAND_MOST = 3 / 4
"""Minimum share of ranks that wait or share a stack with many, where fewer than half visibly wait."""

_SHARED_LEAST = 1 / 8
"""Minimum share of ranks with one stack for it to be a place where ranks hang."""

_EVIDENCE_MOST = 8


class ObservedProcess(msgspec.Struct, frozen=True, gc=False):
    """A process, its state, and its rank or its parent's rank."""

    process: ProcessStacks
    state: ProcessState
    rank: int | None


class ComparedProcesses(msgspec.Struct, frozen=True, kw_only=True):
    """Processes of one kind. `like_most`, `outliers`: indexes of `members`, compared `by` function, line or symbol."""

    kind: ProcessKind
    members: tuple[ObservedProcess, ...] = ()
    by: str = "function"
    like_most: frozenset[int] = frozenset()
    outliers: frozenset[int] = frozenset()

    @property
    def has_busy_outlier(self) -> bool:
        return any(
            member.process.threads and index not in self.like_most and _own_reason(member)
            for index, member in enumerate(self.members)
        )


class StackBlame(msgspec.Struct, frozen=True, kw_only=True):
    """Blamed ranks, and the groups that outliers share."""

    blamed: tuple[Blamed, ...] = ()
    shared: tuple[SharedGroup, ...] = ()
    notes: tuple[str, ...] = ()


def blame(
    ranks: ComparedProcesses, children: Sequence[ComparedProcesses], mesh: Mesh | None, node_of: NodeOf
) -> StackBlame:
    """Return the ranks that the stacks blame for a hang. `children`: processes that ranks started; `node_of`: a rank's
    node."""
    if not ranks.members:
        return StackBlame(notes=("no process looks like a rank",))
    return _Blamer(ranks, children, mesh, node_of).blame()


class _Blamer:
    def __init__(
        self, ranks: ComparedProcesses, children: Sequence[ComparedProcesses], mesh: Mesh | None, node_of: NodeOf
    ) -> None:
        self._ranks = ranks
        self._members = ranks.members
        self._children = children
        self._mesh = mesh
        self._node_of = node_of
        self._readable = [index for index, member in enumerate(self._members) if member.process.threads]
        self._stopped = {
            index: "is stopped" if member.process.state in _STOPPED else "is dead"
            for index, member in enumerate(self._members)
            if member.process.state in _STOPPED | _DEAD
        }
        self._waiting = [
            index for index in self._readable if _waits(self._members[index]) and index not in self._stopped
        ]
        places = Counter(self._members[index].state.place for index in self._readable)
        standing = [
            index
            for index in self._readable
            if self._members[index].state.activity.doing != "own"
            and places[self._members[index].state.place] >= max(2, _SHARED_LEAST * len(self._readable))
        ]
        self._most_are_held = len(set(standing) | set(self._waiting)) >= _STAND_MOST * len(self._readable) > 0
        self._all_wait = len(self._waiting) >= _WAIT_MOST * len(self._readable) and bool(self._waiting)

    def blame(self) -> StackBlame:
        weak = [
            index for index in sorted(self._ranks.outliers) if index not in self._stopped and self._has_calls(index)
        ]
        cover = self._covered(weak)
        if strong := self._strong():
            return StackBlame(blamed=tuple(self._each_machine(strong)), shared=cover.groups, notes=cover.notes)
        if silent := self._silent():
            return StackBlame(blamed=silent, shared=cover.groups, notes=cover.notes)
        if unclear := self._unclear():
            return StackBlame(blamed=tuple(self._each_machine(unclear)), shared=cover.groups, notes=cover.notes)
        if found := self._weakly(weak, cover):
            return StackBlame(blamed=found, shared=cover.groups, notes=cover.notes)
        return StackBlame(shared=cover.groups, notes=(*cover.notes, self._why_none()))

    def _weakly(self, weak: list[int], cover: GroupCover) -> tuple[Blamed, ...]:
        """Blame, by ranks that wait elsewhere than most, the groups or machines that they share."""
        if not self._all_wait:
            is_clear = len(self._ranks.like_most) >= _STAND_MOST * len(self._readable)
            if is_clear and self._most_are_held and weak and len(cover.groups) + len(cover.alone) == 1:
                return tuple(self._groups(weak, cover, 0.6))
            return ()
        if weak and len(weak) * 2 <= len(self._readable):
            return tuple(self._groups(weak, cover))
        return self._checkpoints()

    def _strong(self) -> dict[int, tuple[str, float]]:
        """Return ranks that certainly block others: the reason and the confidence of each."""
        found = {index: (reason, 0.95) for index, reason in self._stopped.items()}
        if not self._all_wait and not self._most_are_held:
            return found if len(found) * 2 <= len(self._members) else {}
        sure = 1.0 if self._all_wait else 0.7
        for index in self._readable:
            if index not in self._ranks.like_most and index not in found and (why := _own_reason(self._members[index])):
                found[index] = (why, 0.85 * sure)
        return found if len(found) * 2 <= len(self._members) else {}

    def _unclear(self) -> dict[int, tuple[str, float]]:
        """Return ranks of one machine without visible wait, where all others share a stack with many. A library call
        may wait for the device without showing it. If other ranks differ from most as well, only a single rank in code
        of the program itself counts."""
        indexes = [
            index
            for index in self._readable
            if index not in self._ranks.like_most
            and self._members[index].state.activity.doing == "unclear"
            and self._has_calls(index)
        ]
        if not (self._most_are_held or self._all_wait) or not indexes or len(self._machines(indexes)) > 1:
            return {}
        is_alone = all(index in self._ranks.outliers for index in indexes)
        if len(self._ranks.outliers - set(indexes) - set(self._stopped)) > 0:
            indexes = [index for index in indexes if not _in_library(self._members[index].state)]
            is_alone = is_alone and len(indexes) == 1
        others_wait = len(self._waiting) + len(indexes) >= len(self._readable)
        if not is_alone and not (len(indexes) == 1 and others_wait):
            return {}
        sure = (0.7 if is_alone else 0.6) * (1.0 if self._all_wait else 0.7)
        return dict.fromkeys(indexes, ("is in none of the waits of the others", sure))

    def _each_machine(self, strong: dict[int, tuple[str, float]]) -> list[Blamed]:
        by_machine: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        for index, (reason, _) in strong.items():
            by_machine[self._machine(index), reason].append(index)
        sure = 1.0 if len({machine for machine, _ in by_machine}) <= 3 else 0.7
        blamed = [
            Blamed(
                ranks=self._numbers(indexes),
                nodes=(machine,) if machine else (),
                reason=f"{self._named(indexes)} {reason} while {self._most_wait()}",
                confidence=round(strong[indexes[0]][1] * sure, 2),
                evidence=self._evidence(indexes),
            )
            for (machine, reason), indexes in by_machine.items()
        ]
        return sorted(blamed, key=lambda one: (-one.confidence, one.ranks))

    def _groups(self, weak: list[int], cover: GroupCover, sure: float = 1.0) -> list[Blamed]:
        """Blame the machines that have all outliers to themselves, or the groups that outliers share."""
        sure *= 1.0 if self._ranks.by == "function" else 0.8
        if cover.crossing:
            on_it = [index for index in weak if self._machine(index) in cover.crossing]
            met = " and ".join(f"the {'-'.join(group.dims)} group of {_nodes(group)}" for group in cover.groups)
            return [self._blamed(on_it, f"{met} hang and meet on {machines_in_words(cover.crossing)}", 0.65 * sure)]
        blamed = []
        for group in cover.groups:
            inside = [index for index in weak if self._machine(index) in group.nodes]
            if not inside:
                # Only partners of waiting ranks are on it.
                continue
            share = "they share" if len(inside) > 1 else "it is in"
            reason = f"{self._standing(inside)}; {share} the {'-'.join(group.dims)} group of {_nodes(group)}"
            blamed.append(
                Blamed(
                    ranks=group.ranks,
                    nodes=group.nodes if self._machine(inside[0]) else (),
                    reason=reason,
                    confidence=round((0.6 if len(cover.groups) == 1 else 0.45) * sure, 2),
                    evidence=self._evidence(inside),
                )
            )
        inside = [index for index in weak if self._unit(index) in cover.alone]
        if inside:
            confidence = 0.7 if not cover.groups and len(cover.alone) == 1 else 0.4
            blamed.append(self._blamed(inside, self._standing(inside), confidence * sure))
        return blamed

    def _silent(self) -> tuple[Blamed, ...]:
        """Blame ranks that have no stack where nearly all others hang."""
        members = [member for index, member in enumerate(self._members) if index not in self._stopped]
        if not self._most_are_held or any(member.rank is None for member in members):
            return ()
        unread = {member.rank: member.process.unread for member in members if not member.process.threads}
        read = {member.rank for member in self._members} - set(unread)
        found = silent_machines(
            {rank: why for rank, why in unread.items() if rank is not None},
            {rank for rank in read if rank is not None},
            self._mesh,
            self._node_of,
        )
        return tuple(
            Blamed(
                ranks=one.ranks,
                nodes=(one.node,) if one.node else (),
                reason=f"{ranks_in_words(one.ranks)} gave no stack while {self._most_wait()}",
                confidence=one.confidence,
                evidence=one.evidence,
            )
            for one in found
        )

    def _checkpoints(self) -> tuple[Blamed, ...]:
        """Blame checkpoint writers that differ from most, where no rank does."""
        writers = next((one for one in self._children if one.kind == "checkpoint"), None)
        if writers is None:
            return ()
        members = [writers.members[index] for index in sorted(writers.outliers)]
        ranks = tuple(sorted({member.rank for member in members if member.rank is not None}))
        machines = sorted({self._node_of(rank) for rank in ranks}, key=natural_order)
        if len(machines) != 1:
            return ()
        reason = f"the checkpoint writer of {ranks_in_words(ranks)} differs from most, and every rank waits"
        evidence = tuple(line_of(member.process, member.state) for member in members[:_EVIDENCE_MOST])
        nodes = (machines[0],) if machines[0] else ()
        return (Blamed(ranks=ranks, nodes=nodes, reason=reason, confidence=0.5, evidence=evidence),)

    def _blamed(self, indexes: list[int], reason: str, confidence: float) -> Blamed:
        return Blamed(
            ranks=self._numbers(indexes),
            nodes=tuple(sorted({machine for index in indexes if (machine := self._machine(index))}, key=natural_order)),
            reason=reason,
            confidence=round(confidence, 2),
            evidence=self._evidence(indexes),
        )

    def _covered(self, indexes: list[int]) -> GroupCover:
        if not indexes or len(indexes) * 2 > len(self._readable):
            return GroupCover()
        mesh = None if any(self._members[index].rank is None for index in indexes) else self._mesh
        units = {self._members[index].rank: self._unit(index) for index in indexes}
        numbers = [rank for rank in units if rank is not None]
        if mesh is None:
            return GroupCover(alone=tuple(sorted(set(units.values()), key=natural_order)))
        return cover_with_groups(
            numbers,
            mesh,
            lambda rank: units.get(rank) or self._node_of(rank) or f"rank {rank}",
            self._pipeline_partners(indexes, mesh),
        )

    def _pipeline_partners(self, indexes: list[int], mesh: Mesh) -> list[int]:
        """Return other stages of ranks in a point-to-point wait: a stage that went on without it looks healthy."""
        waiting = [
            rank
            for index in indexes
            if self._members[index].state.activity.is_p2p and (rank := self._members[index].rank) is not None
        ]
        stages = [dim for dim in mesh.names if dim in STAGES]
        return sorted({peer for dim in stages for rank in waiting for peer in mesh.group_of(rank, dim)} - set(waiting))

    def _evidence(self, indexes: list[int]) -> tuple[str, ...]:
        """Return a line per distinct stack of the ranks, per outlier among their children, and for most others."""
        lines = self._places(indexes)[:_EVIDENCE_MOST]
        theirs = set(self._numbers(indexes))
        for one in self._children:
            odd = [
                member
                for index, member in enumerate(one.members)
                if member.rank in theirs and index not in one.like_most and member.process.threads
            ]
            lines += [line_of(member.process, member.state) for member in odd[:2]]
        rest = sorted(set(self._readable) - set(indexes))
        return (*lines, *self._places(rest)[:1])

    def _places(self, indexes: Sequence[int]) -> list[str]:
        by_place: defaultdict[tuple[int, str, str], list[int]] = defaultdict(list)
        for index in indexes:
            member = self._members[index]
            by_place[member.state.lines, member.process.state, member.process.unread].append(index)
        most_first = sorted(by_place.values(), key=lambda members: -len(members))
        firsts = [(self._members[members[0]], members) for members in most_first]
        return [line_of(first.process, first.state, self._named(members)) for first, members in firsts]

    def _why_none(self) -> str:
        if not self._readable:
            return "no stack of a rank could be read"
        if self._all_wait:
            return f"{self._most_wait()}, and no stack shows a cause: the stacks blame no rank"
        doing = Counter(self._members[index].state.activity.what for index in self._readable)
        what, count = doing.most_common(1)[0]
        most = f"; {count} of {len(self._readable)} are in {what}" if what else ""
        return f"fewer than half of the ranks wait for others{most}: the stacks blame no rank"

    def _most_wait(self) -> str:
        whats = Counter(self._members[index].state.activity.what for index in self._waiting)
        if not whats:
            return f"{len(self._ranks.like_most)} of {len(self._members)} ranks have the stack of most"
        shown = ", ".join(what for what, _ in whats.most_common(3))
        return f"{len(self._waiting)} of {len(self._members)} ranks wait for others ({shown})"

    def _numbers(self, indexes: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted({rank for index in indexes if (rank := self._members[index].rank) is not None}))

    def _standing(self, indexes: Sequence[int]) -> str:
        verb = "differ" if len(indexes) > 1 else "differs"
        return f"{self._named(indexes)} {verb} from most (by {self._ranks.by}), and {self._most_wait()}"

    def _named(self, indexes: Sequence[int]) -> str:
        numbers = self._numbers(indexes)
        if numbers:
            return ranks_in_words(numbers)
        return ", ".join(f"process {self._members[index].process.pid}" for index in indexes[:_EVIDENCE_MOST])

    def _has_calls(self, index: int) -> bool:
        """Return True if Python's calls are known. Compiled code alone, as gdb shows it, differs between ranks that
        wait for one thing.
        """
        return bool(self._members[index].state.stack.calls)

    def _machine(self, index: int) -> str:
        member = self._members[index]
        return member.process.node or ("" if member.rank is None else self._node_of(member.rank))

    def _unit(self, index: int) -> str:
        """Return the machine, or the rank itself if its machine is unknown."""
        rank = self._members[index].rank
        return self._machine(index) or (f"process {index}" if rank is None else f"rank {rank}")

    def _machines(self, indexes: Sequence[int]) -> list[str]:
        return sorted({self._unit(index) for index in indexes}, key=natural_order)


def _waits(member: ObservedProcess) -> bool:
    return member.state.activity.doing == "others" or member.state.activity.is_backward


def _in_library(state: ProcessState) -> bool:
    return bool(state.stack.calls) and bool(_LIBRARIES.search(state.stack.calls[0].path))


def _own_reason(member: ObservedProcess) -> str:
    if member.process.state in _IN_KERNEL and member.state.activity.doing != "others":
        return "waits for a device or a file system"
    if member.state.activity.doing == "own":
        return f"waits for {member.state.activity.what}"
    return ""


def _nodes(group: SharedGroup) -> str:
    if group.nodes[0].startswith("rank "):
        return ranks_in_words(group.ranks)
    return machines_in_words(group.nodes)
