"""Steps go from the memory of real vaults to a real directory, and to a store that speaks S3, while ranks go on."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import vault_nodes
from servers import children
from vault_nodes import VaultNode, at, order_of, shard, state, until

from holdfast.node.vault.messages import DamageNotice, NotPersisted, Persisted, PersistTo
from holdfast.trainer.checkpoint.exchange.verify import verify
from holdfast.trainer.checkpoint.layout.part_format import PartReader, plan_part
from holdfast.trainer.checkpoint.layout.state_marks import KeyedState
from holdfast.trainer.checkpoint.storage.directory import DirectoryStorage
from holdfast.trainer.checkpoint.storage.folder import DirectoryFolder, StepState, whole_manifest
from holdfast.trainer.checkpoint.storage.places import open_storage
from holdfast.trainer.checkpoint.storage.workplace import Owner
from holdfast.trainer.vault_client.client import VaultClient

pytestmark = pytest.mark.integration
node = vault_nodes.node


class Rank:
    """A rank that keeps steps as the Checkpointer does."""

    def __init__(self, client: VaultClient, rank: int) -> None:
        self.client = client
        self._rank = rank
        self._state: dict[str, Any] = {"weights": torch.empty(0), "step": 0}

    def keep(self, step: int, chunks: float = 2.5) -> None:
        self._state = {f"rank-{self._rank}": state(step, chunks)}
        # The first replica of each entry is this rank, whatever its number.
        keyed = KeyedState(self._state, 0)
        self.client.save(step, self._state, lambda: keyed.part_plan(plan_part(self._state, keyed.writes)))


@contextmanager
def rank_of(
    node: VaultNode, rank: int, place: str | Path, *, world_size: int = 2, generation: int = 1, keep: int = 3
) -> Iterator[Rank]:
    to = PersistTo(place=str(place), steps_max=keep, mesh={"dp": world_size})
    client = VaultClient(node.directory, shard(rank, world_size), generation, to)
    yield Rank(client, rank)
    client.close()


def has(storage: DirectoryStorage, step: int) -> bool:
    return step in storage.steps()


def is_whole(place: Path, step: int, ranks: int) -> bool:
    """Whether every tensor of every rank is there, bit for bit."""
    folder = DirectoryFolder(place / f"step-{step:08d}")
    manifest = whole_manifest(folder)
    assert verify(folder, threads=1, on_bytes=lambda _: None).damage == ()
    assert (manifest.world_size, manifest.mesh, len(manifest.parts)) == (ranks, {"dp": ranks}, ranks)
    reader = PartReader(DirectoryStorage(place), step, manifest.parts, lambda _: True)
    assert sorted(reader.metadata().state_dict_metadata) == sorted(
        f"rank-{rank}.{key}" for rank in range(ranks) for key in ("step", "weights")
    )
    return True


def writers(node: VaultNode) -> list[int]:
    """The processes that write for a vault now."""
    assert node.process is not None
    # Its other child is its successor.
    return [pid for pid in children(node.process.pid) if _is_writer(pid)]


def _is_writer(pid: int) -> bool:
    try:
        return b"holdfast_vault.disk" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def left_over(place: Path) -> list[str]:
    """What is there besides steps that are published."""
    return sorted(path.name for path in place.glob("generation-*/*"))


@pytest.fixture
def single(node: Callable[..., VaultNode]) -> VaultNode:
    """The only node of a job of one rank, every third step of which goes to the disk."""
    one = node("one")
    one.assign(ORDER)
    return one


ORDER = order_of("one", world_size=1, persist_every=3)


def test_every_so_many_steps_are_on_the_disk_once_all_nodes_have_written_them(
    node: Callable[..., VaultNode], tmp_path: Path
) -> None:
    place = tmp_path / "checkpoints"
    storage = DirectoryStorage(place)
    one, other = node("one"), node("other")
    told = one.follow()
    for number, each in enumerate((one, other)):
        each.assign(order_of(each.node, node_rank=number, persist_every=3))
    with rank_of(one, 0, place, keep=1) as first, rank_of(other, 1, place, keep=1) as second:
        for step in range(1, 5):
            first.keep(step)
        # One of two nodes has written it: nothing is there yet.
        until("it is written", lambda: bool(list(place.glob("generation-1.job.1/vault-step-00000003/written-by-*"))))
        assert storage.steps() == []
        for step in range(1, 5):
            second.keep(step)
        until("step 3 is there", lambda: has(storage, 3))
        assert is_whole(place, 3, ranks=2)
        until("nobody writes", lambda: not writers(one) + writers(other))
        for step in (5, 6):
            first.keep(step)
            second.keep(step)
        until("step 6 is there, and no older one", lambda: storage.steps() == [6])
        assert is_whole(place, 6, ranks=2)
        until("nobody writes", lambda: not writers(one) + writers(other))
        one.assign(msgspec.structs.replace(order_of("one", persist_every=3), certified_up_to=7))
        for step in (8, 9):
            first.keep(step)
            second.keep(step)
        until("step 9 is there, and the newest certified one", lambda: storage.steps() == [6, 9])
    published = [it for it in (told(), told(), told()) if isinstance(it, Persisted)]
    assert [(it.sealed, it.steps) for it in published] == [(at(3), (3,)), (at(6), (6,)), (at(9), (6, 9))]
    assert left_over(place) == []


def test_training_does_not_wait_for_a_slow_disk_and_what_was_half_written_is_removed(
    single: VaultNode, tmp_path: Path
) -> None:
    place = tmp_path / "checkpoints"
    storage = DirectoryStorage(place)
    with rank_of(single, 0, place, world_size=1) as rank:
        rank.keep(3)
        until("step 3 is there", lambda: has(storage, 3))
    single.kill()
    # So slow that it is not done before it is killed.
    single.start("--persist-bytes-per-s", "1000").assign(ORDER)
    told = single.follow()
    with rank_of(single, 0, place, world_size=1) as rank:
        rank.keep(6)
        until("it is being written", lambda: "vault-step-00000006" in left_over(place))
        for step in range(7, 16):
            rank.keep(step)
        assert [it.step for it in rank.client.steps()][:2] == [15, 14]
        assert single.segments() <= 5
        for step in (9, 12, 15):
            notice = told()
            assert isinstance(notice, NotPersisted)
            assert (notice.sealed, notice.reason) == (at(step), "step 6 is still being written")
        (writer,) = writers(single)
        single.kill()
    until("its writer goes with it", lambda: not Path(f"/proc/{writer}").exists())
    assert storage.steps() == [3]
    assert is_whole(place, 3, ranks=1)
    single.start().assign(ORDER)
    with rank_of(single, 0, place, world_size=1) as rank:
        rank.keep(18)
        until("step 18 is there", lambda: has(storage, 18))
        assert is_whole(place, 18, ranks=1)
        until("nothing is left of step 6", lambda: left_over(place) == [])
    assert sorted(storage.steps()) == [3, 18]


def test_steps_go_where_the_one_says_that_keeps_them(single: VaultNode, tmp_path: Path) -> None:
    told = single.follow()
    with rank_of(single, 0, tmp_path / "run", world_size=1) as keeping:
        # As a script has it that begins with what another run has left.
        with rank_of(single, 0, tmp_path / "base", world_size=1) as restoring:
            assert restoring.client.steps() == ()
        keeping.keep(3)
        notice = told()
    assert isinstance(notice, Persisted), notice
    assert notice.path == str(tmp_path / "run" / "step-00000003")


def test_a_script_that_keeps_other_steps_gets_the_first_one_of_each_turn_to_the_disk(
    single: VaultNode, tmp_path: Path
) -> None:
    """Every third step is due, and the script keeps one in four."""
    told = single.follow()
    with rank_of(single, 0, tmp_path / "run", world_size=1) as rank:
        rank.client.keep_only(None)
        for step in (4, 8):
            rank.keep(step)
            notice = told()
            assert isinstance(notice, Persisted) and notice.sealed == at(step), notice


def test_where_memory_is_short_the_next_step_goes_before_one_that_waits_for_the_disk(
    node: Callable[..., VaultNode], tmp_path: Path
) -> None:
    # Four segments of ten and a half megabytes: what a recovery may need, and the one that is filled.
    one = node("one", "--memory-bytes", "43000000", "--persist-bytes-per-s", "1000")
    one.assign(ORDER)
    told = one.follow()
    with rank_of(one, 0, tmp_path / "checkpoints", world_size=1) as rank:
        for step in range(1, 10):
            rank.keep(step)  # raises, were it not kept
        assert [it.step for it in rank.client.steps()][:2] == [9, 8]
    notice = told()
    assert isinstance(notice, NotPersisted)
    assert (notice.sealed, "memory was needed" in notice.reason) == (at(3), True)


def test_a_writer_that_is_killed_or_a_shard_that_is_damaged_costs_that_step_alone(
    single: VaultNode, tmp_path: Path
) -> None:
    place = tmp_path / "checkpoints"
    storage = DirectoryStorage(place)
    told = single.follow()

    def stopped() -> int:
        (pid,) = until("it is being written", lambda: writers(single))
        os.kill(pid, signal.SIGSTOP)
        return pid

    with rank_of(single, 0, place, world_size=1) as rank:
        rank.keep(3)
        os.kill(stopped(), signal.SIGKILL)
        notice = told()
        assert isinstance(notice, NotPersisted) and notice.sealed == at(3)
        assert "ended with -9" in notice.reason
        until("nobody writes", lambda: not writers(single))
        rank.keep(6)
        writer = stopped()
        single.flip_a_byte(0, 5_000_000)
        os.kill(writer, signal.SIGCONT)
        damage, lost = told(), told()
        assert isinstance(damage, DamageNotice) and isinstance(lost, NotPersisted)
        assert (damage.sealed, lost.sealed, "fail their checksum" in lost.reason) == (at(6), at(6), True)
        rank.keep(9)
        until("step 9 is there", lambda: storage.steps() == [9])
    assert is_whole(place, 9, ranks=1)
    until("nothing else is left", lambda: left_over(place) == [])


def test_a_full_disk_costs_steps_and_is_not_left_full(single: VaultNode, tmp_path: Path) -> None:
    place = tmp_path / "checkpoints"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", place], check=False).returncode:
        pytest.skip("no right to mount a tmpfs")
    try:
        storage = DirectoryStorage(place)
        told = single.follow()
        with rank_of(single, 0, place, world_size=1, keep=1) as rank:
            rank.keep(3)
            assert isinstance(told(), Persisted)
            rank.keep(6)
            notice = told()
            assert isinstance(notice, NotPersisted) and notice.sealed == at(6)
            assert "No space left on device" in notice.reason
            assert (storage.steps(), left_over(place)) == ([3], [])
            assert is_whole(place, 3, ranks=1)
            subprocess.run(["mount", "-o", "remount,size=64m", place], check=True)
            rank.keep(9)
            assert isinstance(told(), Persisted)
            assert storage.steps() == [9]
    finally:
        subprocess.run(["umount", place], check=True)


def test_an_older_generation_writes_nothing_any_more(node: Callable[..., VaultNode], tmp_path: Path) -> None:
    log = tmp_path / "log"
    single = node("one", log=log)
    single.assign(ORDER)
    place = tmp_path / "checkpoints"
    storage = DirectoryStorage(place)
    with rank_of(single, 0, place, world_size=1) as rank:
        rank.keep(3)
        until("step 3 is there", lambda: has(storage, 3))
        until("nobody writes", lambda: not writers(single))
        DirectoryStorage(place, owner=Owner("job", 1, 2)).claim()
        rank.keep(6)
        # Who was to write it may be gone before anybody sees him; what he found stays.
        until("it would be written", lambda: "nothing more is written of this generation" in log.read_text())
        until("nobody writes", lambda: not writers(single))
        assert storage.steps() == [3]
        assert [path.name for path in place.glob("generation-*")] == ["generation-2.job.1"]
        with rank_of(single, 0, place, world_size=1, generation=2) as next_one:
            next_one.keep(6)
            until("the next generation's is there", lambda: has(storage, 6))
    assert whole_manifest(DirectoryFolder(place / "step-00000006")).generation == 2


def test_a_store_of_objects_gets_the_same(bucket: str, node: Callable[..., VaultNode]) -> None:
    place = f"{bucket}/from-vaults"
    one = node("one")
    one.assign(ORDER)
    told = one.follow()
    with rank_of(one, 0, place, world_size=1, keep=1) as rank:
        for step in (3, 6):
            rank.keep(step)
            notice = told()
            assert isinstance(notice, Persisted), notice
            assert (notice.sealed, notice.steps) == (at(step), (step,))
            assert notice.path.startswith(f"{place}/generation-1.job.1/vault-step-0000000{step}.")
        (found,) = open_storage(place).survey()
        assert (found.step, found.state) == (6, StepState.COMPLETE)
        assert verify(found.folder, threads=1, on_bytes=lambda _: None).damage == ()
