"""What our nats-servers are told."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from holdfast.bus.accounts import users
from holdfast.bus.streams import bucket_config, stream_config
from holdfast.embedded.servers.nats import nats_server, write_config
from holdfast.subjects import KEY_BUCKETS, STREAMS

COMPOSE = Path(__file__).parents[4] / "deploy" / "nats.conf"
UNITS = {"MB": 1 << 20, "GB": 1 << 30}


@pytest.fixture(params=["embedded", "compose"])
def configuration(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "compose":
        return COMPOSE.read_text()
    return write_config(tmp_path, port=1, monitor_port=2, passwords=dict.fromkeys(users(()), "-"), nodes=()).read_text()


@pytest.mark.parametrize(("storage", "key"), [("file", "max_file_store"), ("memory", "max_memory_store")])
def test_the_streams_fit_whatever_the_disk_has_free(configuration: str, storage: str, key: str) -> None:
    found = re.search(rf"^  {key}: (\d+)(MB|GB)$", configuration, re.MULTILINE)
    assert found is not None
    configs = [*map(stream_config, STREAMS), *map(bucket_config, KEY_BUCKETS)]
    reserved = sum(config["max_bytes"] for config in configs if config["storage"] == storage)
    assert 0 < reserved <= int(found[1]) * UNITS[found[2]]


@pytest.mark.parametrize("name", [b"caf\xc3\xa9", b"no utf-8 \xff", b'a "quote", a \\n and a #'])
def test_the_server_reads_its_configuration_in_a_directory_of_any_name(tmp_path: Path, name: bytes) -> None:
    directory = tmp_path / os.fsdecode(name)
    directory.mkdir()
    config = write_config(directory, port=1, monitor_port=2, passwords=dict.fromkeys(users(()), "-"), nodes=())
    done = subprocess.run([nats_server(), "-t", "--config", config], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
