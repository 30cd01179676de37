"""The user of ranks: its choice, how a fork becomes it, and the agent's files that it may reach."""

from __future__ import annotations

import contextlib
import os
import pwd
import resource
import stat
from pathlib import Path

import msgspec

from holdfast.node.kernel import allow_tracing, die_with_parent, give_up_new_privileges, leave_session_keyring
from holdfast.node.users import own_users
from holdfast.node.users.job_user import JobUser
from holdfast.node.users.own_users import IdRange


class JobUserRefused(Exception):
    """Ranks cannot run as this user; the message names the cause and the cure."""


class RunAs(msgspec.Struct, frozen=True, kw_only=True):
    """The meaning of `[jobs] run_as` on this machine. Without a user and ids, ranks run as the agent's user."""

    user: JobUser | None = None
    """The one user of all jobs."""
    ids: IdRange | None = None
    """Each job has its own user, with one of these ids."""
    may_fall_back: bool = False
    """A job whose user could not reach what it needs runs as the agent's user."""

    @property
    def passage_gid(self) -> int | None:
        """The group by which ranks pass directories that nodes share; None: they need none."""
        if self.user is not None:
            return self.user.gid
        return self.ids.passage if self.ids is not None else None


def find_run_as(setting: str) -> RunAs:
    """Return what the setting means for this process. Raises JobUserRefused if that cannot be."""
    match setting:
        case "auto":
            ids = own_users.ids_here() if os.geteuid() == 0 else None
            return RunAs(ids=ids, may_fall_back=True)
        case "own":
            if os.geteuid() != 0:
                raise JobUserRefused(
                    "[jobs] run_as = 'own': only an agent that runs as root can start ranks as other users"
                )
            if (ids := own_users.ids_here()) is None:
                raise JobUserRefused(
                    f"[jobs] run_as = 'own': this user namespace has none of the ids {_shown(own_users.WIDE)} and "
                    f"{_shown(own_users.NARROW)}; map them, or name a user"
                )
            return RunAs(ids=ids)
        case "" | "agent":
            return RunAs()
        case _:
            return RunAs(user=find_job_user(setting))


def _shown(ids: IdRange) -> str:
    return f"{ids.first} to {ids.first + ids.size - 1}"


def own(user: JobUser, path: Path) -> None:
    """Give a file or directory to this user, closed to all others but root."""
    os.chown(path, user.uid, user.gid)
    path.chmod(0o700 if path.is_dir() else 0o600)


def admit(gid: int, path: Path) -> None:
    """Let this group pass through a directory of ours, but not list it."""
    found = path.stat()
    if found.st_gid != gid:
        os.chown(path, -1, gid)
    if stat.S_IMODE(found.st_mode) != 0o710:
        path.chmod(0o710)


def find_job_user(name: str) -> JobUser | None:
    """Return the user of this name; None for "", the user of this process.

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
    for limit in (resource.RLIMIT_MEMLOCK, resource.RLIMIT_NPROC):
        # They do not bind root: RDMA registers memory, and processes are counted by user. A container may keep both.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    leave_session_keyring()
    os.setgroups(user.groups)
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)
    give_up_new_privileges()
    # A change of user turns both off: the agent's tracer reads stacks, and no rank outlives its zygote.
    allow_tracing()
    die_with_parent(parent)
