"""A hang with one cause, drawn by a seed, and what is seen of it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from holdfast.events.parts.devices import NodeActivity
from holdfast.events.parts.traces import CollectiveRecord, NodeLinks, ProcessGroup, ProcessStacks, RankTrace
from holdfast_proving.emulated_hangs.devices import activity_of
from holdfast_proving.emulated_hangs.networks import links_of
from holdfast_proving.emulated_hangs.places import COMPUTES, LOADER_STUCK, LOADER_WAITS, STUCK, WAITS, thread
from holdfast_proving.emulated_hangs.programs import Layout, Op, fsdp, megatron
from holdfast_proving.emulated_hangs.running import Faults, Rank, Run

KINDS = (
    "process stopped",
    "deadlock in user code",
    "data loader stuck",
    "collective skipped",
    "size mismatch",
    "link cut",
    "kernel stuck",
    "GPU error",
    "machine dead",
    "storage hangs",
)

How = Literal["launched", "not marked", "strangers"]
HOW: Final[tuple[How, ...]] = get_args(How)
"""Who looks at a job: its launcher, the same without marks, or a reader of its dumps."""


_IN_THE_MIDDLE: Final = 0.25
"""Of the cuts: communication takes about so much of a step."""

KernelRecord = Literal["nothing", "starts", "marks"]
"""What shows how far devices have come: nothing, the starts of kernels, or marks before them."""


@dataclass(frozen=True)
class Seen:
    """What is seen of a hang, and the truth: the ranks and machines at fault."""

    kind: str
    seed: int
    layout: Layout
    stacks: list[ProcessStacks]
    traces: list[RankTrace]
    links: list[NodeLinks]
    ranks: frozenset[int]
    machines: frozenset[str]
    words: str
    activity: Mapping[str, NodeActivity] = field(default_factory=dict)
    """What devices do, by the number of the machine; only who launched the job measures them."""


@dataclass
class Scene:
    """A fault under way. `hidden`: ranks that leave no trace; `unheard`: no stack either."""

    chance: random.Random
    layout: Layout
    faults: Faults
    ranks: set[int]
    stuck: str = ""
    state: str = ""
    hidden: set[int] = frozenset()  # type: ignore[assignment]
    unheard: set[int] = frozenset()  # type: ignore[assignment]
    lags: int = 0


@dataclass(frozen=True)
class HungJob:
    """A job that a fault has made hang."""

    kind: str
    seed: int
    scene: Scene
    run: Run


def emulate(kind: str, seed: int, world: int, how: How = "strangers") -> Seen | None:
    """One hang among `world` ranks and what is seen of it; None: this fault does not stop this job."""
    hung = hung_job(kind, seed, world)
    return None if hung is None else observe(hung, how)


def hung_job(kind: str, seed: int, world: int) -> HungJob | None:
    """One hang among `world` ranks; None: this fault does not stop this job."""
    chance = random.Random(f"{kind} {seed} {world}")
    return hung_in(kind, seed, chance, _layout(chance, world, kind))


def hung_in(
    kind: str, seed: int, chance: random.Random, layout: Layout, where: Sequence[int] | None = None
) -> HungJob | None:
    """One hang of a given job with its cause in the ranks `where` (default: any); None: this fault does not stop it."""
    scene = _SCENES[kind](chance, layout, range(layout.ranks) if where is None else where)
    if scene is None:
        return None
    run = Run(layout, scene.faults)
    run.until_it_hangs()
    others = (rank for number, rank in enumerate(run.ranks) if number not in scene.ranks)
    if all(rank.host == len(rank.program) for rank in others):
        return None
    return HungJob(kind, seed, scene, run)


def hang_late(chance: random.Random, layout: Layout, where: Sequence[int]) -> HungJob:
    """A moment of a job that goes on: all wait for one of the ranks `where`, which is late and still computes."""
    scene = _host_stops(chance, layout, where, lambda op: op.place in ("forward", "backward") and not op.is_sync, "")
    assert scene is not None, "every program computes"
    run = Run(layout, scene.faults)
    run.until_it_hangs()
    return HungJob("late", chance.getrandbits(32), scene, run)


def _layout(chance: random.Random, world: int, kind: str) -> Layout:
    if kind not in ("link cut",) and chance.random() < 0.3:
        shard = chance.choice([size for size in (32, 64, 128, 256) if size <= world])
        return fsdp(shard, world // shard, layers=6, steps=2, ranks_per_node=8)
    tp = chance.choice((1, 2, 4, 8))
    pp = chance.choice([size for size in (1, 2, 4, 8, 16) if world // tp // size >= 4])
    dp = world // tp // pp
    ep = chance.choice([size for size in (1, 4, 8) if dp % size == 0])
    return megatron(pp, dp, tp, ep, microbatches=chance.choice((2, 4, 6)), steps=2, ranks_per_node=8)


def _at(layout: Layout, chance: random.Random, rank: int, suits: Callable[[Op], bool]) -> int | None:
    """An index of the second step of a rank's program."""
    program = layout.programs[rank]
    found = [index for index in range(len(program) // 2, len(program)) if suits(program[index])]
    return chance.choice(found) if found else None


def _host_stops(
    chance: random.Random, layout: Layout, where: Sequence[int], suits: Callable[[Op], bool], stuck: str
) -> Scene | None:
    for _ in range(50):
        rank = chance.choice(where)
        index = _at(layout, chance, rank, suits)
        if index is not None:
            return Scene(chance, layout, Faults(host_stops={rank: index}), {rank}, stuck)
    return None


def _stopped(chance: random.Random, layout: Layout, where: Sequence[int]) -> Scene | None:
    scene = _host_stops(chance, layout, where, lambda op: True, "")
    if scene is not None:
        scene.state = "T"
        # A stopped process writes no dump of its own; its ring can be read from outside.
        scene.hidden = scene.ranks if chance.random() < 0.5 else set()
    return scene


def _user_code(chance: random.Random, layout: Layout, where: Sequence[int]) -> Scene | None:
    return _host_stops(chance, layout, where, lambda op: True, "user_code")


def _data_loader(chance: random.Random, layout: Layout, where: Sequence[int]) -> Scene | None:
    return _host_stops(chance, layout, where, lambda op: op.place == "data", "data_loader")


def _storage(chance: random.Random, layout: Layout, where: Sequence[int]) -> Scene | None:
    return _host_stops(chance, layout, where, lambda op: op.place == "checkpoint", "checkpoint")


def _skipped(chance: random.Random, layout: Layout, where: Sequence[int]) -> Scene | None:
    rank = chance.choice(where)
    index = _at(layout, chance, rank, lambda op: bool(op.role) and not op.is_p2p)
    if index is None:
        return None
    program = layout.programs[rank]
    layout.programs[rank] = program[:index] + program[index + 1 :]
    return Scene(chance, layout, Faults(), {rank})


def _mismatch(chance: random.Random, layout: Layout, where: Sequence[int]) -> Scene | None:
    rank = chance.choice(where)
    index = _at(layout, chance, rank, lambda op: bool(op.role) and not op.is_p2p and op.elements > 1)
    return None if index is None else Scene(chance, layout, Faults(other_elements={rank: index}), {rank})


def _cut(chance: random.Random, layout: Layout, where: Sequence[int]) -> Scene | None:
    pairs: set[tuple[int, int]] = set()
    ends = {layout.node(rank) for rank in where}
    for members in layout.members[1:]:
        nodes = [layout.node(rank) for rank in members]
        pairs |= {(a, b) for a, b in itertools.pairwise(nodes) if a < b and ends & {a, b}}
    if not pairs:
        return None
    a, b = chance.choice(sorted(pairs))
    faults = Faults(cut=(a, b, len(layout.programs[0]) // 2 + chance.randrange(10)))
    # Some come in the middle of a collective.
    faults.passed = chance.random() if chance.random() < _IN_THE_MIDDLE else 0.0
    ranks = {rank for rank in range(layout.ranks) if layout.node(rank) in (a, b)}
    return Scene(chance, layout, faults, ranks)


def _kernel(chance: random.Random, layout: Layout, where: Sequence[int]) -> Scene | None:
    rank = chance.choice(where)
    index = _at(layout, chance, rank, lambda op: bool(op.role))
    return None if index is None else Scene(chance, layout, Faults(device_stops={rank: index}), {rank})


def _gpu_error(chance: random.Random, layout: Layout, where: Sequence[int]) -> Scene | None:
    """The device is lost and the host with it; what had ended just before is not noticed any more."""
    scene = _host_stops(chance, layout, where, lambda op: bool(op.role), "")
    if scene is not None:
        scene.lags = chance.randrange(0, 12)
    return scene


def _dead(chance: random.Random, layout: Layout, where: Sequence[int]) -> Scene | None:
    node = chance.choice(sorted({layout.node(rank) for rank in where}))
    ranks = {rank for rank in range(layout.ranks) if layout.node(rank) == node}
    index = len(layout.programs[0]) // 2 + chance.randrange(len(layout.programs[0]) // 2 - 4)
    stops = {rank: min(index + chance.randrange(-2, 3), len(layout.programs[rank]) - 1) for rank in ranks}
    return Scene(chance, layout, Faults(host_stops=stops, device_stops=dict(stops)), ranks, "", "", ranks, ranks)


_SCENES: dict[str, Callable[[random.Random, Layout, Sequence[int]], Scene | None]] = dict(
    zip(
        KINDS,
        (_stopped, _user_code, _data_loader, _skipped, _mismatch, _cut, _kernel, _gpu_error, _dead, _storage),
        strict=True,
    )
)


def observe(hung: HungJob, how: How) -> Seen:
    """The evidence of a job that hangs."""
    kind, seed, scene, run = hung.kind, hung.seed, hung.scene, hung.run
    layout = scene.layout
    # Whoever looks, the same is lost.
    chance = random.Random()
    chance.setstate(scene.chance.getstate())
    kernels: KernelRecord = "starts" if chance.random() < 0.3 else "nothing"
    if how != "strangers":
        marks: KernelRecord = "marks" if how == "launched" else "nothing"
        kernels = marks if layout.runs_in_launch_order else "starts"
    depth = chance.choice((0, 0, 20, 60))
    # What gets lost on the way, of ranks that have nothing to do with it.
    lost = chance.choice((0.0, 0.0, 0.0, 0.01))
    groups = [
        ProcessGroup(name=str(number), description=layout.descriptions[number], ranks=tuple(members))
        for number, members in enumerate(layout.members)
    ]
    stacks: list[ProcessStacks] = []
    traces: list[RankTrace] = []
    for rank in range(layout.ranks):
        node = str(layout.node(rank))
        if rank not in scene.hidden and (rank in scene.ranks or chance.random() >= lost):
            traces.append(_trace(rank, node, scene, run, groups, kernels, depth))
        if rank not in scene.unheard:
            is_lost = rank not in scene.ranks and chance.random() < lost
            stacks += _stacks(rank, node, scene, run, is_lost)
    return Seen(
        kind,
        seed,
        layout,
        stacks,
        traces,
        links_of(run, scene.unheard, lost, random.Random(f"links {kind} {seed}")) if how != "strangers" else [],
        frozenset(scene.ranks),
        frozenset(str(layout.node(rank)) for rank in scene.ranks),
        f"{layout.style} {layout.mesh}: {kind} at {sorted(scene.ranks)[:3]}",
        activity_of(run, scene.unheard) if how == "launched" else {},
    )


def _trace(
    rank: int, node: str, scene: Scene, run: Run, groups: list[ProcessGroup], kernels: KernelRecord, depth: int
) -> RankTrace:
    state = run.ranks[rank]
    records: list[CollectiveRecord] = []
    entered: dict[str, int] = {}
    completed: dict[str, int] = {}
    issued = [index for index in range(state.host) if index in state.keys]
    late = set(issued[-scene.lags :]) if scene.lags and rank in scene.ranks else set()
    shown = set(issued[-depth:]) if depth else set()
    for index in issued:
        op, key = state.program[index], state.keys[index]
        group = groups[key[0]]
        ended = run.ended(rank, index) and index not in late
        if not op.is_p2p:
            entered[group.name] = key[1]
            if ended:
                completed[group.name] = key[1]
        if ended and index not in shown:
            continue
        elements = run.elements(rank, index)
        records.append(
            CollectiveRecord(
                group=group.name,
                sequence=state.p2p_sequence.get(index, key[1]),
                operation=op.name,
                state="completed" if ended else "started" if _has_started(state, index, kernels) else "scheduled",
                is_p2p=op.is_p2p,
                peer=(key[3] if op.name == "send" else key[2]) if op.is_p2p else None,
                input_sizes=((elements,),),
                output_sizes=((elements,),),
                dtype="BFloat16",
                created_ns=1_700_000_000_000_000_000 + index * 1_000_000,
            )
        )
    return RankTrace(
        rank=rank,
        node=node,
        groups=tuple(groups[number] for number in run.layout.groups[rank].values()),
        records=tuple(records),
        entered=entered,
        completed=completed,
    )


def _has_started(rank: Rank, index: int, kernels: KernelRecord) -> bool:
    """Whether it shows that the device has come to an operation: a mark lies on the main stream, before it."""
    if kernels == "marks":
        return index in rank.started or index < rank.device
    return kernels == "starts" and index in rank.started


def _stacks(rank: int, node: str, scene: Scene, run: Run, is_lost: bool) -> list[ProcessStacks]:
    state = run.ranks[rank]
    style = run.layout.style
    op = state.program[min(state.host, len(state.program) - 1)]
    is_faulty = rank in scene.faults.host_stops
    if is_faulty and scene.stuck:
        main = thread(STUCK[scene.stuck], style)
    elif op.is_sync and state.device < state.host:
        main = thread(WAITS[op.place], style)
    else:
        main = thread(COMPUTES.get(op.place, COMPUTES["forward"]), style)
    loader = LOADER_STUCK if is_faulty and scene.stuck == "data_loader" else LOADER_WAITS
    return [
        ProcessStacks(
            rank=rank,
            node=node,
            pid=1000 + rank,
            threads=() if is_lost else (main,),
            state=scene.state if is_faulty else "S",
            unread="py-spy: the process did not answer in time" if is_lost else "",
        ),
        ProcessStacks(
            kind="data_loader", rank=rank, node=node, pid=100000 + rank, threads=(thread(loader),), state="S"
        ),
    ]
