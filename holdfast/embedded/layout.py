"""The state directory of an embedded cluster, and the file by which other processes find the cluster."""

import asyncio
import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from holdfast.bus.accounts import SERVICES as SERVICES
from holdfast.embedded.errors import ClusterAlreadyRunning, EmbeddedError, NoCluster
from holdfast.network import impostors
from holdfast.node.durable import sync_directory
from holdfast.node.users.user_rights import admit
from holdfast.settings.load import Setting

DEFAULT_NODES = 4
DEFAULT_DIRECTORY = ".holdfast"
DIRECTORY_VARIABLE = "HOLDFAST_DIR"
NOT_STARTED = "not started: "
"""Text before the reason in the supervisor's log."""
_WRITE_AGAIN_S = 2.0
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class Ports(msgspec.Struct, frozen=True, kw_only=True):
    """The TCP ports of the cluster, all on 127.0.0.1."""

    postgres: int
    nats: int
    nats_monitor: int


class ChildRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A running child; `started_ticks` (since boot) distinguishes it from a later process with the same pid."""

    pid: int
    started_ticks: int


class Fabric(msgspec.Struct, frozen=True, kw_only=True):
    """The bridge and subnet (its first three numbers) of a cluster with separate networks (`embedded.fabric`)."""

    bridge: str
    subnet: str

    @property
    def gateway(self) -> str:
        """The machine's own address on the bridge."""
        return f"{self.subnet}.1"

    def address(self, node: str) -> str:
        return f"{self.subnet}.{10 + _number(node)}"

    def namespace(self, node: str) -> str:
        return f"{self.bridge}-{node}"

    def link(self, node: str) -> str:
        """The machine's end of the node's link."""
        return f"{self.bridge}n{_number(node)}"


class ClusterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of `cluster.json`: how to reach the cluster. The file holds passwords, hence mode 0600."""

    version: str
    pid: int | None
    """The supervisor, None after an orderly stop. Stale after a kill: the control socket shows whether one runs."""
    ports: Ports
    nats_url: str
    """Address with the operator's password. With `fabric` it allows plain text: it stays on this machine."""
    nats_monitor_url: str
    database_urls: dict[str, str]
    """Keys: admin, controller, analyzer, standby, ckpt, historian and reader."""
    nodes: list[str]
    children: dict[str, ChildRecord] = {}
    settings: tuple[Setting, ...] = ()
    """Settings of the present or last run."""
    allows_faults: bool = False
    """`holdfast inject` may break it."""
    fabric: Fabric | None = None
    """The separate networks of its nodes, None without --namespaces."""

    @classmethod
    def load(cls, directory: str | Path) -> "ClusterInfo":
        """Read the cluster of a state directory. Raises NoCluster if there is none, EmbeddedError if unreadable."""
        return ClusterLayout(directory).info()


