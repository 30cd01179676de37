"""A failing service outside of the cluster: an address that answers every request with an error."""

from __future__ import annotations

import http.server
import os
import sys

from holdfast.faults.fault import Fault, FaultOptions, FaultRefused, FaultScope, FaultStep
from holdfast.faults.helpers import READY, Helper
from holdfast.faults.target import FaultTarget
from holdfast.symptoms import Symptom

BODIES = {
    "http": (b"text/plain", b"Service Unavailable\n"),
    "s3": (
        b"application/xml",
        b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>SlowDown</Code>'
        b"<Message>Please reduce your request rate.</Message></Error>\n",
    ),
    "webhdfs": (
        b"application/json",
        b'{"RemoteException":{"exception":"StandbyException","javaClassName":"org.apache.hadoop.ipc.StandbyException",'
        b'"message":"Operation category READ is not supported in state standby"}}\n',
    ),
}


class ServiceOptions(FaultOptions, frozen=True, kw_only=True):
    """`port`: a free port of 127.0.0.1, or of the bridge between nodes with networks of their own. `status`: HTTP
    status. `speaks`: format of the error: http, s3 or webhdfs.
    """

    port: int = 9870
    status: int = 503
    speaks: str = "http"

    def symptom(self) -> Symptom | None:
        return Symptom.HDFS_ERROR if self.speaks == "webhdfs" else None


def _service_down(aim: FaultTarget, options: ServiceOptions) -> tuple[FaultStep, ...]:
    if options.speaks not in BODIES:
        raise FaultRefused(f"speaks={options.speaks}: give one of {', '.join(BODIES)}")
    if not 0 < options.port < 65_536 or not 400 <= options.status <= 599:
        raise FaultRefused("give a port from 1 to 65535, and a status from 400 to 599")
    host = aim.info.fabric.gateway if aim.info.fabric is not None else "127.0.0.1"
    arguments = (host, str(options.port), str(options.status), options.speaks)
    return (Helper(mark=aim.mark, module="holdfast.faults.kinds.endpoints", arguments=arguments),)


class _Failing(http.server.BaseHTTPRequestHandler):
    status: int
    speaks: str
    protocol_version = "HTTP/1.1"

    def _fail(self) -> None:
        kind, body = BODIES[self.speaks]
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(self.status)
        self.send_header("Content-Type", kind.decode())
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _fail

    def log_message(self, format: str, *args: object) -> None:
        """Discard the log line."""


def main() -> None:
    host, port, status, speaks = sys.argv[1:]
    handler = type("Failing", (_Failing,), {"status": int(status), "speaks": speaks})
    try:
        server = http.server.ThreadingHTTPServer((host, int(port)), handler)
    except OSError as error:
        sys.exit(f"cannot listen on {host}:{port}: {error.strerror}; choose another with -o port=...")
    os.write(1, READY)
    server.serve_forever()


FAULTS = (
    Fault(
        "service-down",
        Symptom.EXTERNAL_SERVICE_ERROR,
        FaultScope.HOST,
        "an address of this machine that answers every request with 503 (-o speaks=s3 or webhdfs: in their format)",
        _service_down,
        options=ServiceOptions,
        undo="it listens no more",
    ),
)

if __name__ == "__main__":
    main()
