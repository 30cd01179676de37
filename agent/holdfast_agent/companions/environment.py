"""The environment of a rank: the node's and the job's variables, overridden by torchrun's and Holdfast's."""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.code.relocation import DIRECTORY_VARIABLE, ROOT_VARIABLE, VERSION_VARIABLE, relocate_search_path
from holdfast.daemon.nursery import NURSERY_VARIABLE
from holdfast.events.parts.job import JobSpec
from holdfast.events.parts.launch import RESTARTS_UNBOUNDED
from holdfast.node.rank_variables import RESERVED, RESTORE_STEP, SHARED_MACHINE, STORE_PREFIX
from holdfast.orders.node import NodeOrder, Placement
from holdfast.orders.replay import VARIABLE as REPLAY_VARIABLE

_PRIVATE = ("NATS_URL", "DATABASE_URL", "READY_FD", "ORDER_KEY", NURSERY_VARIABLE)
"""Holdfast's own connections and keys are withheld from jobs; addresses contain passwords."""


_REPRODUCIBLE = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""Replays are compared bit for bit: these fix the order of sums and of iteration."""


_OF_CHECKS = frozenset(
    {
        *("CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY"),
        *("NCCL_IB_DISABLE", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_PKEY", "NCCL_IB_SL", "NCCL_IB_TC"),
        *("NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ROCE_VERSION_NUM", "NCCL_CROSS_NIC"),
        *("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_NET_GDR_LEVEL", "NCCL_NVLS_ENABLE"),
        *("NCCL_ALGO", "NCCL_PROTO", "NCCL_DEBUG"),
    }
)
"""Variables of a job that its checks get: the devices and links that training uses. Checks run as the agent's user, so
nothing of the job may name code (PYTHONPATH, LD_PRELOAD, a plugin of NCCL) or a file to write."""


class RankFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Files that a rank writes besides its output, and the directory of its node's vault socket."""

    vault: Path
    ledger: Path
    reports: Path
    error: Path


def rank_environment(
    base: Mapping[str, str],
    order: NodeOrder,
    placement: Placement,
    rank: int,
    files: RankFiles,
    code: Path | None = None,
) -> dict[str, str]:
    """Return all variables of one rank. `base` is the agent's environment, `code` the directory in which they run the
    code version, None if that is the source tree's."""
    job = placement.job
    local_rank = rank - placement.ranks.start
    world_size = job.nnodes * job.nproc_per_node
    is_virtual = job.launch.virtual_local_rank and placement.purpose != "checks"
    environment = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"} | public_environment(base)
    if job.nproc_per_node > 1 or SHARED_MACHINE in base or placement.purpose == "checks":
        # Several ranks share the processors. One that has a machine to itself takes as many as torch does.
        environment.setdefault("OMP_NUM_THREADS", "1")
    known = _OF_CHECKS if placement.purpose == "checks" else job.env.keys() - RESERVED
    environment |= {name: value for name, value in job.env.items() if name in known}
    environment |= {
        "RANK": str(rank),
        "LOCAL_RANK": "0" if is_virtual else str(local_rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(job.nproc_per_node),
        "GROUP_RANK": str(placement.node_rank),
        "GROUP_WORLD_SIZE": str(job.nnodes),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world_size),
        "ROLE_NAME": job.launch.role,
        "MASTER_ADDR": placement.master_addr,
        "MASTER_PORT": str(placement.master_port),
        "TORCHELASTIC_RUN_ID": job.launch.run_id or job.name,
        "TORCHELASTIC_RESTART_COUNT": str(attempt(order)),
        "TORCHELASTIC_MAX_RESTARTS": str(_restarts_max(job)),
        "TORCHELASTIC_SIGNALS_TO_HANDLE": job.launch.signals,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": str(files.error),
        "HOLDFAST_JOB": job.name,
        "HOLDFAST_GENERATION": str(order.generation),
        "HOLDFAST_NODE": order.node,
        "HOLDFAST_JOB_DIR": job.directory,
        "HOLDFAST_LEDGER": str(files.ledger),
        "HOLDFAST_REPORTS": str(files.reports),
        "HOLDFAST_VAULT": str(files.vault),
    }
    if is_virtual:
        environment["CUDA_VISIBLE_DEVICES"] = _own_device(environment.get("CUDA_VISIBLE_DEVICES"), local_rank)
    if placement.submitted_at is not None:
        environment["HOLDFAST_JOB_SUBMITTED_MS"] = str(round(placement.submitted_at.timestamp() * 1000))
    if job.mesh:
        environment["HOLDFAST_MESH"] = job.mesh
    environment[ROOT_VARIABLE] = job.code_root if code else ""
    environment[DIRECTORY_VARIABLE] = str(code) if code else ""
    environment[VERSION_VARIABLE] = (placement.code_version or "") if placement.purpose != "checks" else ""
    if code and (search := environment.get("PYTHONPATH")):
        entries = relocate_search_path(search.split(":"), job.code_root, str(code), job.cwd, os.path.exists)
        environment["PYTHONPATH"] = ":".join(entries)
    # Only the order knows how far the job is; a value from elsewhere would discard training at each restart.
    environment.pop(RESTORE_STEP, None)
    if placement.restore_at_most is not None:
        environment[RESTORE_STEP] = str(placement.restore_at_most)
    environment[STORE_PREFIX] = store_prefix(job, order.generation)
    environment["HOLDFAST_SCRATCH"] = "allow" if job.allow_scratch else "refuse" if placement.refuse_scratch else ""
    environment[REPLAY_VARIABLE] = ""
    if placement.purpose != "train":
        # Checks and replays keep no checkpoints, and their steps must not count as training.
        for name in ("HOLDFAST_LEDGER", "HOLDFAST_VAULT"):
            environment.pop(name, None)
    if placement.purpose == "checks":
        environment.pop(RESTORE_STEP, None)
    if placement.replay is not None:
        environment |= _REPRODUCIBLE | {REPLAY_VARIABLE: placement.replay.encode()}
    return environment


def attempt(order: NodeOrder) -> int:
    """Return the number of restarts before this generation, whatever they were for."""
    return max(0, order.generation - 1)


def _restarts_max(job: JobSpec) -> int:
    return RESTARTS_UNBOUNDED if job.launch.max_restarts is None else job.launch.max_restarts


def _own_device(visible: str | None, local_rank: int) -> str:
    """Return the device of a rank that sees no other; torchrun chooses the same one.

    "", which is none, if there are fewer than ranks: what the caller hides stays hidden. torchrun then starts no rank.
    """
    if visible is None:
        return str(local_rank)
    devices = [device.strip() for device in visible.split(",")]
    return devices[local_rank] if local_rank < len(devices) else ""


def store_prefix(job: JobSpec, generation: int) -> str:
    """Return the same secret on all nodes, and another for each generation; "" for a job without a token."""
    if not job.token:
        return ""
    return hmac.digest(job.token.encode(), f"store/{job.name}/{generation}".encode(), "sha256").hex()


def public_environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a zygote and its ranks may see, and can be given."""
    return {name: value for name, value in base.items() if not _is_private(name) and _can_be_given(name, value)}


def _is_private(name: str) -> bool:
    return name.startswith("HOLDFAST_") and any(part in name for part in _PRIVATE)


def _can_be_given(name: str, value: str) -> bool:
    """Return False for a variable without a name, which no process can set, and for what is not UTF-8: a rank's plan
    is a message.
    """
    return bool(name) and not any("\ud800" <= character <= "\udfff" for character in name + value)
