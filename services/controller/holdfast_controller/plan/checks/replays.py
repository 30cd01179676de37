"""Dual-phase replays under way: what the groups say, the next phase, what follows (ByteRobust Alg. 1). Pure.

Each phase is a generation of its own: every group of the job's nodes trains again, apart from the others, from the same
checkpoint. When all groups are over, or time is, their digests are compared.
"""

from __future__ import annotations

import msgspec

from holdfast.engines.checks.replay_groups import ReplaySuspects, in_both, intersect_phases
from holdfast.engines.checks.replay_outcome import GroupReplay, PhaseOutcome, compare, deviating
from holdfast.events import DeadlinePassed, ProcessExited, ReplayEnded, ReplayResult
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.incident.classify import in_words
from holdfast_controller.plan.incident.ladder import named_by_replay
from holdfast_controller.plan.incident.recovery import chosen, proceed
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import Replay
from holdfast_controller.plan.transitions import become_replaying


def found(draft: JobDraft, event: ReplayResult) -> None:
    """A rank has come to the end of its replay; the last one of a node says that the node has."""
    state, replay = draft.state, draft.state.replay
    if replay is None or event.generation != state.generation or event.node not in state.nodes:
        return
    machine = state.nodes.index(event.node)
    group = replay.plan.members(replay.plan.group_of(machine, replay.phase), replay.phase)
    if event.rank // state.spec.nproc_per_node != group.index(machine):
        return  # that is another machine's place
    known = replay.replays if event.replay in replay.replays else (*replay.replays, event.replay)
    of_node = replay.results.get(event.node, {}) | {event.rank: known.index(event.replay)}
    _update(draft, replays=known, results=replay.results | {event.node: of_node})
    # Not the end of its ranks, which may be heard of before their results.
    if len(of_node) == state.spec.nproc_per_node:
        _update(draft, over=replay.over | {event.node})
        _conclude_if_over(draft)


def rank_exited(draft: JobDraft, event: ProcessExited) -> None:
    """A rank ended badly: its group is over."""
    state, replay = draft.state, draft.state.replay
    if replay is None or event.node not in state.nodes:
        return
    assert event.node is not None
    _update(draft, died={event.node: in_words(event), **replay.died})
    _conclude_if_over(draft)


def overdue(draft: JobDraft, _: DeadlinePassed) -> None:
    """Conclude the phase without the groups that have not answered in time."""
    _conclude_phase(draft)


def _conclude_if_over(draft: JobDraft) -> None:
    replay = draft.state.replay
    if replay is not None and all(_is_over(draft.state, group) for group in range(replay.plan.groups)):
        _conclude_phase(draft)


def _conclude_phase(draft: JobDraft) -> None:
    replay = draft.state.replay
    assert replay is not None
    took_s = (draft.now - replay.phase_began_at).total_seconds()
    groups = tuple(_answer(draft.state, group, took_s) for group in range(replay.plan.groups))
    is_second = replay.phase == "vertical"
    known = [answer for answer in replay.answers if answer] if is_second else []
    compared = compare(groups, replay.earlier, known)
    found = f"{replay.phase}: {compared.reason}"
    replay = _with(replay, compared, groups, found)
    if (compared.repeat or (is_second and compared.undecided)) and not replay.earlier:
        become_replaying(draft, _begun(draft, replay, earlier=groups), f"{found}: once more", repeat=True)
    elif compared.hopeless:
        _conclude(draft, replay, ReplaySuspects(reason=compared.reason))
    elif not is_second and (replay.plan.size > 1 or not compared.faulty):
        # Where each machine is a group of its own, the other phase has the same groups: it only looks once more.
        become_replaying(
            draft, _begun(draft, replay, phase="vertical", earlier=()), f"{found}; now across these groups"
        )
    else:
        _conclude(draft, replay, _located(replay, draft.rules.ladder.replay_suspects_max))


