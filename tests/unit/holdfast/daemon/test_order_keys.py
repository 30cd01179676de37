"""A process without its keys does not start, and names what it lacks."""

from __future__ import annotations

import argparse
import secrets
from datetime import UTC, datetime

import pytest

from holdfast.daemon.order_keys import keys_of, signer_of
from holdfast.daemon.process import Daemon
from holdfast.orders.node import NodeOrder
from holdfast.settings.load import load
from tests.scenes.order_keys import OF_AGENTS, PRIVATE, of_service


def daemon(environ: dict[str, str]) -> Daemon:
    settings, _ = load({"HOLDFAST_CONFIG": "/dev/null"} | environ)
    return Daemon(
        name="holdfast_x", settings=settings, flags=argparse.Namespace(), nats_url="nats://h", database_url=""
    )


def test_services_sign_and_agents_read() -> None:
    order = NodeOrder(node="a", epoch=1, generation=1)
    body = signer_of(daemon(of_service("controller")), "controller").sign(order, datetime(2026, 1, 1, tzinfo=UTC))
    assert keys_of(daemon(OF_AGENTS)).read(NodeOrder, order.key, body).order == order


@pytest.mark.parametrize("private", ["", "short", PRIVATE["controller"] + "x"])
def test_a_service_without_a_key_does_not_start(private: str) -> None:
    with pytest.raises(SystemExit, match=r"^holdfast_x: .*`holdfast credentials keys FOLDER`") as ended:
        signer_of(daemon({"HOLDFAST_NETWORK_ORDER_KEY": private}), "controller")
    assert ("HOLDFAST_NETWORK_ORDER_KEY_FILE" in str(ended.value)) == (not private)
    assert PRIVATE["controller"] not in str(ended.value)


@pytest.mark.parametrize("public", ["", "controller:short", f"controller:{secrets.token_urlsafe(32)[:42]}"], ids=len)
def test_an_agent_without_public_keys_does_not_start(public: str) -> None:
    with pytest.raises(SystemExit, match=r"^holdfast_x: .*`holdfast credentials keys FOLDER`") as ended:
        keys_of(daemon({"HOLDFAST_NETWORK_ORDER_KEYS": public}))
    assert ("HOLDFAST_NETWORK_ORDER_KEYS_FILE" in str(ended.value)) == (not public)
