"""Reading of this machine for `holdfast doctor`: disks, the supervisor, the bus's own health check. `findings` judges.

The system calls behind them may never return (a network file system that is away): each runs in a thread that the
command does not wait for.
"""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import msgspec

from holdfast.bounded_calls import within
from holdfast.cli.doctor.facts import CertificateFile, Disk, SupervisedProcess
from holdfast.embedded.control import Status, ask
from holdfast.embedded.errors import EmbeddedError, NoCluster
from holdfast.embedded.layout import ClusterLayout
from holdfast.node.machine import Machine
from holdfast.node.proc.mount_table import mount_of, mount_table
from holdfast.settings.network import NetworkPolicy

ANSWER_S_MAX = 3.0
IN_MEMORY = ("tmpfs", "ramfs")


def read_disks(paths: Iterable[Path]) -> tuple[Disk, ...]:
    """Return the file systems of the directories that exist, each once."""
    found: dict[object, Disk] = {}
    for path in dict.fromkeys(paths):
        try:
            device, disk = within(partial(_disk, path), ANSWER_S_MAX)
        except TimeoutError:
            found[path] = Disk(path=str(path), free_bytes=None)
        except OSError:
            continue  # It is not on this machine.
        else:
            found.setdefault(device, disk)
    return tuple(found.values())


def read_in_memory(paths: Iterable[Path]) -> tuple[str, ...]:
    """Return the directories that are lost when this machine ends (tmpfs), one for each file system."""
    table = mount_table(Machine()) or {}
    found: dict[str, str] = {}
    for path in paths:
        mount = mount_of(path, table)
        if mount is not None and mount.kind in IN_MEMORY:
            found.setdefault(mount.point, str(path))
    return tuple(found.values())


def read_certificates(network: NetworkPolicy) -> tuple[CertificateFile, ...]:
    """Return the files of the settings and their ends: of authorities the last one's, of an own certificate the first.
    A file that cannot be read is left to the connections, which report it.
    """
    found = []
    for path, end in ((network.tls_ca, max), (network.tls_cert, min)):
        if not path:
            continue
        # Most clusters have none, and the package takes a while to be imported.
        from holdfast.network.certificates import ends_of

        try:
            found.append(CertificateFile(path=path, ends_at=end(ends_of(Path(path).read_bytes()))))
        except (OSError, ValueError):
            continue
    return tuple(found)


def _disk(path: Path) -> tuple[int, Disk]:
    space = os.statvfs(path)
    disk = Disk(path=str(path), free_bytes=space.f_bavail * space.f_frsize, total_bytes=space.f_blocks * space.f_frsize)
    return os.stat(path).st_dev, disk


def read_supervisor(layout: ClusterLayout) -> tuple[tuple[SupervisedProcess, ...], str]:
    """Return the processes of the cluster on this machine, or the reason why they are not known."""
    try:
        reply = within(lambda: ask(layout, Status(), within_s=ANSWER_S_MAX), 2 * ANSWER_S_MAX)
    except NoCluster:
        return (), f"the cluster in {layout.root} is not running"
    except (EmbeddedError, TimeoutError) as error:
        return (), f"its supervisor does not answer: {error}"
    return tuple(
        SupervisedProcess(
            name=child.name,
            state=child.state,
            restarts=child.restarts,
            last_exit=child.last_exit,
            ready_s=child.ready_s,
        )
        for child in reply.children
    ), ""


class _Health(msgspec.Struct, frozen=True):
    status: str = ""
    error: str = ""


def read_health_error(monitor_url: str) -> str:
    """Return what the health check of nats-server reports; "" if it is well or cannot be asked."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def fetch() -> bytes:
        try:
            with opener.open(f"{monitor_url}/healthz", timeout=ANSWER_S_MAX) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.read()

    try:
        return msgspec.json.decode(within(fetch, ANSWER_S_MAX), type=_Health).error
    except (OSError, msgspec.MsgspecError, ValueError):
        return ""  # Whether it answers at all is asked on the bus.
