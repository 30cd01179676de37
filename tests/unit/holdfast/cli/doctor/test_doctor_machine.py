"""Calls that never return do not stop `holdfast doctor`."""

from __future__ import annotations

import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast.cli.doctor.reading_machine import read_certificates, read_disks, read_in_memory
from holdfast.network.certificates import ends_of, make_authority
from holdfast.settings.network import NetworkPolicy


def test_a_file_system_is_listed_once_and_what_is_elsewhere_not_at_all(tmp_path: Path) -> None:
    (disk,) = read_disks([tmp_path, tmp_path, tmp_path / "not there"])
    assert disk.path == str(tmp_path) and disk.free_bytes is not None and disk.total_bytes > 0


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="no file system in memory is mounted here")
def test_what_lies_in_memory_is_named_once() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        below = Path(directory) / "nodes"
        below.mkdir()
        assert read_in_memory([Path(directory), below, Path("/proc")]) == (directory,)


def test_of_authorities_the_last_end_counts(tmp_path: Path) -> None:
    old, new = (make_authority("tests", datetime.now(UTC), days=days).certificate for days in (1, 100))
    file = tmp_path / "ca.pem"
    file.write_bytes(old + new)
    (found,) = read_certificates(NetworkPolicy(tls_ca=str(file), tls_cert="/nowhere", tls_key="/nowhere"))
    assert (found.path, found.ends_at) == (str(file), ends_of(new)[0])
    assert read_certificates(NetworkPolicy()) == ()
