"""A script in a job, by calls to the kernel and by bytes that no client sends."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from attempts.in_job import asks_its_vault
from attempts.scene import Scene
from attempts.table import JOB, attempt, attempts
from holdfast.node.collectives.ring_path import ring_path
from holdfast.subjects import heartbeat_subject

LEASED_S = 20.0
"""The kernel takes a lease away after 45 s."""


def _others(scene: Scene) -> list[int]:
    return sorted(scene.processes() - set(scene.job.pids()))


@attempt(JOB, "open shared memory of others, in /dev/shm or of System V", "the names in /dev/shm")
def opens_memory(scene: Scene) -> Any:
    of_others = scene.ask_rank("shared_memory")
    # Other programs of the machine may have open ones.
    got = [name for name in of_others if "holdfast" in name or "PostgreSQL" in name or name.startswith("segment")]
    assert got == [], got


@attempt(JOB, "have the kernel report what happens in the cluster's directories (inotify)", "its own files' changes")
def watches_files(scene: Scene) -> Any:
    own = ("/jobs/victim", "/homes/victim", "/errors/victim/", "/reports/victim.jsonl", "/vault.sock", "/victim/1-1")
    numbers = ("agent.pid", "zygote.pid", "vault-port", "store-ports.json")
    watched = scene.ask_rank("watch", scene.files())
    others = [
        path
        for path in watched
        if not any(part in path for part in own) and not path.endswith((*numbers, "/cluster/jobs"))
    ]
    assert others == [], others


@attempt(JOB, "give a file of the cluster a second name in its job's directory (hard link)", "nothing")
def links_files(scene: Scene) -> Any:
    files = [path for path in scene.files() if os.path.isfile(path) and os.stat(path).st_uid == 0]
    assert len(files) > 50
    assert scene.ask_rank("link_to", [*files, "/etc/shadow"], scene.ask_rank("environment")["HOLDFAST_JOB_DIR"]) == []


@attempt(JOB, "connect to an abstract socket of the cluster", "there is none")
def joins_abstract_sockets(scene: Scene) -> Any:
    inodes = set()
    for pid in scene.processes():
        for link in Path(f"/proc/{pid}/fd").iterdir():
            # What is closed meanwhile was no socket that listens.
            with suppress(FileNotFoundError):
                if (where := os.readlink(link)).startswith("socket:["):
                    inodes.add(where[8:-1])
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    abstract = [line[7] for line in lines if len(line) > 7 and line[7].startswith("@") and line[6] in inodes]
    assert abstract == [] == scene.ask_rank("connect_abstract", abstract)


@attempt(JOB, "listen beside the cluster's servers on their ports", "nothing")
def shares_ports(scene: Scene) -> Any:
    ports = [scene.info.ports.nats, scene.info.ports.postgres, scene.info.ports.nats_monitor]
    assert scene.ask_rank("bind", ports) == []


@attempt(JOB, "call what is root's: reboot, modules, clock, packets, priorities, files by handle", "nothing")
def calls_for_root(scene: Scene) -> Any:
    assert scene.ask_rank("root_only") == []


@attempt(JOB, "change settings of the kernel, or of a process through /proc", "nothing")
def sets_the_kernel(scene: Scene) -> Any:
    opened = scene.ask_rank("kernel_settings", _others(scene))
    assert opened == [], opened


@attempt(JOB, "change processors, priority, limits, memory, counters of another process", "nothing")
def handles_processes(scene: Scene) -> Any:
    assert scene.ask_rank("handle", _others(scene)) == []


@attempt(JOB, "reach files of the cluster as root of a user namespace of its own", "what its user reaches")
def makes_a_namespace(scene: Scene) -> Any:
    paths = [str(scene.layout.secrets_file), str(scene.layout.cluster_file), "/etc/shadow"]
    assert scene.ask_rank("in_own_namespace", [*paths, "/mnt/etc/shadow"]) in (None, [])


@attempt(JOB, "pass for root at its vault's socket (SCM_CREDENTIALS)", "refused")
def claims_to_be_root(scene: Scene) -> Any:
    assert scene.ask_rank("claim_to_be_root") == []


@attempts(
    JOB,
    "closed connections; its vault answers",
    {
        "hold 300 connections to its vault, each amid a message of 256 MB": ["flood_vault", 300],
        "send its vault 300 messages of random bytes and deep nesting": ["nonsense_to_vault", 300],
        "fill the descriptors of its vault with its own": ["give_descriptors", 200],
    },
)
def floods_its_vault(scene: Scene, argument: list[Any]) -> Any:
    vaults = [pid for pid in scene.processes() if b"holdfast_vault" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    before = {pid: _descriptors(pid) for pid in vaults}
    assert len(vaults) >= len(scene.members)
    scene.ask_rank(*argument)
    asks_its_vault(scene)
    scene.until_it_trains_on()
    scene.cluster.until(
        "vaults live, and have closed what they were given",
        lambda: all(_descriptors(pid) <= known + 10 for pid, known in before.items()),
    )


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@attempts(
    JOB,
    "a gap in what is measured of it",
    {
        f"put {kind} in the place of its ledger, ring of collectives and file of errors, which its agent reads": kind
        for kind in ("an empty file", "a file of a terabyte", "a directory", "a socket", "a link to itself")
    },
)
def exchanges_for(scene: Scene, argument: str) -> Any:
    environment = scene.ask_rank("environment")
    ledger, errors = environment["HOLDFAST_LEDGER"], environment["TORCHELASTIC_ERROR_FILE"]
    if not os.path.exists(errors):
        scene.ask_rank("make", [errors])
    scene.ask_rank("exchange_for", [ledger, str(ring_path(ledger)), errors], argument)
    scene.until_it_trains_on()


@attempt(JOB, "make its file of reports 64 GB long for a moment", "reports that are lost")
def swells_reports(scene: Scene) -> Any:
    scene.ask_rank("swell_reports", 64 << 30)
    scene.until_it_trains_on()


@attempt(JOB, "hold a lease on its file of reports, so that its agent waits where it opens it", "its agent goes on")
def leases_reports(scene: Scene) -> Any:
    environment = scene.ask_rank("environment")
    if not scene.ask_rank("lease", environment["HOLDFAST_REPORTS"], LEASED_S):
        pytest.skip("this file system has no leases")
    scene.operator.subscribe(heartbeat_subject(scene.members[0]))
    arrived: list[object] = []

    def some() -> bool:
        arrived.extend(scene.operator.flush())
        return len(arrived) >= 3

    scene.cluster.until("heartbeats arrive", some, within_s=LEASED_S - 5)


@attempt(JOB, "leave a process behind that left its session, parents, limits and ignores signals", "ended with the job")
def leaves_a_process(scene: Scene) -> Any:
    scene.left.append(scene.ask_rank("leave_behind"))
    assert Path(f"/proc/{scene.left[0]}").exists()
