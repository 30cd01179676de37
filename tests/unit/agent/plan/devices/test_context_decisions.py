"""Which process with a context can become a rank, and when none is made ahead."""

from __future__ import annotations

import pytest

from holdfast.events.parts.ranks import RankException
from holdfast.node.users.job_user import JobUser
from holdfast_agent.plan.devices.contexts import DeviceUsed, context_kind, why_never_again, why_none
from holdfast_agent.zygote.wire import Cover, RankExit, RankPlan

GIB = 1 << 30


def plan(**fields: object) -> RankPlan:
    defaults: dict[str, object] = {
        "rank": 3,
        "local_rank": 1,
        "environment": {"RANK": "3", "LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "0,1", "HOLDFAST_GENERATION": "7"},
        "cwd": "/job",
        "script": "train.py",
        "args": (),
        "is_module": False,
        "start": "fork",
        "log_stem": "/logs/rank-3",
        "error_file": "/errors/3",
    }
    return RankPlan(**(defaults | fields))  # type: ignore[arg-type]


def test_the_next_generation_of_a_rank_can_take_its_context() -> None:
    environment = plan().environment | {"RANK": "5", "HOLDFAST_GENERATION": "8", "TORCHELASTIC_RESTART_COUNT": "2"}
    later = plan(rank=5, environment=environment, log_stem="/logs/rank-5", script="other.py")
    assert context_kind(plan()) == context_kind(later) != ""


@pytest.mark.parametrize(
    "other",
    [
        {"local_rank": 0},
        {"cwd": "/other"},
        {"cpus": (0, 1)},
        {"user": JobUser(name="job", uid=1000, gid=1000, home="/")},
        {"environment": plan().environment | {"CUDA_VISIBLE_DEVICES": "1,0"}},
        {"environment": plan().environment | {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}},
        {"start": "exec", "warm": "one", "python": "/other/python"},
    ],
)
def test_another_rank_user_place_or_variable_needs_another_context(other: dict[str, object]) -> None:
    assert context_kind(plan(**other)) not in ("", context_kind(plan()))


@pytest.mark.parametrize(
    "what",
    [{"is_program": True}, {"start": "exec"}, {"cover": Cover(root="/job", place="/code", files=("a.py",))}],
)
def test_nothing_made_ahead_becomes_such_a_rank(what: dict[str, object]) -> None:
    assert context_kind(plan(**what)) == ""


def test_a_context_is_made_only_where_there_is_room() -> None:
    enough = DeviceUsed(device="cuda:1", free_bytes=4 * GIB)
    assert why_none(enough, "kind", 4 * GIB, GIB) == ""
    assert "context_room_bytes is 0" in why_none(enough, "kind", 0, GIB)
    assert "4095 MiB of cuda:1 are free" in why_none(
        DeviceUsed(device="cuda:1", free_bytes=4 * GIB - 1), "kind", 4 * GIB, GIB
    )
    assert "does not report" in why_none(DeviceUsed(device="cuda:1", free_bytes=None), "kind", GIB, GIB)
    assert "nothing made ahead" in why_none(enough, "", GIB, GIB)
    assert "1023 MiB of the host" in why_none(enough, "kind", GIB, GIB - 1)
    changed = DeviceUsed(device="cuda:0", free_bytes=8 * GIB, changed=("CUDA_VISIBLE_DEVICES",))
    assert "sets CUDA_VISIBLE_DEVICES itself" in why_none(changed, "kind", GIB, GIB)


def ended(code: int | None, error: str = "", message: str = "") -> RankExit:
    exception = RankException(type=error, message=message, traceback="") if error else None
    return RankExit(
        exit_id="1",
        fence=(1, 2),
        rank=3,
        local_rank=1,
        pid=9,
        exit_code=code,
        signal=None if code is not None else 9,
        exited_ns=0,
        log_tail="",
        exception=exception,
    )


def test_a_job_gets_none_any_more_once_they_may_have_harmed_it() -> None:
    assert "out of memory" in why_never_again(ended(1, "torch.OutOfMemoryError"), has_stepped=True, had_contexts=False)
    library = ended(1, "RuntimeError", "CUDA error: out of memory")
    assert "out of memory" in why_never_again(library, has_stepped=True, had_contexts=False)
    assert "before its first step" in why_never_again(ended(1, "ValueError"), has_stepped=False, had_contexts=True)
    assert why_never_again(ended(1, "ValueError"), has_stepped=True, had_contexts=True) == ""
    assert why_never_again(ended(1, "ValueError"), has_stepped=False, had_contexts=False) == ""
    assert why_never_again(ended(None), has_stepped=False, had_contexts=True) == ""
