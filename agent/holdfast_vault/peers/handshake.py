"""The handshake of two vaults: each proves that it knows the token of the job, without sending it.

The side that opens the connection proves it first, so that a stranger learns nothing. A proof is an HMAC over both
nonces, the greeting, and the side that proves, so that no proof can be used again or sent back.

With certificates the handshake of TLS comes before, and each side's certificate names the node that it claims to be.
All of a shard but its data has a voucher, an HMAC too, because a rank unpickles some of it. Checksums bind the data to
it. They find accidents, but without TLS not an attacker on the way who computes other data of the same sum.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import socket
import threading
from collections.abc import Callable, Iterator

import msgspec

from holdfast.node.frames import WireError, framed, receive, send
from holdfast.node.vault.messages import Refused, SealedStep, ShardName
from holdfast.node.vault.seals import Seal
from holdfast_vault.peers.peer_messages import (
    GREETING_BYTES_MAX,
    LANGUAGE,
    NONCE_BYTES,
    Admitted,
    Challenge,
    Distrusted,
    Hello,
    Proof,
    greeting_replies,
    greetings,
)
from holdfast_vault.peers.tls_link import NotTrusted, Shown, drain, shake_hands, speaks_tls, turn_away_plain

HANDSHAKE_S = 5.0
_NO_TLS = "its vault speaks TLS only, and this node has no certificate: set tls_ca, tls_cert and tls_key in [network]"
_ANOTHER_RELEASE = "the vaults of the two nodes are of different releases of Holdfast"


class NotAdmitted(WireError):
    """The other side does not belong to the job, or does not know of it yet."""


def prove(token: str, whose: str, hello: Hello, challenge: Challenge) -> bytes:
    """Return the proof of one side: `whose` is "asks" or "answers"."""
    proved = (whose, hello.node, hello.job, hello.submitted_ms, hello.generation, hello.nonce, challenge.nonce)
    return hmac.digest(token.encode(), msgspec.msgpack.encode(proved), hashlib.sha256)


def voucher(
    token: str, name: ShardName, sealed: SealedStep, index: bytes, objects: bytes, seal: Seal, absent: bytes = b""
) -> bytes:
    """Return the HMAC that binds all this together and to the job. Used again, it vouches for the same."""
    vouched = ("shard", name, sealed, index, objects, seal, absent)
    return hmac.digest(token.encode(), msgspec.msgpack.encode(vouched), hashlib.sha256)


def greet(link: socket.socket, node: str, job: str, submitted_ms: int, generation: int, token: str) -> None:
    """Greet the other vault. Raises NotAdmitted: one of the two is not of the job; WireError: the connection ended."""
    link.settimeout(HANDSHAKE_S)
    hello = Hello(
        node=node,
        job=job,
        submitted_ms=submitted_ms,
        generation=generation,
        nonce=secrets.token_bytes(NONCE_BYTES),
        speaks=LANGUAGE,
    )
    send(link, hello)
    challenge, _ = receive(link, greeting_replies, GREETING_BYTES_MAX)
    if isinstance(challenge, Refused):
        raise NotAdmitted(challenge.reason)
    if isinstance(challenge, Distrusted):
        raise NotTrusted(challenge.reason)
    if not isinstance(challenge, Challenge):
        raise NotAdmitted("it speaks out of turn")
    send(link, Proof(mac=prove(token, "asks", hello, challenge)))
    welcome, _ = receive(link, greeting_replies, GREETING_BYTES_MAX)
    if isinstance(welcome, Refused):
        raise NotAdmitted(welcome.reason)
    if not isinstance(welcome, Admitted) or not hmac.compare_digest(
        welcome.mac, prove(token, "answers", hello, challenge)
    ):
        raise NotAdmitted("it does not know the token of the job")
    if welcome.speaks != LANGUAGE:
        raise NotAdmitted(_ANOTHER_RELEASE)


Identify = Callable[[socket.socket, str], Shown]
"""Returns the certificate of the other side for the node that it claims to be. Raises NotTrusted."""


def admit(link: socket.socket, token_of: Callable[[Hello], str | None], identify: Identify) -> tuple[Hello, Shown]:
    """Return who the other end is, and what it has shown for it, once it has proved that it knows the token that
    `token_of` gives for its job. Raises NotAdmitted: it does not, and was refused; WireError: it sent nonsense, was too
    slow, or went away.
    """
    with deadline(link):
        if not speaks_tls(link):
            turn_away_plain(link, framed(Distrusted(reason=_NO_TLS)))
            raise NotTrusted("it does not speak TLS")
        try:
            shake_hands(link)
        except NotTrusted:
            drain(link)
            raise
        return _admit(link, token_of, identify)


@contextlib.contextmanager
def deadline(link: socket.socket) -> Iterator[None]:
    """End the connection unless the block is left in time. A timeout of the socket would restart with each byte. Raises
    WireError: there is no thread for it.
    """
    timer = threading.Timer(HANDSHAKE_S, _end, (link,))
    timer.daemon = True
    try:
        timer.start()
    except RuntimeError as error:
        raise WireError(str(error)) from error
    try:
        yield
    finally:
        timer.cancel()


def _admit(link: socket.socket, token_of: Callable[[Hello], str | None], identify: Identify) -> tuple[Hello, Shown]:
    hello, _ = receive(link, greetings, GREETING_BYTES_MAX)
    token = token_of(hello) if isinstance(hello, Hello) else None
    if not isinstance(hello, Hello) or not token:
        raise _turn_away(link, "no such job is known here")
    if hello.speaks != LANGUAGE:
        raise _turn_away(link, _ANOTHER_RELEASE)
    try:
        found = identify(link, hello.node)
    except NotTrusted as error:
        send(link, Distrusted(reason=str(error)))
        raise
    challenge = Challenge(nonce=secrets.token_bytes(NONCE_BYTES))
    send(link, challenge)
    proof, _ = receive(link, greetings, GREETING_BYTES_MAX)
    if not isinstance(proof, Proof) or not hmac.compare_digest(proof.mac, prove(token, "asks", hello, challenge)):
        raise _turn_away(link, "this is not the token of the job")
    send(link, Admitted(mac=prove(token, "answers", hello, challenge), speaks=LANGUAGE))
    return hello, found


def _turn_away(link: socket.socket, reason: str) -> NotAdmitted:
    send(link, Refused(reason=reason))
    return NotAdmitted(reason)


def _end(link: socket.socket) -> None:
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
