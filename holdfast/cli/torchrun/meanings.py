"""The meaning of torchrun's flags for a job: its nodes and ranks, its launch, and the lines to print at the start."""

from __future__ import annotations

import os
import re
import secrets
import tempfile
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import click

from holdfast.cli.torchrun.flags import FLAGS
from holdfast.events.parts.launch import Launch

_NODES = re.compile(r"([0-9]{1,7})(?::([0-9]{1,7}))?")
_RANKS = re.compile(r"[0-9]{1,7}")
_DEVICES = re.compile(r"[a-z]+")


def node_range(nnodes: str) -> tuple[int, int]:
    """Return the fewest and the most nodes that the job may start with. Raises click.BadParameter."""
    found = _NODES.fullmatch(nnodes)
    fewest, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 0 < fewest <= most:
        raise click.BadParameter(f"{nnodes!r} is no number of nodes: use N from 1, or MIN:MAX", param_hint=["--nnodes"])
    return fewest, most


def ranks_per_node(nproc_per_node: str) -> int:
    """Return the number of ranks on each node; the names of devices count those of this machine, as PyTorch does.

    Raises click.BadParameter.
    """
    ranks = 0
    if _RANKS.fullmatch(nproc_per_node):
        ranks = int(nproc_per_node)
    elif nproc_per_node == "cpu":
        ranks = len(os.sched_getaffinity(0))
    elif _DEVICES.fullmatch(nproc_per_node):
        # Imported for these only: it takes more than a second.
        from torch.distributed.run import determine_local_world_size

        try:
            ranks = determine_local_world_size(nproc_per_node)
        except (ValueError, RuntimeError) as error:
            raise _no_number_of_ranks(f"{nproc_per_node!r} is no number of ranks here ({error})") from error
    if ranks < 1:
        raise _no_number_of_ranks(f"{nproc_per_node!r} is no number of ranks")
    return ranks


def _no_number_of_ranks(cause: str) -> click.BadParameter:
    return click.BadParameter(f"{cause}: use N from 1, cpu, gpu or auto", param_hint=["--nproc-per-node"])


def launch_of(flags: Mapping[str, Any], given: Set[str], job: str) -> Launch:
    """Return the launch that the flags ask for. Raises click.UsageError."""
    if flags["no_python"] and flags["module"] and not flags["run_path"]:
        raise click.UsageError("--no-python and --module exclude each other")
    run_id = flags["rdzv_id"] if "rdzv_id" in given and not flags["standalone"] else ""
    try:
        return Launch(
            run_id=run_id,
            last_call_s=_last_call_s(flags["rdzv_conf"]),
            role=flags["role"],
            max_restarts=flags["max_restarts"] if "max_restarts" in given else None,
            signals=flags["signals_to_handle"],
            virtual_local_rank=flags["virtual_local_rank"],
            numa_binding=flags["numa_binding"] or "",
            no_python=flags["no_python"] and not flags["run_path"],
            log_dir=_log_dir(flags, run_id or job),
            redirects=flags["redirects"],
            tee=flags["tee"],
            shown_ranks=_shown_ranks(flags["local_ranks_filter"]),
        )
    except ValueError as error:
        raise click.UsageError(f"--tee, --redirects or --rdzv-conf: {error}") from error


def started_elsewhere(flags: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """Return why another command starts the job, where a script calls the launcher on every node; else ""."""
    if flags["node_rank"] and flags["rdzv_backend"] == "static":
        return (
            f"--node-rank {flags['node_rank']}: the command of node 0 starts the job on all nodes; nothing to do here"
        )
    tasks, task = environment.get("SLURM_STEP_NUM_TASKS", "1"), environment.get("SLURM_PROCID", "0")
    if node_range(flags["nnodes"])[1] > 1 and tasks != "1" and task != "0":
        return f"task {task} of the Slurm step: task 0 starts the job on all nodes; nothing to do here"
    return ""


def notices(given: Set[str]) -> list[str]:
    """Return a line for each thing that Holdfast does in another way than the flags that are given ask for."""
    named: dict[str, list[str]] = {}
    for flag in FLAGS:
        if flag.parameter in given and flag.instead:
            named.setdefault(flag.instead, []).append(f"--{flag.name}")
    return [f"{', '.join(names)}: {instead}" for instead, names in named.items()]


def _last_call_s(rdzv_conf: str) -> float | None:
    """Return torchrun's `last_call_timeout`, None if it is not given. Raises ValueError if it is no number."""
    pairs = (entry.partition("=") for entry in rdzv_conf.split(","))
    given = {key.strip(): value.strip() for key, _, value in pairs}.get("last_call_timeout")
    if given is None:
        return None
    try:
        return float(given)
    except ValueError:
        raise ValueError(f"last_call_timeout={given} is no number of seconds") from None


def _log_dir(flags: Mapping[str, Any], run_id: str) -> str:
    """Return a new directory of this run, which agents make; "" if no files are wanted."""
    wanted = flags["log_dir"]
    if wanted == os.devnull or (wanted is None and flags["redirects"] == flags["tee"] == "0"):
        return ""
    run = f"{run_id}_{secrets.token_hex(4)}"
    if not wanted:
        # Not below a directory of a known name: another user could make it before, and exchange what is there.
        return str(Path(tempfile.gettempdir()).absolute() / f"holdfast_logs_{run}")
    above = Path(wanted)
    if above.is_file():
        raise click.BadParameter(f"{wanted} is a file", param_hint=["--log-dir"])
    return str(above.absolute() / run)


def _shown_ranks(text: str) -> tuple[int, ...]:
    if not text:
        return ()
    if not all(_RANKS.fullmatch(part.strip()) for part in text.split(",")):
        raise click.BadParameter(f"{text!r} is no list of ranks such as 0,1,2", param_hint=["--local-ranks-filter"])
    return tuple(sorted({int(part) for part in text.split(",")}))
