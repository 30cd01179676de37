"""Interfaces, ports and switches: what is trouble, on trees in the form of sysfs."""

import os
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from holdfast.settings.inspections import InspectionPolicy
from holdfast_agent.inspections.check import Reading
from holdfast_agent.inspections.sources.infiniband import InfiniBand
from holdfast_agent.inspections.sources.network import Network
from holdfast_agent.inspections.sources.reachability import Neighbour, Reachability
from tests.scenes.inspected_machine import interface, machine_at, port, write

POLICY = InspectionPolicy()
FIELD = os.environ.get("HOLDFAST_FIELD_DATA", "")


def told(reading: Reading) -> list[tuple[str, str, int]]:
    return [(trouble.device, trouble.kind, trouble.times) for trouble in reading.troubles]


# --- interfaces ---


def test_a_link_that_goes_down_is_trouble_until_it_is_back(tmp_path: Path) -> None:
    network = Network(machine_at(tmp_path, interface("eth0")), POLICY)
    assert told(network.read()) == []
    write(tmp_path, interface("eth0", carrier=0, operstate="down", carrier_down_count=2))
    assert told(network.read()) == [("eth0", "link", 1)]
    # One outage is one trouble: coming back is no flap.
    write(tmp_path, interface("eth0", carrier_down_count=2))
    assert told(network.read()) == []


def test_links_that_flap_between_two_looks_are_counted(tmp_path: Path) -> None:
    network = Network(machine_at(tmp_path, interface("eth0")), POLICY)
    network.read()
    write(tmp_path, interface("eth0", carrier_down_count=4))
    reading = network.read()
    assert told(reading) == [("eth0", "flap", 3)] and reading.troubles[0].is_momentary
    write(tmp_path, interface("eth0", carrier=0, operstate="down", carrier_down_count=6))
    assert told(network.read()) == [("eth0", "link", 1), ("eth0", "flap", 1)]


def test_a_kernel_that_counts_changes_both_ways_is_understood(tmp_path: Path) -> None:
    files = interface("eth0", carrier_changes=2)
    del files["sys/class/net/eth0/carrier_down_count"]
    network = Network(machine_at(tmp_path, files), POLICY)
    network.read()
    write(tmp_path, {"sys/class/net/eth0/carrier_changes": 6})
    assert told(network.read()) == [("eth0", "flap", 2)]


def test_a_card_that_vanishes_is_trouble(tmp_path: Path) -> None:
    network = Network(machine_at(tmp_path, interface("eth0") | interface("eth1")), POLICY)
    network.read()
    (tmp_path / "sys/class/net/eth1").rename(tmp_path / "gone")
    assert told(network.read()) == [("eth1", "gone", 1)]


def test_a_cable_that_never_was_in_is_no_trouble_but_one_that_carried_packets_is(tmp_path: Path) -> None:
    spare = interface("eth1", carrier=0, operstate="down", statistics__rx_packets=0, statistics__tx_packets=0)
    broken = interface("eth2", carrier=0, operstate="down")
    assert told(Network(machine_at(tmp_path, spare | broken), POLICY).read()) == [("eth2", "link", 1)]


def test_only_the_interfaces_that_are_named_matter_and_they_must_be_there(tmp_path: Path) -> None:
    down = {"carrier": 0, "operstate": "down"}
    machine = machine_at(tmp_path, interface("eth0", **down) | interface("eth1"))
    policy = InspectionPolicy(interfaces="eth1, eth2")
    assert told(Network(machine, policy).read()) == [("eth2", "gone", 1)]


def test_a_card_of_the_other_kind_may_be_named_and_is_missed_by_one_check_only(tmp_path: Path) -> None:
    machine = machine_at(tmp_path, interface("eth0") | port("mlx5_0"))
    policy = InspectionPolicy(interfaces="eth0, mlx5_0, mlx5_1")
    network, infiniband = Network(machine, policy), InfiniBand(machine, policy)
    assert told(network.read()) == [("mlx5_1", "gone", 1)] and told(infiniband.read()) == []
    (tmp_path / "sys/class/infiniband/mlx5_0").rename(tmp_path / "gone")
    assert told(network.read()) == [("mlx5_1", "gone", 1)] and told(infiniband.read()) == [("mlx5_0:1", "gone", 1)]


