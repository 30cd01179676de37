"""The first failure: each rank's account of its end, weighed against the others. Pure.

1. A rank that ended for its own reason precedes every rank that lost a partner, whatever the clocks show.
2. Among ranks with their own reasons, time decides if it can be compared: within one log the order of lines, between
   logs their time stamps, else torchrun's first observed failure. If none of these decides, no rank is named.
3. A vague end (killed, aborted) is explained by hints, in the rank's own log before those of others.
4. If all ranks only lost a partner, the rank that the others wait for is named if the log shows it: it is behind
   them in the sequence of collectives, or it is the only one that has not timed out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.engines.crash.missing_ranks import missing_ranks
from holdfast.engines.crash.rule_matches import RuleMatch, collective, mixed_end, own_end
from holdfast.engines.wording import ranks_in_words
from holdfast.symptoms import Root, Symptom

_UNSURE = 0.5
"""Confidence up to which a rule gives way to every other."""

_NEAR_S = 900.0
_NEAR_AFTER_S = 60.0
"""Seconds before and after a rank's end in which lines of the kernel or a scheduler are about the same event."""

_RELATED = (
    frozenset({Symptom.CUDA_ERROR, Symptom.GPU_MEMORY_ERROR, Symptom.GPU_UNAVAILABLE}),
    frozenset({Symptom.DISK_FAULT, Symptom.FILESYSTEM_MOUNT, Symptom.INSUFFICIENT_DISK_SPACE}),
)

_OF_THE_SCHEDULER = frozenset({Symptom.TIME_LIMIT, Symptom.PREEMPTED})
"""Ends that the scheduler gave the whole job: whichever rank it killed was not first."""

_BEHIND_MAX = 8
"""Maximum distance of ranks in one group; numbers farther apart belong to different groups."""

_ALONE = 0.7
"""Factor on the confidence of a hint without any other evidence."""

Key = tuple[str, int | None, bool]
"""Key of a stream: the file if no rank is named, else the rank; whether the rank counts only within its node."""


class FirstFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The decision. `rank`: None if none can be named. `confidence`: the rule's, lowered if the decision is close."""

    finding: RuleMatch
    proof: tuple[RuleMatch, ...]
    rank: int | None
    local_rank: int | None
    confidence: float
    others: tuple[RuleMatch, ...]
    why: str


def find_first_failure(
    found: Mapping[Key, Sequence[RuleMatch]],
    *,
    mixed: frozenset[Key] = frozenset(),
    observed_first: int | None = None,
    only_own_end: int | None = None,
    ranks: frozenset[int] = frozenset(),
) -> FirstFailure | None:
    """Decide which failure was first; None without evidence. `mixed`: streams with lines of several unnamed ranks.
    `observed_first`: the rank that torchrun saw fail first. `only_own_end`: the one rank that its launcher saw end by
    itself. `ranks`: all known ranks."""
    ends = {key: end for key, matches in found.items() if (end := (mixed_end if key in mixed else own_end)(matches))}
    everything = sorted((one for matches in found.values() for one in matches), key=lambda one: one.number)
    cascade = [one for one in everything if one.hand == "cascade"]
    vague = [one for one in everything if one.hand == "vague" and not _is_echo(one, found)]
    if ends:
        return _of_first_hand(ends, everything, vague, observed_first, only_own_end)
    hints = [
        one
        for one in everything
        if one.hand == "hint" and one.rule.symptom is not Symptom.UNKNOWN and not one.has_passed
    ]
    if vague:
        return _of_vague(vague, hints, cascade, observed_first)
    if cascade:
        return _of_cascade(cascade, hints, ranks)
    alone = [hint for hint in hints if hint.rule.alone]
    return _of_hint(alone[-1]) if alone else None


