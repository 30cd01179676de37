"""When a state is laid out anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from holdfast.trainer.device.lay_out import LayoutKey, key_of
from holdfast.trainer.vault_client.shard_layout import take_apart

SMALL_BYTES = 64


def key(state: dict[str, Any]) -> LayoutKey:
    leaves, _ = take_apart(state)
    return key_of(leaves, False, SMALL_BYTES)


def keys(*tensors: Sequence[torch.Tensor]) -> list[LayoutKey]:
    return [key({"tensors": list(each)}) for each in tensors]


def test_what_is_copied_within_the_call_may_lie_elsewhere_in_each_step() -> None:
    one, other = torch.get_rng_state(), torch.get_rng_state()
    assert one.data_ptr() != other.data_ptr()
    first, second = keys([one], [other])
    assert first == second


def test_a_layout_is_another_for_other_tensors_and_for_memory_that_is_shared() -> None:
    a, b = torch.zeros(4), torch.zeros(4)
    assert len(set(keys([a, b], [a, a], [a], [a, b.bool()], [a, b.view(2, 2)], [a, b, a], [a, b, b]))) == 7


def test_large_tensors_of_a_device_are_copied_from_where_they_lay() -> None:
    def of(numel: int) -> list[LayoutKey]:
        return keys([_Elsewhere(numel, 1)], [_Elsewhere(numel, 2)])

    large, small = of(SMALL_BYTES), of(SMALL_BYTES - 1)
    assert large[0] != large[1] and small[0] == small[1]
    assert key({"tensors": [torch.zeros(SMALL_BYTES - 1, dtype=torch.uint8)]}) != small[0]


class _Elsewhere(torch.Tensor):
    """Bytes on a device that this machine need not have, at an address."""

    @staticmethod
    def __new__(cls, numel: int, address: int) -> _Elsewhere:
        made = torch.Tensor._make_subclass(cls, torch.zeros(numel, dtype=torch.uint8))
        made.address = address
        return made

    address: int

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("meta")

    def data_ptr(self) -> int:
        return self.address
