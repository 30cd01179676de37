"""Root's work in directories of others: with the rights of the user who could redirect it by links or renames."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from holdfast.node.users.job_user import JobUser
from holdfast.node.users.own_users import ids_here, passed

T = TypeVar("T")


def holder(path: Path) -> JobUser | None:
    """Return the user with whose rights root works below a path; None: this process's own rights.

    It is the last user but root who owns a part of the path. The owner of a link in it decides where the rest leads.
    Raises Exchanged, OSError.
    """
    if os.geteuid() != 0:
        return None
    uid = gid = 0
    for _, found in passed(path.absolute()):
        if found is None or not found.st_uid:
            continue
        uid, gid = found.st_uid, found.st_gid
        if stat.S_ISLNK(found.st_mode):
            break
    return _user(uid, gid) if uid else None


def _user(uid: int, gid: int) -> JobUser:
    ids = ids_here()
    if ids is not None and ids.has(uid):
        return ids.user(uid, "/")
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return JobUser(name=str(uid), uid=uid, gid=gid, home="/")
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return JobUser(name=entry.pw_name, uid=uid, gid=entry.pw_gid, home=entry.pw_dir, groups=tuple(groups))


@contextmanager
def acting_as(user: JobUser | None) -> Iterator[Callable[[Callable[[], T]], T]]:
    """Work with this user's rights on files; None: change nothing. Yields a caller of functions with one's own rights.

    The whole process changes, and may change back: for commands, not for code of the user.
    """
    if user is None:
        yield lambda function: function()
        return
    uid, gid, groups = os.geteuid(), os.getegid(), os.getgroups()

    def become() -> None:
        os.setgroups(user.groups)
        os.setegid(user.gid)
        os.seteuid(user.uid)

    def be_oneself() -> None:
        os.seteuid(uid)
        os.setegid(gid)
        os.setgroups(groups)

    def by_itself(function: Callable[[], T]) -> T:
        be_oneself()
        try:
            return function()
        finally:
            become()

    become()
    try:
        yield by_itself
    finally:
        be_oneself()
