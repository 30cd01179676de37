"""Tensors whose elements do not lie in memory one by one: a step with one is refused, and the reason names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

from holdfast.trainer.vault_client.shard_layout import NotKeepable, take_apart


class Wrapped(torch.Tensor):
    """A tensor that stands for another one, as those of quantization libraries do."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapped:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
        made.inner = inner
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*tree_map(lambda it: it.inner if isinstance(it, Wrapped) else it, args), **(kwargs or {}))


REFUSED: dict[str, Callable[[], torch.Tensor]] = {
    "layout sparse_coo": lambda: torch.eye(4).to_sparse(),
    "layout sparse_csr": lambda: torch.eye(4).to_sparse_csr(),
    "layout nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "layout _mkldnn": lambda: torch.ones(4).to_mkldnn(),
    "device meta": lambda: torch.ones(4, device="meta"),
    "a quantized tensor": lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8),
    "no shape yet": lambda: torch.nn.LazyLinear(3).weight,
    "a Wrapped, which has no memory": lambda: Wrapped(torch.ones(4)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_by_name(what: str) -> None:
    with pytest.raises(NotKeepable, match=rf"^model\.weight is .*{what}.* take it out of the state$"):
        take_apart({"model": {"weight": REFUSED[what]()}})


def test_what_has_memory_is_not() -> None:
    class Own(torch.Tensor): ...

    like = torch.arange(12.0).view(3, 4)
    tensors = [like.t(), like[:0], like.expand(2, 3, 4), like.as_subclass(Own), torch.nn.Parameter(like), like.bool()]
    leaves, _ = take_apart({"list": [*tensors, torch.view_as_complex(like.view(3, 2, 2)).conj()]})
    assert len(leaves) == 7
