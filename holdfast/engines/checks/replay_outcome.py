"""Outcome of one phase of replays: the groups that did not compute what the others did, bit for bit. Pure.

All groups of a phase run the same program with the same seed, data, weights and number of replicas, so every rank must
have the same digests as the rank in its place in any other group. The answer of most groups is right. Without a
majority, a group whose answer changes when the phase is repeated is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from holdfast.events.parts.ranks import RankReplay


class GroupReplay(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The replay of one group: its `ranks` by place; `failed` is the reason if the replay is incomplete."""

    ranks: tuple[RankReplay, ...] = ()
    failed: str = ""

    @property
    def bad_step(self) -> int | None:
        """First step with a number that is not finite."""
        return min((rank.bad_step for rank in self.ranks if rank.bad_step is not None), default=None)

    @property
    def answer(self) -> tuple[str, ...]:
        """Digests of all ranks, which must be equal in all groups."""
        return tuple(rank.digest for rank in self.ranks)


class PhaseOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Comparison of a phase's groups."""

    faulty: tuple[int, ...] = ()
    """Groups that deviate from it."""
    undecided: tuple[int, ...] = ()
    """Groups that differ without proof which is right."""
    right: tuple[str, ...] = ()
    """Answer taken as right; () if none."""
    repeat: bool = False
    """True if the groups cannot be compared as they are."""
    hopeless: bool = False
    """True if the script cannot be replayed, or all groups go wrong alike; another phase would not help."""
    reason: str


def compare(
    groups: Sequence[GroupReplay],
    earlier: Sequence[GroupReplay] = (),
    known: Sequence[tuple[str, ...]] = (),
) -> PhaseOutcome:
    """Compare the groups' replays. `earlier`: replays of the same groups in a previous run of this phase. `known`:
    answers of the other phase's groups, which computed the same with other machines."""
    failed = [number for number, group in enumerate(groups) if group.failed]
    done = [number for number, group in enumerate(groups) if not group.failed]
    if 2 * len(failed) > len(groups) or not done:
        return PhaseOutcome(
            hopeless=True,
            reason=f"{len(failed)} of {len(groups)} groups could not replay: a fault of the script or of shared parts, "
            f"not of a machine ({groups[failed[0]].failed})",
        )
    starts = sorted({groups[number].ranks[0].first for number in done if groups[number].ranks})
    if len(starts) > 1:
        return PhaseOutcome(
            repeat=True,
            hopeless=bool(earlier),
            reason=f"the groups began with different steps ({', '.join(map(str, starts))}) and cannot be compared",
        )
    right = _right_answer([*(groups[number].answer for number in done), *known])
    if right is None:
        return _without_majority(groups, done, failed, earlier)
    faulty = deviating([group.answer for group in groups], right)
    if faulty:
        reasons = (_deviation(groups, number, right) for number in faulty)
        return PhaseOutcome(faulty=faulty, right=right, reason="; ".join(reasons))
    if (bad := groups[done[0]].bad_step) is not None:
        return PhaseOutcome(
            hopeless=True,
            right=right,
            reason=f"all groups have bad numbers at step {bad}, bit for bit the same: caused by data, code or "
            "settings, not by a machine",
        )
    rank = groups[done[0]].ranks[0]
    span = f"steps {rank.first} to {rank.last}"
    return PhaseOutcome(right=right, reason=f"all {len(groups)} groups computed the same, bit for bit ({span})")


def deviating(answers: Sequence[tuple[str, ...]], right: tuple[str, ...]) -> tuple[int, ...]:
    """Return the groups whose answer is not the right one; a group without an answer has ()."""
    return tuple(number for number, answer in enumerate(answers) if answer != right)


def _right_answer(answers: Sequence[tuple[str, ...]]) -> tuple[str, ...] | None:
    """Return the most frequent answer. Two cannot agree bit for bit by chance, but two such pairs decide nothing."""
    common = Counter(answers).most_common(2)
    if len(common) == 1:
        return common[0][0]
    (answer, times), (_, next_times) = common
    return answer if times > next_times else None


def _without_majority(
    groups: Sequence[GroupReplay], done: list[int], failed: list[int], earlier: Sequence[GroupReplay]
) -> PhaseOutcome:
    bad = [number for number in done if groups[number].bad_step is not None]
    if bad and 2 * len(bad) <= len(groups):
        steps = ", ".join(f"group {number} at step {groups[number].bad_step}" for number in bad)
        return _with_faulty(groups, {*bad, *failed}, f"only these groups have bad numbers: {steps}")
    if not earlier:
        return PhaseOutcome(undecided=tuple(done), reason=f"{len(done)} groups differ and none is in the majority")
    constant = [number for number in done if groups[number].answer == earlier[number].answer]
    changing = [number for number in done if number not in constant]
    if not constant:
        return PhaseOutcome(
            hopeless=True,
            reason="no group repeats itself: the script does not compute the same twice, so nothing can be compared; "
            "make it deterministic for a given seed",
        )
    if changing and 2 * len(changing) <= len(groups):
        names = ", ".join(map(str, changing))
        return _with_faulty(
            groups, {*changing, *failed}, f"groups differ, and group {names} computes something else each time"
        )
    return PhaseOutcome(
        undecided=tuple(done),
        reason=f"groups {', '.join(map(str, done))} differ and repeat themselves: one computes wrongly in the same way "
        "each time, and nothing here shows which",
    )


def _with_faulty(groups: Sequence[GroupReplay], faulty: set[int], reason: str) -> PhaseOutcome:
    others = {group.answer for number, group in enumerate(groups) if number not in faulty}
    right = others.pop() if len(others) == 1 else ()
    return PhaseOutcome(faulty=tuple(sorted(faulty)), right=right, reason=reason)


def _deviation(groups: Sequence[GroupReplay], number: int, right: tuple[str, ...]) -> str:
    group = groups[number]
    if group.failed:
        return f"group {number} failed: {group.failed}"
    pattern = next(other for other in groups if not other.failed and other.answer == right)
    steps = {place: _first_difference(*pair) for place, pair in enumerate(zip(group.ranks, pattern.ranks, strict=True))}
    known = {place: step for place, step in steps.items() if step is not None}
    first = min(known.values())
    places = [str(place) for place, step in known.items() if step == first]
    numbers = f", and its numbers go bad at step {group.bad_step}" if group.bad_step is not None else ""
    return f"group {number} differs from the others from step {first} on, first in rank {', '.join(places)}{numbers}"


def _first_difference(one: RankReplay, other: RankReplay) -> int | None:
    """Return the first step at which two replays differ; None if they are equal."""
    if one.digest == other.digest:
        return None
    if one.every == other.every:
        for place, (left, right) in enumerate(zip(one.digests, other.digests, strict=False)):
            if left != right:
                return one.first + place * one.every
    return min(one.last, other.last)
