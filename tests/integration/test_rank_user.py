"""The user that an agent chooses for the ranks of an order, when a job is not allowed a user of its own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.events.parts.job import JobSpec
from holdfast.faults import mount_namespaces
from holdfast.node.ranks_file import open_ranks_file
from holdfast.node.reach import closed_to_others, unsafe_part
from holdfast.node.users.own_users import WIDE
from holdfast.node.users.user_rights import RunAs, become
from holdfast.orders.node import NodeOrder, Placement
from holdfast_agent.companions.rank_user import ANSWER_S_MAX, RankUser, RankUsers
from holdfast_agent.files.directories import Directories

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
]

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x0002_0000, 0x4000, 0x4_0000
AUTO = RunAs(ids=WIDE, may_fall_back=True)
OWN = RunAs(ids=WIDE)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other users can pass through, wherever temporary files of tests lie."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-rank-user-", dir="/tmp"))
    folder.chmod(0o755)
    (folder / "train.py").touch()
    yield folder
    Directories(folder / "state").forget_ledgers()
    shutil.rmtree(folder)


def chosen(
    place: Path, job_directory: Path, run_as: RunAs = AUTO, script: str = "train.py", generation: int = 2
) -> RankUser:
    return users_of(place, run_as).choose(order_of(place, job_directory, script, generation), str(place / script))


def users_of(place: Path, run_as: RunAs = AUTO) -> RankUsers:
    directories = Directories(place / "state", run_as)
    directories.prepare()
    return RankUsers(directories)


def order_of(place: Path, job_directory: Path, script: str = "train.py", generation: int = 2) -> NodeOrder:
    job = JobSpec(name="job-1", script=str(place / script), cwd=str(place), directory=str(job_directory))
    placement = Placement(job=job, node_rank=0, master_addr="127.0.0.1", master_port=1)
    return NodeOrder(node="a", epoch=1, generation=generation, placement=placement, job="job-1")


def test_an_existing_directory_of_root_is_gone_on_with_as_root(place: Path) -> None:
    (place / "before").mkdir()
    user, reason = chosen(place, place / "before")
    assert user is None
    if (closed := closed_to_others(Path(sys.executable))) is None:
        assert reason.startswith(f"{place / 'before'} exists and belongs to user 0 (`chown -R 20")
    else:
        assert reason.startswith(f"{closed} is closed to a user of the job's own")
    assert (place / "state").stat().st_mode & 0o777 == 0o700, "ranks of an earlier job find no way in any more"


def test_nodes_that_start_together_have_the_same_reason(place: Path) -> None:
    (place / "closed").mkdir(mode=0o700)
    _, first = chosen(place, place / "job", script="closed/train.py", generation=1)
    user, second = chosen(place, place / "job", script="closed/train.py", generation=1)
    assert user is None and first == second and "exists" not in first
    # To give the directory to a user would end the job: an agent that was started again does not propose it.
    assert chosen(place, place / "job", script="closed/train.py", generation=2) == (None, first)


def test_a_directory_of_a_job_has_its_user_whatever_is_closed_to_it(place: Path) -> None:
    uid = WIDE.of("another path")
    (place / "before").mkdir()
    os.chown(place / "before", uid, uid)
    (place / "closed").mkdir(mode=0o700)
    user, reason = chosen(place, place / "before", script="closed/train.py")
    assert user is not None and (user.uid, reason) == (uid, "")
    state = (place / "state").stat()
    assert (state.st_gid, state.st_mode & 0o777) == (uid, 0o710)
    assert Path(user.home).stat().st_uid == uid


def test_a_job_that_exchanges_its_directory_does_not_become_root(place: Path) -> None:
    uid = WIDE.of("another path")
    (place / "link").symlink_to("/etc")
    os.chown(place / "link", uid, uid, follow_symlinks=False)
    user, _ = chosen(place, place / "link")
    assert user is not None and WIDE.has(user.uid)


def test_a_closed_directory_makes_it_root_which_the_directory_records(place: Path) -> None:
    (place / "closed").mkdir(mode=0o700)
    user, reason = chosen(place, place / "closed" / "job")
    assert user is None and "closed to a user of the job's own" in reason
    assert (place / "closed" / "job").stat().st_uid == 0


def test_the_agent_writes_into_what_ranks_make_that_became_root(place: Path) -> None:
    (place / "closed").mkdir(mode=0o700)
    users = users_of(place)
    # Their directories are prepared for a user of the job's own first: whether it reaches what it needs is tried.
    assert users.choose(order_of(place, place / "job", "closed/train.py"), "train.py").user is None
    directories = Directories(place / "state", AUTO)
    files = directories.rank_files("job-1", (1, 2), 0)
    for path in (files.ledger, files.error):
        path.touch()
        os.close(open_ranks_file(path, os.O_RDWR))


def test_a_directory_that_does_not_answer_holds_up_nothing_and_makes_nobody_root(place: Path) -> None:
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        pytest.skip(f"no FUSE here: {error}")
    # Agents of other tests would see these mounts, and take their machine for broken.
    if (pid := os.fork()) == 0:
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.unshare(CLONE_NEWNS) == 0, os.strerror(ctypes.get_errno())
            mount_namespaces.mount("none", Path("/"), "", MS_REC | MS_PRIVATE)
            choose_beside_silent_mounts(place)
            os._exit(0)
        except BaseException:  # noqa: BLE001 - shown by the test
            traceback.print_exc()
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert status == 0


def choose_beside_silent_mounts(place: Path) -> None:
    users, uid = users_of(place), WIDE.of("another path")
    (place / "mount").mkdir()
    (place / "before").mkdir()
    os.chown(place / "before", uid, uid)
    with silent_mount(place / "mount"):
        began = time.monotonic()
        user, _ = users.choose(order_of(place, place / "mount" / "job"), "train.py")
        assert user is not None and user.uid == WIDE.of(str(place / "mount" / "job"))
        assert time.monotonic() < began + 2 * ANSWER_S_MAX
    user, _ = users.choose(order_of(place, place / "before"), "train.py")
    with silent_mount(place / "before"):
        again, _ = users.choose(order_of(place, place / "before", generation=3), "train.py")
    assert user is not None and again == user and user.uid == uid


@contextlib.contextmanager
def silent_mount(folder: Path) -> Iterator[None]:
    """A file system whose server never answers."""
    server = os.open("/dev/fuse", os.O_RDWR)
    try:
        mount_namespaces.mount("server:/", folder, "fuse.silent", 0, f"fd={server},rootmode=40000,user_id=0,group_id=0")
        yield
    finally:
        os.close(server)
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_strictly_its_own_user_is_never_root(place: Path) -> None:
    (place / "before").mkdir()
    user, _ = chosen(place, place / "before", OWN)
    assert user is not None and WIDE.has(user.uid)
    user, _ = chosen(place, place / "new", OWN)
    assert user is not None and (place / "new").stat().st_uid == user.uid


def test_a_directory_that_its_user_could_exchange_is_not_safe(place: Path) -> None:
    loose, sticky = place / "loose", place / "sticky"
    for folder, mode in ((loose, 0o777), (sticky, 0o1777)):
        folder.mkdir()
        folder.chmod(mode)
    user = WIDE.user(WIDE.of("a"), "/")
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        become(user, os.getppid())
        found = [unsafe_part(folder / "deep" / "job") for folder in (loose, sticky)]
        os.write(writing, repr(list(map(str, found))).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reading, 4096).decode() == repr([str(loose), "None"])
    os.close(reading)
    os.close(writing)


def test_a_rank_has_none_of_the_keys_of_the_login_that_started_its_agent() -> None:
    """Keys of a session keyring can be read by all who possess it, whoever they are."""
    add_key, keyctl, session, search = 248, 250, ctypes.c_long(-3), ctypes.c_long(10)
    libc = ctypes.CDLL(None, use_errno=True)

    def finds_key() -> bool:
        return libc.syscall(ctypes.c_long(keyctl), search, session, b"user", b"holdfast-test", None) > 0

    def login() -> None:
        libc.syscall(ctypes.c_long(keyctl), ctypes.c_long(1), None)
        if libc.syscall(ctypes.c_long(add_key), b"user", b"holdfast-test", b"secret", ctypes.c_long(6), session) < 0:
            os._exit(77)
        assert finds_key()
        parent = os.getpid()
        rank = os.fork()
        if not rank:
            become(WIDE.user(WIDE.first, "/"), parent)
            os._exit(finds_key())
        assert os.waitpid(rank, 0)[1] == 0, "the rank has found it"
        assert finds_key(), "the agent's keyring is its own as before"

    if os.uname().machine != "x86_64":
        pytest.skip("the numbers of these calls are those of x86_64")
    if (pid := os.fork()) == 0:
        try:
            login()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - shown by the test
            traceback.print_exc()
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == 77:
        pytest.skip("this kernel or container has no keyrings")
    assert code == 0
