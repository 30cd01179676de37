"""Activity of a process, by its stack: waiting for others, or busy with something else. Pure.

A collective never calls back into the program, so a process with a collective anywhere on its stack waits in it. The
other signs count only near the innermost call.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from holdfast.engines.hang.stacks.frames import Call, Stack

Doing = Literal["others", "own", "unclear"]
"""Waits for other ranks or for the device; busy with its own work; unclear from the stack."""


class Activity(msgspec.Struct, frozen=True):
    """`what` in words, such as `all_reduce`, `isend`, `the device`, `its data`; "" if `doing` is unclear."""

    doing: Doing
    what: str = ""
    is_backward: bool = False
    is_p2p: bool = False


UNCLEAR = Activity("unclear")
ON_DEVICE = Activity("others", "the device")
_BACKWARD = Activity("unclear", "backward", is_backward=True)

_NEAR_CALLS = 4

_COLLECTIVES = frozenset(
    [
        "all_reduce",
        "allreduce",
        "all_reduce_coalesced",
        "all_gather",
        "allgather",
        "all_gather_into_tensor",
        "_all_gather_base",
        "all_gather_coalesced",
        "all_gather_object",
        "all_gather_v",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "_reduce_scatter_base",
        "reduce_scatter_coalesced",
        "all_to_all",
        "all_to_all_single",
        "broadcast_object_list",
        "broadcast_coalesced",
        "gather_object",
        "scatter_object_list",
        "monitored_barrier",
        "_store_based_barrier",
        "init_process_group",
        "_new_process_group_helper",
        "new_group",
        "split_group",
        "new_subgroups",
        "store_based_barrier",
        "allgather_fn",
        "reduce_scatter_fn",
        "all_to_all_single_autograd",
        "wait_tensor",
    ]
)
_COLLECTIVES_OF_LIBRARIES = frozenset(
    ["barrier", "broadcast", "reduce", "gather", "scatter", "wait", "rendezvous", "synchronize"]
)
_P2P = frozenset(
    [
        "isend",
        "irecv",
        "batch_isend_irecv",
        "send_object_list",
        "recv_object_list",
        "_communicate",
        "_p2p_ops",
        "_batched_p2p_ops",
        "_communicate_shapes",
        "recv_forward",
        "recv_backward",
        "send_forward",
        "send_backward",
        "send_forward_recv_backward",
        "send_backward_recv_forward",
        "send_forward_recv_forward",
        "send_backward_recv_backward",
        "send_forward_backward_recv_forward_backward",
        "_wait_batch_p2p",
        "p2p_communicate",
    ]
)
_P2P_OF_LIBRARIES = frozenset(["send", "recv"])
_COMMUNICATES = re.compile(r"(?:^|/)(?:torch/distributed/|deepspeed/(?:comm|runtime/comm)/|torch_npu/distributed/)")
_COMMUNICATES_IN = re.compile(r"(?:distributed_c10d|_functional_collectives|p2p_communication|process_group\w*)\.py$")
_RUNS_CALLERS_CODE = re.compile(
    r"torch/distributed/(?:checkpoint|elastic|run|launch|_shard/checkpoint)|distributed/utils\.py$"
)
_NAMED_LIKE_COLLECTIVE = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|barrier|(?:^|_)finalize_model_grads"
    r"|grad(?:ient)?s?_(?:sync|reduc)|(?:sync|reduc)\w*_grad"
)
_NAMED_LIKE_P2P = re.compile(
    r"(?:^|_)(?:isend|irecv|p2p)(?:_|$)|(?:^|_)(?:send|recv)_(?:forward|backward|tensor|activation)"
)
_READS_DEVICE = re.compile(r"grad_norm|found_inf|has_inf_or_nan|(?:^|_)unscale_?(?:$|grads)")
"""Functions whose next step needs a number that the device computes with a collective."""

_PIPELINE_FILES = re.compile(r"^p2p(?:_communication)?\.py$")

_DEVICE = {
    ("synchronize", "cuda/__init__.py"),
    ("synchronize", "npu/__init__.py"),
    ("synchronize", "streams.py"),
    ("wait_stream", "streams.py"),
    ("wait_event", "streams.py"),
}
_LOCKS = {
    ("wait", "threading.py"),
    ("acquire", "threading.py"),
    ("__enter__", "threading.py"),
    ("join", "threading.py"),
    ("_wait_for_tstate_lock", "threading.py"),
    ("result", "_base.py"),
    ("get", "queue.py"),
    ("put", "queue.py"),
    ("get", "queues.py"),
    ("join", "process.py"),
    ("acquire", "filelock.py"),
    ("acquire", "_api.py"),
}
_FILES = {
    ("select", "selectors.py"): "a socket or pipe",
    ("recv_into", "socket.py"): "a socket",
    ("readinto", "socket.py"): "a socket",
    ("create_connection", "socket.py"): "a socket",
    ("read", "ssl.py"): "a socket",
    ("_recv", "connection.py"): "a pipe",
    ("_communicate", "subprocess.py"): "a child process",
    ("communicate", "subprocess.py"): "a child process",
    ("_try_wait", "subprocess.py"): "a child process",
    ("_wait", "subprocess.py"): "a child process",
    ("wait", "popen_fork.py"): "a child process",
    ("poll", "popen_fork.py"): "a child process",
    ("interaction", "pdb.py"): "a debugger",
    ("cmdloop", "cmd.py"): "a debugger",
    ("emit", "logging/__init__.py"): "its log",
    ("flush", "logging/__init__.py"): "its log",
    ("_shutdown", "threading.py"): "its end",
    ("_exit_function", "util.py"): "its end",
}
_DATA = re.compile(
    r"(?:^|/)torch/utils/data/|(?:^|/)(?:dataloader|data_?loaders?)\.py$|(?:^|/)(?:webdataset|torchdata|streaming/base)/"
)
_DATA_CALLS = frozenset(["_next_data", "_try_get_data", "_process_next_batch", "load_batch", "next_batch"])
_CHECKPOINT = re.compile(
    r"(?:^|/)torch/serialization\.py$|(?:^|/)torch/distributed/checkpoint/|dist_checkpointing/|(?:^|/)safetensors/"
)
_CHECKPOINT_CALLS = re.compile(
    r"(?:save|load|write|persist|upload|finalize)\w*_(?:checkpoint|ckpt)|^(?:save|load)_state_dict$"
)
_CHECKPOINT_FILES = re.compile(r"(?:checkpoint|ckpt)\w*\.py$")
_MOVES = re.compile(r"save|load|write|persist|upload|finalize|flush|commit")
_RECOMPUTES = re.compile(r"(?:^|/)(?:torch/utils/checkpoint|tensor_parallel/random|activation_checkpointing/)")
_COMPILES = re.compile(
    r"(?:^|/)(?:torch/_inductor/(?:graph|scheduler|codecache|codegen|async_compile|lowering|ir)\b"
    r"|triton/(?:compiler|backends|runtime/build)|torch/_dynamo/(?:convert_frame|symbolic_convert|output_graph)"
    r"|torch/utils/cpp_extension)"
)

_NATIVE_OTHERS = re.compile(
    r"^(?:p?nccl[A-Z]\w*|rccl\w*|hccl\w*|c10d::|gloo::|P?MPI_|ucp_|ucc_)|::(?:ProcessGroup\w*|WorkNCCL|WorkGloo)\b|^ncclGroup"
)
_NATIVE_DEVICE = re.compile(
    r"(?:^|::)(?:cuda|hip|acl(?:rt)?)(?:Stream|Device|Event)Synchronize|^cu(?:Stream|Ctx|Event)Synchronize|^synchronize_stream"
)
_NATIVE_SLEEP = re.compile(r"nanosleep|^pysleep$|^time_sleep$")
_NATIVE_LOCK = re.compile(r"lock_PyThread_acquire_lock|_thread_.*lock_acquire|acquire_timed|^rlock_acquire")
_NATIVE_FILE = re.compile(
    r"^_?_?(?:libc_)?(?:pread|read|write|pwrite|fsync|fdatasync|open|openat|stat|fstat|flock|fcntl)(?:64)?(?:_nocancel)?$"
)


def activity_of(stack: Stack) -> Activity:
    """Return what a process does by its stack: it waits for other ranks or a device, or works by itself."""
    if any(_NATIVE_OTHERS.search(symbol) for symbol in stack.native):
        named = next((found for call in stack.calls if (found := _waits_in(call))), "a collective")
        return Activity("others", named, is_p2p=named in _P2P | _P2P_OF_LIBRARIES)
    if in_call := next((found for call in stack.calls if (found := _waits_in(call))), None):
        return Activity("others", in_call, is_p2p=in_call in _P2P | _P2P_OF_LIBRARIES)
    if any(_NATIVE_DEVICE.search(symbol) for symbol in stack.native):
        return ON_DEVICE
    near = stack.calls[:_NEAR_CALLS]
    if own := _own(stack, near):
        return Activity("own", own)
    if any(_READS_DEVICE.search(call.function) for call in near[:2]):
        return ON_DEVICE
    for call in near:
        if (call.function, call.file) in _DEVICE:
            return ON_DEVICE
        if _NAMED_LIKE_P2P.search(call.function) or _PIPELINE_FILES.search(call.file):
            return Activity("others", call.function, is_p2p=True)
        if _NAMED_LIKE_COLLECTIVE.search(call.function):
            return Activity("others", call.function)
    if native := _natively_own(stack):
        return Activity("own", native)
    return _BACKWARD if _is_backward(stack) else UNCLEAR


def _waits_in(call: Call) -> str | None:
    if _RUNS_CALLERS_CODE.search(call.path):
        return None
    if call.function in _COLLECTIVES or call.function in _P2P:
        return call.function
    is_library = _COMMUNICATES.search(call.path) or _COMMUNICATES_IN.search(call.file)
    if is_library and call.function in _COLLECTIVES_OF_LIBRARIES | _P2P_OF_LIBRARIES:
        return call.function
    return None


def _own(stack: Stack, near: tuple[Call, ...]) -> str:
    """Return what a thread waits for on its own, such as `its data`; "" if nothing."""
    for call in stack.calls:
        if _DATA.search(call.path) or call.function in _DATA_CALLS:
            return "its data"
        if _RECOMPUTES.search(call.path):
            continue
        if _is_of_checkpoint(call):
            return "a checkpoint"
    if any(_COMPILES.search(call.path) for call in near):
        return "a compilation"
    for call in near:
        if (call.function, call.file) in _LOCKS:
            return "a lock, queue or thread"
        if named := _FILES.get((call.function, call.file)):
            return named
    return ""


def _is_of_checkpoint(call: Call) -> bool:
    if _CHECKPOINT.search(call.path) or _CHECKPOINT_CALLS.search(call.function):
        return True
    return bool(_CHECKPOINT_FILES.search(call.file) and _MOVES.search(call.function))


def _natively_own(stack: Stack) -> str:
    for symbol in stack.native:
        if _NATIVE_SLEEP.search(symbol):
            return "a sleep"
        if _NATIVE_LOCK.search(symbol):
            return "a lock, queue or thread"
        if _NATIVE_FILE.search(symbol):
            return "a file"
    return ""


def _is_backward(stack: Stack) -> bool:
    if not stack.calls and any(symbol.startswith("torch::autograd::Engine::") for symbol in stack.native):
        return True
    return any(
        call.function == "_engine_run_backward"
        or (call.function == "backward" and call.path.endswith("autograd/__init__.py"))
        for call in stack.calls[:2]
    )
