"""The user that PostgreSQL runs as: it refuses to run as root, and as a user without an entry in passwd (containers
give such ones), but both may start a cluster.
"""

import ctypes
import enum
import os
import pwd
import subprocess
from pathlib import Path

from holdfast.embedded.errors import EmbeddedError

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWUSER = 0x10000000
_NOBODY = 65_534


class Identity(enum.Enum):
    """The user of a child; `enter` is called in the child, between fork and exec."""

    AS_IS = "the user who started the cluster"
    USER_NAMESPACE = "this user, seen as nobody inside a user namespace"
    NOBODY = "the user nobody"

    def enter(self) -> None:
        """Become this user. Raises OSError if the kernel does not permit it."""
        if self is Identity.USER_NAMESPACE:
            uid, gid = os.geteuid(), os.getegid()
            if _LIBC.unshare(_CLONE_NEWUSER) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), "unshare")
            for file, text in (
                # The kernel takes a gid map from the process itself only after setgroups is given up.
                ("setgroups", "deny"),
                ("uid_map", f"{_NOBODY} {uid} 1"),
                ("gid_map", f"{_NOBODY} {gid} 1"),
            ):
                with open(f"/proc/self/{file}", "w") as stream:
                    stream.write(text)
        elif self is Identity.NOBODY:
            uid, gid = _nobody()
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)

    def own(self, directory: Path) -> None:
        """Give a directory and everything below to the child's user, which may differ from the last run's."""
        if self is Identity.AS_IS:
            return
        uid, gid = os.geteuid(), os.getegid()
        if self is Identity.NOBODY:
            uid, gid = _nobody()
            # The directory above is ours too: the child must be able to pass through it, but not to list it.
            directory.parent.chmod(0o711)
        for parent, _, files in os.walk(directory):
            os.chown(parent, uid, gid)
            for name in files:
                os.chown(os.path.join(parent, name), uid, gid, follow_symlinks=False)


def choose_identity(program: Path, directory: Path) -> Identity:
    """Return the first identity under which `program` runs without being root and may use `directory`. Raises
    EmbeddedError if user namespaces are closed here, and this process may not become the user nobody.
    """
    is_root = os.geteuid() == 0
    if not is_root and _has_name(os.geteuid()):
        return Identity.AS_IS
    refusals = []
    for identity in (Identity.USER_NAMESPACE, Identity.NOBODY) if is_root else (Identity.USER_NAMESPACE,):
        identity.own(directory)

        def become(identity: Identity = identity) -> None:
            identity.enter()
            os.listdir(directory)

        try:
            subprocess.run([program, "--version"], preexec_fn=become, check=True, capture_output=True)
        except (subprocess.SubprocessError, OSError) as refusal:
            refusals.append(f"as {identity.value}: {refusal}")
        else:
            return identity
    user = "root" if is_root else f"user {os.geteuid()}, which has no entry in passwd"
    cures = (
        "choose a --dir and a Python environment that the user nobody can reach, or start the cluster as an ordinary "
        "user"
    )
    raise EmbeddedError(
        f"PostgreSQL does not run as {user}, and no other way is open here ({'; '.join(refusals)}). Allow user "
        f"namespaces, or {cures if is_root else 'add an entry'}."
    )


def _has_name(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _nobody() -> tuple[int, int]:
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        return _NOBODY, _NOBODY
    return entry.pw_uid, entry.pw_gid
