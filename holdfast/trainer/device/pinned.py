"""Memory of the host that a device writes to by itself: write protection of the host's pages does not see that."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import torch

from holdfast.trainer.device import gate


def written_by_device(tensors: Mapping[Hashable, torch.Tensor]) -> list[Hashable]:
    """Return the keys of the tensors on the host that a device may write to: they are pinned, and no optimizer that has
    stepped has them. An optimizer changes them by the host.
    """
    pinned = {key: tensor for key, tensor in tensors.items() if tensor.is_pinned()}
    owned = gate.owned_by(gate.seen()) if pinned else ()
    return [key for key, it in pinned.items() if gate.owner_of(it.data_ptr(), it.nbytes, owned) is None]
