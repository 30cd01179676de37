"""Users that jobs have to themselves: numbers without an entry in passwd, and how a job's directory decides on one.

The directory is the record: what one generation writes there the next one must read, on whichever node. So the owner of
an existing directory is the job's user, and a missing directory is made for the number that follows from its path.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast.node.users.job_user import JobUser

_LINKS_MAX = 40
IN_THE_MAKING = 0
"""Mode of a directory that root has made and not yet given to its user."""


class IdRange(NamedTuple):
    """User and group ids that no other process of the machine has. The first is the group that all ranks share."""

    first: int
    size: int

    @property
    def passage(self) -> int:
        """The group by which ranks pass the directories above their node's."""
        return self.first

    def has(self, uid: int) -> bool:
        return self.first < uid < self.first + self.size

    def of(self, directory: str) -> int:
        """Return the id for a job's directory, the same on all nodes."""
        digest = hashlib.sha256(directory.encode()).digest()
        return self.first + 1 + int.from_bytes(digest[:8]) % (self.size - 1)

    def user(self, uid: int, home: str) -> JobUser:
        return JobUser(name=f"job-{uid}", uid=uid, gid=uid, home=home, groups=(self.passage,))


WIDE = IdRange(0x7800_0000, 1 << 26)
"""Above the ids that SSSD, FreeIPA, subuid and systemd's containers give out, below systemd's last ones."""
NARROW = IdRange(61_184, 4_336)
"""For containers that have 65,536 ids: those of systemd's DynamicUser, which hardly runs there."""


def ids_here() -> IdRange | None:
    """Return the ids that root of this user namespace can give to ranks; None: it has too few."""
    maps = [Path(f"/proc/self/{name}").read_text() for name in ("uid_map", "gid_map")]
    return next((ids for ids in (WIDE, NARROW) if all(_maps(text.splitlines(), ids) for text in maps)), None)


def _maps(lines: Iterable[str], ids: IdRange) -> bool:
    for line in lines:
        inside, _, count = map(int, line.split())
        if inside <= ids.first and ids.first + ids.size <= inside + count:
            return True
    return False


class NotOwned(Exception):
    """The directory belongs to a user who is no job's; the message names it."""


class Exchanged(Exception):
    """A job has put a link into the path of its directory, which may lead anywhere."""


def passed(path: Path) -> Iterator[tuple[str, os.stat_result | None]]:
    """Yield what an absolute path leads through, links included, and None for the first part that is missing.

    Raises Exchanged after too many links, OSError.
    """
    rest, place, links = list(reversed(path.parts[1:])), "/", 0
    yield place, os.lstat(place)
    while rest:
        part = os.path.normpath(os.path.join(place, rest.pop()))
        try:
            found = os.lstat(part)
        except FileNotFoundError:
            yield part, None
            return
        yield part, found
        if not stat.S_ISLNK(found.st_mode):
            place = part
            continue
        links += 1
        if links > _LINKS_MAX:
            raise Exchanged(f"{path} leads through more than {_LINKS_MAX} links")
        target = Path(os.readlink(part))
        rest += reversed(target.parts[1:] if target.is_absolute() else target.parts)
        place = "/" if target.is_absolute() else place


def owner(directory: Path, ids: IdRange) -> int | None:
    """Return the user of a job's directory, or of one above it that is a job's; None: it is missing, or in the making.

    Raises NotOwned, Exchanged or OSError.
    """
    found: os.stat_result | None = None
    for part, found in passed(directory):
        if found is not None and ids.has(found.st_uid):
            if stat.S_ISLNK(found.st_mode):
                raise Exchanged(f"{part} is a link that a job has made")
            return found.st_uid
    if found is None or _is_in_the_making(found):
        return None
    raise NotOwned(f"{directory} exists and belongs to user {found.st_uid}")


def _is_in_the_making(found: os.stat_result) -> bool:
    return found.st_uid == 0 and stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == IN_THE_MAKING


def give(directory: Path, user: JobUser) -> None:
    """Make a directory for this user, closed to others, or finish what another node has begun. Raises OSError."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    try:
        directory.mkdir(mode=IN_THE_MAKING)
        made = True
    except FileExistsError:
        made, found = False, directory.lstat()
        if found.st_uid != user.uid and not _is_in_the_making(found):
            raise
    try:
        # By descriptor: once it is the user's, its name may lead elsewhere.
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchown(opened, user.uid, user.gid)
            os.fchmod(opened, 0o700)
        finally:
            os.close(opened)
    except OSError:
        if made:
            with contextlib.suppress(OSError):
                directory.rmdir()
        raise
