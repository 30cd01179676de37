"""Which addresses of NATS and Postgres may be used without TLS."""

import pytest

from holdfast.network.trust import AddressRefused, private_database, require_private_bus
from holdfast.settings.network import NetworkPolicy

STRICT = NetworkPolicy(tls_ca="/etc/ca.pem")
HOSTS = {
    "localhost": {"127.0.0.1", "::1"},
    "nats": {"172.18.0.3"},
    "both": {"127.0.0.1", "10.0.0.7"},
    "10.0.0.7": {"10.0.0.7"},
    "::ffff:10.0.0.7": {"::ffff:10.0.0.7"},
    "2001:db8::1": {"2001:db8::1"},
    "0.0.0.0": {"0.0.0.0"},
}


def resolve(host: str) -> set[str]:
    return HOSTS.get(host, set())


@pytest.mark.parametrize(
    "url",
    [
        "nats://127.0.0.1:4222",
        "nats://user:word@127.8.9.10",
        "nats://localhost:4222",
        "127.0.0.1:4222",
        "localhost",
        "nats://[::1]:4222",
        "nats://[::ffff:127.0.0.1]:4222",
        "tls://nats:4222,wss://10.0.0.7,nats://127.0.0.1",
        "nats://nats:4222?plain_text=true",
    ],
)
def test_the_bus_on_loopback_or_with_tls_is_admitted(url: str) -> None:
    require_private_bus(url, STRICT, resolve)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nats://user:word@nats:4222", r"^NATS at nats:4222 would .* without TLS, and nats is not on loopback \(172"),
        ("nats://both:4222", r"both is not on loopback \(10.0.0.7\)"),
        ("nats://10.0.0.7", "and 10.0.0.7 is not on loopback:"),
        ("10.0.0.7:4222", "10.0.0.7 is not on loopback"),
        ("ws://nats:80", "nats is not on loopback"),
        ("nats://unknown:4222", "unknown cannot be resolved"),
        ("nats://:4222", "its host cannot be resolved"),
        ("nats://0.0.0.0:4222", "0.0.0.0 is not on loopback"),
        ("nats://[2001:db8::1]:4222", "2001:db8::1 is not on loopback"),
        ("nats://[::ffff:10.0.0.7]:4222", "10.0.0.7 is not on loopback"),
        ("tls://nats:4222,nats://nats:4222", "NATS at nats:4222 would"),
        ("nats://nats:4222?plain_text=false", "nats is not on loopback"),
        ("nats://127.0.0.1@nats:4222", "nats is not on loopback"),
        ("nats://[::1:4222", "cannot be read: Invalid IPv6"),
    ],
)
def test_the_bus_outside_loopback_is_refused_without_tls(url: str, said: str) -> None:
    with pytest.raises(AddressRefused, match=said) as refused:
        require_private_bus(url, STRICT, resolve)
    assert "word" not in str(refused.value).replace("passwords", "")
    if "cannot be read" not in said:
        assert "tls://" in str(refused.value) and "plain_text = true" in str(refused.value)
        require_private_bus(url, NetworkPolicy(plain_text=True), resolve)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:word@127.0.0.1:5432/holdfast",
        "postgresql://localhost/holdfast",
        "postgresql://[::1]:5432/holdfast?sslmode=disable",
        "postgresql:///holdfast?host=/run/postgresql",
        "postgresql://%2Frun%2Fpostgresql/holdfast",
        "postgresql://db/holdfast?sslmode=verify-full&sslrootcert=/own.pem",
    ],
)
def test_a_database_on_loopback_or_verified_is_admitted_as_it_is(url: str) -> None:
    assert private_database(url, STRICT, resolve) == url


def test_the_authority_of_the_settings_vouches_for_the_database() -> None:
    url = "postgresql://u:w@db/holdfast?sslmode=verify-full"
    assert private_database(url, NetworkPolicy(tls_ca="/a b/ca.pem"), resolve) == f"{url}&sslrootcert=/a%20b/ca.pem"
    with pytest.raises(
        AddressRefused, match=r"^Postgres at db has sslmode=verify-full, and no authority .* set tls_ca"
    ):
        private_database(url, NetworkPolicy(), resolve)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://user:word@nats:5432/x", r"^Postgres at nats would be reached with sslmode=prefer, and nats is"),
        ("postgresql://nats/x?sslmode=require", "sslmode=require, and nats is not on loopback"),
        ("postgresql://nats/x?sslmode=verify-ca", "sslmode=verify-ca"),
        ("postgresql://nats/x?sslmode=verify-full&sslmode=disable", "sslmode=disable"),
        ("postgresql://localhost,10.0.0.7/x", "10.0.0.7 is not on loopback"),
        ("postgresql://localhost:1,[2001:db8::1]:5/x", "2001:db8::1 is not on loopback"),
        ("postgresql://localhost/x?host=nats", "nats is not on loopback"),
        ("postgresql://127.0.0.1@nats/x", "nats is not on loopback"),
    ],
)
def test_a_database_outside_loopback_is_refused_unless_verified(url: str, said: str) -> None:
    with pytest.raises(AddressRefused, match=said) as refused:
        private_database(url, STRICT, resolve)
    assert "word" not in str(refused.value)
    assert "sslmode=verify-full" in str(refused.value) and "plain_text = true" in str(refused.value)
    private_database(url, NetworkPolicy(plain_text=True, tls_ca="/etc/ca.pem"), resolve)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:///x",
        "postgresql://user@/x",
        "postgresql://localhost/x?service=far",
        # asyncpg knows no hostaddr, and goes where PGHOST leads.
        "postgresql:///x?hostaddr=127.0.0.1",
    ],
)
def test_a_database_whose_host_is_named_elsewhere_is_refused(url: str) -> None:
    with pytest.raises(AddressRefused, match="write the host"):
        private_database(url, STRICT, resolve)


@pytest.mark.parametrize(
    "url",
    [
        # For asyncpg and libpq the password ends at the first @: the host would be 10.0.0.7.
        "postgresql://user:s3cret@10.0.0.7,@127.0.0.1/x",
        "postgresql://user:s3c@ret@127.0.0.1/x",
        "postgresql://db/x?sslmode=verify-full#&sslrootcert=/own.pem",
    ],
)
def test_an_address_that_clients_read_in_two_ways_is_refused(url: str) -> None:
    with pytest.raises(AddressRefused, match="%40 and %23") as refused:
        private_database(url, STRICT, resolve)
    assert "s3c" not in str(refused.value)
