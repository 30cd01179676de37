"""The stacks of hosts that wait somewhere in a training step, as py-spy shows them."""

from __future__ import annotations

from typing import Final

from holdfast.events.parts.traces import Frame, ThreadStack

_SITE: Final = "/usr/lib/python3/dist-packages"

_OUTER: Final = {
    "megatron": (
        ("train_step", "megatron/training/training.py", 1391),
        ("train", "megatron/training/training.py", 2213),
        ("pretrain", "megatron/training/training.py", 834),
        ("<module>", "/workspace/pretrain_gpt.py", 301),
    ),
    "fsdp": (
        ("train_step", "/workspace/torchtitan/train.py", 418),
        ("train", "/workspace/torchtitan/train.py", 503),
        ("main", "/workspace/torchtitan/train.py", 561),
        ("<module>", "/workspace/torchtitan/train.py", 590),
    ),
}
_SCHEDULE: Final = (
    "forward_backward_pipelining_without_interleaving",
    "megatron/core/pipeline_parallel/schedules.py",
    2066,
)
_SYNC: Final = ("synchronize", f"{_SITE}/torch/cuda/__init__.py", 1083)


def _p2p(function: str, line: int) -> tuple[tuple[str, str, int], ...]:
    file = "megatron/core/pipeline_parallel/p2p_communication.py"
    return (_SYNC, ("_communicate", file, 412), (function, file, line), _SCHEDULE)


WAITS: Final[dict[str, tuple[tuple[str, str, int], ...]]] = {
    "recv_forward": _p2p("recv_forward", 478),
    "recv_backward": _p2p("recv_backward", 511),
    "send_forward_recv_backward": _p2p("send_forward_recv_backward", 577),
    "experts": (
        ("preprocess", "megatron/core/transformer/moe/token_dispatcher.py", 512),
        ("token_permutation", "megatron/core/transformer/moe/token_dispatcher.py", 588),
        ("forward", "megatron/core/transformer/moe/moe_layer.py", 214),
        _SCHEDULE,
    ),
    "loss": (("loss_parallel", "/workspace/torchtitan/loss.py", 31),),
    "optimizer": (
        ("get_grad_norm_fp32", "megatron/core/optimizer/clip_grads.py", 121),
        ("clip_grad_norm", "megatron/core/optimizer/optimizer.py", 210),
        ("step", "megatron/core/optimizer/optimizer.py", 560),
    ),
    "barrier": (
        ("barrier", f"{_SITE}/torch/distributed/distributed_c10d.py", 4822),
        ("wrapper", f"{_SITE}/torch/distributed/c10d_logger.py", 81),
        ("save_checkpoint", "megatron/training/checkpointing.py", 655),
    ),
}
"""Where the host waits for its device. What `.item()` and `.cpu()` wait for has no frame of its own in Python."""

COMPUTES: Final[dict[str, tuple[tuple[str, str, int], ...]]] = {
    "data": (
        ("__next__", f"{_SITE}/torch/utils/data/dataloader.py", 733),
        ("get_batch", "/workspace/pretrain_gpt.py", 112),
    ),
    "forward": (
        ("linear_with_grad_accumulation", "megatron/core/tensor_parallel/layers.py", 731),
        ("forward", "megatron/core/transformer/mlp.py", 133),
        ("forward_step", "megatron/core/pipeline_parallel/schedules.py", 422),
        _SCHEDULE,
    ),
    "backward": (
        ("_engine_run_backward", f"{_SITE}/torch/autograd/graph.py", 829),
        ("backward", f"{_SITE}/torch/autograd/__init__.py", 354),
        ("backward_step", "megatron/core/pipeline_parallel/schedules.py", 501),
        _SCHEDULE,
    ),
    "experts": (("forward", "megatron/core/transformer/moe/experts.py", 288), _SCHEDULE),
    "optimizer": (("_multi_tensor_adamw", f"{_SITE}/torch/optim/adamw.py", 602),),
    "checkpoint": (("save_checkpoint", "megatron/training/checkpointing.py", 541),),
    "barrier": (("save_checkpoint", "megatron/training/checkpointing.py", 650),),
    "unshard": (("unshard", f"{_SITE}/torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py", 281),),
    "reduce_grads": (("post_backward", f"{_SITE}/torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py", 442),),
    "loss": (("cross_entropy_loss", "/workspace/torchtitan/loss.py", 19),),
}

STUCK: Final[dict[str, tuple[tuple[str, str, int], ...]]] = {
    "user_code": (
        ("wait", "/usr/lib/python3.11/threading.py", 320),
        ("flush", "/workspace/metrics_buffer.py", 77),
        ("record", "/workspace/metrics_buffer.py", 41),
    ),
    "data_loader": (
        ("wait", "/usr/lib/python3.11/multiprocessing/connection.py", 930),
        ("get", "/usr/lib/python3.11/multiprocessing/queues.py", 113),
        ("_try_get_data", f"{_SITE}/torch/utils/data/dataloader.py", 1295),
        ("_get_data", f"{_SITE}/torch/utils/data/dataloader.py", 1454),
        ("_next_data", f"{_SITE}/torch/utils/data/dataloader.py", 1491),
        ("__next__", f"{_SITE}/torch/utils/data/dataloader.py", 733),
        ("get_batch", "/workspace/pretrain_gpt.py", 112),
    ),
    "checkpoint": (
        ("__exit__", f"{_SITE}/torch/serialization.py", 785),
        ("save", f"{_SITE}/torch/serialization.py", 967),
        ("save_checkpoint", "megatron/training/checkpointing.py", 612),
    ),
}

LOADER_WAITS: Final = (
    ("poll", "/usr/lib/python3.11/multiprocessing/connection.py", 257),
    ("get", "/usr/lib/python3.11/multiprocessing/queues.py", 113),
    ("_worker_loop", f"{_SITE}/torch/utils/data/_utils/worker.py", 298),
)
LOADER_STUCK: Final = (
    ("read_sample", "/workspace/dataset.py", 58),
    ("__getitem__", "/workspace/dataset.py", 41),
    ("fetch", f"{_SITE}/torch/utils/data/_utils/fetch.py", 54),
    ("_worker_loop", f"{_SITE}/torch/utils/data/_utils/worker.py", 351),
)

_MADE: dict[tuple[object, ...], ThreadStack] = {}


def thread(calls: tuple[tuple[str, str, int], ...], style: str = "") -> ThreadStack:
    """The main thread with these calls, innermost first, and below them those of its framework."""
    key = (calls, style)
    if key not in _MADE:
        frames = tuple(Frame(function=f, file=file, line=line) for f, file, line in (*calls, *_OUTER.get(style, ())))
        _MADE[key] = ThreadStack(frames=frames, name="MainThread", is_main=True)
    return _MADE[key]
