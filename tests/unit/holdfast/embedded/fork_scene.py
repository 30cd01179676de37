"""A supervisor whose children are forked, and what it sees of them as JSON: ``fork_scene.py DIRECTORY``

The children's module, `holdfast_forked`, is in the directory. At last one child is left running; its pid is in the
result, and this process waits to be killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.embedded.errors import StartFailed
from holdfast.embedded.processes import fork_server_link
from holdfast.embedded.processes.children import Child, ChildSpec
from holdfast.embedded.processes.fork_server_link import ForkServerLink, start_fork_server
from holdfast.embedded.processes.restart import RestartPolicy
from holdfast.node.kernel import own_children, stat_fields

STAYS = "import time; time.sleep(1000)"
NOT_UTF_8 = {"ODD": os.fsdecode(b"\xff")}
STOPS = "pass"
SHOWS = "import os; print({b'ODD', b''} & os.environb.keys())"
CHILD = """
import sys
from holdfast.daemon.ready import announce_ready
print("imports from", sys.path[0], flush=True)
announce_ready()
exec(sys.argv[1])
"""


async def life(spec: ChildSpec, fork_server: ForkServerLink, then: str) -> dict[str, Any]:
    """Let a child live once: stop it if it stays."""
    log = spec.directory / "log"
    log.unlink(missing_ok=True)
    said = list[str]()
    exited = asyncio.Event()

    def report(child: Child, line: str | None) -> None:
        if line is not None:
            said.append(line)
        if child.last_exit is not None:
            exited.set()
            child.switch_off()

    child = Child(replace(spec, argv=(*spec.argv, then)), log, report, fork_server)
    running = asyncio.create_task(child.run())
    child.switch_on()
    seen: dict[str, Any] = {}
    if then == STAYS:
        await child.until_ready()
        assert child.record is not None
        seen = look_at(child.record.pid)
        await child.stop()
    await exited.wait()
    await child.until_ended()
    running.cancel()
    return {"exit": child.last_exit, "said": said, "log": log.read_text(), **seen}


def look_at(pid: int) -> dict[str, Any]:
    proc = Path(f"/proc/{pid}")
    fields = stat_fields(pid)
    assert fields is not None
    return {
        "arguments": (proc / "cmdline").read_text().split("\0")[:-1],
        "variables": (proc / "environ").read_text().split("\0")[:-1],
        "name": (proc / "comm").read_text().strip(),
        "directory": os.readlink(proc / "cwd"),
        "is mine": int(fields[1]) == os.getpid(),
        "leads a session": int(fields[3]) == pid,
        "descriptors": sorted(os.listdir(proc / "fd"), key=int),
    }


async def supervise(directory: Path, fork_server: ForkServerLink, server: int, another: ForkServerLink) -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(directory), "LONG": "x" * 10_000}
    spec = ChildSpec(
        name="child",
        argv=(sys.executable, "-P", "-m", "holdfast_forked"),
        imports="holdfast.daemon.ready",
        environment=environment,
        directory=directory,
        restart=RestartPolicy(base_s=0.01),
    )
    (stopped,) = set(own_children()) - {server}
    lives = {
        "stays": await life(spec, fork_server, STAYS),
        "leaves": await life(spec, fork_server, "import colorsys; sys.exit(3)"),
        "fails": await life(spec, fork_server, "1 / 0"),
        "is killed": await life(spec, fork_server, "import os; os.kill(os.getpid(), 11)"),
        "cannot be set up": await life(replace(spec, environment=environment | {"A": "\0"}), fork_server, STOPS),
        "cannot be imported": await life(replace(spec, imports="holdfast.no_such"), fork_server, STAYS),
        "is not UTF-8": await life(replace(spec, environment=environment | NOT_UTF_8), fork_server, SHOWS),
        "has no name": await life(replace(spec, environment=environment | {"": "x"}), fork_server, SHOWS),
    }
    fork_server_link.LATER_REPLY_WITHIN_S = 0.1
    lives["has another server"] = await life(spec, another, STAYS)
    os.kill(stopped, signal.SIGSTOP)
    began = time.monotonic()
    lives["has a stopped server"] = await life(spec, another, STAYS)
    lives["has a stopped server"]["took_s"] = time.monotonic() - began
    os.kill(stopped, signal.SIGKILL)
    left = Child(replace(spec, argv=(*spec.argv, STAYS)), directory / "left.log", lambda *_: None, fork_server)
    running = asyncio.create_task(left.run())
    left.switch_on()
    await left.until_ready()
    os.kill(server, signal.SIGKILL)
    await asyncio.to_thread(os.waitpid, server, 0)
    lives["has no server"] = await life(spec, fork_server, STAYS)
    assert left.record is not None and left.ready_s is not None
    print(json.dumps({"lives": lives, "left": left.record.pid}), flush=True)
    await running


def main(directory: Path) -> None:
    (directory / "holdfast_forked.py").write_text(CHILD)
    sys.path.insert(1, str(directory))
    fork_server = start_fork_server()
    (server,) = own_children()
    another = start_fork_server()
    assert fork_server is not None and another is not None
    try:
        asyncio.run(supervise(directory, fork_server, server, another))
    except StartFailed as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
