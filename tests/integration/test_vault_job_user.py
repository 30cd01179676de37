"""A vault whose ranks have a user of their own: what it writes for them, and what it refuses them."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import vault_nodes
from test_vault_persist import ORDER, rank_of
from test_vault_succession import end
from vault_nodes import VaultNode, at, shard, state

from holdfast.node.vault.messages import NotPersisted, Persisted
from holdfast.trainer.vault_client.client import MemoryRefused, VaultClient

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
]
node = vault_nodes.node

USER = "nobody"

ASK = f"""
import os, socket, sys
from holdfast.node import frames
from holdfast.node.users.user_rights import become, find_job_user
from holdfast.node.vault import messages
from holdfast.node.vault.messages import AskCertified, Follow, Join, ShardName
folder = os.open(sys.argv[1], os.O_PATH)
become(find_job_user({USER!r}), os.getppid())
def ask(*requests):
    link = socket.socket(socket.AF_UNIX)
    link.connect(f"/proc/self/fd/{{folder}}/vault.sock")
    try:
        for request in requests:
            frames.send(link, request)
            answer, _ = frames.receive(link, messages.answers)
    except frames.WireError:
        return "refused"
    return type(answer).__name__
name = ShardName(job="job", submitted_ms=1, world_size=1, rank=0)
print(ask(Join(name=name, generation=1, pid=os.getpid(), ledger=""), AskCertified()), ask(Follow()))
"""

LAY = f"""{ASK.rpartition("print(")[0]}
import ctypes
from holdfast.node.vault.messages import Lay, Save
memory = ctypes.create_string_buffer(8192)
_, nbytes, offset = map(int, sys.argv[2:])
lay = Lay(nbytes=4096, index=b"", pieces=((ctypes.addressof(memory), nbytes, offset),))
link = socket.socket(socket.AF_UNIX)
link.connect(f"/proc/self/fd/{{folder}}/vault.sock")
for request in (Join(name=name, generation=1, pid=os.getpid(), ledger=""), lay, Save(step=1, objects=b"")):
    frames.send(link, request)
    print(type(frames.receive(link, messages.answers)[0]).__name__)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other users can pass through, wherever temporary files of tests lie."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-vault-user-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def served(node: Callable[..., VaultNode]) -> VaultNode:
    one = node("one", "--ranks-user", USER)
    one.assign(ORDER)
    return one


def test_a_state_that_reaches_beyond_its_memory_is_not_laid_out(served: VaultNode) -> None:
    """Its pieces are written by root, at offsets that the rank names."""
    for piece in ((0, 4096, 4096), (0, 4096, -(1 << 20)), (0, 1 << 40, 0)):
        asked = subprocess.run(
            [sys.executable, "-c", LAY, str(served.directory), *map(str, piece)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert asked.stdout.split() == ["Done", "Refused", "Refused"], asked.stderr


def test_what_it_writes_for_ranks_is_their_users(served: VaultNode, place: Path) -> None:
    user = pwd.getpwnam(USER)
    checkpoints = place / "checkpoints"
    checkpoints.mkdir(mode=0o700)
    os.chown(checkpoints, user.pw_uid, user.pw_gid)
    told = served.follow()
    with rank_of(served, 0, checkpoints, world_size=1) as rank:
        rank.keep(3)
        assert isinstance(notice := told(), Persisted), notice
    written = list(checkpoints.rglob("*"))
    assert any(path.name == "step-00000003" for path in written)
    assert {path.stat().st_uid for path in written} == {user.pw_uid}


def test_it_does_not_write_where_their_user_may_not(served: VaultNode, place: Path) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o755)
    (place / "link").symlink_to(closed)
    told = served.follow()
    with rank_of(served, 0, place / "link", world_size=1) as rank:
        rank.keep(3)
        assert isinstance(notice := told(), NotPersisted), notice
    assert "Permission denied" in notice.reason
    assert list(closed.iterdir()) == []


def test_a_rank_that_names_another_job_than_the_nodes_is_refused_and_nothing_is_forgotten(
    node: Callable[..., VaultNode],
) -> None:
    one = node("one")
    with one.rank() as rank:
        rank.save(1, state(1))
        one.serve(shard(0))
        others = {"job": "other", "submitted_ms": 2, "world_size": 3}
        for name in (msgspec.structs.replace(shard(0), **{field: value}) for field, value in others.items()):
            with pytest.raises(MemoryRefused, match="this node serves job job"):
                VaultClient(one.directory, name, 1)
        assert rank.steps() == (at(1),)
    # The vault that takes its place knows it too.
    end(one)
    with pytest.raises(MemoryRefused, match="this node serves job job"):
        VaultClient(one.directory, msgspec.structs.replace(shard(0), job="other"), 1)
    with one.rank() as rank:
        assert rank.steps() == (at(1),)
        # The node's next job.
        one.serve(msgspec.structs.replace(shard(0), job="other"))
        VaultClient(one.directory, msgspec.structs.replace(shard(0), job="other"), 1).close()


def test_their_user_asks_for_shards_but_is_not_the_agent(served: VaultNode) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(served.directory)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["Certified", "refused"]
