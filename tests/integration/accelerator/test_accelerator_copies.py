"""Copies between host and simulated accelerator: pinned, registered and pageable memory, the link and its slices."""

from __future__ import annotations

import pytest

from tests.accelerator.children import Accelerators, on_accelerator
from tests.integration.accelerator import copy_work

pytestmark = on_accelerator


@pytest.mark.parametrize("kind", ["pinned", "registered", "pageable"])
def test_a_copy_runs_beside_the_host_where_the_device_reaches_its_memory(accelerators: Accelerators, kind: str) -> None:
    assert accelerators.call(copy_work.beside_the_host, kind) == (kind != "pageable", True)


def test_pinned_memory_is_read_when_the_copy_runs(accelerators: Accelerators) -> None:
    assert accelerators.call(copy_work.source_changed_while_copied) == [2, 1]


def test_pinned_memory_is_not_had_again_before_its_copy(accelerators: Accelerators) -> None:
    assert accelerators.call(copy_work.pinned_memory_had_again) == (False, True)


def test_a_registered_memfd_has_the_copy_for_all_who_map_it(accelerators: Accelerators) -> None:
    shared, overlapping, pinned, unknown, read_only = accelerators.call(copy_work.into_memory_of_another_mapping)
    assert shared is True
    assert "already registered" in str(overlapping)
    assert pinned is False
    assert "not registered" in str(unknown)
    assert "not mapped for writing" in str(read_only)


def test_a_copy_into_memory_that_was_unregistered_meanwhile_is_an_error(accelerators: Accelerators) -> None:
    assert "unregistered while a copy used it" in accelerators.call(copy_work.unregistered_while_copied)


def test_the_link_has_its_speed_in_each_direction_and_streams_share_it(accelerators: Accelerators) -> None:
    def seconds(streams: int, both_ways: bool) -> float:
        return accelerators.call(copy_work.seconds_over_the_link, streams, both_ways)

    assert seconds(1, both_ways=False) >= 0.1
    assert seconds(2, both_ways=False) >= 0.2
    # Never, if both directions were one link; a busy machine only needs more attempts.
    assert any(seconds(2, both_ways=True) < 0.2 for _ in range(10))


def test_a_copy_can_be_torn_between_slices(accelerators: Accelerators) -> None:
    assert accelerators.call(copy_work.torn_in_the_middle)
