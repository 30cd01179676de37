"""`holdfast credentials keys` makes the keys of a cluster that is started by hand."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from holdfast.cli.main import main
from holdfast.clock import system_now
from holdfast.orders.node import NodeOrder
from holdfast.orders.signatures import SIGNERS, OrderKeys, OrderSigner
from holdfast.settings.load import load


def test_services_and_agents_find_what_they_need(tmp_path: Path) -> None:
    folder = tmp_path / "etc" / "keys"
    result = CliRunner().invoke(main, ["credentials", "keys", str(folder)])
    assert result.exit_code == 0 and "controller.key" in result.output
    files = {path.name: path for path in folder.iterdir()}
    assert set(files) == {"orders.pub", *(f"{service}.key" for service in SIGNERS)}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {files[f"{service}.key"].stat().st_mode & 0o777 for service in SIGNERS} == {0o600}

    service, shown = load({"HOLDFAST_NETWORK_ORDER_KEY_FILE": str(files["controller.key"])})
    agent, _ = load({"HOLDFAST_NETWORK_ORDER_KEYS_FILE": str(files["orders.pub"])})
    order = NodeOrder(node="a", epoch=1, generation=1)
    body = OrderSigner("controller", service.network.order_key).sign(order, system_now())
    assert OrderKeys.parse(agent.network.order_keys).read(NodeOrder, order.key, body).order == order
    assert {row.value for row in shown if row.key == "network.order_key"} == {"***"}


def test_keys_in_use_are_not_replaced(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["credentials", "keys", str(tmp_path)])
    assert result.exit_code == 1 and "exists already" in result.output
    assert not list(tmp_path.iterdir())