def _of_first_hand(
    ends: Mapping[Key, RuleMatch],
    everything: Sequence[RuleMatch],
    vague: Sequence[RuleMatch],
    observed_first: int | None,
    only_own_end: int | None,
) -> FirstFailure:
    sure = [end for end in ends.values() if end.rule.confidence > _UNSURE]
    candidates = sorted(sure or ends.values(), key=lambda end: (end.rule.generic, end.place, end.number))
    candidates = [end for end in candidates if not _is_unrelated(end, candidates)]
    if (explained := _explained(candidates, everything)) is not None:
        return explained
    named_symptoms = {end.rule.symptom for end in candidates if end.rank is not None}
    # Lines of the kernel or a launcher describe the same failure from outside.
    candidates = [end for end in candidates if end.rank is not None or end.rule.symptom not in named_symptoms]
    earliest = _earliest(candidates)
    by_launcher = next((end for end in candidates if end.rank is not None and end.rank == observed_first), None)
    confidence = 1.0
    symptoms = {end.rule.symptom for end in candidates}
    if len(candidates) == 1:
        chosen, named = candidates[0], True
    elif by_launcher and not by_launcher.local:
        chosen, named = by_launcher, True
    elif earliest is not None:
        chosen, named = earliest, True
    else:
        chosen, named = candidates[0], False
        confidence = 1.0 if len(symptoms) == 1 else 0.6
    proof = tuple(
        one
        for one in everything
        if one is not chosen and one.rank == chosen.rank and one.rule.symptom is chosen.rule.symptom
    )
    rank: int | None = None
    local: int | None = None
    if named:
        rank, local = _named(chosen)
    why = "" if named else "several ranks show it, and nothing shows which was first"
    if rank is None and local is None and chosen.rank is None and observed_first is not None:
        rank, why = observed_first, "torchrun saw this rank fail first"
    killed = {
        one.rank for one in vague if one.rank is not None and one.rule.symptom is Symptom.KILLED and not one.local
    }
    if chosen.rule.symptom in _OF_THE_SCHEDULER:
        killed = set()
    if rank is None and local is None and chosen.rank is None and len(killed) == 1:
        rank = next(iter(killed))
        why = "the one rank that was killed"
    elif rank is None and local is None and chosen.rank is None and only_own_end is not None:
        rank, why = only_own_end, "the one rank that ended by itself"
    others = _others(everything, rank)
    return FirstFailure(
        finding=chosen,
        proof=proof[:3],
        rank=rank,
        local_rank=local,
        confidence=chosen.rule.confidence * confidence,
        others=others,
        why=why,
    )


def _explained(ends: Sequence[RuleMatch], everything: Sequence[RuleMatch]) -> FirstFailure | None:
    """Return the fault of a machine that the kernel or the driver reports, if the ranks' errors show the same fault
    without its reason; else None."""
    ranked = [end for end in ends if end.rank is not None]
    outside = [end for end in ends if end.rank is None and end.rule.root is Root.INFRASTRUCTURE]
    reason = min(outside, key=lambda end: (end.place, end.number), default=None)
    if reason is None or not ranked or len(ranked) + len(outside) < len(ends):
        return None
    if not all(end.rule.root is Root.UNKNOWN and _is_related(end, reason) for end in ranked):
        return None
    own = ranked[0] if len(ranked) == 1 else _earliest(ranked)
    rank, local = _named(own) if own is not None else (None, None)
    return FirstFailure(
        finding=reason,
        proof=(own or ranked[0],),
        rank=rank,
        local_rank=local,
        confidence=reason.rule.confidence,
        others=_others(everything, rank),
        why="" if own is not None else "several ranks show it, and nothing shows which was first",
    )


def _of_vague(
    vague: Sequence[RuleMatch], hints: Sequence[RuleMatch], cascade: Sequence[RuleMatch], observed_first: int | None
) -> FirstFailure:
    first = min(vague, key=lambda one: (one.place, one.number))
    named = {one.rank for one in vague if one.rank is not None}
    alone = next(iter(named)) if len(named) == 1 else None
    if first.rule.symptom is not Symptom.NCCL_ERROR:
        # What another rank saw of the network is how it lost this one.
        hints = [hint for hint in hints if hint.rank is None or hint.local or hint.rank in named]
    own = [hint for hint in hints if hint.rank is not None and hint.rank == alone]
    hint = min(own or hints, key=lambda one: (one.place, one.number), default=None)
    chosen = hint or first
    rank: int | None = alone
    local: int | None = None
    if any(one.local for one in vague if one.rank == alone):
        rank, local = None, alone
    if rank is None and local is None and observed_first is not None:
        rank = observed_first if not named or observed_first in named else None
    return FirstFailure(
        finding=chosen,
        proof=(first,) if hint else (),
        rank=rank,
        local_rank=local,
        confidence=chosen.rule.confidence,
        others=_others((*vague, *cascade), rank),
        why="",
    )


def _of_cascade(cascade: Sequence[RuleMatch], hints: Sequence[RuleMatch], ranks: frozenset[int]) -> FirstFailure:
    chosen = min(cascade, key=lambda one: (one.place, one.number))
    first = min(cascade, key=lambda one: one.number)
    if chosen.rule.symptom is Symptom.UNKNOWN and first.file == chosen.file:
        # A job that is cancelled loses partners as well; one that lost a partner first was not cancelled.
        chosen = first
    rank, why = _awaited(cascade, ranks)
    hint = min(hints, key=lambda one: (one.place, one.number), default=None)
    if hint is not None:
        local = hint.rank if hint.local else None
        owners = {one.rank for one in hints if one.rule.name == hint.rule.name}
        own = hint.rank if len(owners) == 1 and not hint.local else None
        return FirstFailure(
            finding=hint,
            proof=(chosen,),
            rank=own if own is not None else rank,
            local_rank=local,
            confidence=hint.rule.confidence,
            others=_others(cascade, own if own is not None else rank),
            why=why if own is None else "",
        )
    return FirstFailure(
        finding=chosen,
        proof=(),
        rank=rank,
        local_rank=None,
        confidence=chosen.rule.confidence,
        others=_others(cascade, rank),
        why=why,
    )


