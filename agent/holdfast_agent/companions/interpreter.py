"""The interpreter of a job's ranks on this node, and whether it has to be started for each rank."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.events.parts.job import JobSpec
from holdfast.node.rank_variables import RESERVED
from holdfast.node.users.job_user import JobUser
from holdfast_agent.zygote.wire import Cover

_READ_AT_START = (
    # By the dynamic linker and the C library.
    *("LD_", "GLIBC_TUNABLES", "MALLOC_", "TCMALLOC_", "MIMALLOC_", "LC_ALL", "LC_CTYPE"),
    # By libraries when they are loaded.
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "DNNL_", "ONEDNN_", "ATEN_CPU_CAPABILITY", "KINETO_", "NPY_"),
    # By Python, and by torch's modules when they are imported.
    *("PYTHON", "TORCH_LOGS", "TORCH_TRACE", "TORCH_CPP_LOG_LEVEL", "TORCH_SHOW_CPP_STACKTRACES", "PYTORCH_JIT"),
    *("TORCHDYNAMO_", "TORCHINDUCTOR_", "TORCH_COMPILE_", "TORCH_DEVICE_BACKEND_AUTOLOAD", "TORCH_ALLOW_TF32_"),
)
"""Beginnings of names whose values are read before a fork becomes a rank."""
_SET_AFTER_FORK = frozenset(
    {
        *("OMP_NUM_THREADS", "PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONFAULTHANDLER", "PYTHONDONTWRITEBYTECODE"),
        *("PYTHONPYCACHEPREFIX", "PYTHONBREAKPOINT", "PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONSAFEPATH"),
    }
)
"""Names of that form that a fork puts into effect, or that mean nothing to a rank."""
_OF_ZYGOTE = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

_LIBRARY = ("holdfast", "holdfast_agent", "msgspec", "xxhash", "structlog")
"""Packages that a rank needs beside torch: other environments may lack them."""
_OF_RANK = ("HOLDFAST_", "TORCHELASTIC_")


class Interpreter(NamedTuple):
    """The Python interpreter of a job's ranks on one node."""

    start: str
    """`fork`: ranks are forks of the zygote; `exec`: each rank starts an interpreter."""
    path: str
    """The interpreter; "": that of the zygote."""
    notes: tuple[str, ...]
    """Lines for the ranks' log: why a rank does not start as the user asked."""


def interpreter_of(job: JobSpec, base: Mapping[str, str], node: str) -> Interpreter:
    """Return how the job's ranks start on this node; `base` is the environment that the zygote was started with."""
    if job.python and not _is_own(job.python):
        if not os.path.lexists(job.python):
            missing = f"{node} has no {job.python}: the ranks there run with {sys.executable}, that of its agent"
            return _own(job, base)._replace(notes=(missing,))
        return Interpreter("exec", job.python, ())
    return _own(job, base)


def _own(job: JobSpec, base: Mapping[str, str]) -> Interpreter:
    names = read_at_start(job.env, base)
    if job.start == "exec" or not names:
        return Interpreter(job.start, "", ())
    note = (
        f"a new Python is started for each rank, which takes seconds: {', '.join(names)} would have no effect on a "
        "fork. Start the node's agent (`holdfast up`) with the same, and ranks are forks (docs/callers-world.md)"
    )
    return Interpreter("exec", "", (note,))


def read_at_start(wanted: Mapping[str, str], base: Mapping[str, str]) -> list[str]:
    """Return the variables that a fork of a process started with `base` cannot put into effect."""
    base = {**base, **_OF_ZYGOTE}
    return sorted(
        name
        for name, value in wanted.items()
        if name.startswith(_READ_AT_START) and name not in _SET_AFTER_FORK and base.get(name) != value
    )


def _is_own(python: str) -> bool:
    """Return True for the agent's interpreter under any of its names in its environment."""
    if python == sys.executable:
        return True
    folders = {os.path.realpath(os.path.dirname(path)) for path in (python, sys.executable)}
    return len(folders) == 1 and os.path.realpath(python) == os.path.realpath(sys.executable)


def warm_kind(
    job: JobSpec, interpreter: Interpreter, environment: Mapping[str, str], user: JobUser | None, cover: Cover | None
) -> str:
    """Return the kind of interpreter that can be made ahead for such ranks: equal if all that it starts with is equal.

    None is made for `--start exec`, whose scripts set variables before they import torch; nor can one mount files.
    """
    if interpreter.start != "exec" or job.start == "exec" or cover is not None:
        return ""
    own = {name: value for name, value in environment.items() if name not in RESERVED and not name.startswith(_OF_RANK)}
    uid = -1 if user is None else user.uid
    # A hash, because variables are secrets, which the zygote must not know.
    return hashlib.sha256(msgspec.msgpack.encode((interpreter.path, job.cwd, uid, sorted(own.items())))).hexdigest()


def library(state: Path) -> Path:
    """Return a directory that has the packages which ranks need and nothing else of the agent's environment."""
    folder = state / "library"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    for name in _LIBRARY:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.submodule_search_locations
        target, link = spec.submodule_search_locations[0], folder / name
        if not link.is_symlink() or os.readlink(link) != target:
            link.unlink(missing_ok=True)
            link.symlink_to(target)
    return folder
