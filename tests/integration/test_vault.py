"""A real vault in a process of its own, and ranks that save, die and come back."""

from __future__ import annotations

import errno
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import vault_nodes
from vault_nodes import VaultNode

from holdfast.node.frames import WireError
from holdfast.node.vault import userfaultfd
from holdfast.node.vault.messages import SealedStep, ShardName
from holdfast.node.vault.seals import BrokenSeal
from holdfast.trainer.vault_client import client as memory
from holdfast.trainer.vault_client.client import MemoryRefused, VaultClient
from tests.warm_python import WarmHoldfast, run_warm

pytestmark = pytest.mark.integration

node = vault_nodes.node
NAME = ShardName(job="job", submitted_ms=1, world_size=8, rank=3)
RANK = Path(__file__).with_name("vault_rank.py")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    reading, writing = os.pipe()
    command = (sys.executable, "-m", "holdfast_vault", "--state-dir", str(tmp_path), "--ready-fd", str(writing))
    process = WarmHoldfast(command, pass_fds=[writing])
    os.close(writing)
    os.read(reading, 1)
    os.close(reading)
    yield tmp_path
    process.terminate()
    assert process.wait(30) == 0


@contextmanager
def client(directory: Path, generation: int = 1, name: ShardName = NAME) -> Iterator[VaultClient]:
    it = VaultClient(directory, name, generation)
    yield it
    it.close()


def state(value: float) -> dict[str, Any]:
    """Large and small tensors, several types, one that is not contiguous, a scalar, an empty one, and other values."""
    return {
        "model": {
            "large": torch.full((3, 700_001), value),
            "half": torch.full((1_100_000,), value, dtype=torch.bfloat16),
            "small": torch.full((17,), value),
            "turned": torch.full((5, 7), value).t(),
            "scalar": torch.tensor(value),
            "none": torch.empty(0, 4),
        },
        "optimizer": {"state": [{"step": 5, "moment": torch.full((400_000,), -value)}], "lr": 0.1},
        "loader": {"epoch": 2, "order": (1, 2, 3)},
    }


def is_state(found: dict[str, Any], value: float) -> bool:
    expected = state(value)
    tensors = [(found["model"][name], tensor) for name, tensor in expected["model"].items()]
    tensors.append((found["optimizer"]["state"][0]["moment"], expected["optimizer"]["state"][0]["moment"]))
    others = found["loader"] == expected["loader"] and found["optimizer"]["lr"] == 0.1
    return others and all(a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b) for a, b in tensors)


def at(step: int, generation: int = 1) -> SealedStep:
    return SealedStep(step=step, generation=generation)


def overwrite(values: dict[str, Any], value: float) -> None:
    for tensor in (*values["model"].values(), values["optimizer"]["state"][0]["moment"]):
        tensor.fill_(value)


