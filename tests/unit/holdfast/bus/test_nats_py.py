"""aiohttp, which only websockets need, is there for them and for nobody else."""

import subprocess
import sys

PROGRAM = """
import asyncio, sys
import holdfast.bus.nats
assert "aiohttp" not in sys.modules
from nats.aio.transport import WebSocketTransport
async def open_one():
    await WebSocketTransport()._client.close()
asyncio.run(open_one())
assert sys.modules["aiohttp"].ClientSession
import aiohttp.web
"""


def test_aiohttp_is_imported_for_the_first_websocket() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
