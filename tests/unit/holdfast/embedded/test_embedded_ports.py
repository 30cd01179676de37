import socket

import pytest

from holdfast.embedded.errors import EmbeddedError
from holdfast.embedded.layout import Ports
from holdfast.embedded.servers.ports import reserve_ports


def numbers(ports: Ports) -> set[int]:
    return {ports.postgres, ports.nats, ports.nats_monitor}


def test_three_ports_are_held_and_come_back_when_remembered() -> None:
    with reserve_ports({}, None) as first, reserve_ports({}, None) as other:
        assert len(numbers(first) | numbers(other)) == 6
    with reserve_ports({}, first) as second:
        assert second == first


def test_nobody_else_gets_a_reserved_port_and_our_server_does() -> None:
    with reserve_ports({}, None) as ports, socket.socket() as stranger, socket.socket() as server:
        with pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", ports.nats))
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", ports.nats))
        server.listen()


def test_a_remembered_port_that_is_taken_gives_way() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with reserve_ports({}, Ports(postgres=port, nats=1, nats_monitor=port)) as ports:
            assert port not in numbers(ports)


def test_a_port_asked_for_is_given_or_refused() -> None:
    with reserve_ports({}, None) as ports:
        free = ports.nats
    with reserve_ports({"nats": free}, None) as ports:
        assert ports.nats == free
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with (
            pytest.raises(EmbeddedError, match="--postgres-port"),
            reserve_ports({"postgres": taken.getsockname()[1]}, None),
        ):
            pytest.fail("unreachable")


def test_one_port_asked_for_twice_is_refused() -> None:
    with reserve_ports({}, None) as ports:
        free = ports.nats
    twice = f"port {free} is requested twice"
    with pytest.raises(EmbeddedError, match=twice), reserve_ports({"postgres": free, "nats": free}, None):
        pytest.fail("unreachable")


def test_a_port_that_is_asked_for_is_not_given_to_who_had_it_last_time() -> None:
    with reserve_ports({}, None) as before:
        pass
    with reserve_ports({"nats": before.postgres}, before) as ports:
        assert ports.nats == before.postgres != ports.postgres