def test_virtual_interfaces_are_let_be_but_for_that_of_the_default_route(tmp_path: Path) -> None:
    virtual = {**interface("eth0", carrier=0), **interface("veth17", carrier=0)}
    virtual = {name: value for name, value in virtual.items() if "/device/" not in name}
    route = "Iface\tDestination\tGateway\tFlags\neth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000"
    machine = machine_at(tmp_path, virtual | {"proc/net/route": route})
    assert told(Network(machine, POLICY).read()) == [("eth0", "link", 1)]


def test_errors_are_counted_against_packets(tmp_path: Path) -> None:
    network = Network(machine_at(tmp_path, interface("eth0", statistics__rx_errors=900)), POLICY)
    assert told(network.read()) == []
    write(tmp_path, interface("eth0", statistics__rx_packets=600_000, statistics__rx_errors=950))
    assert told(network.read()) == []
    changed = {"rx_packets": 700_000, "rx_errors": 1_200, "tx_dropped": 2_000}
    write(tmp_path, {f"sys/class/net/eth0/statistics/{name}": value for name, value in changed.items()})
    reading = network.read()
    assert told(reading) == [("eth0", "errors", 1), ("eth0", "drops", 1)]
    assert [trouble.confidence for trouble in reading.troubles] == ["tolerate", "hint"]


def test_the_sysfs_of_another_namespace_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    listing = "Inter-|\n face |\n    lo: 0\n  eth7: 0"
    reading = Network(machine_at(tmp_path, interface("eth0") | {"proc/net/dev": listing}), POLICY).read()
    assert not reading.troubles and "another network namespace: mount sysfs" in reading.unread[""]


# --- InfiniBand ---


