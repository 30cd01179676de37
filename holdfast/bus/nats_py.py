"""nats-py, with aiohttp only once a websocket is opened.

Where that is installed (s3fs brings it) nats-py imports it in any case, which is a third of the start of every command.
"""

from __future__ import annotations

import importlib
import sys

_WEBSOCKETS = "aiohttp"


class _Later:
    """A module that is imported when something of it is asked for."""

    def __getattr__(self, name: str) -> object:
        return getattr(importlib.import_module(_WEBSOCKETS), name)


_hidden = _WEBSOCKETS not in sys.modules
if _hidden:
    sys.modules[_WEBSOCKETS] = None  # type: ignore[assignment]

import nats  # noqa: E402
import nats.aio.transport  # noqa: E402
import nats.errors  # noqa: E402
import nats.js.errors  # noqa: E402
from nats.aio.client import Client  # noqa: E402
from nats.aio.msg import Msg  # noqa: E402
from nats.aio.subscription import Subscription  # noqa: E402

if _hidden:
    del sys.modules[_WEBSOCKETS]
    setattr(nats.aio.transport, _WEBSOCKETS, _Later())

__all__ = ["Client", "Msg", "Subscription", "nats"]
