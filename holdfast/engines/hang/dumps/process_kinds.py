"""The kind and rank of a training job's process, from its command line, stacks and file name. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.events.parts.traces import ProcessKind, ThreadStack

_LAUNCHERS = re.compile(
    r"\b(?:torchrun|torch/distributed/(?:run|launch)|torch\.distributed\.(?:run|launch)|accelerate (?:launch)?"
    r"|deepspeed\.launcher|deepspeed/launcher|mpirun|mpiexec|srun|ray(?:let|::IDLE)|holdfast[_-]agent"
    r"|compile_worker|resource_tracker|forkserver|semaphore_tracker|tensorboard|wandb[-_ ]service|wandb-core)"
)
_OF_LOADER = re.compile(r"pt_data_worker|data_?loader|DataLoader")
_OF_CHECKPOINT = re.compile(r"(?:ckpt|checkpoint)[-_ ]?(?:writer|worker|saver|process)|async[-_ ]?(?:ckpt|checkpoint)")
_LOADER_CALLS = frozenset({"_worker_loop"})
_LOADER_FILES = re.compile(r"utils/data/_utils/worker\.py$|data/worker\.py$|torchdata/")
_CHECKPOINT_FILES = re.compile(
    r"filesystem_async\.py$|async_utils\.py$|_async_process_executor\.py$|(?:ckpt|checkpoint)_(?:writer|worker|saver)\.py$"
)
_LAUNCHER_CALLS = frozenset({"_invoke_run", "_monitor_workers", "launch_agent", "elastic_launch"})
_TRACKER_FILES = re.compile(r"resource_tracker\.py$|forkserver\.py$|semaphore_tracker\.py$|compile_worker/")
_ENTRY = frozenset({"_bootstrap"})

_RANK = re.compile(r"(?:^|[^a-zA-Z])(?<!lora.)(?:global[-_ ]?)?rank[-_.=:# ]{0,3}(\d{1,7})(?![\d.]*\d)", re.IGNORECASE)
_RANKS = re.compile(r"(?:^|[^a-zA-Z])ranks[-_.=:# \[]{0,3}(\d{1,7}(?:(?:-|,|\.\.)\d{1,7}){1,64})", re.IGNORECASE)
_LOCAL_RANK = re.compile(r"local[-_]?rank", re.IGNORECASE)
_NODE = re.compile(
    r"(?:^|[/_.\s=@\[(-])((?:node|host|worker|machine|pod|server|instance)[-_.]?\d{1,6}|ip-\d+-\d+-\d+-\d+)(?![a-zA-Z0-9])",
    re.IGNORECASE,
)
_BARE = re.compile(r"^\d{1,7}$")
_ENDINGS = re.compile(r"\.(?:txt|json|dump|log|out|err|stack|stacks|trace|pyspy|py-spy|gz)$", re.IGNORECASE)


def kind_of(command: str, threads: Sequence[ThreadStack]) -> ProcessKind:
    """Classify a process. Stacks outweigh the command line, which a forked child shares with its rank."""
    main = next((thread for thread in threads if thread.is_main), threads[0] if threads else None)
    inner = [] if main is None else _own_calls(main)
    if any(function in _LOADER_CALLS or _LOADER_FILES.search(file) for function, file in inner):
        return "data_loader"
    if any(function in _LAUNCHER_CALLS or _TRACKER_FILES.search(file) for function, file in inner):
        return "other"
    is_child = main is not None and any(frame.function.rpartition(".")[2] in _ENTRY for frame in main.frames)
    if is_child and any(_CHECKPOINT_FILES.search(file) for _, file in inner):
        return "checkpoint"
    program = " ".join(command.split()[:6])
    if _OF_CHECKPOINT.search(program):
        return "checkpoint"
    if _OF_LOADER.search(command.split(" ")[0]) or "pt_data_worker" in command:
        return "data_loader"
    return "other" if _LAUNCHERS.search(program) else "rank"


def _own_calls(thread: ThreadStack) -> list[tuple[str, str]]:
    """Return the calls above the process's own entry; below it a forked child has its parent's calls at the fork."""
    calls: list[tuple[str, str]] = []
    for frame in thread.frames:
        function = frame.function.rpartition(".")[2]
        if function in _ENTRY and frame.file.endswith("process.py"):
            break
        calls.append((function, frame.file.replace("\\", "/")))
    return calls


def rank_in_name(name: str) -> int | None:
    """Return the rank in the name of a file, label or key: `rank-12.txt`, `w-3/rank_7.dump`, `12.json`."""
    part = _parts(name)[-1:]
    return None if not part else _rank(part[0]) if _BARE.match(_stem(part[0])) is None else int(_stem(part[0]))


def ranks_in_name(name: str) -> str:
    """Return the several ranks for which a file or label stands (`ranks_0-126.txt`: 0-126); "" if it is one rank's."""
    found = _RANKS.search((_parts(name) or [""])[-1])
    return found[1] if found else ""


def rank_in_folder(name: str) -> int | None:
    """Return the rank that a file's folder or the folder above names: `rank-3/py-spy.txt`."""
    return next((rank for part in reversed(_parts(name)[-3:-1]) if (rank := _rank(part)) is not None), None)


def _parts(name: str) -> list[str]:
    return [part for part in name.replace("\\", "/").split("/") if part]


def _rank(part: str) -> int | None:
    found = [match for match in _RANK.finditer(part) if not _LOCAL_RANK.search(part[: match.end()][-14:])]
    return int(found[-1][1]) if found else None


def node_in_name(name: str) -> str:
    """Return the machine that a path or label names (`worker-3/rank_7.dump`: worker-3); "" if none."""
    for part in reversed(name.replace("\\", "/").split("/")[-4:]):
        if found := _NODE.search(part):
            return found[1]
    return ""


def _stem(part: str) -> str:
    while (shorter := _ENDINGS.sub("", part)) != part:
        part = shorter
    return part
