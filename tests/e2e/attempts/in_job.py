"""A script in a job: its ranks run as a user of the job's own, which is the default."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
from pathlib import Path
from typing import Any

from cluster import HOLDFAST

from attempts.scene import SECRET, Scene
from attempts.table import JOB, attempt, attempts
from holdfast.node.collectives.ring_path import ring_path
from holdfast.node.users.own_users import WIDE
from holdfast.trainer.hooks.flight_recorder import socket_path


@attempt(JOB, "read its own environment, write into its job's directory", "may: it is its own")
def is_itself(scene: Scene) -> Any:
    environment = scene.ask_rank("environment")
    assert environment.pop("SECRET") == SECRET
    uid = scene.ask_rank("who")
    assert WIDE.has(uid) and environment["USER"] == f"job-{uid}"
    assert scene.ask_rank("reach", [environment["HOLDFAST_LEDGER"]])
    assert scene.ask_rank("make", [f"{environment['HOLDFAST_JOB_DIR']}/made"])
    return environment


NUMBERS = ("agent.pid", "zygote.pid", "vault-port", "store-ports.json")
OWN = (
    *("/jobs/victim", "/homes/victim", "/errors/victim/", "/reports/victim.jsonl"),
    *("/vault.sock", "/victim/1-1", "/cluster/jobs"),
)


@attempt(
    JOB, "open any file or socket of the cluster, for reading or writing", "those of its job; process ids and ports"
)
def opens_files(scene: Scene) -> Any:
    reached = scene.ask_rank("reach", scene.files())
    others = [path for path in reached if not any(own in path for own in OWN) and not path.endswith(NUMBERS)]
    assert others == [], others
    assert len(reached) > 5


@attempt(JOB, "make files and links beside its own", "nothing")
def makes_files(scene: Scene) -> Any:
    folders = [path for path in scene.files() if os.path.isdir(path) and not any(own in path + "/" for own in OWN)]
    folders += ["/etc", "/usr/local/bin", "/root", str(scene.place), f"{scene.layout.root}/jobs"]
    made = scene.ask_rank("make", [f"{folder}/planted" for folder in folders])
    assert made == [], made


@attempt(JOB, "read the environment, memory, descriptors of another process; signal it; trace it", "nothing")
def reaches_processes(scene: Scene) -> Any:
    pids = sorted(scene.processes() - set(scene.job.pids()))
    reached = scene.ask_rank("processes", pids)
    assert reached == [], f"reached {reached} of {pids}; the job has {scene.job.pids()}"


@attempt(
    JOB,
    "find passwords in its own memory, a fork of the zygote's",
    "the settings of its job; no password, no token",
)
def searches_memory(scene: Scene) -> Any:
    bus = scene.credentials.bus
    words = [SECRET, scene.token, bus["operator"], bus["controller"], bus[f"agent-{scene.members[0]}"]]
    found = scene.ask_rank("memory", [(word[:10], word[10:]) for word in (*words, scene.credentials.postgres)])
    assert found == [SECRET[:10]], found


@attempt(JOB, "use a descriptor that its zygote left open", "there is none")
def uses_descriptors(scene: Scene) -> Any:
    own = (
        "pipe:",
        "/dev/null",
        "/dev/userfaultfd",
        "anon_inode:",
        "socket:",
        str(scene.drop),
        "/ledgers/",
        "/dev/shm/",
        "/proc/",
    )
    left = {number: where for number, where in scene.ask_rank("descriptors").items() if not where.startswith(own)}
    assert left == {}, left


@attempt(JOB, "become root, or gain a capability", "nothing")
def rises(scene: Scene) -> Any:
    assert scene.ask_rank("rise") == []


@attempts(
    JOB,
    "refused",
    {
        "give its vault the agent's orders": ["Assign", {"token": "taken"}],
        "receive what its vault reports to the agent": ["Follow", {}],
    },
)
def is_the_agent(scene: Scene, argument: list[Any]) -> Any:
    kind, fields = argument
    answers = scene.ask_rank("vault", [kind, fields])
    assert answers[-1][0] == "closed", answers


def _name(scene: Scene, **fields: Any) -> dict[str, Any]:
    environment = scene.ask_rank("environment")
    own = {"job": "victim", "submitted_ms": int(environment["HOLDFAST_JOB_SUBMITTED_MS"]), "world_size": 2, "rank": 0}
    return own | fields


@attempt(JOB, "ask its vault for its own steps", "may: the steps of its job's ranks")
def asks_its_vault(scene: Scene) -> Any:
    answers = scene.ask_rank("vault", ["Join", {"name": _name(scene), "generation": 1, "pid": "own"}], ["AskSteps", {}])
    assert "SealedStep" in answers[1][1], answers


@attempt(JOB, "have its vault copy the memory of another process", "refused")
def names_another_process(scene: Scene) -> Any:
    for pid in (scene.info.pid, 1, *(child.pid for child in scene.info.children.values())):
        answers = scene.ask_rank("vault", ["Join", {"name": _name(scene, rank=1), "generation": 1, "pid": pid}])
        assert answers[0][0] in ("Refused", "closed"), answers


@attempts(
    JOB,
    "an order that holds nothing",
    {"have its vault read another file as its ledger": "/etc/shadow", "have its vault wait at a pipe": "fifo"},
)
def names_another_ledger(scene: Scene, argument: str) -> Any:
    path = argument
    if argument == "fifo":
        path = str(scene.drop / "fifo")
        if not os.path.exists(path):
            os.mkfifo(path)
            os.chmod(path, 0o666)
    name = _name(scene)
    answers = scene.ask_rank("vault", ["Join", {"name": name, "generation": 1, "pid": "own", "ledger": path}])
    assert "root:" not in repr(answers)
    asks_its_vault(scene)
    return answers


@attempts(
    JOB,
    "refused: its node serves its own job",
    {
        "ask its vault for the steps of another job": {"job": "another"},
        "ask its vault for the steps of an earlier job of its name": {"submitted_ms": 1},
        "ask its vault for the steps of a job with a path as its name": {"job": "../../secrets.json"},
    },
)
def asks_for_others(scene: Scene, argument: dict[str, Any]) -> Any:
    name = _name(scene, **argument)
    answers = scene.ask_rank("vault", ["Join", {"name": name, "generation": 1, "pid": "own"}], ["AskSteps", {}])
    assert "SealedStep" not in repr(answers) and "this node serves job" in repr(answers), answers


@attempts(
    JOB,
    "refused: it asks for a password",
    {
        "publish on NATS": ("nats", "CONNECT {}\r\nPUB $KV.desired.node.node-0 2\r\n{}\r\nPING\r\n"),
        "read the monitor of NATS": ("nats_monitor", "GET /connz?auth=true HTTP/1.0\r\n\r\n"),
    },
)
def talks_to_ports(scene: Scene, argument: tuple[str, str]) -> Any:
    name, text = argument
    answer = scene.ask_rank("talk", getattr(scene.info.ports, name), text)
    assert "Authorization Violation" in answer or name == "nats_monitor"
    return answer


@attempt(JOB, "report events of another job or node, or decisions", "events of its job at most")
def reports_for_others(scene: Scene) -> Any:
    lines = [
        '{"rank": 0, "generation": 1, "kind": "eviction", "fields": {"node": "node-0", "reason": "x"}}',
        '{"rank": 0, "generation": 1, "kind": "checkpoint_saved", "fields": {"job": "other", "node": "x", "step": -9}}',
        '{"rank": 999999999999999999999, "generation": 1, "kind": "model", "fields": []}',
        "[" * 100_000,
        '{"rank": 0, "generation": 1, "kind": "training_log", "fields": {"path": "/etc/shadow"}}',
    ]
    scene.ask_rank("report", lines)
    scene.until_it_trains_on()
    assert not scene.sql_as_operator("select 1 from historian.events where job = 'other' or type = 'eviction'")


@attempt(
    JOB, "have its agent, root, wait at a pipe or follow the script's link while it traces", "a trace without them"
)
def exchanges_its_files(scene: Scene) -> Any:
    ring = str(ring_path(scene.ask_rank("environment")["HOLDFAST_LEDGER"]))
    recorder = str(socket_path(ring))
    planted = {ring: "pipe", recorder: str(scene.layout.root / "control.sock")}
    for path, kind in planted.items():
        scene.ask_rank("exchange", path, kind)
    shown = scene.cluster.command("hang", "victim", check=False).stdout
    waiting = [pid for pid in scene.processes() if _waits_at_a_pipe(pid)]
    for path in planted:
        scene.ask_rank("exchange", path, "file")
    assert "rank" in shown and waiting == [], (shown, waiting)
    return shown


def _waits_at_a_pipe(pid: int) -> bool:
    """Return True if a thread of the process waits for another one to open a pipe."""
    for place in Path(f"/proc/{pid}/task").glob("*/wchan"):
        # A thread may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if place.read_text() == "wait_for_partner":
                return True
    return False


@attempt(JOB, "print what a terminal obeys (titles, the clipboard, cursor, a second line)", "it is shown as text")
def prints_escapes(scene: Scene) -> Any:
    evil = "\x1b]0;taken\x07\x1b]52;c;ZXZpbA==\x07\x1b[2J\x1b[1A\x9b31m\x1bP+q\x1b\\ evil-line"
    scene.ask_rank("say", evil + "\n")
    shown = b""

    def is_shown() -> bool:
        nonlocal shown
        shown = _on_a_terminal(scene, "logs", "victim")
        return b"evil-line" in shown

    scene.cluster.until("it is in the log", is_shown)
    line = next(line for line in shown.splitlines() if b"evil-line" in line)
    assert not {b"\x1b]", b"\x07", b"\x1b[2J", b"\x1b[1A", b"\xc2\x9b", b"\x1bP"} & {
        part for part in (b"\x1b]", b"\x07", b"\x1b[2J", b"\x1b[1A", b"\xc2\x9b", b"\x1bP") if part in line
    }, line
    return None


def _on_a_terminal(scene: Scene, *arguments: str) -> bytes:
    """What a command prints on a terminal."""
    ours, theirs = pty.openpty()
    command = [HOLDFAST, arguments[0], "--dir", str(scene.layout.root), *arguments[1:]]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, cwd="/") as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 1 << 16):
                shown += part
        except OSError:
            pass  # The terminal's other end is closed.
        process.wait()
    os.close(ours)
    return shown
