"""The caller's environment variables and Python, as the ranks of a job get them.

torchrun starts ranks from its own process, so they have its environment. Here they start on nodes, so everything is
passed on but what belongs to the calling host or session, what the launcher sets, and what opens a cluster.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import click

from holdfast.bounded_calls import read_text
from holdfast.node.rank_variables import RESERVED

INHERITED_BYTES_MAX = 64 * 1024
"""Each node of a job has the variables in its order: what is inherited must not make orders large."""

NODES_OWN = "node"
"""`--python node`: each node's agent's own."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_OF_HOST_OR_SESSION = frozenset(
    {
        *("HOME", "USER", "LOGNAME", "SHELL", "MAIL", "HOSTNAME", "HOST", "PWD", "OLDPWD", "SHLVL", "_"),
        *("TMPDIR", "TMP", "TEMP", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "DBUS_SESSION_BUS_ADDRESS"),
        *("TERM", "COLUMNS", "LINES", "WINDOWID", "STY", "TMUX", "TMUX_PANE", "GPG_AGENT_INFO", "GPG_TTY"),
        *("INVOCATION_ID", "JOURNAL_STREAM", "NOTIFY_SOCKET", "MAINPID", "MANAGERPID", "SYSTEMD_EXEC_PID"),
        *("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_PID", "WATCHDOG_USEC"),
    }
)
_OF_HOST_OR_SESSION_BEGIN = (
    # Launchers of the host: MPI and NCCL would take the ranks for those of the scheduler's job.
    *(
        "SLURM",
        "SBATCH_",
        "SRUN_",
        "SALLOC_",
        "PMI_",
        "PMI2_",
        "PMIX_",
        "OMPI_",
        "PRTE_",
        "MPI_LOCAL",
        "PALS_",
        "FLUX_",
    ),
    *("PBS_", "LSB_", "SGE_", "KUBERNETES_"),
    *("SSH_", "SUDO_", "XDG_SESSION_", "XDG_RUNTIME_", "XDG_SEAT", "XDG_VTNR", "BASH_FUNC_"),
    # Addresses, passwords and settings of a cluster. A rank gets one of them if it is named.
    "HOLDFAST_",
    # The launcher's; ranks get their own.
    "TORCHELASTIC_",
)


def ranks_environment(
    env: Iterable[str], files: Iterable[Path], here: Mapping[str, str], *, none: bool
) -> dict[str, str]:
    """Return the variables of the ranks: those of `here` unless `none`, of the files, of `--env`; later ones win.

    Raises ClickException if an entry cannot be read or names a variable that the launcher sets.
    """
    named: dict[str, str] = {}
    for file in files:
        named |= _pairs(_lines(file), here, f"--env-file {file}: ")
    named |= _pairs(env, here, "--env ")
    if none:
        return named
    taken, left = _within_limit({name: value for name, value in _inherited(here).items() if name not in named})
    if left:
        click.echo(
            f"left out of the ranks' environment, which may have {INHERITED_BYTES_MAX // 1024} KiB: {', '.join(left)}. "
            "Name those that ranks need with --env NAME",
            err=True,
        )
    return taken | named


def callers_python(named: str | None, here: Mapping[str, str]) -> str:
    """Return the Python of the ranks: the named one (in PYTHON_EXEC too, as for torchrun), that of the active virtual
    environment, or this command's.
    """
    named = named or here.get("PYTHON_EXEC") or None
    if named == NODES_OWN:
        return ""
    if named is not None:
        return os.path.abspath(named if os.sep in named else shutil.which(named) or named)
    active = here.get("VIRTUAL_ENV", "")
    if active and os.path.realpath(active) != os.path.realpath(sys.prefix):
        python = os.path.join(active, "bin", "python")
        if os.access(python, os.X_OK):
            return os.path.abspath(python)
    return sys.executable


def _inherited(here: Mapping[str, str]) -> dict[str, str]:
    left = _OF_HOST_OR_SESSION | RESERVED
    return {
        name: value
        for name, value in here.items()
        if _VARIABLE.fullmatch(name)
        and name not in left
        and not name.startswith(_OF_HOST_OR_SESSION_BEGIN)
        and _is_text(value)
    }


def _is_text(value: str) -> bool:
    """Return False for bytes that are no UTF-8: they cannot travel."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _within_limit(variables: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables that the limit has room for, smallest first, and the names of the others."""
    taken, left, total = {}, [], 0
    for name, value in sorted(variables.items(), key=lambda item: len(item[0]) + len(item[1].encode())):
        total += len(name) + len(value.encode())
        if total > INHERITED_BYTES_MAX:
            left.append(name)
        else:
            taken[name] = value
    return taken, left


def _lines(file: Path) -> list[str]:
    try:
        lines = [line.strip() for line in read_text(file).splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"--env-file {file} cannot be read: {error}") from error
    return [_unquoted(line.removeprefix("export ")) for line in lines if line and not line.startswith("#")]


def _unquoted(entry: str) -> str:
    name, equals, value = entry.partition("=")
    value = value.strip()
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
        value = value[1:-1]
    return f"{name.strip()}{equals}{value}"


def _pairs(entries: Iterable[str], here: Mapping[str, str], where: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not key:
            # Without the value: it may be a secret.
            raise click.ClickException(f"{where}'=...' has not the form NAME or NAME=VALUE")
        if not _VARIABLE.fullmatch(key):
            raise click.ClickException(
                f"{where}{key!r} is not the name of a variable; use letters, digits, _, . and -, and no digit at the "
                "start"
            )
        if key in RESERVED:
            raise click.ClickException(f"{where}{key}: the launcher sets it for each rank, as torchrun does")
        if not equals and key not in here:
            raise click.ClickException(f"{where}{key}: {key} is not set in this environment; give {key}=VALUE")
        pairs[key] = value if equals else here[key]
        if "\0" in pairs[key]:
            raise click.ClickException(f"{where}{key}: its value has a NUL byte, which no environment can have")
    return pairs
