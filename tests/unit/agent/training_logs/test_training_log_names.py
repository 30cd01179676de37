"""A training log may have any name that the file system takes: its numbers can be sent."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from holdfast_agent.training_logs.followed_log import FollowedLog
from holdfast_agent.training_logs.open_files import FoundLog, matching_logs, open_logs
from holdfast_agent.training_logs.tags import Tags


def test_a_name_that_is_not_text_is_sent_as_near_as_text_can_be(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/run \xff\n\x1b[2J"
    os.mkdir(folder)
    with open(folder + b"/\xfe.tfevents.1", "wb"):
        mine = [found for found in open_logs({0: os.getpid()}) if found.path.startswith(str(tmp_path))]
        for found in (*mine, *matching_logs(["**/*.tfevents.*"], str(tmp_path), 0)):
            _read_and_send(found)
    assert len(mine) == 1


def _read_and_send(found: FoundLog) -> None:
    FollowedLog(found, Tags(), 0).close()
    assert msgspec.json.decode(msgspec.json.encode(found.path)) == found.path