def _with(replay: Replay, compared: PhaseOutcome, groups: tuple[GroupReplay, ...], found: str) -> Replay:
    """The replay with what a phase says; which answer is right may tell what the first phase could not."""
    faulty = replay.faulty | {replay.phase: compared.faulty or compared.undecided}
    undecided = (replay.undecided | {replay.phase}) if compared.undecided else (replay.undecided - {replay.phase})
    if replay.phase == "vertical" and "horizontal" in undecided and compared.right:
        faulty["horizontal"] = deviating(replay.answers, compared.right)
        undecided -= {"horizontal"}
    return msgspec.structs.replace(
        replay,
        findings=(*replay.findings, found),
        faulty=faulty,
        undecided=undecided,
        answers=replay.answers if replay.phase == "vertical" else tuple(group.answer for group in groups),
    )


def _located(replay: Replay, suspects_max: int) -> ReplaySuspects:
    rows, columns = replay.faulty.get("horizontal", ()), replay.faulty.get("vertical", ())
    if not replay.undecided:
        return intersect_phases(replay.plan, rows, columns, suspects_max)
    # Of a phase in which nothing deviates every group counts: what computes wrongly may do so only at times.
    everyone = tuple(range(replay.plan.groups))
    among = in_both(replay.plan, rows or everyone, columns or everyone)
    return ReplaySuspects(
        candidates=among, reason=f"{len(among)} machines are in groups of which it cannot be told who is right"
    )


def _conclude(draft: JobDraft, replay: Replay, located: ReplaySuspects) -> None:
    state = draft.state
    assert state.incident is not None
    suspects, candidates = (
        tuple(state.nodes[machine] for machine in machines) for machines in (located.suspects, located.candidates)
    )
    draft.emit(
        ReplayEnded,
        suspects=suspects,
        candidates=candidates,
        findings=replay.findings,
        took_s=(draft.now - replay.began_at).total_seconds(),
        reason=located.reason,
    )
    failure = replay.failure
    incident = msgspec.structs.replace(state.incident, replayed=frozenset(state.nodes))
    draft.update(incident=incident)
    said = f"{located.reason}: one of {', '.join(candidates)}" if candidates else located.reason
    choice = named_by_replay(failure, suspects, said, one_of=located.one_of)
    if choice is None:
        choice = chosen(draft, incident, failure)
        choice = msgspec.structs.replace(choice, reason=f"{choice.reason}; dual-phase replay: {said}")
    proceed(draft, failure, choice)


def _begun(draft: JobDraft, replay: Replay, **changes: object) -> Replay:
    """The replay at the beginning of a phase."""
    round_ = replay.settings.round + 1
    return msgspec.structs.replace(
        replay,
        settings=msgspec.structs.replace(replay.settings, round=round_),
        phase_began_at=draft.now,
        results={},
        replays=(),
        over=frozenset(),
        died={},
        **changes,
    )


def _is_over(state: JobState, group: int) -> bool:
    replay = state.replay
    assert replay is not None
    nodes = _nodes(state, replay, group)
    return set(nodes) <= replay.over or any(node in replay.died for node in nodes)


def _answer(state: JobState, group: int, took_s: float) -> GroupReplay:
    replay = state.replay
    assert replay is not None
    nodes = _nodes(state, replay, group)
    if died := [replay.died[node] for node in nodes if node in replay.died]:
        return GroupReplay(failed=died[0])
    if silent := [node for node in nodes if node not in replay.over]:
        return GroupReplay(failed=f"{', '.join(silent)} had not answered after {took_s:.0f} s")
    results = {place: replay.replays[it] for node in nodes for place, it in replay.results[node].items()}
    ranks = tuple(result for _, result in sorted(results.items()))
    if idle := [str(place) for place, result in sorted(results.items()) if result.last < 0]:
        return GroupReplay(failed=f"rank {', '.join(idle)} of {', '.join(nodes)} ended without a step of an optimizer")
    return GroupReplay(ranks=ranks)


def _nodes(state: JobState, replay: Replay, group: int) -> tuple[str, ...]:
    return tuple(state.nodes[machine] for machine in replay.plan.members(group, replay.phase))


def _update(draft: JobDraft, **changes: object) -> None:
    assert draft.state.replay is not None
    draft.update_phase(replay=msgspec.structs.replace(draft.state.replay, **changes))