@pytest.mark.parametrize("protects", [True, False])
def test_what_is_changed_right_after_a_save_is_never_in_it(
    directory: Path, protects: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not protects:
        monkeypatch.setattr(memory.userfaultfd, "open_descriptor", _refused)
    with client(directory) as rank:
        values = state(0.0)
        for step in range(1, 8):
            now = float(step)
            overwrite(values, now)
            values["optimizer"]["state"][0]["moment"].fill_(-now)
            rank.save(step, values)
            overwrite(values, 777.0)
            assert is_state(rank.restore(at(step)), now)
            assert rank.protects is (protects and _kernel_protects())
        assert (rank.writers_waited_s > 0) is rank.protects


@pytest.mark.parametrize("marks_absent", [True, False])
def test_pages_without_memory_are_protected_as_well(
    directory: Path, marks_absent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages that nobody has written to yet, and such as were given back since the save before."""
    if not marks_absent:
        monkeypatch.setattr(memory.userfaultfd, "marks_absent_pages", lambda: False)
    elif not (_kernel_protects() and userfaultfd.marks_absent_pages()):
        pytest.skip("this kernel protects no absent pages")
    pages = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    weights = torch.frombuffer(pages, dtype=torch.uint8)
    with client(directory) as rank:
        for step in (1, 2, 3):
            rank.save(step, {"weights": weights})
            weights.fill_(7)
            assert not rank.restore(at(step))["weights"].any()
            pages.madvise(mmap.MADV_DONTNEED)


def _refused() -> int:
    raise userfaultfd.NotSupported("not in this test")


def _kernel_protects() -> bool:
    try:
        os.close(userfaultfd.open_descriptor())
    except userfaultfd.NotSupported:
        return False
    return True


def test_the_last_three_steps_and_the_first_are_kept_and_the_state_outlives_its_process(directory: Path) -> None:
    rank = run_warm([sys.executable, RANK, directory, "5"], check=False)
    assert rank.returncode == -9, rank.stderr
    with client(directory, generation=2) as again:
        assert list(again.steps()) == [at(5), at(4), at(3), at(1)]
        for step in (1, 3, 4, 5):
            found = again.restore(at(step))
            assert torch.equal(found["weights"], torch.full((2_000_000,), float(step)))
        # The views are this process's own: what it does to them is not done to what is kept.
        found["weights"].fill_(-1)
        assert torch.equal(again.restore(at(5))["weights"], torch.full((2_000_000,), 5.0))


def test_a_generation_that_goes_back_keeps_what_it_goes_on_from(directory: Path) -> None:
    with client(directory, generation=1) as first:
        for step in (9, 10, 11):
            first.save(step, state(float(step)))
    with client(directory, generation=2) as second:
        second.keep_only(at(10))
        # The first one stays until bad numbers would lead elsewhere (vault/pins.py), as it lies behind the job.
        assert list(second.steps()) == [at(10), at(9)]
        second.save(11, state(111.0))
        assert list(second.steps()) == [at(11, 2), at(10), at(9)]
        assert is_state(second.restore(at(11, 2)), 111.0)
        assert is_state(second.restore(at(10)), 10.0)
        second.keep_only(None)
        assert second.steps() == ()


def test_tensors_may_move_between_saves(directory: Path) -> None:
    with client(directory) as rank:
        for step in range(1, 6):
            values = state(float(step))
            rank.save(step, values)
            del values
            assert is_state(rank.restore(at(step)), float(step))
        grown = {"weights": torch.arange(5_000_000)}
        rank.save(6, grown)
        assert torch.equal(rank.restore(at(6))["weights"], torch.arange(5_000_000))
        assert is_state(rank.restore(at(5)), 5.0)


def test_memory_is_not_given_back_while_it_is_copied(directory: Path) -> None:
    with client(directory) as rank:
        for step in range(1, 5):
            weights = torch.full((8_000_000,), float(step))
            rank.save(step, {"weights": weights})
            # The kernel gives the next mapping the place of the last one that it took back.
            weights.data = torch.empty(0)
            others = torch.full((8_000_000,), 777.0)
            assert rank.restore(at(step))["weights"].eq(step).all()
            del others


def test_the_room_for_small_tensors_grows_while_it_is_copied(directory: Path) -> None:
    states = {step: [torch.full((200_000,), float(step)) for _ in range(40 + step)] for step in (1, 2, 3)}
    with client(directory) as rank:
        for step, small in states.items():
            rank.save(step, {"small": small})
        for step in states:
            assert all(it.eq(step).all() for it in rank.restore(at(step))["small"])


class Loader:
    """A class of the script's own, which a later version of it may not have."""


def test_what_this_code_cannot_read_or_map_is_refused_and_stays(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client(directory) as rank:
        rank.save(1, {"weights": torch.ones(10), "loader": Loader()})
        with monkeypatch.context() as later:
            later.delattr(sys.modules[__name__], "Loader")
            with pytest.raises(MemoryRefused, match=r"step 1 of rank 3 cannot be read by this code: .*'Loader'"):
                rank.restore(at(1))
        with monkeypatch.context() as short:
            short.setattr(memory, "map_file", _no_memory)
            with pytest.raises(MemoryRefused, match="step 1 of rank 3 cannot be mapped: Cannot allocate memory"):
                rank.restore(at(1))
        assert isinstance(rank.restore(at(1))["loader"], Loader)


def _no_memory(*_: object, **__: object) -> None:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


@pytest.mark.parametrize("is_restarted", [True, False])
def test_a_flipped_bit_is_found(node: Callable[..., VaultNode], is_restarted: bool) -> None:
    it = node("a")
    with it.rank() as rank:
        rank.save(1, state(1.0))
        assert is_state(rank.restore(at(1)), 1.0)
        it.flip_a_byte(0, 5_000_000)
        if not is_restarted:
            with pytest.raises(BrokenSeal, match="step 1 of rank 0: bytes 4194304 to 8388608"):
                rank.restore(at(1))
    if is_restarted:
        # Looked at since the last one ended: what was found serves this one.
        with it.rank() as again, pytest.raises(BrokenSeal, match="step 1 of rank 0: bytes 4194304 to 8388608"):
            again.restore(at(1))


def test_ranks_and_jobs_do_not_see_each_others_shards(directory: Path) -> None:
    with client(directory) as rank:
        rank.save(1, state(1.0))
    for other in (
        ShardName(job="job", submitted_ms=1, world_size=8, rank=4),
        ShardName(job="job", submitted_ms=2, world_size=8, rank=3),
        ShardName(job="other", submitted_ms=1, world_size=8, rank=3),
    ):
        with client(directory, name=other) as stranger:
            assert stranger.steps() == ()
            with pytest.raises(MemoryRefused, match="not sealed here"):
                stranger.restore(at(1))


def test_nobody_can_have_another_process_read(directory: Path) -> None:
    with client(directory) as rank, pytest.raises(MemoryRefused, match="is not the one that asks"):
        rank._ask(memory.Join(name=NAME, generation=1, pid=1))


def test_a_vault_that_is_stopped_as_soon_as_it_is_ready_ends_in_order(directory: Path) -> None:
    """The fixture stops it, and checks the exit code: a thread of a library may not take the signal."""
    assert directory.is_dir()


def test_a_client_that_its_script_lets_go_closes_its_connection(directory: Path) -> None:
    it = VaultClient(directory, NAME, 1)
    link = it._link
    del it
    assert link.fileno() == -1


def test_without_a_vault_the_reason_is_said(tmp_path: Path) -> None:
    with pytest.raises(WireError, match="no vault answers in"):
        VaultClient(tmp_path, NAME, 1)
