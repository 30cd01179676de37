"""What the supervisor answers on its control socket."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from holdfast.embedded.control import AnyRequest, ControlServer, Reply, Status, ask
from holdfast.embedded.errors import ControlRefused
from holdfast.embedded.layout import ClusterLayout


async def _asked(layout: ClusterLayout) -> Reply:
    async def full(_: AnyRequest) -> Reply:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "secrets.json")

    async with asyncio.TaskGroup() as tasks, ControlServer(layout, tasks, full):
        return await asyncio.to_thread(ask, layout, Status())


def test_a_request_that_fails_for_a_full_disk_is_answered_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(_asked(ClusterLayout(tmp_path)))
    assert raised.group_contains(ControlRefused, match="No space left on device.*secrets.json")
