"""Another user of the machine who has learned the job's token."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from attempts.as_user import STRANGER_UID, as_user
from attempts.nats_wire import Refused
from attempts.scene import Scene
from attempts.table import TOKEN, attempt, attempts
from holdfast.node.frames import WireError
from holdfast_vault.peers.handshake import greet


def _greet(scene: Scene, token: str, job: str = "victim", submitted_ms: int | None = None, generation: int = 1) -> str:
    """Greet the vault of a node as another vault does, as another user."""
    port = int((scene.layout.node(scene.members[0]) / "vault-port").read_text())
    own = int(scene.ask_rank("environment")["HOLDFAST_JOB_SUBMITTED_MS"])

    def do() -> str:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as link:
            try:
                greet(link, scene.members[1], job, own if submitted_ms is None else submitted_ms, generation, token)
            except WireError as error:
                return f"refused: {error}"
        return "admitted"

    answer: str = as_user(STRANGER_UID, do)
    return answer


@attempt(TOKEN, "greet a vault of the job", "may: the copies of this job")
def greets(scene: Scene) -> Any:
    assert _greet(scene, scene.token) == "admitted"


@attempts(
    TOKEN,
    "refused",
    {
        "greet a vault of the job with another token": {"token": "guessed"},
        "greet a vault of the job without a token": {"token": ""},
        "greet as another job": {"job": "another"},
        "greet as an earlier job of this name": {"submitted_ms": 1},
    },
)
def greets_wrongly(scene: Scene, argument: dict[str, Any]) -> Any:
    answer = _greet(scene, **{"token": scene.token} | argument)
    assert answer.startswith("refused"), answer
    return answer


@attempts(TOKEN, "refused", {f"log in to NATS as `{user}` with it": user for user in ("operator", "agent-node-0")})
def logs_into_nats(scene: Scene, argument: str) -> Any:
    with pytest.raises(Refused):
        scene.wire(argument, scene.token)


@attempt(TOKEN, "log in to Postgres with it", "refused")
def logs_into_postgres(scene: Scene) -> Any:
    for role in ("postgres", "holdfast_reader", "holdfast_controller"):
        assert scene.sql(role, "select 1", scene.token) == ["InvalidPasswordError"]
