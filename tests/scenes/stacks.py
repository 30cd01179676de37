"""Stacks of jobs as they stand in a hang, made of what Megatron-like programs call."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.events.parts.traces import Frame, ProcessStacks, ThreadStack
from holdfast.topology import Mesh

Calls = tuple[tuple[str, str, int], ...]

C10D = "torch/distributed/distributed_c10d.py"
P2P = "megatron/core/pipeline_parallel/p2p_communication.py"
SCHEDULES = "megatron/core/pipeline_parallel/schedules.py"
MAIN: Calls = (
    ("train_step", "megatron/training/training.py", 700),
    ("train", "megatron/training/training.py", 1200),
    ("<module>", "pretrain_gpt.py", 300),
)
SCHEDULE: Calls = (("forward_backward_pipelining_without_interleaving", SCHEDULES, 1450), *MAIN)

GRAD_SYNC: Calls = (
    ("reduce_scatter_tensor", C10D, 4180),
    ("start_grad_sync", "megatron/core/distributed/param_and_grad_buffer.py", 220),
    ("finalize_model_grads", "megatron/core/distributed/finalize_model_grads.py", 90),
    *MAIN,
)
EMBEDDING: Calls = (
    ("all_reduce", C10D, 2800),
    ("_allreduce_word_embedding_grads", "megatron/core/distributed/finalize_model_grads.py", 60),
    ("finalize_model_grads", "megatron/core/distributed/finalize_model_grads.py", 100),
    *MAIN,
)
TP_GATHER: Calls = (
    ("all_gather_into_tensor", C10D, 3700),
    ("_gather_along_first_dim", "megatron/core/tensor_parallel/mappings.py", 120),
    ("backward_step", SCHEDULES, 360),
    *SCHEDULE,
)
ISEND: Calls = (("isend", C10D, 2300), ("_p2p_ops", P2P, 160), ("send_backward", P2P, 420), *SCHEDULE)
IRECV: Calls = (("irecv", C10D, 2350), ("_p2p_ops", P2P, 140), ("recv_backward", P2P, 380), *SCHEDULE)
RECV_FORWARD: Calls = (("irecv", C10D, 2350), ("_p2p_ops", P2P, 140), ("recv_forward", P2P, 350), *SCHEDULE)
ALL_TO_ALL: Calls = (
    ("all_to_all_single", C10D, 4400),
    ("all_to_all", "megatron/core/tensor_parallel/mappings.py", 400),
    ("token_dispatch", "megatron/core/transformer/moe/token_dispatcher.py", 500),
    ("forward_step", SCHEDULES, 250),
    *SCHEDULE,
)
BARRIER: Calls = (
    ("barrier", C10D, 4700),
    ("save_checkpoint_and_time", "megatron/training/training.py", 1000),
    *MAIN[1:],
)
WRITES: Calls = (
    ("_save", "torch/serialization.py", 850),
    ("save_checkpoint", "megatron/training/checkpointing.py", 450),
    ("save_checkpoint_and_time", "megatron/training/training.py", 1000),
    *MAIN[1:],
)
EVALUATE: Calls = (("evaluate", "megatron/training/training.py", 2400), *MAIN[1:])
SEND_FORWARD: Calls = (("isend", C10D, 2300), ("_p2p_ops", P2P, 150), ("send_forward", P2P, 400), *EVALUATE)
RECV_IN_EVALUATION: Calls = (("irecv", C10D, 2350), ("_p2p_ops", P2P, 140), ("recv_forward", P2P, 350), *EVALUATE)
SUM_OF_LOSSES: Calls = (
    ("all_reduce", C10D, 2800),
    ("average_losses_across_data_parallel_group", "utils.py", 80),
    *EVALUATE,
)
NEXT_BATCH: Calls = (("broadcast", C10D, 2700), ("broadcast_data", "tensor_parallel/data.py", 90), *EVALUATE)
END_OF_EVALUATION: Calls = (("barrier", C10D, 4700), *EVALUATE)
FORWARD: Calls = (("forward", "megatron/core/transformer/mlp.py", 90), ("forward_step", SCHEDULES, 250), *SCHEDULE)
DEADLOCK: Calls = (("_guarded", "my_job/hooks.py", 12), ("on_step_end", "my_job/hooks.py", 30), *MAIN)
DATA: Calls = (
    ("wait", "threading.py", 320),
    ("get", "multiprocessing/queues.py", 103),
    ("_try_get_data", "torch/utils/data/dataloader.py", 1130),
    ("_next_data", "torch/utils/data/dataloader.py", 1320),
    ("get_batch", "pretrain_gpt.py", 80),
    *MAIN,
)
LOADER_IDLE: Calls = (
    ("poll", "multiprocessing/connection.py", 257),
    ("get", "multiprocessing/queues.py", 113),
    ("_worker_loop", "torch/utils/data/_utils/worker.py", 275),
)
LOADER_READS: Calls = (
    ("read_shard", "my_job/dataset.py", 44),
    ("__getitem__", "my_job/dataset.py", 20),
    ("fetch", "torch/utils/data/_utils/fetch.py", 51),
    ("_worker_loop", "torch/utils/data/_utils/worker.py", 309),
)


def frames(calls: Calls) -> tuple[Frame, ...]:
    return tuple(Frame(function=function, file=file, line=line) for function, file, line in calls)


def process(rank: int | None, calls: Calls, **fields: object) -> ProcessStacks:
    main = ThreadStack(frames=frames(calls), name="MainThread", is_main=True)
    return ProcessStacks(rank=rank, pid=1000 + (rank or 0), threads=(main,), **fields)  # type: ignore[arg-type]


def job(mesh: Mesh, at: Callable[[dict[str, int]], Calls]) -> list[ProcessStacks]:
    """A process for each rank, with the calls that `at` gives for its coordinates."""
    return [process(rank, at(mesh.coordinates(rank))) for rank in range(mesh.world_size)]
