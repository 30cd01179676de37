"""Replays are compared bit for bit: which groups are wrong, and when nothing can be said."""

from __future__ import annotations

import msgspec

from holdfast.engines.checks.replay_outcome import GroupReplay, PhaseOutcome, compare
from holdfast.events.parts.ranks import RankReplay


def group(*digests: str, first: int = 47, bad_step: int | None = None) -> GroupReplay:
    """One rank for each word; its letters are the digests of its steps."""
    return GroupReplay(
        ranks=tuple(
            RankReplay(
                first=first, last=first + len(word) - 1, digests=tuple(word), digest=f"{word}", bad_step=bad_step
            )
            for word in digests
        )
    )


def test_the_group_that_is_outvoted_is_wrong_and_where_it_began_is_said() -> None:
    said = compare([group("abc", "def"), group("abx", "dyz"), group("abc", "def")])
    assert said.faulty == (1,)
    assert said.reason == "group 1 differs from the others from step 48 on, first in rank 1"


def test_groups_that_agree_are_all_right() -> None:
    said = compare([group("abc")] * 3)
    assert said == PhaseOutcome(right=("abc",), reason="all 3 groups computed the same, bit for bit (steps 47 to 49)")


def test_the_same_bad_numbers_everywhere_are_no_machines() -> None:
    said = compare([group("abc", bad_step=48)] * 3)
    assert said.hopeless and not said.faulty
    assert "step 48" in said.reason


def test_two_that_agree_outvote_any_number_that_do_not() -> None:
    assert compare([group("abc"), group("abx"), group("aby"), group("abc")]).faulty == (1, 2)


def test_a_group_that_died_while_others_came_through_is_wrong() -> None:
    died = GroupReplay(failed="rank 0 on c was killed by signal 8")
    said = compare([group("abc"), died, group("abc")])
    assert said.faulty == (1,)
    assert said.reason == "group 1 failed: rank 0 on c was killed by signal 8"
    said = compare([died, died, group("abc")])
    assert said.hopeless and not said.faulty


def test_of_two_groups_that_differ_nothing_is_said_before_they_repeat_themselves() -> None:
    first = [group("abc"), group("abx")]
    assert compare(first).undecided == (0, 1)
    assert compare([group("abc"), group("aby")], first).faulty == (1,)
    assert compare(first, first).undecided == (0, 1)
    nobody = compare([group("abz"), group("aby")], first)
    assert nobody.hopeless and "does not compute the same twice" in nobody.reason


def test_of_two_groups_the_one_with_bad_numbers_is_wrong() -> None:
    assert compare([group("abc"), group("abx", bad_step=49)]).faulty == (1,)


def test_the_other_phases_answers_count() -> None:
    said = compare([group("abx"), group("abc")], known=[("abc",), ("aby",)])
    assert (said.faulty, said.right) == ((0,), ("abc",))


def test_groups_that_began_elsewhere_cannot_be_compared() -> None:
    apart = [group("abc"), group("abc", first=31), group("abc")]
    assert compare(apart).repeat and not compare(apart).faulty
    assert compare(apart, apart).hopeless


def test_digests_of_every_other_step_still_tell_where_it_began() -> None:
    def thinned(word: str) -> GroupReplay:
        (rank,) = group(word).ranks
        return GroupReplay(ranks=(msgspec.structs.replace(rank, every=4, last=60),))

    assert "from step 51 on" in compare([thinned("abcd"), thinned("axyz"), thinned("abcd")]).reason
