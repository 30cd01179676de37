"""Small trees in the form of /proc and /sys, for checks to read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from holdfast.node.machine import Machine


def machine_at(root: Path, files: Mapping[str, object] | None = None) -> Machine:
    """A machine with these files below `root`: `sys/class/net/eth0/carrier` and the like."""
    write(root, files or {})
    return Machine(proc=root / "proc", sys=root / "sys", dev=root / "dev", run=root / "run")


def write(root: Path, files: Mapping[str, object]) -> None:
    """Write these files; folders come by themselves."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")


def interface(name: str, **changes: object) -> dict[str, object]:
    """A card that is up and has carried packets."""
    values: dict[str, object] = {
        "flags": "0x1003",
        "carrier": 1,
        "operstate": "up",
        "carrier_down_count": 1,
        "device/vendor": "0x15b3",
        "statistics/rx_packets": 500_000,
        "statistics/tx_packets": 500_000,
    } | {key.replace("__", "/"): value for key, value in changes.items()}
    return {f"sys/class/net/{name}/{key}": value for key, value in values.items()}


def port(card: str, **changes: object) -> dict[str, object]:
    """A port of an InfiniBand card that is up."""
    values: dict[str, object] = {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "400 Gb/sec (4X NDR)",
        "link_layer": "InfiniBand",
        "counters/port_rcv_data": 230_539_874,
        "counters/link_downed": 0,
        "counters/symbol_error": 0,
        "hw_counters/packet_seq_err": 0,
    } | {key.replace("__", "/"): value for key, value in changes.items()}
    return {f"sys/class/infiniband/{card}/ports/1/{key}": value for key, value in values.items()}
