"""Change of a fork to the user of ranks, and that user's rights to the agent's files (docs/adr/0034)."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from holdfast.node.job_user import JobUser
from holdfast.node.kernel import allow_tracing, die_with_parent, give_up_new_privileges


class JobUserRefused(Exception):
    """Ranks cannot run as this user; the message names the cause and the cure."""


def own(user: JobUser, path: Path) -> None:
    """Give a file or directory to this user, closed to all others but root."""
    os.chown(path, user.uid, user.gid)
    path.chmod(0o700 if path.is_dir() else 0o600)


def admit(user: JobUser, path: Path) -> None:
    """Let this user's group pass through a directory of ours, but not list it."""
    os.chown(path, -1, user.gid)
    path.chmod(0o710)


def find_job_user(name: str) -> JobUser | None:
    """Return the user of `[jobs] run_as`; None for "", the user of this process.

    Raises JobUserRefused if there is no such user, it is root, or this process may not become another user.
    """
    if not name:
        return None
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise JobUserRefused(
            f"[jobs] run_as = {name!r}: this machine has no such user; create it on every node"
        ) from None
    if entry.pw_uid == os.geteuid():
        return None
    if os.geteuid() != 0:
        raise JobUserRefused(
            f"[jobs] run_as = {name!r}: only an agent that runs as root can start ranks as another user"
        )
    return JobUser(name=name, uid=entry.pw_uid, gid=entry.pw_gid, home=entry.pw_dir)


def become(user: JobUser, parent: int) -> None:
    """Turn this process into one of `user`, for good. `parent` is the pid whose end still ends it."""
    os.setgroups([])
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)
    give_up_new_privileges()
    # A change of user turns both off: the agent's tracer reads stacks, and no rank outlives its zygote.
    allow_tracing()
    die_with_parent(parent)


def closed_part(path: Path, mode: int = os.R_OK) -> Path | None:
    """Return the first directory of the path that this process cannot enter, else the path if it lacks `mode` there.

    None if the path is open. Links are followed, so that the directory that is closed is named and not a link to it.
    """
    path = Path(os.path.realpath(path))
    for part in reversed(path.parents):
        if not os.access(part, os.X_OK):
            return part
    return None if os.access(path, mode) else path