class ClusterLayout:
    """The paths below a state directory, and the lock that admits one supervisor."""

    def __init__(self, root: str | Path) -> None:
        # Resolved, because the processes of a node are known by this spelling of its directory.
        self.root = Path(os.path.realpath(root))
        self.cluster_file = self.root / "cluster.json"
        self.secrets_file = self.root / "secrets.json"
        self.lock_file = self.root / "lock"
        self.control_socket = self.root / "control.sock"
        self.nursery_socket = self.root / "nursery.sock"
        self.logs = self.root / "logs"
        self.postgres = self.root / "postgres"
        self.nats = self.root / "nats"
        self.nodes = self.root / "nodes"
        self.faults = self.root / "faults"
        self.addresses = self.root / "addresses"
        self.service_gate = self.root / "gate.services"
        self.agent_gate = self.root / "gate.agents"

    def log(self, child: str) -> Path:
        return self.logs / f"{child}.log"

    def bus_address(self, child: str) -> Path:
        """Return the file with a service's or agent's address of the bus, which holds its password."""
        return self.addresses / f"{child}.nats"

    def order_key(self, service: str) -> Path:
        """Return the file with the key by which a service signs its orders."""
        return self.addresses / f"{service}.order-key"

    @property
    def order_keys(self) -> Path:
        """The file with the public keys by which agents recognize orders."""
        return self.addresses / "orders.pub"

    @property
    def refused_nodes(self) -> Path:
        """The file with the nodes whose vaults others refuse (`holdfast.network.refusals`)."""
        return self.addresses / "refused"

    def database_address(self, service: str) -> Path:
        return self.addresses / f"{service}.database"

    def node(self, node: str) -> Path:
        return self.nodes / node

    def node_settings(self, node: str) -> Path:
        """Return the path of settings for this node alone; most nodes have none."""
        return self.node(node) / "holdfast.toml"

    def zygote_pid(self, node: str) -> Path:
        return self.node(node) / "zygote.pid"

    def refuse_foreign(self) -> None:
        """Raise EmbeddedError if the directory holds other files and no cluster."""
        if self.root.name == DEFAULT_DIRECTORY or not self.root.is_dir():
            return
        there = {entry.name for entry in self.root.iterdir()}
        if there and there.isdisjoint({self.lock_file.name, self.cluster_file.name}):
            raise EmbeddedError(
                f"{self.root} holds other files ({min(there)}, ...) and no cluster. Choose an empty or a new "
                f"directory with --dir or {DIRECTORY_VARIABLE}."
            )

    def create(self, passage_gid: int | None = None) -> None:
        """Create the directories, closed to other users but for the way of this group to the nodes' directories.

        Raises EmbeddedError if that is not permitted.
        """
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._refuse_another_users()
            for directory in (self.logs, self.postgres, self.nats, self.nodes, self.addresses):
                directory.mkdir(mode=0o700, exist_ok=True)
            if passage_gid is not None:
                admit(passage_gid, self.root)
                admit(passage_gid, self.nodes)
        except OSError as error:
            raise EmbeddedError(
                f"cannot keep the cluster's state in {self.root}: {error.strerror}. "
                f"Choose another directory with --dir or {DIRECTORY_VARIABLE}."
            ) from error

    def _refuse_another_users(self) -> None:
        """Refuse a directory of another user, who could exchange our files in it; close it to writing by others."""
        status = self.root.stat()
        if (owner := status.st_uid) != os.geteuid():
            raise EmbeddedError(
                f"{self.root} belongs to another user (uid {owner}): choose another directory with --dir or "
                f"{DIRECTORY_VARIABLE}, or make it yours."
            )
        if status.st_mode & _WRITABLE_BY_OTHERS:
            self.root.chmod(stat.S_IMODE(status.st_mode) & ~_WRITABLE_BY_OTHERS)

    def info(self) -> ClusterInfo:
        """Read `cluster.json`, and trust its owner's servers. Raises NoCluster or EmbeddedError."""
        try:
            impostors.trust(self.cluster_file.stat().st_uid)
            return msgspec.json.decode(self.cluster_file.read_bytes(), type=ClusterInfo)
        except FileNotFoundError:
            raise NoCluster(
                f"there is no cluster in {self.root}. Start one with `holdfast up`, or name the directory of "
                f"another with --dir or {DIRECTORY_VARIABLE}."
            ) from None
        except PermissionError:
            raise EmbeddedError(
                f"{self.cluster_file} belongs to another user: run the command as the user who started the cluster."
            ) from None
        except OSError as error:
            raise EmbeddedError(f"{self.cluster_file} cannot be read: {error.strerror}.") from error
        except msgspec.MsgspecError as error:
            raise EmbeddedError(
                f"{self.cluster_file} is damaged ({error}). Remove it; new ports are then chosen."
            ) from error

    def remembered(self) -> ClusterInfo | None:
        """Return what an earlier start wrote, None on the first start."""
        try:
            return self.info()
        except NoCluster:
            return None

    def write_info(self, info: ClusterInfo) -> None:
        write_private(
            self.cluster_file, msgspec.json.format(msgspec.json.encode(info), indent=2) + b"\n", durable=False
        )

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock out a second supervisor; the kernel unlocks when the holder dies. Raises ClusterAlreadyRunning."""
        # Closed to others: who can open it, can hold the lock.
        with open(os.open(self.lock_file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "a+") as file:
            os.fchmod(file.fileno(), 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ClusterAlreadyRunning(
                    f"a cluster already runs in {self.root} (supervisor pid {_read_pid(self.lock_file)}). "
                    "See it with `holdfast status`, stop it with `holdfast down`, or start another with --dir."
                ) from None
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            yield


def choose_nodes(before: ClusterInfo | None, count: int | None) -> list[str]:
    """Return the names of a cluster's nodes: `count` of them, or those of the run before.

    Raises EmbeddedError if there were more.
    """
    known = [] if before is None else before.nodes
    if count is None:
        count = DEFAULT_NODES if before is None else len(known)
    if count < len(known):
        raise EmbeddedError(
            f"this cluster has {len(known)} nodes, with files of jobs on them. Start it without --nodes, "
            f"or with --nodes {len(known)} or more, or start a smaller one in another --dir."
        )
    nodes = list(known)
    while len(nodes) < count:
        nodes.append(next_node(nodes))
    return nodes


def next_node(nodes: list[str]) -> str:
    return f"node-{1 + max((int(node.removeprefix('node-')) for node in nodes), default=-1)}"


class InfoFile:
    """`cluster.json`, as a running supervisor writes it: a full disk delays that, and ends nothing."""

    def __init__(self, layout: "ClusterLayout", report: Callable[[str], None]) -> None:
        self._layout = layout
        self._report = report
        self._again: asyncio.TimerHandle | None = None

    def write(self, info: ClusterInfo) -> None:
        """Replace the file, now or as soon as that is possible."""
        is_behind = self._again is not None
        if self._again is not None:
            self._again.cancel()
            self._again = None
        try:
            self._layout.write_info(info)
        except EmbeddedError as error:
            self._again = asyncio.get_running_loop().call_later(_WRITE_AGAIN_S, self.write, info)
            if not is_behind:
                self._report(str(error))


def _number(node: str) -> int:
    return int(node.rpartition("-")[2])


def _read_pid(file: Path) -> int | None:
    text = file.read_text().strip()
    return int(text) if text.isdigit() else None


def write_private(path: Path, content: bytes, *, durable: bool) -> None:
    """Replace a file in one step, readable by its owner only; with `durable`, it also survives a power loss.

    A file that has this content stays as it is: a full disk does not keep a cluster from its next start. Raises
    EmbeddedError if the file cannot be written; the one before stays.
    """
    if _is_in_place(path, content):
        return
    try:
        _replace(path, content, durable=durable)
    except OSError as error:
        raise EmbeddedError(
            f"{path} cannot be written: {error.strerror}. Make room on its disk, or open its directory for this user."
        ) from error


def _is_in_place(path: Path, content: bytes) -> bool:
    try:
        return stat.S_IMODE(path.stat().st_mode) == 0o600 and path.read_bytes() == content
    except OSError:
        return False


def _replace(path: Path, content: bytes, *, durable: bool) -> None:
    draft = path.with_name(f".{path.name}.new")
    # Where others may write, as in /tmp, one of them may have made it, to read what is written there.
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.replace(draft, path)
    if durable:
        sync_directory(path.parent)
