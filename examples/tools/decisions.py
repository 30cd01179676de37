"""Prints every decision of a cluster as it is made, in one line each, until Ctrl-C. It needs nats-py alone:

    eval "$(holdfast connect --env)"
    python decisions.py [JOB]

docs/tools.md describes subjects and bodies. What was decided before is in the record: examples/tools/incidents.sql.
"""

import asyncio
import json
import os
import ssl
import sys

import nats
from nats.aio.msg import Msg


def tls() -> ssl.SSLContext | None:
    """Return the files that `holdfast connect` names, None for a server on loopback without TLS."""
    if "NATS_CA" not in os.environ:
        return None
    context = ssl.create_default_context(cafile=os.environ["NATS_CA"])
    context.load_cert_chain(os.environ["NATS_CERT"], os.environ["NATS_KEY"])
    return context


async def show(message: Msg) -> None:
    """Print one decision."""
    decision = json.loads(message.data)
    about = decision.get("node") or decision.get("rank") or ""
    print(decision["at"], decision["type"], decision.get("job") or "", about, decision.get("reason") or "", flush=True)


async def report(error: Exception) -> None:
    """Print an error of the connection, such as a refused subscription; the client connects again by itself."""
    print(f"NATS: {error!r}", file=sys.stderr, flush=True)


async def main(job: str) -> None:
    """Print the decisions about a job (`*`: about all) for as long as this runs."""
    client = await nats.connect(os.environ["NATS_URL"], tls=tls(), error_cb=report, name="decisions")
    await client.subscribe(f"holdfast.v1.decision.*.{job}.>", cb=show)
    await client.flush()
    print("listening", file=sys.stderr, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "*"))
    except KeyboardInterrupt:
        pass
