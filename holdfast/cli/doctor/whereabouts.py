"""Addresses of the cluster that a command names, whether or not it runs."""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.cli.connect.addresses import both_elsewhere
from holdfast.cli.connect.directory import cluster_errors
from holdfast.embedded.layout import ClusterLayout


class Whereabouts(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses of a cluster; `layout` is None for one that `holdfast up` did not start here."""

    nats_url: str
    database_url: str
    nats_monitor_url: str | None = None
    layout: ClusterLayout | None = None


def whereabouts(directory: Path, nats_url: str | None, database_url: str | None) -> Whereabouts:
    """Return the addresses of the cluster that flags, environment or directory name. Raises ClickException if none."""
    if elsewhere := both_elsewhere(nats_url, database_url):
        bus, database = elsewhere
        return Whereabouts(nats_url=bus, database_url=database)
    layout = ClusterLayout(directory)
    with cluster_errors():
        info = layout.info()
    return Whereabouts(
        nats_url=nats_url or info.nats_url,
        database_url=database_url or info.database_urls["reader"],
        nats_monitor_url=None if nats_url else info.nats_monitor_url,
        layout=layout,
    )
