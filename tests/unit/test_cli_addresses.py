"""Where a command finds its cluster."""

from pathlib import Path

import click
import pytest

from holdfast.cli.addresses import nats_url, reader_url
from holdfast.embedded.layout import ClusterInfo, Layout, Ports


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    layout = Layout(tmp_path)
    layout.create()
    layout.write_info(
        ClusterInfo(
            version="1",
            pid=None,
            ports=Ports(postgres=1, nats=2, nats_monitor=3),
            nats_url="nats://here:2",
            nats_monitor_url="http://here:3",
            database_urls={"reader": "postgresql://holdfast_reader@here:1/holdfast", "admin": "postgresql://never"},
            nodes=[],
        )
    )
    return tmp_path


def test_the_embedded_cluster_is_read_as_the_reader(cluster: Path) -> None:
    assert reader_url(cluster, None) == "postgresql://holdfast_reader@here:1/holdfast"
    assert nats_url(cluster, None) == "nats://here:2"


def test_an_address_given_by_hand_goes_first(cluster: Path) -> None:
    assert reader_url(cluster, "postgresql://there") == "postgresql://there"
    assert nats_url(cluster / "nowhere", "nats://there") == "nats://there"


def test_without_either_the_message_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(click.ClickException, match=r"no cluster here .*`holdfast up`.*--database-url"):
        reader_url(tmp_path, None)
    with pytest.raises(click.ClickException, match=r"--nats-url"):
        nats_url(tmp_path, None)


def test_a_damaged_cluster_file_is_named(cluster: Path) -> None:
    Layout(cluster).cluster_file.write_text("{")
    with pytest.raises(click.ClickException, match="damaged"):
        reader_url(cluster, None)
