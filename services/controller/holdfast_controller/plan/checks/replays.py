"""Dual-phase replays in progress: the results of groups, the next phase, the conclusion (ByteRobust Alg. 1).

Each phase is one generation: every group of the job's nodes trains again, apart from the others, from the same
checkpoint. When all groups are done, or the time limit has passed, their digests are compared.
"""

from __future__ import annotations

import msgspec

from holdfast.engines.checks.replay_groups import ReplaySuspects, in_both, intersect_phases
from holdfast.engines.checks.replay_outcome import GroupReplay, PhaseOutcome, compare, deviating
from holdfast.events import DeadlinePassed, ProcessExited, ReplayEnded, ReplayResult
from holdfast.growing import GrowingMap
from holdfast_controller.plan.checks.conclusions import named_by_replay
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.incident.classify import describe_exit
from holdfast_controller.plan.incident.recovery import choose_rung, proceed
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import NO_NODES, ReplayProgress
from holdfast_controller.plan.transitions import become_replaying


def replay_result(draft: JobDraft, event: ReplayResult) -> None:
    """Note the result of a rank's replay; the last one concludes the phase."""
    state, replay = draft.state, draft.state.replay
    if replay is None or event.generation != state.generation or event.node not in state.nodes:
        return
    assert event.node is not None
    machine = state.nodes.index(event.node)
    group = replay.plan.members(replay.plan.group_of(machine, replay.phase), replay.phase)
    if event.rank // state.spec.nproc_per_node != group.index(machine):
        return  # the rank belongs to another machine
    known = replay.replays if event.replay in replay.replays else (*replay.replays, event.replay)
    of_node = replay.results.get(event.node, {}) | {event.rank: known.index(event.replay)}
    _update_replay(draft, replays=known, results=replay.results.having(event.node, of_node))
    # A node is done when all its results are here, not when its ranks exit, because exit events may come first.
    if len(of_node) == state.spec.nproc_per_node:
        _update_replay(draft, over=replay.over | {event.node})
        _conclude_if_over(draft, event.node)


def rank_exited(draft: JobDraft, event: ProcessExited) -> None:
    """Note that a rank failed in a replay; conclude the phase if no other results are expected."""
    state, replay = draft.state, draft.state.replay
    if replay is None or event.node not in state.nodes:
        return
    assert event.node is not None
    _update_replay(draft, died={event.node: describe_exit(event), **replay.died})
    _conclude_if_over(draft, event.node)


def overdue(draft: JobDraft, _: DeadlinePassed) -> None:
    _conclude_phase(draft)


def _conclude_if_over(draft: JobDraft, node: str) -> None:
    """Conclude the phase if `node` was the last; all groups are looked at only if it may have been."""
    state, replay = draft.state, draft.state.replay
    assert replay is not None
    if not replay.died and not state.are_all(replay.over):
        return
    plan = replay.plan
    own = plan.group_of(state.nodes.index(node), replay.phase)
    if _is_over(state, own) and all(_is_over(state, group) for group in range(plan.groups)):
        _conclude_phase(draft)


def _conclude_phase(draft: JobDraft) -> None:
    replay = draft.state.replay
    assert replay is not None
    took_s = (draft.now - replay.phase_began_at).total_seconds()
    groups = tuple(_group_replay(draft.state, group, took_s) for group in range(replay.plan.groups))
    is_second = replay.phase == "vertical"
    known = [answer for answer in replay.answers if answer] if is_second else []
    compared = compare(groups, replay.earlier, known)
    found = f"{replay.phase}: {compared.reason}"
    replay = _with_phase_result(replay, compared, groups, found)
    if (compared.repeat or (is_second and compared.undecided)) and not replay.earlier:
        become_replaying(
            draft, _next_round(draft, replay, earlier=groups), f"{found}: repeating the phase", repeat=True
        )
    elif compared.hopeless:
        _conclude(draft, replay, ReplaySuspects(reason=compared.reason))
    elif not is_second and (replay.plan.size > 1 or not compared.faulty):
        # If each group is one machine, the other phase has the same groups and can only confirm the result.
        become_replaying(
            draft, _next_round(draft, replay, phase="vertical", earlier=()), f"{found}; next phase: across these groups"
        )
    else:
        _conclude(draft, replay, _located(replay, draft.rules.ladder.replay_suspects_max))


def _with_phase_result(
    replay: ReplayProgress, compared: PhaseOutcome, groups: tuple[GroupReplay, ...], found: str
) -> ReplayProgress:
    """Return the replay with a phase's result; knowing the right answer may decide the first phase as well."""
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


def _located(replay: ReplayProgress, suspects_max: int) -> ReplaySuspects:
    rows, columns = replay.faulty.get("horizontal", ()), replay.faulty.get("vertical", ())
    if not replay.undecided:
        return intersect_phases(replay.plan, rows, columns, suspects_max)
    # If nothing deviates in a phase, every group counts: a faulty machine may compute wrongly only at times.
    all_groups = tuple(range(replay.plan.groups))
    among = in_both(replay.plan, rows or all_groups, columns or all_groups)
    return ReplaySuspects(
        candidates=among, reason=f"{len(among)} machines are in groups whose results differ without a majority"
    )


def _conclude(draft: JobDraft, replay: ReplayProgress, located: ReplaySuspects) -> None:
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
    incident = msgspec.structs.replace(state.incident, replayed=state.nodes.as_set)
    draft.update(incident=incident)
    result = f"{located.reason}: one of {', '.join(candidates)}" if candidates else located.reason
    choice = named_by_replay(failure, suspects, result, one_of=located.one_of)
    if choice is None:
        choice = choose_rung(draft, incident, failure)
        choice = msgspec.structs.replace(choice, reason=f"{choice.reason}; dual-phase replay: {result}")
    proceed(draft, failure, choice)


def _next_round(draft: JobDraft, replay: ReplayProgress, **changes: object) -> ReplayProgress:
    round_ = replay.settings.round + 1
    return msgspec.structs.replace(
        replay,
        settings=msgspec.structs.replace(replay.settings, round=round_),
        phase_began_at=draft.now,
        results=GrowingMap(),
        replays=(),
        over=NO_NODES,
        died={},
        **changes,
    )


def _is_over(state: JobState, group: int) -> bool:
    replay = state.replay
    assert replay is not None
    nodes = _nodes(state, replay, group)
    return set(nodes) <= replay.over or any(node in replay.died for node in nodes)


def _group_replay(state: JobState, group: int, took_s: float) -> GroupReplay:
    replay = state.replay
    assert replay is not None
    nodes = _nodes(state, replay, group)
    if died := [replay.died[node] for node in nodes if node in replay.died]:
        return GroupReplay(failed=died[0])
    if silent := [node for node in nodes if node not in replay.over]:
        return GroupReplay(failed=f"{', '.join(silent)} did not answer within {took_s:.0f} s")
    results = {place: replay.replays[it] for node in nodes for place, it in replay.results[node].items()}
    ranks = tuple(result for _, result in sorted(results.items()))
    if idle := [str(place) for place, result in sorted(results.items()) if result.last < 0]:
        return GroupReplay(failed=f"rank {', '.join(idle)} of {', '.join(nodes)} made no optimizer step")
    return GroupReplay(ranks=ranks)


def _nodes(state: JobState, replay: ReplayProgress, group: int) -> tuple[str, ...]:
    return tuple(state.nodes[machine] for machine in replay.plan.members(group, replay.phase))


def _update_replay(draft: JobDraft, **changes: object) -> None:
    assert draft.state.replay is not None
    draft.update_phase(replay=msgspec.structs.replace(draft.state.replay, **changes))
