"""Memory of the vault, mapped and pinned by a rank."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from holdfast.trainer.device import landings
from holdfast.trainer.device.adapters import NotRegistered
from holdfast.trainer.device.landings import Landing, Landings

NBYTES = 3 * 4096
STREAM: Any = object()


class Driver:
    """Pins up to `most` pieces of memory."""

    can_register = True

    def __init__(self, most: int = 100) -> None:
        self.pinned: dict[int, int] = {}
        self._most = most

    def register(self, address: int, nbytes: int) -> None:
        if len(self.pinned) == self._most:
            raise NotRegistered("no more")
        self.pinned[address] = nbytes

    def unregister(self, address: int) -> None:
        del self.pinned[address]

    def is_capturing(self) -> bool:
        return False


@pytest.fixture
def segment() -> Iterator[int]:
    descriptor = os.memfd_create("segment")
    os.ftruncate(descriptor, NBYTES)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, object]]:
    """The streams that threads choose, with the threads' names: this machine may have no accelerator."""
    chosen: list[tuple[str, object]] = []
    monkeypatch.setattr(
        torch.accelerator, "set_stream", lambda stream: chosen.append((threading.current_thread().name, stream))
    )
    return chosen


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landings, "PIECE_BYTES", 4096)


def landing(segment: int) -> Landing:
    return Landing(os.fstat(segment).st_ino, segment, NBYTES)


def test_a_segment_is_mapped_once_however_often_the_vault_hands_it_out(segment: int) -> None:
    known = Landings(Driver())
    first = known.of(os.dup(segment), NBYTES)
    assert known.of(os.dup(segment), NBYTES) is first
    assert known.of(os.dup(segment), NBYTES - 1) is not first  # the tensors are others by now
    first.data[7] = 9
    assert os.pread(segment, 8, 0)[7] == 9


def test_each_piece_is_pinned_and_together_they_are_all_of_it(segment: int) -> None:
    driver, it = Driver(), landing(segment)
    it.pin(driver)
    base = it.data.data_ptr()
    assert it.is_pinned and driver.pinned == {base: 4096, base + 4096: 4096, base + 8192: 4096}
    it.unpin(driver)
    assert not it.is_pinned and not driver.pinned


def test_what_cannot_be_pinned_whole_is_not_pinned_at_all(segment: int) -> None:
    driver, it = Driver(most=2), landing(segment)
    with pytest.raises(NotRegistered):
        it.pin(driver)
    assert not it.is_pinned and not driver.pinned


def test_what_the_vault_has_no_more_is_given_back(segment: int) -> None:
    driver = Driver()
    known = Landings(driver)
    it = known.of(os.dup(segment), NBYTES)
    it.pin(driver)
    known.keep_only([it.file, 1])
    assert it.is_pinned
    known.keep_only([1])
    assert not driver.pinned and known.of(os.dup(segment), NBYTES) is not it


def test_a_driver_that_refuses_once_is_not_asked_again(segment: int, streams: list[tuple[str, object]]) -> None:
    driver = Driver(most=0)
    known = Landings(driver)
    it = known.of(os.dup(segment), NBYTES)
    known.pin_later(it, STREAM)
    known.close()  # waits for it
    driver._most = 100
    known.pin_later(known.of(os.dup(segment), NBYTES), STREAM)
    known.close()
    assert not driver.pinned and not it.is_pinned


def test_the_thread_that_pins_uses_the_ranks_device(segment: int, streams: list[tuple[str, object]]) -> None:
    class Asked(Driver):
        def register(self, address: int, nbytes: int) -> None:
            chosen.append([stream for thread, stream in streams if thread == threading.current_thread().name])
            super().register(address, nbytes)

    chosen: list[list[object]] = []
    known = Landings(Asked())
    known.pin_later(known.of(os.dup(segment), NBYTES), STREAM)
    known.close()
    assert chosen == [[STREAM]] * 3


def test_pinned_memory_stays_mapped_though_nobody_holds_it(segment: int) -> None:
    driver = Driver()
    landing(segment).pin(driver)
    address = next(iter(driver.pinned))
    with open("/proc/self/maps") as maps:
        assert any(int(line.split("-")[0], 16) <= address < int(line.split()[0].split("-")[1], 16) for line in maps)
    for it in list(landings._pinned):
        it.unpin(driver)
