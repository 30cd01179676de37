"""What an agent says of what its vault tells."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from holdfast.events import Event, ShardDamaged
from holdfast.vault_wire import Damaged, Fetched, SealedStep, ShardName
from holdfast_agent.backups import Backups
from holdfast_agent.vault_link import VaultLink

NAME = ShardName(job="before", submitted_ms=1, world_size=2, rank=1)
SEALED = SealedStep(generation=3, step=7)


def test_damage_is_said_also_of_a_job_that_the_agent_has_no_order_of(tmp_path: Path) -> None:
    said: list[Event] = []
    vault = VaultLink(tmp_path, "127.0.0.1", 1.0, None)
    Backups("a", vault, said.append, lambda *_: None, lambda: datetime(2026, 1, 1, tzinfo=UTC))
    vault.on_notice(Fetched(name=NAME, sealed=SEALED, source="b", nbytes=1, took_s=0.1))
    vault.on_notice(Damaged(name=NAME, sealed=SEALED, detail="one of four chunks"))
    (event,) = said
    assert isinstance(event, ShardDamaged)
    assert (event.job, event.generation, event.rank, event.step) == ("before", 3, 1, 7)
    assert (event.held_by, event.cause, event.detail) == ("a", None, "one of four chunks")