class Minutes:
    """A clock that goes on by a minute at each look."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        self._now += 60.0
        return self._now


def test_a_port_that_goes_down_or_vanishes_is_trouble(tmp_path: Path) -> None:
    infiniband = InfiniBand(machine_at(tmp_path, port("mlx5_0") | port("mlx5_1")), POLICY, Minutes())
    assert told(infiniband.read()) == []
    write(tmp_path, port("mlx5_0", state="1: DOWN", phys_state="3: Disabled", counters__link_downed=1))
    (tmp_path / "sys/class/infiniband/mlx5_1").rename(tmp_path / "gone")
    assert told(infiniband.read()) == [("mlx5_0:1", "link", 1), ("mlx5_1:1", "gone", 1)]
    write(tmp_path, port("mlx5_0", counters__link_downed=3))
    assert told(infiniband.read()) == [("mlx5_0:1", "flap", 2), ("mlx5_1:1", "gone", 1)]


def test_a_port_that_nobody_uses_is_let_be(tmp_path: Path) -> None:
    unused = port("mlx5_2", state="1: DOWN", phys_state="2: Polling", counters__port_rcv_data=0)
    assert told(InfiniBand(machine_at(tmp_path, unused), POLICY, Minutes()).read()) == []


def test_errors_of_a_link_are_a_rate(tmp_path: Path) -> None:
    infiniband = InfiniBand(machine_at(tmp_path, port("mlx5_0", counters__symbol_error=5000)), POLICY, Minutes())
    assert told(infiniband.read()) == []
    write(tmp_path, port("mlx5_0", counters__symbol_error=5008))
    assert told(infiniband.read()) == []
    write(tmp_path, port("mlx5_0", counters__symbol_error=5100, hw_counters__packet_seq_err=40))
    reading = infiniband.read()
    assert told(reading) == [("mlx5_0:1", "errors", 1), ("mlx5_0:1", "retries", 1)]
    assert [trouble.confidence for trouble in reading.troubles] == ["tolerate", "hint"]
    assert "symbol_error 92 a minute" in reading.troubles[0].detail


def test_a_counter_that_was_set_back_is_no_trouble(tmp_path: Path) -> None:
    infiniband = InfiniBand(machine_at(tmp_path, port("mlx5_0", counters__link_downed=9)), POLICY, Minutes())
    infiniband.read()
    write(tmp_path, port("mlx5_0", counters__link_downed=0))
    assert told(infiniband.read()) == []


def test_a_link_that_comes_back_slower_is_a_hint(tmp_path: Path) -> None:
    infiniband = InfiniBand(machine_at(tmp_path, port("mlx5_0")), POLICY, Minutes())
    infiniband.read()
    write(tmp_path, port("mlx5_0", rate="200 Gb/sec (2X NDR)"))
    reading = infiniband.read()
    assert told(reading) == [("mlx5_0:1", "rate", 1)] and reading.troubles[0].confidence == "hint"


def test_ranks_that_move_no_data_any_more_are_a_hint(tmp_path: Path) -> None:
    """Counters of two ports, once a minute: words of four bytes."""
    ranks: list[int] = []
    moving = port("mlx5_0", counters__port_rcv_data=0, counters__port_xmit_data=0) | port("mlx5_1")
    infiniband = InfiniBand(machine_at(tmp_path, moving), POLICY, Minutes(), lambda: tuple(ranks))
    infiniband.read()

    def read(words: int, minutes: int) -> list[tuple[str, str, int]]:
        write(tmp_path, port("mlx5_0", counters__port_rcv_data=words, counters__port_xmit_data=words))
        return [told(infiniband.read()) for _ in range(minutes)][-1]

    # Without ranks, or with ranks that use no RDMA, silence is no news. A few heartbeats are no training.
    assert read(10_000_000, 20) == []
    ranks.append(7)
    assert read(10_000_100, 20) == []
    assert read(90_000_000, 10) == []
    assert read(90_000_100, 1) == [("", "silence", 1)]
    (trouble,) = infiniband.read().troubles
    assert (trouble.confidence, trouble.symptom, trouble.shared) == ("hint", "job_hang", "RDMA of the job")
    assert "for 11 minutes" in trouble.detail
    assert read(99_000_000, 1) == []
    # After a restart it begins anew, also where counters were reset.
    assert read(99_000_100, 10) == [("", "silence", 1)]
    ranks[:] = [8]
    assert read(0, 20) == []


@pytest.mark.skipif(not FIELD, reason="HOLDFAST_FIELD_DATA names no folder with /sys/class/infiniband of a machine")
def test_a_machine_of_the_field_is_well(tmp_path: Path) -> None:
    recorded = tmp_path / "recorded"
    with tarfile.open(Path(FIELD) / "nic" / "sys-class-infiniband-h100.tar.gz") as archive:
        archive.extractall(recorded, filter="data")
    (folder,) = recorded.iterdir()
    (tmp_path / "sys/class").mkdir(parents=True)
    (tmp_path / "sys/class/infiniband").symlink_to(folder)
    infiniband = InfiniBand(machine_at(tmp_path), POLICY, Minutes())
    reading = infiniband.read()
    assert told(reading) == [] and len(reading.seen) == 9
    assert reading.seen["mlx5_0:1"] == "active, 400 Gb/sec (4X NDR)"
    assert told(infiniband.read()) == []
    (folder / "mlx5_4/ports/1/state").chmod(0o644)
    (folder / "mlx5_4/ports/1/state").write_text("1: DOWN\n")
    assert told(infiniband.read()) == [("mlx5_4:1", "link", 1)]


# --- the switch ---

ROUTE = "Iface\tDestination\tGateway\tFlags\neth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000"


class Answers:
    """Addresses that answer an echo just now."""

    def __init__(self, *addresses: str) -> None:
        self.now = set(addresses)
        self.asked = 0

    def __call__(self, addresses: Iterable[str], limit_s: float) -> set[str]:
        self.asked += 1
        return self.now & set(addresses)


def table(*, is_known: bool, age_s: float = 1.0) -> dict[str, Neighbour]:
    return {"10.0.0.1": Neighbour(is_known=is_known, age_s=age_s)}


def nothing_known() -> dict[str, Neighbour]:
    return {}


def test_a_gateway_is_not_asked_but_looked_up(tmp_path: Path) -> None:
    answers, entries = Answers("10.0.0.1"), table(is_known=True)
    machine = machine_at(tmp_path, {"proc/net/route": ROUTE})
    reachability = Reachability(machine, POLICY, answers, lambda: entries)
    assert reachability.read().seen == {"10.0.0.1": "its hardware address is known"}
    entries |= table(is_known=False)
    reading = reachability.read()
    assert told(reading) == [("10.0.0.1", "reach", 1)] and reading.troubles[0].shared == "address 10.0.0.1"
    # The kernel keeps the failure though nothing was sent since.
    entries |= table(is_known=False, age_s=3600.0)
    assert "nothing is known" in reachability.read().seen["10.0.0.1"]
    entries.clear()
    assert told(reachability.read()) == [] and answers.asked == 0


NAMED = InspectionPolicy(switches="10.0.0.1")


def test_a_named_address_must_go_on_answering(tmp_path: Path) -> None:
    answers = Answers("10.0.0.1")
    reachability = Reachability(machine_at(tmp_path), NAMED, answers, nothing_known)
    assert reachability.read().seen == {"10.0.0.1": "answers"} and answers.asked == 1
    answers.now.clear()
    assert told(reachability.read()) == [("10.0.0.1", "reach", 1)]
    # It was asked twice before it counts as silent.
    assert answers.asked == 3


def test_one_that_has_answered_is_held_to_it_though_the_table_still_has_it(tmp_path: Path) -> None:
    answers = Answers("10.0.0.1")
    reachability = Reachability(machine_at(tmp_path), NAMED, answers, lambda: table(is_known=True))
    reachability.read()
    answers.now.clear()
    assert told(reachability.read()) == [("10.0.0.1", "reach", 1)]


def test_of_one_that_never_answers_the_neighbour_table_tells(tmp_path: Path) -> None:
    entries = table(is_known=True)
    reachability = Reachability(machine_at(tmp_path), NAMED, Answers(), lambda: entries)
    assert told(reachability.read()) == []
    entries |= table(is_known=False)
    assert told(reachability.read()) == [("10.0.0.1", "reach", 1)]


def test_one_of_which_nothing_is_known_is_not_called_down(tmp_path: Path) -> None:
    policy = InspectionPolicy(switches="10.9.9.9")
    reading = Reachability(machine_at(tmp_path), policy, Answers(), nothing_known).read()
    assert not reading.troubles and "has never answered" in reading.unread["10.9.9.9"]


def test_without_the_right_to_ask_nothing_is_guessed(tmp_path: Path) -> None:
    def refused(addresses: Iterable[str], limit_s: float) -> set[str]:
        raise PermissionError

    reading = Reachability(machine_at(tmp_path), NAMED, refused, nothing_known).read()
    assert not reading.troubles and "CAP_NET_RAW" in reading.unread[""]


@pytest.mark.parametrize("address", ["127.0.0.1", "127.3.0.9", "::1", "localhost"])
def test_a_node_with_a_loopback_address_asks_named_switches_only(tmp_path: Path, address: str) -> None:
    machine, answers = machine_at(tmp_path, {"proc/net/route": ROUTE}), Answers("10.9.9.9")
    reading = Reachability(machine, POLICY, answers, nothing_known, address=address).read()
    assert "loopback" in reading.absent and answers.asked == 0
    named = Reachability(machine, InspectionPolicy(switches="10.9.9.9"), answers, nothing_known, address=address)
    assert named.read().seen == {"10.9.9.9": "answers"}


def test_a_machine_without_gateway_has_none_to_ask(tmp_path: Path) -> None:
    assert "no default gateway" in Reachability(machine_at(tmp_path), POLICY, Answers()).read().absent
