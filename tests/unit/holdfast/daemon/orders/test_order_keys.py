"""A process without its keys does not start, and names what it lacks."""

from __future__ import annotations

import argparse
import secrets
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast.daemon.orders.order_keys import keys_of, signer_of
from holdfast.daemon.process import Daemon
from holdfast.orders.backup import BackupOrder
from holdfast.orders.node import NodeOrder
from holdfast.orders.signatures import NotSigned, public_key, public_keys
from holdfast.settings.load import live, load
from tests.scenes.order_keys import OF_AGENTS, PRIVATE, of_service, private_keys

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def daemon(environ: dict[str, str]) -> Daemon:
    settings, listed = load({"HOLDFAST_CONFIG": "/dev/null"} | environ)
    order_key, order_keys = (
        live(key, settings, listed, environ) for key in ("network.order_key", "network.order_keys")
    )
    return Daemon(
        name="holdfast_x",
        settings=settings,
        flags=argparse.Namespace(),
        nats_url="nats://h",
        database_url="",
        order_key=order_key,
        order_keys=order_keys,
    )


def test_services_sign_and_agents_read() -> None:
    order = NodeOrder(node="a", epoch=1, generation=1)
    body = signer_of(daemon(of_service("controller")), "controller").sign(order, NOW)
    assert keys_of(daemon(OF_AGENTS)).read(NodeOrder, order.key, body).order == order


def test_one_key_replaces_another_while_processes_run(tmp_path: Path) -> None:
    own, public = tmp_path / "ckpt.key", tmp_path / "orders.pub"
    own.write_text(PRIVATE["ckpt"])
    public.write_text(public_keys(PRIVATE))
    signer = signer_of(daemon({"HOLDFAST_NETWORK_ORDER_KEY_FILE": str(own)}), "ckpt")
    keys = keys_of(daemon({"HOLDFAST_NETWORK_ORDER_KEYS_FILE": str(public)}))
    order = BackupOrder(node="a", job="job", submitted_ms=1, world_size=1, generation=1, node_rank=0, nproc_per_node=1)
    old = signer.sign(order, NOW)

    new = PRIVATE | {"ckpt": private_keys("another")["ckpt"]}
    public.write_text(f"{public_keys(PRIVATE)}\n{public_keys(new)}\n")
    assert keys.read(BackupOrder, order.key, signer.sign(order, NOW)).order == order
    for damaged in ("", "ckpt:", PRIVATE["controller"][:-1]):
        own.write_text(damaged)
        assert signer.sign(order, NOW) == old
    own.write_text(new["ckpt"])
    assert signer.refreshed() == public_key(new["ckpt"])
    assert signer.own(BackupOrder, order.key, old) is None
    newer = signer.sign(order, NOW)
    for body in (old, newer):
        assert keys.read(BackupOrder, order.key, body).order == order
    public.write_text(public_keys(new))
    with pytest.raises(NotSigned, match="not signed by the ckpt"):
        keys.read(BackupOrder, order.key, old)
    public.write_text("controller:short")
    assert keys.read(BackupOrder, order.key, newer).order == order


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
