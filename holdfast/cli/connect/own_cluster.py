"""The cluster that `holdfast run` starts for one job where none is found, and takes down with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from holdfast.cli.connect.addresses import both_elsewhere
from holdfast.cli.connect.directory import cluster_errors, is_named
from holdfast.embedded.control import is_running
from holdfast.embedded.layout import NOT_STARTED, ClusterLayout
from holdfast.node.trees import remove_tree
from holdfast.node.users.exchangeable import others_part
from holdfast.node.users.own_users import Exchanged

RUNS = "runs"
"""Directory of such clusters, below that of a lasting one."""


def is_missing(directory: Path, nats_url: str | None, database_url: str | None) -> bool:
    """Return True if nothing names a cluster, and none runs in the directory that is found from here."""
    if is_named() or both_elsewhere(nats_url, database_url) is not None:
        return False
    layout = ClusterLayout(directory)
    return not (layout.root.is_dir() and is_running(layout))


class OwnCluster:
    """A cluster for one run, which is up but for its nodes."""

    def __init__(self, layout: ClusterLayout, supervisor: int) -> None:
        self._layout = layout
        self._supervisor = supervisor
        self.info = layout.info()

    async def ended(self) -> str:
        """Wait until the cluster has ended by itself, and return why."""
        loop, gone = asyncio.get_running_loop(), asyncio.Event()
        pidfd = os.pidfd_open(self._supervisor)
        loop.add_reader(pidfd, gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)
        log = self._layout.log("supervisor")
        _, found, reason = log.read_text(errors="replace").rpartition(NOT_STARTED)
        return f"the cluster of this run ended: {reason.strip() if found else 'its supervisor is gone'}. See {log}"


@contextlib.contextmanager
def own_cluster(directory: Path, job: str, nodes: int) -> Iterator[OwnCluster]:
    """Start a cluster for this job, and end it with the block; only its logs stay. Its nodes come while the block runs.
    Raises click.ClickException.
    """
    # Imported here: most runs find a cluster.
    from holdfast.embedded.configuration import find_configuration
    from holdfast.embedded.launch import run_detached
    from holdfast.embedded.options import ClusterOptions
    from holdfast.embedded.services import cluster_plan

    layout = ClusterLayout(_place(directory, job))
    if layout.root.is_dir() and is_running(layout):
        raise click.ClickException(f"a run named {job} is under way here: choose another --name")
    options = ClusterOptions(nodes=nodes, for_one_run=True)
    count = f"{nodes} node{'' if nodes == 1 else 's'}"
    shown = click.format_filename(layout.root)
    click.echo(f"[holdfast] starting a cluster of {count} for this run, in {shown}; it ends with the run", err=True)
    with cluster_errors():
        plan = cluster_plan(find_configuration(os.environ), for_one_run=True)
        supervisor = run_detached(layout, plan, options, lambda line: None, wait=True)
    try:
        yield OwnCluster(layout, supervisor)
    finally:
        _end(supervisor)
        _remove(layout)


def _place(directory: Path, job: str) -> Path:
    """Return a directory for the cluster's state: where that of a lasting one would be, else a temporary one.

    A temporary one too where another user could exchange a part of the path, and so the cluster's passwords: below
    `.holdfast` in /tmp, or in the home directory of a user that root does something for.
    """
    place = directory / RUNS / job
    try:
        if others_part(place.parent) is None:
            place.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=place.parent):
                return place
    except (OSError, Exchanged):
        pass
    return Path(tempfile.mkdtemp(prefix=f"holdfast-{job}-"))


def _end(supervisor: int) -> None:
    """Stop the cluster in order; Ctrl-C while it stops kills what is left."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(supervisor, signal.SIGTERM)
        try:
            os.waitpid(supervisor, 0)
        except KeyboardInterrupt:
            os.kill(supervisor, signal.SIGTERM)
            os.waitpid(supervisor, 0)


def _remove(layout: ClusterLayout) -> None:
    """Remove all but the logs and what `holdfast logs` finds them by."""
    for path in (layout.postgres, layout.nats, layout.addresses):
        shutil.rmtree(path, ignore_errors=True)
    for node in layout.nodes.glob("*"):
        for path in node.iterdir():
            if path.name == "logs":
                continue
            if path.is_dir() and not path.is_symlink():
                with contextlib.suppress(OSError):
                    remove_tree(path)
            else:
                path.unlink(missing_ok=True)
    layout.secrets_file.unlink(missing_ok=True)
