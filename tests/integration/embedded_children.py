"""The small programs that stand where the services and agents will: `service`, and an agent's process tree."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from holdfast.daemon.ready import announce_ready


async def service() -> None:
    """Ready once it has spoken to both servers with the addresses that it was given."""
    # Late, because most of these processes need neither.
    import asyncpg
    import nats
    from nats.aio.msg import Msg

    from holdfast.daemon.gate import wait_at_gate
    from holdfast.orders.signatures import public_key
    from holdfast.subjects import ping_subject

    async def sign_again(ping: Msg) -> None:
        await ping.respond(public_key(_address("HOLDFAST_NETWORK_ORDER_KEY")).encode())

    # Three ends before it is ready would end the start; on a busy machine initdb takes longer than these.
    wait_at_gate()
    bus = await nats.connect(_address("HOLDFAST_NATS_URL"))
    await bus.jetstream().account_info()
    await (await asyncpg.connect(_address("HOLDFAST_DATABASE_URL"))).execute("select 1")
    # It has no orders: all are signed by the key that it has now.
    await bus.subscribe(ping_subject("controller"), cb=sign_again)
    print("service at work", flush=True)
    announce_ready()
    await asyncio.Event().wait()


def _address(variable: str) -> str:
    return Path(os.environ[f"{variable}_FILE"]).read_text()


def agent(directory: Path) -> NoReturn:
    """Starts a zygote in a session of its own and writes its pid; ends without it, so that someone must see to that."""
    zygote = _start("zygote", stdout=subprocess.PIPE)
    assert zygote.stdout is not None
    zygote.stdout.readline()
    (directory / "zygote.pid").write_text(str(zygote.pid))
    signal.signal(signal.SIGTERM, _leave)
    print("agent at work", flush=True)
    announce_ready()
    _wait_for_ever()


def _leave(*_: object) -> NoReturn:
    print("agent asked to stop", flush=True)
    os._exit(0)


def zygote() -> NoReturn:
    ranks = [_start("rank", str(number), stdout=subprocess.PIPE) for number in range(2)]
    for rank in ranks:
        assert rank.stdout is not None
        rank.stdout.readline()
    print(flush=True)
    _wait_for_ever()


def rank(number: int) -> NoReturn:
    """Rank 1 has a worker that its parent leaves behind, as data loaders do."""
    if number == 1:
        subprocess.run(["sh", "-c", "sleep 1000 &"], start_new_session=True, stdout=subprocess.DEVNULL, check=True)
    print(flush=True)
    _wait_for_ever()


def _start(*arguments: str, stdout: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, __file__, *arguments], start_new_session=True, stdout=stdout)


def _wait_for_ever() -> NoReturn:
    while True:
        signal.pause()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["service"]:
            asyncio.run(service())
        case ["agent", directory]:
            agent(Path(directory))
        case ["zygote"]:
            zygote()
        case ["rank", number]:
            rank(int(number))
        case _:
            sys.exit("no such table: jobs")
