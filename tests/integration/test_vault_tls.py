"""Copies go from vault to vault with TLS, between nodes whose certificates name them: real vaults, real sockets."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
import vault_nodes
from certificate_files import Authority
from vault_nodes import CHUNK, TOKEN, VaultNode, at, is_state, order_of, state, until
from vault_way import Way

from holdfast.node.frames import WireError, framed, receive
from holdfast.node.vault import vault_socket
from holdfast.node.vault.messages import BackedUp, CopiesRefusal, Fetched
from holdfast.orders.backup import VaultAddress
from holdfast.settings.network import NetworkPolicy
from holdfast_vault.assignments import Assignment
from holdfast_vault.peers import tls_link
from holdfast_vault.peers.handshake import HANDSHAKE_S, NotAdmitted
from holdfast_vault.peers.peer_link import dial
from holdfast_vault.peers.peer_messages import LANGUAGE, Distrusted, Hello, greeting_replies
from holdfast_vault.peers.peer_server import STRANGERS_MAX
from holdfast_vault.peers.tls_link import NotTrusted, TlsLink
from holdfast_vault.peers.trust import PeerTrust

pytestmark = pytest.mark.integration
node = vault_nodes.node

HELLO = Hello(node="tester", job="job", submitted_ms=1, generation=1, nonce=bytes(32), speaks=LANGUAGE)
PIECE = state(1)["weights"].numpy()[CHUNK // 8 :][:64].tobytes()
"""Bytes of a shard that nothing else has."""

Certify = Callable[..., NetworkPolicy]


@pytest.fixture(scope="module")
def certify(tmp_path_factory: pytest.TempPathFactory) -> Certify:
    """Returns the settings of a node with a certificate (in another's files, or of another authority, if asked to)."""
    folder = tmp_path_factory.mktemp("certificates")
    authority, another = Authority(folder / "cluster"), Authority(folder / "another")

    def settings(name: str, *, file: str = "", is_foreign: bool = False, days: int = 30) -> NetworkPolicy:
        found = (another if is_foreign else authority).certified(file or name, [name], days=days)
        return msgspec.structs.replace(found, tls_ca=str(authority.file))

    return settings


def flags(network: NetworkPolicy) -> tuple[str, ...]:
    return "--tls-ca", network.tls_ca, "--tls-cert", network.tls_cert, "--tls-key", network.tls_key


@pytest.fixture
def secured(node: Callable[..., VaultNode], certify: Certify) -> Callable[..., VaultNode]:
    """Makes nodes with certificates."""
    return lambda name, *arguments, **other: node(name, *flags(certify(name)), *arguments, **other)


@pytest.fixture
def keeper(secured: Callable[..., VaultNode]) -> VaultNode:
    """A node with a certificate that knows the job."""
    one = secured("b")
    one.assign(order_of("b", node_rank=1))
    return one


@pytest.fixture
def tester(certify: Certify) -> PeerTrust:
    return PeerTrust(certify("tester"))


def call(keeper: VaultNode, network: NetworkPolicy, name: str = "tester") -> None:
    """Connect as another vault would."""
    dial(keeper.address, Assignment(order_of(name), TOKEN, PeerTrust(network))).close()


@pytest.mark.parametrize("is_tls", [True, False], ids=["tls", "plain"])
def test_a_copy_cannot_be_read_on_the_way(
    is_tls: bool, node: Callable[..., VaultNode], secured: Callable[..., VaultNode]
) -> None:
    make = secured if is_tls else node
    owner, keeper = make("a"), make("b")
    keeper.assign(order_of("b", node_rank=1))
    record = bytearray()
    way = Way(keeper.address, record=record)
    owner.assign(order_of("a", keeper=way.address))
    notices = owner.follow()
    with owner.rank() as rank:
        rank.save(1, state(1))
        assert isinstance(notices(), BackedUp)
    with keeper.rank() as copy:
        assert is_state(copy.restore(at(1)), 1)
    assert way.nbytes > 2.5 * CHUNK
    # In plain text all of it is found: this test looks for the right bytes.
    assert [text in record for text in (PIECE, b"submitted_ms", b"weights")] == [not is_tls] * 3
    way.close()


def test_a_broken_connection_goes_on_at_the_chunk_and_a_lost_node_gets_its_shard_back(
    secured: Callable[..., VaultNode], tester: PeerTrust
) -> None:
    owner, keeper = secured("a", "--peer-bytes-per-s", str(8 * CHUNK)), secured("b")
    keeper.assign(order_of("b", node_rank=1))
    way = Way(keeper.address)
    owner.assign(order_of("a", keeper=way.address))
    notices = owner.follow()
    with owner.rank() as rank:
        rank.save(1, state(1, 8))
        until("three chunks are there", lambda: keeper.held(trust=tester).chunks >= 3)
        way.cut()
        assert notices().sealed == at(1)
    assert 8 * CHUNK < way.nbytes < 10.5 * CHUNK
    way.close()
    owner.kill()
    owner.start(*flags_of(owner))
    owner.assign(order_of("a", generation=2, sources=(keeper.address,)))
    keeper.assign(order_of("b", node_rank=1, generation=2))
    notices = owner.follow()
    with owner.rank(generation=2) as rank:
        assert rank.steps() == (at(1),)
        assert is_state(rank.restore(at(1)), 1, 8)
    assert isinstance(notices(), Fetched)


def flags_of(one: VaultNode) -> list[str]:
    """The arguments that a node's vault was started with."""
    assert one.process is not None and isinstance(one.process.args, tuple)
    arguments = list(one.process.args)
    return arguments[arguments.index("--ready-fd") + 2 :]


def test_who_shows_no_right_certificate_is_not_let_in(keeper: VaultNode, certify: Certify) -> None:
    call(keeper, certify("tester"))
    with pytest.raises(NotTrusted, match=r"refuses the certificate of this one: .*UNKNOWN_CA"):
        call(keeper, certify("tester", is_foreign=True))
    with pytest.raises(NotTrusted, match=r"refuses the certificate of this one: .*EXPIRED"):
        call(keeper, certify("tester", days=-1))
    with pytest.raises(NotTrusted, match=r"shown for node tester names c$"):
        call(keeper, certify("c", file="tester"))
    with pytest.raises(NotTrusted, match="speaks TLS only, and this node has no certificate"):
        call(keeper, NetworkPolicy())
    # Nor is who has a certificate, but not the token.
    with pytest.raises(NotAdmitted, match="not the token"):
        keeper.held(token="another", trust=PeerTrust(certify("tester")))
    context = ssl.create_default_context(cafile=certify("tester").tls_ca)
    context.check_hostname = False
    with socket.create_connection(("127.0.0.1", keeper.address.port), 20) as raw, context.wrap_socket(raw) as link:
        link.sendall(framed(HELLO))
        with pytest.raises(ssl.SSLError, match=r"(?i)certificate.required"):
            link.recv(1)


def test_a_node_that_is_revoked_while_vaults_run_gets_nothing_and_gives_nothing(
    secured: Callable[..., VaultNode], certify: Certify, tmp_path: Path
) -> None:
    refused = tmp_path / "refused"
    refused.write_text("# nobody\n")
    listed = ("--tls-refused", str(refused))
    owner, keeper = secured("a", *listed), secured("b", *listed)
    keeper.assign(order_of("b", node_rank=1))
    owner.assign(order_of("a", keeper=keeper.address))
    notices = owner.follow()
    thief = certify("tester")
    lasting = dial(keeper.address, Assignment(order_of("tester"), TOKEN, PeerTrust(thief)))
    with owner.rank() as rank:
        rank.save(1, state(1))
        assert isinstance(notices(), BackedUp)

        refused.write_text("tester\nb\n")
        # What it opened before ends, and it opens nothing more.
        lasting.settimeout(20)
        assert lasting.recv(1) == b""
        with pytest.raises(NotTrusted, match="node tester is revoked"):
            call(keeper, thief)
        # A keeper that is revoked gets no further copies.
        rank.save(2, state(2))
        refusal = notices()
        assert isinstance(refusal, CopiesRefusal) and refusal.reason == "node b is revoked"

        # It is let in again: with a certificate that is new.
        lately = datetime.now(UTC) - timedelta(minutes=1)
        refused.write_text(f"tester {lately.isoformat()}\n")
        with pytest.raises(NotTrusted, match="the certificate of node tester is from before"):
            call(keeper, thief)
        refused.write_text(f"tester {(lately - timedelta(hours=2)).isoformat()}\n")
        call(keeper, thief)
        assert isinstance(notices(), BackedUp)
        for damaged in ("tester yesterday\n", "a b c d\n"):
            refused.write_text(damaged)
            call(keeper, thief)
    # A vault that has never read the file lets nobody in.
    with pytest.raises(NotTrusted, match=r"\(tls_refused\) cannot be used"):
        call(secured_job(secured("c", "--tls-refused", str(tmp_path / "missing"))), thief)


def secured_job(node: VaultNode) -> VaultNode:
    node.assign(order_of(node.node, node_rank=1))
    return node


def test_a_vault_of_another_name_or_authority_gets_nothing(
    node: Callable[..., VaultNode], keeper: VaultNode, certify: Certify
) -> None:
    address = VaultAddress(node="a", host="127.0.0.1", port=keeper.address.port)
    with pytest.raises(NotTrusted, match=r"shown for node a names b$"):
        dial(address, Assignment(order_of("tester"), TOKEN, PeerTrust(certify("tester"))))
    impostor = node("c", *flags(certify("c", is_foreign=True)))
    with pytest.raises(NotTrusted, match="certificate of the other node is refused"):
        call(impostor, certify("tester"))
    with pytest.raises(WireError, match="or has no certificate"):
        call(node("d"), certify("tester"))


def test_a_node_without_a_certificate_learns_why_it_has_no_copies(
    node: Callable[..., VaultNode], keeper: VaultNode
) -> None:
    owner = node("a")
    notices = owner.follow()
    owner.assign(order_of("a", keeper=keeper.address))
    with owner.rank() as rank:
        rank.save(1, state(1))
        refusal = notices()
    assert isinstance(refusal, CopiesRefusal) and (refusal.name.rank, refusal.keeper) == (0, "b")
    assert "set tls_ca, tls_cert and tls_key in [network]" in refusal.reason


def test_outside_loopback_a_vault_without_certificates_has_no_port(
    node: Callable[..., VaultNode], secured: Callable[..., VaultNode], tester: PeerTrust, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    everywhere = ("--address", "0.0.0.0")
    closed = node("a", *everywhere, log=log)
    assert vault_socket.port(closed.directory) is None
    assert "0.0.0.0 is not on loopback" in log.read_text() and "plain_text = true" in log.read_text()
    # Its own ranks have it as ever.
    with closed.rank() as rank:
        rank.save(1, state(1))
        assert rank.steps() == (at(1),)
    allowed, sealed = node("c", *everywhere, "--plain-text"), secured("d", *everywhere)
    for one, trust in ((allowed, None), (sealed, tester)):
        one.assign(order_of(one.node, node_rank=1))
        assert one.held(trust=trust).sealed == ()


def test_a_renewed_certificate_is_shown_by_a_vault_that_runs(
    node: Callable[..., VaultNode], certify: Certify, tester: PeerTrust
) -> None:
    old = certify("old", file="renewed")
    one = node("e", *flags(old))
    one.assign(order_of("e", node_rank=1))
    with pytest.raises(NotTrusted, match="names old"):
        one.held(trust=tester)
    # Half of a renewal: a certificate with the key of another is not used.
    key = Path(old.tls_key).read_bytes()
    certify("e", file="renewed")
    renewed = Path(old.tls_key).read_bytes()
    Path(old.tls_key).write_bytes(key)
    with pytest.raises(NotTrusted, match="names old"):
        one.held(trust=tester)
    Path(old.tls_key).write_bytes(renewed)
    assert one.held(trust=tester).sealed == ()


def test_strangers_cost_the_others_nothing(
    secured: Callable[..., VaultNode], keeper: VaultNode, certify: Certify, tester: PeerTrust
) -> None:
    place = ("127.0.0.1", keeper.address.port)
    owner = secured("a")
    owner.assign(order_of("a", keeper=keeper.address))
    notices = owner.follow()
    hello = tls_hello(certify("tester"))
    with ExitStack() as stack:

        def stranger(*, from_: str = "127.0.0.1") -> socket.socket:
            return stack.enter_context(socket.create_connection(place, 20, source_address=(from_, 0)))

        silent, half, plain = stranger(), stranger(), stranger()
        half.sendall(hello[:-7])
        plain.sendall(struct.pack("<I", 100))
        reply, _ = receive(plain, greeting_replies)
        assert isinstance(reply, Distrusted) and "TLS only" in reply.reason
        # One that never ends its handshake, after a good beginning.
        late = stranger()
        late.sendall(hello)
        assert late.recv(1) == b"\x16"
        flood = [stranger(from_="127.0.0.2") for _ in range(300)]
        for link in flood[::2]:
            link.sendall(hello)
        with owner.rank() as rank:
            rank.save(1, state(1))
            assert notices().sealed == at(1)
        assert keeper.held(trust=tester).sealed == (at(1),)
        until("the flood has only so many threads", lambda: threads(keeper) < 2 * STRANGERS_MAX + 20)
        # The flood put only its own out, and the time of all of them is limited.
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.recv(1)
        for link in (silent, half, late, flood[-1]):
            link.settimeout(4 * HANDSHAKE_S)
            with suppress(ConnectionResetError):
                while link.recv(1 << 16):
                    pass


def tls_hello(network: NetworkPolicy) -> bytes:
    """The first bytes of a handshake of TLS."""
    context = ssl.create_default_context(cafile=network.tls_ca)
    sent = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="b").do_handshake()
    return sent.read()


def threads(one: VaultNode) -> int:
    assert one.process is not None
    return len(list(Path(f"/proc/{one.process.pid}/task").iterdir()))


def test_a_vault_with_certificates_speaks_the_newest_tls_and_its_keys_have_an_end(
    keeper: VaultNode, tester: PeerTrust, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dial(keeper.address, Assignment(order_of("tester"), TOKEN, tester)) as link:
        assert isinstance(link, TlsLink) and link.version() == "TLSv1.3"
        assert not tls_link.needs_new_keys(link)
        monkeypatch.setattr(tls_link, "KEY_BYTES_MAX", link.sent_bytes + 2)
        link.sendall(b"\0\0")
        assert tls_link.needs_new_keys(link)


def test_a_call_without_a_thread_for_its_deadline_fails_as_any_other(
    keeper: VaultNode, tester: PeerTrust, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Timer, "start", fail)
    with pytest.raises(WireError, match="can't start new thread"):
        keeper.held(trust=tester)
