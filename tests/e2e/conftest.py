"""One cluster serves most tests; each finds it whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster import Cluster, cluster

NODES = 3
"""Two for a job and one standby."""


@pytest.fixture(scope="session")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("shared"), NODES) as running:
        yield running
        # Nodes of one cluster publish about their own jobs only, in whatever order it arrives.
        foreign = "select distinct node, job, generation, type from historian.foreign_events"
        running.until("no honest event is taken for a foreign one", lambda: not running.query(foreign))


@pytest.fixture
def holdfast(_shared: Cluster) -> Cluster:
    """A running cluster of three free nodes."""
    _shared.make_whole()
    return _shared
