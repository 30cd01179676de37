"""A firewall that drops what bridges forward, as Docker leaves it, is named before nodes fail to reach each other."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("iptables") is None, reason="needs root and iptables"),
    pytest.mark.skipif(not Path("/proc/sys/net/bridge").exists(), reason="the kernel passes no frame to the firewall"),
]
BUILD = """
from holdfast.embedded import fabric
from holdfast.embedded.errors import EmbeddedError
from holdfast.embedded.layout import Fabric
try:
    fabric.build(Fabric(bridge="hfaaaaaa", subnet="198.18.0"))
except EmbeddedError as error:
    print(error)
"""
RULE = "iptables -I FORWARD -i hfaaaaaa -o hfaaaaaa -j ACCEPT"


@pytest.mark.parametrize(
    ("before", "is_refused"),
    [("iptables -P FORWARD DROP", True), (f"iptables -P FORWARD DROP && {RULE}", False), ("true", False)],
)
def test_a_firewall_that_drops_what_is_forwarded_is_named_with_its_cure(before: str, is_refused: bool) -> None:
    filtered = "echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables"
    command = (
        "unshare",
        "--net",
        "sh",
        "-c",
        f'{filtered} && {before} && exec "$@"',
        "sh",
        sys.executable,
        "-c",
        BUILD,
    )
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (RULE in done.stdout) == is_refused
