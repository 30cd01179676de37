"""Ways to break a training by its network and by services elsewhere."""

from __future__ import annotations

import os
import socket
import threading
import urllib.request
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import torch.distributed as dist


def unset_environment() -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    dist.init_process_group("gloo")


def unset_rank() -> None:
    os.environ.pop("LOCAL_RANK", None)
    _ = int(os.environ["LOCAL_RANK"])


def port_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        dist.TCPStore("127.0.0.1", port, 1, True, timedelta(seconds=2))


def port_taken_by_script() -> None:
    with socket.socket() as taken, socket.socket() as again:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        again.bind(taken.getsockname())


def nobody_joins() -> None:
    dist.TCPStore("127.0.0.1", 0, 4, True, timedelta(seconds=2))


def master_unreachable() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    dist.TCPStore("127.0.0.1", port, 2, False, timedelta(seconds=2))


def host_unknown() -> None:
    socket.create_connection(("storage.invalid", 443))


def no_network() -> None:
    socket.create_connection(("10.1.2.3", 443), timeout=2)


def _served(answer: int) -> str:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answer)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/api/runs"


def http_503() -> None:
    import requests

    requests.get(_served(503)).raise_for_status()


def http_502_urllib() -> None:
    urllib.request.urlopen(_served(502)).read()


def http_401() -> None:
    import requests

    requests.get(_served(401)).raise_for_status()


def http_429() -> None:
    import requests

    requests.get(_served(429)).raise_for_status()


def http_unresolved() -> None:
    import requests

    requests.get("https://api.tracker.invalid/graphql", timeout=2)


def _bucket(fault: str) -> None:
    import boto3
    import botocore.config
    from moto import mock_aws

    with mock_aws():
        client = boto3.client(
            "s3",
            region_name="us-east-1",
            aws_access_key_id=None if fault == "credentials" else "a",
            aws_secret_access_key=None if fault == "credentials" else "b",
        )
        client.create_bucket(Bucket="data")
        client.get_object(Bucket="data" if fault == "key" else "other", Key="shard-7")
    del botocore


def s3_no_key() -> None:
    _bucket("key")


def s3_no_bucket() -> None:
    _bucket("bucket")


def _s3(url: str, **options: Any) -> None:
    import boto3
    from botocore.config import Config

    config = Config(connect_timeout=1, read_timeout=1, retries={"max_attempts": 0})
    client = boto3.client("s3", region_name="us-east-1", endpoint_url=url, config=config, **options)
    client.get_object(Bucket="data", Key="shard-7")


def s3_unreachable() -> None:
    _s3("http://storage.invalid:9000", aws_access_key_id="a", aws_secret_access_key="b")


def s3_credentials() -> None:
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    _s3("http://127.0.0.1:9")


def s3_slow_down() -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            said = b"<Code>SlowDown</Code><Message>Please reduce your request rate.</Message>"
            body = b"<?xml version='1.0'?><Error>" + said + b"</Error>"
            self.send_response(503)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    _s3(f"http://127.0.0.1:{server.server_port}", aws_access_key_id="a", aws_secret_access_key="b")
