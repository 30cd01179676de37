"""Training whose ranks each hold a part of the model: FSDP2 and tensor parallelism, both of DTensors.

Each rank keeps its own parts, and gets them back in the place where it had them, without communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from holdfast.trainer.checkpoint.errors import CheckpointMismatch
from holdfast.trainer.checkpoint.layout.dtensors import DPart, laid_out, part_over, spread_of

FSDP1 = "FullyShardedDataParallel"
FSDP1_REASON = (
    "its model is wrapped by FullyShardedDataParallel (FSDP1), which gathers its parameters to show them. FSDP2 "
    "(`fully_shard`) is kept"
)


def is_sharded(model: Any) -> bool:
    """Return True if this rank holds parts of the parameters. After a forward FSDP2 has them whole until this call."""
    return any(isinstance(tensor, DTensor) for tensor in model.state_dict().values())


def is_fsdp1(model: Any) -> bool:
    return any(FSDP1 in (kind.__name__ for kind in type(module).__mro__) for module in model.modules())


def load_model(model: Any, kept: dict[str, Any]) -> None:
    """Load a kept state dict into a model whose parts lie as they did."""
    live = {"model": model.state_dict()}
    model.load_state_dict(laid_out({"model": kept}, live)["model"])


def placed_as(models: Sequence[Any], value: Any) -> Any:
    """Return the same with its parts made DTensors again, such as moments, which lie as parameters of the models do."""
    tensors = (tensor for model in models for tensor in model.state_dict().values() if isinstance(tensor, DTensor))
    examples = {spread_of(tensor).over: tensor for tensor in tensors}

    def placed(part: DPart) -> DTensor:
        example = examples.get(part.spread.over)
        if example is None:
            raise CheckpointMismatch(f"a part was kept as {part.spread}: nothing of this model lies so now")
        return part_over(example, part)

    return tree_map_only(DPart, placed, value)
