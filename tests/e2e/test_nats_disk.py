"""The disk of NATS fills up in the middle of training, a rank dies, and the disk has space again."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster, cluster
from records import check_record

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif("HOLDFAST_LONG" not in os.environ, reason="takes a cluster of its own: LONG=1"),
]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose NATS has a disk of 64 MiB."""
    with cluster(tmp_path, nodes=2) as made:
        # A directory with other files is no place for a new cluster.
        made.down()
        command = ["mount", "-t", "tmpfs", "-o", "size=64m", "holdfast-test", str(made.layout.nats)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            pytest.skip(f"cannot mount a file system here: {done.stderr.strip()}")
        try:
            made.up()
            yield made
        finally:
            subprocess.run(["umount", "--lazy", str(made.layout.nats)], check=True, stdin=subprocess.DEVNULL)


@pytest.mark.timeout(300)
def test_a_rank_that_died_while_the_disk_was_full_is_recovered(small_disk: Cluster) -> None:
    job = small_disk.run()
    job.until_step(15)
    rest = small_disk.layout.nats / "rest"
    with rest.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    assert shutil.disk_usage(small_disk.layout.nats).free == 0
    rank = job.kill_rank(1)
    found = small_disk.until("the doctor names it", lambda: _writes(small_disk))
    assert "no space left on device" in found
    nats = small_disk.pid("nats")
    rest.unlink()
    small_disk.until_mended("nats", nats)
    job.until_step(rank.step + 5, generation=2)
    job.finish()
    check_record(small_disk, job)
    assert [row["outcome"] for row in small_disk.incidents(job)] == ["recovered"]


def _writes(holdfast: Cluster) -> str:
    found = [finding["what"] for finding in holdfast.status()["findings"] if finding["kind"] == "writes"]
    return found[0] if found else ""
