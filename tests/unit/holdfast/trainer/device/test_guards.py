"""Which protection a tensor gets while it is copied."""

from __future__ import annotations

from holdfast.trainer.device.guards import (
    HOST_BYTES_MIN,
    CopySizes,
    Guard,
    Shadowing,
    StateTensor,
    WhenBusy,
    guards_of,
    is_logged_now,
    is_of_device,
    when_busy,
)

SMALL_BYTES = CopySizes().small_bytes
LARGE = 8 * SMALL_BYTES
ROOMY = Shadowing(of_all=False, bytes_max=1 << 40)
NO_ROOM = Shadowing(of_all=False, bytes_max=0)


def source(
    nbytes: int = LARGE, owner: int | None = None, *, is_host: bool = False, is_plain: bool = True
) -> StateTensor:
    return StateTensor(nbytes, address=0, storage=0, owner=owner, is_host=is_host, is_plain=is_plain)


def guard_of(one: StateTensor, shadowing: Shadowing) -> Guard:
    (found,) = guards_of([one], shadowing)
    return found


def test_the_optimizer_waits_for_what_it_changes_and_for_nothing_else() -> None:
    assert guard_of(source(owner=0), ROOMY) is Guard.GATED
    assert guard_of(source(), ROOMY) is Guard.SHADOWED
    assert guard_of(source(), NO_ROOM) is Guard.AWAITED
    assert guard_of(source(is_host=True), ROOMY) is Guard.HOST


def test_small_tensors_and_those_that_are_not_plain_are_copied_aside_whoever_owns_them() -> None:
    for room in (ROOMY, NO_ROOM):
        assert guard_of(source(SMALL_BYTES - 1, owner=0), room) is Guard.SHADOWED
        assert guard_of(source(SMALL_BYTES - 1), room) is Guard.SHADOWED
        assert guard_of(source(owner=0, is_plain=False), room) is Guard.SHADOWED


def test_once_something_else_writes_to_them_no_tensor_is_left_to_the_gate() -> None:
    assert guard_of(source(owner=0), Shadowing(of_all=True, bytes_max=LARGE)) is Guard.SHADOWED
    assert guard_of(source(owner=0), Shadowing(of_all=True, bytes_max=LARGE - 1)) is Guard.AWAITED


def test_where_there_is_memory_for_some_shadows_the_smallest_get_them() -> None:
    three = [source(LARGE), source(2 * LARGE), source(LARGE + 1)]
    assert guards_of(three, Shadowing(of_all=False, bytes_max=2 * LARGE + 1)) == [
        Guard.SHADOWED,
        Guard.AWAITED,
        Guard.SHADOWED,
    ]


def test_a_state_that_lies_on_the_host_is_left_to_write_protection() -> None:
    counters, offloaded = source(HOST_BYTES_MIN, is_host=True), source(HOST_BYTES_MIN + 1, is_host=True)
    assert is_of_device([source(), counters])
    assert not is_of_device([source(), offloaded])
    assert is_of_device([source(64 * (HOST_BYTES_MIN + 1)), offloaded])


def test_only_a_rank_that_is_alone_skips_steps() -> None:
    assert when_busy(1) is WhenBusy.SKIP
    assert when_busy(2) is WhenBusy.WAIT


def test_what_happens_again_and_again_is_logged_ever_more_rarely() -> None:
    assert [count for count in range(1, 20) if is_logged_now(count)] == [1, 2, 4, 8, 16]
