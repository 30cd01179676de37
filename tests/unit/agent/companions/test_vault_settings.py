"""What is set for checkpoints in memory reaches the vault."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.settings.load import ConfigRefused, load
from holdfast_agent.companions import companion
from holdfast_agent.companions.vault_link import VaultLink


async def test_a_vault_is_started_with_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []

    async def start(module: str, log: Path, *arguments: str) -> None:
        started.extend(arguments)

    monkeypatch.setattr(companion, "start", start)
    settings, _ = load(
        {
            "HOLDFAST_CHECKPOINT_BACKUP_BYTES_PER_S": "5e8",
            "HOLDFAST_CHECKPOINT_COPY_THREADS": "3",
            "HOLDFAST_CHECKPOINT_MEMORY_STEPS": "4",
            "HOLDFAST_NETWORK_TLS_CA": "/etc/holdfast/ca.pem",
            "HOLDFAST_NETWORK_PLAIN_TEXT": "true",
        }
    )
    link = VaultLink(tmp_path, "127.0.0.1", 1.0, settings.checkpoint, network=settings.network)
    assert await link._start() is None
    assert started.pop() == "--plain-text"
    flags = dict(zip(started[::2], started[1::2], strict=True))
    assert (flags["--tls-ca"], flags["--tls-cert"]) == ("/etc/holdfast/ca.pem", "")
    assert (flags["--peer-bytes-per-s"], flags["--copy-threads"], flags["--memory-steps"]) == ("500000000.0", "3", "4")


@pytest.mark.parametrize(("key", "value"), [("BACKUP_BYTES_PER_S", "-1"), ("COPY_THREADS", "0")])
def test_what_cannot_be_is_refused(key: str, value: str) -> None:
    with pytest.raises(ConfigRefused):
        load({f"HOLDFAST_CHECKPOINT_{key}": value})
