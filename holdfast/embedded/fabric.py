"""Separate networks of nodes: for each, a namespace with one link (`eth0`) to a bridge, on which NATS is reached.

Such a link belongs to one node: it can be pulled, slowed down or cut off from another. Addresses come from
198.18.0.0/15, which is reserved for tests of networks (RFC 2544).
"""

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from holdfast.embedded.errors import EmbeddedError
from holdfast.embedded.layout import ClusterLayout, Fabric

DEVICE = "eth0"
NODES_MAX = 200
_SUBNETS = 512
_NAMED = Path("/run/netns")
_FILTERED = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")

_MOUNTS = ("cd /sys/fs/cgroup", "mount -t sysfs sysfs /sys", "mount --no-canonicalize --rbind . /sys/fs/cgroup")
_SHOW = f'( {" && ".join(_MOUNTS)} ) && exec "$@"'
"""Shows the devices of this network in /sys, and the control groups that lie below it: `ip netns exec` hides them."""


def choose(layout: ClusterLayout, before: Fabric | None) -> Fabric:
    """Choose the bridge and subnet of a cluster: those of the last run, or else unused ones. Raises EmbeddedError if
    links cannot be made here.
    """
    for command, package in (("ip", "iproute2"), ("nsenter", "util-linux"), ("unshare", "util-linux")):
        if shutil.which(command) is None:
            raise EmbeddedError(f"--namespaces needs the command {command}: install {package}.")
    used = {entry["local"].rpartition(".")[0] for link in _ip_json("addr") for entry in link["addr_info"]}
    if before is not None and before.subnet not in used:
        return before
    number = int.from_bytes(hashlib.sha256(str(layout.root).encode()).digest()[:4], "big")
    for attempt in range(_SUBNETS):
        place = (number + attempt) % _SUBNETS
        subnet = f"198.{18 + place // 256}.{place % 256}"
        if subnet not in used:
            return Fabric(bridge=f"hf{number % (1 << 24):06x}", subnet=subnet)
    raise EmbeddedError("all subnets of 198.18.0.0/15 are in use on this machine: stop some clusters.")


def build(fabric: Fabric) -> None:
    """Make the bridge. Raises EmbeddedError."""
    _require_passage(fabric.bridge)
    _ip("link", "add", fabric.bridge, "type", "bridge")
    _ip("addr", "add", f"{fabric.gateway}/24", "dev", fabric.bridge)
    _ip("link", "set", fabric.bridge, "up")


def add_node(fabric: Fabric, node: str) -> None:
    """Make the node's namespace and link. Raises EmbeddedError."""
    if int(node.rpartition("-")[2]) >= NODES_MAX:
        raise EmbeddedError(f"--namespaces allows {NODES_MAX} nodes: use fewer, or omit it.")
    namespace, link = fabric.namespace(node), fabric.link(node)
    _ip("netns", "add", namespace)
    _ip("link", "add", link, "type", "veth", "peer", "name", DEVICE, "netns", namespace)
    _ip("link", "set", link, "master", fabric.bridge, "up")
    _ip("-n", namespace, "addr", "add", f"{fabric.address(node)}/24", "dev", DEVICE)
    _ip("-n", namespace, "link", "set", DEVICE, "up")
    _ip("-n", namespace, "link", "set", "lo", "up")


def inside(fabric: Fabric, node: str) -> tuple[str, ...]:
    """Return the prefix of a command line that runs it in the node's network and in a new mount namespace."""
    network = f"--net={_NAMED}/{fabric.namespace(node)}"
    # The shell would export another one, and the nursery takes an agent only with the variables that it has itself.
    unchanged = ("env", f"PWD={os.environ['PWD']}") if "PWD" in os.environ else ("env", "-u", "PWD")
    return ("nsenter", network, "unshare", "--mount", "--propagation=slave", "sh", "-c", _SHOW, "sh", *unchanged)


def remove(fabric: Fabric) -> None:
    """Remove the namespaces, their links and the bridge, as far as they exist."""
    for namespace in sorted(_NAMED.glob(f"{fabric.bridge}-*")):
        _ip("netns", "del", namespace.name)
    # The kernel destroys a namespace after its removal; its links must be gone now.
    for link in sorted(Path("/sys/class/net").glob(f"{fabric.bridge}n*")):
        subprocess.run(("ip", "link", "del", link.name), capture_output=True, check=False)
    if Path(f"/sys/class/net/{fabric.bridge}").exists():
        _ip("link", "del", fabric.bridge)


def _require_passage(bridge: str) -> None:
    """Raise EmbeddedError if this machine's firewall drops what nodes send to each other over the bridge."""
    try:
        is_filtered = _FILTERED.read_text().strip() == "1"
    except FileNotFoundError:
        return  # The kernel passes no frame of a bridge to the firewall.
    if not is_filtered or shutil.which("iptables") is None:
        return
    rule = ("-i", bridge, "-o", bridge, "-j", "ACCEPT")
    if _iptables("-S", "FORWARD").stdout.startswith("-P FORWARD DROP") and _iptables("-C", "FORWARD", *rule).returncode:
        raise EmbeddedError(
            "this machine's firewall would drop what nodes send to each other: Docker, for one, has it drop all that "
            f"bridges forward. Allow it with `iptables -I FORWARD {' '.join(rule)}`, or omit --namespaces."
        )


def _iptables(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(("iptables", "-w", *arguments), capture_output=True, text=True, check=False)


def _ip(*arguments: str) -> str:
    done = subprocess.run(("ip", *arguments), capture_output=True, text=True, check=False)
    if done.returncode:
        raise EmbeddedError(
            f"`ip {' '.join(arguments)}` failed: {done.stderr.strip()}. Networks for nodes need root "
            "(CAP_NET_ADMIN, CAP_SYS_ADMIN) and a kernel with veth and bridge. Without them, omit --namespaces."
        )
    return done.stdout


def _ip_json(what: str) -> list[dict[str, Any]]:
    return msgspec.convert(json.loads(_ip("-j", "-4", what)), list[dict[str, Any]])
