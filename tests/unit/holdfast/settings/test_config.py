"""Refused settings and their errors."""

from pathlib import Path

import pytest

from holdfast.settings.addresses import current
from holdfast.settings.load import ConfigRefused, live, load

FLOATS = sorted(row.key for row in load({})[1] if row.key.endswith(("_s", "_days", "_factor", "_multiple")))


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e300", "-1"])
@pytest.mark.parametrize("key", FLOATS)
def test_no_number_is_without_bounds(key: str, value: str) -> None:
    section, name = key.split(".")
    with pytest.raises(ConfigRefused) as refused:
        load({f"HOLDFAST_{section}_{name}".upper(): value})
    said = str(refused.value)
    # One line that names the setting, its value, who set it, and for a number the range.
    assert name in said and f"HOLDFAST_{section}_{name}".upper() in said and "$" not in said
    assert f"{name} = {float(value):g} must be at least" in said or f"{key} = {value!r} (by" in said


def test_a_heartbeat_that_floods_the_bus_is_refused() -> None:
    with pytest.raises(ConfigRefused, match=r"heartbeat_s = 0.0001 must be at least 0.05 and at most 60"):
        load({"HOLDFAST_TIMEOUTS_HEARTBEAT_S": "0.0001"})


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"HOLDFAST_TIMEOUTS_NODE_LOST": "3"}, "unknown setting timeouts.node_lost, perhaps timeouts.node_lost_s"),
        ({"HOLDFAST_POOL_SISE": "3"}, "unknown setting pool.sise, perhaps pool.size is meant: \\[pool\\] has size"),
        ({"HOLDFAST_POOL_SIZE": "many"}, r"pool.size = 'many' \(by HOLDFAST_POOL_SIZE\): expected int, got str$"),
        ({"HOLDFAST_CHECKPOINT_BACKUP_STRATEGY": "near"}, "backup_strategy = 'near' .*: invalid enum value"),
        (
            {"HOLDFAST_TIMEOUTS_NODE_LOST_S": "1", "HOLDFAST_POOL_SIZE": "1"},
            r"node_lost_s = 1 must be at least 3 x heartbeat_s .* \(set: timeouts.node_lost_s by HOLDFAST_TIME",
        ),
    ],
)
def test_what_is_wrong_is_said_in_the_words_of_the_settings(environ: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigRefused, match=said):
        load(environ)


def test_variables_of_other_purposes_are_let_be() -> None:
    load({"HOLDFAST_DIR": "x", "HOLDFAST_LOG": "console", "HOLDFAST_READY_FD": "3", "POOL_SISE": "1"})


def test_checks_of_users_are_a_table_each(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text(
        '[inspections]\ngpu_s = 5\n[inspections.commands.fans]\ncommand = "check_fans -q"\ninterval_s = 20\n'
    )
    settings, rows = load({}, file=file)
    assert settings.inspections.gpu_s == 5.0 and settings.inspections.commands["fans"].interval_s == 20.0
    shown = next(row for row in rows if row.key == "inspections.commands")
    assert '"command":"check_fans -q"' in shown.value and shown.origin == str(file)
    # Children of an embedded cluster get it by the environment.
    again, _ = load({"HOLDFAST_INSPECTIONS_COMMANDS": shown.value})
    assert again.inspections.commands == settings.inspections.commands


@pytest.mark.parametrize(
    ("commands", "said"),
    [
        ('{"fans": {"comand": "x"}}', r"^\[inspections.commands.fans\] \(by HOLDFAST_INSPECTIONS_COMMANDS\): .*comand"),
        (
            '{"fans": {"command": "x", "interval_s": -1}}',
            r"\[inspections.commands.fans\].*interval_s = -1 must",
        ),
        ('{"fans": {"command": "x \'"}}', r"cannot be split into words: No closing quotation"),
        ('{"fans": 3}', r"\[inspections.commands.fans\].*Expected"),
        ('{"gpu": {"command": "x"}}', "commands.gpu has the name of a built-in check"),
        ("fans", "inspections.commands is a table, in the environment as JSON"),
    ],
)
def test_a_check_of_a_user_that_is_wrong_is_named(commands: str, said: str) -> None:
    with pytest.raises(ConfigRefused, match=said):
        load({"HOLDFAST_INSPECTIONS_COMMANDS": commands})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("DISABLED", "clok", "disabled names clok, which is not a check: there are network, "),
        ("GPUS", "3b:00, gpu4", "'gpu4' is not an address of a PCI device: give it as 0000:3b:00"),
    ],
)
def test_names_in_lists_are_checked(name: str, value: str, said: str) -> None:
    with pytest.raises(ConfigRefused, match=said):
        load({f"HOLDFAST_INSPECTIONS_{name}": value})


def test_a_certificate_without_its_key_is_refused() -> None:
    with pytest.raises(ConfigRefused, match=r"tls_cert is set and tls_key is not: .* by HOLDFAST_NETWORK_TLS_CERT"):
        load({"HOLDFAST_NETWORK_TLS_CERT": "/etc/holdfast/node.pem"})
    with pytest.raises(ConfigRefused, match="tls_key is set and tls_cert is not"):
        load({"HOLDFAST_NETWORK_TLS_KEY": "/etc/holdfast/node.key"})
    settings, _ = load({"HOLDFAST_NETWORK_PLAIN_TEXT": "true"})
    assert settings.network.plain_text


def test_an_address_in_a_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "nats.url"
    file.write_text("nats://controller:old@there\n")
    environ = {"HOLDFAST_NATS_URL_FILE": str(file), "HOLDFAST_DATABASE_URL": "postgresql://there"}
    settings, listed = load(environ)
    bus = live("nats_url", settings, listed, environ)
    assert current(bus) == "nats://controller:old@there"
    file.write_text("nats://controller:new@there\n")
    assert current(bus) == "nats://controller:new@there"
    for unreadable in (b"", b"\xff"):
        file.write_bytes(unreadable)
        assert current(bus) == "nats://controller:new@there"
    file.unlink()
    assert current(bus) == "nats://controller:new@there"
    assert live("database_url", settings, listed, environ) == "postgresql://there"


def test_an_address_that_was_named_on_the_command_line_stays(tmp_path: Path) -> None:
    (tmp_path / "nats.url").write_text("nats://file")
    environ = {"HOLDFAST_NATS_URL_FILE": str(tmp_path / "nats.url")}
    settings, listed = load(environ, {"nats_url": "nats://flag"})
    assert live("nats_url", settings, listed, environ) == "nats://flag"
