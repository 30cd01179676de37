"""Hooks on process groups fill the rank's ring of collectives."""

from __future__ import annotations

import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.node.collectives.ring_reader import RingReader
from holdfast.node.ledger.ledger_file import LedgerWriter
from holdfast.trainer.hooks import collective_hooks
from holdfast.trainer.hooks.ring_writer import RingWriter
from holdfast.trainer.phases import binding

ALL_REDUCE, SEND = 1, 18


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rank-3.collectives"


class _Work:
    def wait(self) -> bool:
        return True


class _Group:
    """As c10d's: the backend counts what it begins, point-to-point too as gloo's does."""

    group_name = "0"
    group_desc = "default_pg"

    def __init__(self) -> None:
        self.begun = 0

    def _get_sequence_number_for_group(self) -> int:
        return self.begun

    def allreduce(self, tensors: list[Any], options: object = None) -> _Work:
        self.begun += 1
        return _Work()

    def barrier(self) -> None:
        self.begun += 1
        raise TimeoutError

    def send(self, tensors: list[Any], to: int, tag: int = 0) -> _Work:
        self.begun += 1
        return _Work()


@pytest.fixture
def hooked(path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """c10d as far as the hooks know it, patched; its groups write the ring at `path`."""
    group, work = type("Group", (_Group,), {}), type("Work", (_Work,), {})
    for name in ("allreduce", "barrier", "send"):
        setattr(group, name, getattr(_Group, name))
    work.wait = _Work.wait  # type: ignore[method-assign]
    monkeypatch.setattr(binding, "ring", RingWriter(path, rank=0, generation=1))
    monkeypatch.setattr(collective_hooks, "_groups", {})
    monkeypatch.setattr(collective_hooks, "_pending", {})
    monkeypatch.setattr(collective_hooks, "_look_after_for_good", lambda ring: None)
    module = SimpleNamespace(ProcessGroup=group, Work=work, get_process_group_ranks=lambda group: [4, 6])
    monkeypatch.setattr(_Work, "wait", _Work.wait)
    collective_hooks.patch_process_groups(module)  # type: ignore[arg-type]
    monkeypatch.setattr(_Work, "wait", work.wait)
    return group()


def test_the_hooks_tell_calls_from_waits_and_count_as_the_backend_does(hooked: Any, path: Path) -> None:
    tensor = SimpleNamespace(nbytes=256, is_cpu=True)
    reader = RingReader(path)
    work = hooked.allreduce([tensor, tensor])
    (issued,) = reader.trace().records
    assert (issued.sequence, issued.bytes, issued.ended_ns, issued.is_waited_for) == (1, 512, 0, False)
    work.wait()
    # DDP's buckets go past Python.
    hooked.begun += 3
    hooked.send([tensor], 1).wait()
    with pytest.raises(TimeoutError):
        hooked.barrier()
    hooked.allreduce([tensor]).wait()
    records = reader.trace().records
    assert [(record.operation, record.sequence, record.peer) for record in records] == [
        ("all_reduce", 1, None),
        ("send", 1, 6),
        ("barrier", 5, None),
        ("all_reduce", 6, None),
    ]
    assert all(record.state == "completed" for record in records)


def test_the_hooks_tell_what_runs_on_a_device(hooked: Any, path: Path) -> None:
    here, there = SimpleNamespace(nbytes=256, is_cpu=True), SimpleNamespace(nbytes=8, is_cpu=False)
    for tensors in ([here], [there], [here, there]):
        hooked.allreduce(tensors).wait()
    hooked.send([there], 1).wait()
    records, _ = RingReader(path).records()
    assert [(record.bytes, record.is_on_device, record.is_p2p) for record in records] == [
        (256, False, False),
        (8, True, False),
        (264, True, False),
        (8, True, True),
    ]
    assert all(record.left_ns for record in records)


def test_work_that_was_dropped_counts_as_over(hooked: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = RingReader(path)
    hooked.allreduce([])
    gc.collect()
    collective_hooks.look_after(binding.ring)  # type: ignore[arg-type]
    (record,) = reader.trace().records
    assert record.state == "completed"


def test_of_many_that_were_dropped_each_counts_as_over(hooked: Any, path: Path) -> None:
    for _ in range(20):
        hooked.allreduce([])
    kept = hooked.allreduce([])
    gc.collect()
    collective_hooks.look_after(binding.ring)  # type: ignore[arg-type]
    *dropped, last = RingReader(path).trace().records
    assert [record.state for record in dropped] == ["completed"] * 20, "though they had the same address in memory"
    assert last.state == "scheduled" and kept is not None


def test_what_is_waited_for_in_another_order_has_ended_all_the_same(hooked: Any, path: Path) -> None:
    for work in reversed([hooked.allreduce([]) for _ in range(4)]):
        work.wait()
    trace = RingReader(path).trace()
    assert trace.entered == trace.completed == {"0": 4}


def test_groups_that_are_gone_are_forgotten(hooked: Any) -> None:
    for _ in range(3):
        type(hooked)().allreduce([])
    hooked.allreduce([])
    gc.collect()
    collective_hooks.look_after(binding.ring)  # type: ignore[arg-type]
    assert [known.group() for known in collective_hooks._groups.values()] == [hooked]


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LedgerWriter:
    monkeypatch.setattr(binding, "ledger", LedgerWriter(tmp_path / "rank-3", rank=0, generation=1))
    assert binding.ledger is not None
    return binding.ledger


def test_a_call_of_torch_distributed_is_over_when_it_returns_unless_it_returns_the_work(
    hooked: Any, path: Path, ledger: LedgerWriter
) -> None:
    seen: list[bool] = []

    def all_reduce(async_op: bool = False) -> _Work | None:
        work: _Work = hooked.allreduce([])
        seen.append(RingReader(path).trace().records[-1].is_waited_for)
        if async_op:
            return work
        work.wait()
        return None

    def all_gather_object() -> list[int]:
        call()
        call()
        hooked.allreduce([]).wait()
        return [1]

    call = collective_hooks.recorded_call(all_reduce, b"all_reduce", _Work)
    call()
    work = call(async_op=True)
    collective_hooks.recorded_call(all_gather_object, b"all_gather_object", _Work)()
    records = RingReader(path).trace().records
    assert [(record.state, record.is_waited_for) for record in records] == [
        ("completed", False),
        ("scheduled", False),
        *[("completed", False)] * 3,
    ]
    work.wait()
    assert RingReader(path).trace().completed == {"0": 5} and all(seen)
    assert not collective_hooks._pending and ledger.calls.here.begun is None


def test_a_wait_that_fails_leaves_its_operation_as_it_is(
    hooked: Any, path: Path, ledger: LedgerWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_reduce() -> None:
        hooked.allreduce([])
        raise TimeoutError

    with pytest.raises(TimeoutError):
        collective_hooks.recorded_call(all_reduce, b"all_reduce", _Work)()
    (record,) = RingReader(path).trace().records
    assert record.state == "scheduled" and record.is_waited_for


def test_where_python_alone_begins_collectives_the_backend_is_seldom_asked(hooked: Any, path: Path) -> None:
    every, asked = collective_hooks.ASK_EVERY, []
    count = type(hooked)._get_sequence_number_for_group
    type(hooked)._get_sequence_number_for_group = lambda group: asked.append(group.begun) or count(group)
    for _ in range(5 * every):
        hooked.allreduce([]).wait()
    assert len(asked) == every + 4
    # DDP's buckets go past Python: they are counted at the next question, and from then on at once.
    hooked.begun += 3
    for _ in range(every):
        hooked.allreduce([]).wait()
    hooked.begun += 2
    hooked.allreduce([]).wait()
    assert RingReader(path).trace().records[-1].sequence == 6 * every + 6
    assert len(RingReader(path).records()[0]) == 6 * every + 1
