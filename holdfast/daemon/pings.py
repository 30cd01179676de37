"""Answers to pings, by which any process of a cluster finds out whether another one serves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from holdfast.bus import Bus
from holdfast.requests import REGISTER, SIGN_AGAIN
from holdfast.subjects import ping_subject


async def answer_pings(
    bus: Bus,
    process: str,
    register: Callable[[], None] | None = None,
    sign_again: Callable[[], Awaitable[bytes]] | None = None,
) -> None:
    """Answer pings to this process until cancelled; `register` and `sign_again` are called when one asks for that."""

    async def ready(body: bytes) -> bytes:
        if body == REGISTER and register is not None:
            register()
        if body == SIGN_AGAIN and sign_again is not None:
            return await sign_again()
        return b"ready"

    await bus.serve(ping_subject(process), ready)