def _of_hint(hint: RuleMatch) -> FirstFailure:
    rank, local = _named(hint)
    return FirstFailure(
        finding=hint,
        proof=(),
        rank=rank,
        local_rank=local,
        confidence=hint.rule.confidence * _ALONE,
        others=(),
        why="no other line explains an end",
    )


def _awaited(cascade: Sequence[RuleMatch], ranks: frozenset[int]) -> tuple[int | None, str]:
    """Return the rank that the others waited for, by lines that name it, else by their watchdogs' lines."""
    named = sorted({rank for one in cascade for line in one.lines for rank in missing_ranks(line.text)})
    if named:
        return (named[0] if len(named) == 1 else None), f"the others waited for {ranks_in_words(named)}"
    waited: dict[int, int] = {}
    for one in cascade:
        work = collective(one)
        if work is not None and one.rank is not None and not one.local:
            waited[one.rank] = min(work, waited.get(one.rank, work))
    if len(waited) < 2:
        return None, ""
    missing = ranks - waited.keys()
    if len(missing) == 1 and len(waited) > 2 and len(set(waited.values())) == 1:
        (rank,) = missing
        return rank, f"all ranks but {rank} timed out in the same collective: they waited for it"
    behind = sorted((number, rank) for rank, number in waited.items())
    if not missing and len(behind) > 2 and behind[0][0] < behind[1][0] == behind[-1][0] <= behind[0][0] + _BEHIND_MAX:
        return behind[0][
            1
        ], f"rank {behind[0][1]} is behind all others: at collective {behind[0][0]}, they at {behind[-1][0]}"
    return None, ""


def _earliest(ends: Sequence[RuleMatch]) -> RuleMatch | None:
    """Return the end that precedes all others; None if times do not show it."""
    # A launcher lists exit codes in no order of time.
    is_by_exit_code = any(end.rule.where == "code" for end in ends)
    if not is_by_exit_code and len({end.file for end in ends}) == 1 and all(end.lines for end in ends):
        return min(ends, key=lambda end: end.number)
    times = [end.at for end in ends]
    known = sorted(at for at in times if at is not None)
    if len(known) < len(ends) or len(known) < 2 or known[0] == known[1]:
        return None
    return ends[times.index(known[0])]


def _is_unrelated(end: RuleMatch, ends: Sequence[RuleMatch]) -> bool:
    """True if a separate log, such as the kernel's, is about another time or another fault than a rank's end."""
    ranked = [one for one in ends if one.rank is not None and one.file != end.file]
    if end.rank is not None or not ranked:
        return False
    for one in ranked:
        if end.at is not None and one.at is not None:
            if -_NEAR_AFTER_S <= one.at - end.at <= _NEAR_S:
                return False
        elif _is_related(one, end):
            return False
    return True


def _is_related(one: RuleMatch, other: RuleMatch) -> bool:
    return any({one.rule.symptom.row, other.rule.symptom.row} <= rows for rows in _RELATED)


def _named(finding: RuleMatch) -> tuple[int | None, int | None]:
    return (None, finding.rank) if finding.local else (finding.rank, None)


def _is_echo(finding: RuleMatch, found: Mapping[Key, Sequence[RuleMatch]]) -> bool:
    """True if an abort or a kill follows from a lost partner, by the rank's own log."""
    if finding.rank is None:
        # A line without a rank: an abort or NCCL's general error can be any rank's, but none is killed because it lost
        # a partner.
        aborted = finding.rule.symptom in (Symptom.ABORTED, Symptom.NCCL_ERROR)
        return any(
            one.hand == "cascade"
            and one.rule.excuses
            and (aborted or one.rank is None)
            and one.file == finding.file
            and bool(one.lines)
            for matches in found.values()
            for one in matches
        )
    if finding.rule.where == "code" and finding.rule.symptom is Symptom.ABORTED and finding.lines:
        # A watchdog aborts each rank; an earlier abort would have ended the launcher before any collective timed out.
        waited = (one for matches in found.values() for one in matches if one.rule.symptom is Symptom.NCCL_TIMEOUT)
        if any(one.file == finding.file and one.lines and one.number < finding.number for one in waited):
            return True
    is_general = finding.rule.symptom is Symptom.NCCL_ERROR
    return any(
        one.hand == "cascade" and one.rank == finding.rank and (one.rule.excuses or not is_general)
        for matches in found.values()
        for one in matches
    )


def _others(found: Sequence[RuleMatch], rank: int | None) -> tuple[RuleMatch, ...]:
    seen: dict[int, RuleMatch] = {}
    for one in found:
        if one.rank is None or one.local or one.rank == rank or one.hand not in ("cascade", "vague"):
            continue
        if one.rank not in seen or (one.hand == "cascade" and seen[one.rank].hand == "vague"):
            seen[one.rank] = one
    return tuple(seen[other] for other in sorted(seen))
