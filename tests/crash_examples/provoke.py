"""Makes the examples in `provoked/` anew: breaks a training in each way of `faulty_training.py` and keeps what it said.

    python -m tests.crash_examples.provoke [NAME...]

Needs root for mounts. Of what was said only paths and names of this machine are replaced: the directory of the job by
/job, that of Python by /env, the home by /home/user, the host's name by node-0; NUL bytes go. Long logs are cut in the
middle, marked by `[...]`.
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.crash_examples.provocations import PROVOCATIONS, Provocation

HERE = Path(__file__).parent
SCRIPT = HERE / "faulty_training.py"
LINES_MAX = 160
_MS_RDONLY = 1


def main() -> None:
    wanted = set(sys.argv[1:])
    for one in PROVOCATIONS:
        if wanted and one.name not in wanted:
            continue
        began = time.monotonic()
        logs, codes = provoke(one)
        write(one, logs, codes)
        print(f"{one.name}: {time.monotonic() - began:.1f} s, {codes}", flush=True)


def provoke(one: Provocation) -> tuple[dict[str, str], dict[int, int]]:
    """The logs by name, and the exit codes by rank."""
    with tempfile.TemporaryDirectory(prefix="job-") as made:
        job = Path(made)
        environment = {
            **os.environ,
            "JOB_DIR": made,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": "",
            "PYTHONUNBUFFERED": "1",
            **one.environment,
        }
        environment.pop("NODE_NAME", None)
        script = (str(SCRIPT), one.fault, *one.args)
        match one.how:
            case "one":
                logs, codes = _run_one(one, one.command or (sys.executable, *script), environment, job)
            case "files":
                logs, codes = _run_files(one, script, environment, job)
            case _:
                logs, codes = _run_torchrun(one, script, environment, job)
        replaced = {name: _neutral(text, made) for name, text in logs.items()}
    return replaced, codes


def _run_one(
    one: Provocation, command: tuple[str, ...], environment: dict[str, str], job: Path
) -> tuple[dict[str, str], dict[int, int]]:
    (job / "small").mkdir()
    with open(job / "log", "wb") as log:
        code = subprocess.call(
            command, env=environment, stdout=log, stderr=log, cwd=job, preexec_fn=_mounted(one.mount, job), timeout=120
        )
    return {"train.log": (job / "log").read_text(errors="replace")}, {0: code}


def _run_files(
    one: Provocation, script: tuple[str, ...], environment: dict[str, str], job: Path
) -> tuple[dict[str, str], dict[int, int]]:
    (job / "small").mkdir()
    port = _free_port()
    ranks: dict[int, subprocess.Popen[bytes]] = {}
    for rank in range(one.ranks):
        if rank == one.absent:
            continue
        own = environment | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(one.ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        with open(job / f"rank-{rank}.out", "wb") as out, open(job / f"rank-{rank}.err", "wb") as err:
            mount = one.mount if rank == 1 else ""
            ranks[rank] = subprocess.Popen(
                (sys.executable, *script), env=own, stdout=out, stderr=err, cwd=job, preexec_fn=_mounted(mount, job)
            )
    codes: dict[int, int] = {}
    for rank, process in sorted(ranks.items(), key=lambda item: one.killed is not None and item[0] == one.killed[0]):
        if one.killed and rank == one.killed[0]:
            # The launcher ends, at last, who did not end by itself; its code says nothing of the cause.
            process.send_signal(one.killed[1])
            process.wait(60)
        else:
            codes[rank] = process.wait(90)
    logs = {}
    for rank in ranks:
        for end in ("out", "err"):
            text = (job / f"rank-{rank}.{end}").read_text(errors="replace")
            if text:
                logs[f"rank-{rank}.{end}"] = text
    return logs, codes


def _run_torchrun(
    one: Provocation, script: tuple[str, ...], environment: dict[str, str], job: Path
) -> tuple[dict[str, str], dict[int, int]]:
    tee = ("--tee", "3", "--log-dir", str(job / "logs")) if one.how == "tee" else ()
    command = (
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(one.ranks),
        "--master-port", str(_free_port()), *tee, *script,
    )  # fmt: skip
    with open(job / "log", "wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=job)
        if one.killed:
            deadline = time.monotonic() + 60
            while "step 4" not in (job / "log").read_text(errors="replace") and time.monotonic() < deadline:
                time.sleep(0.2)
            process.send_signal(one.killed[1])
        process.wait(120)
    return {"train.log": (job / "log").read_text(errors="replace")}, {}


def _mounted(kind: str, job: Path) -> object:
    """What the child does before it runs: mounts in a namespace of its own."""
    if not kind:
        return None
    small = str(job / "small").encode()

    def enter() -> None:
        library = ctypes.CDLL(None, use_errno=True)
        flags = 0x40000000 if kind == "network" else 0x00020000
        if library.unshare(flags):
            raise OSError(ctypes.get_errno(), "unshare")
        if kind == "network":
            return
        library.mount(b"none", b"/", None, 0x4000 | 0x40000, None)
        failed = 0
        if kind == "small":
            failed = library.mount(b"tmpfs", small, b"tmpfs", 0, b"size=1m")
        elif kind == "read_only":
            failed = library.mount(b"tmpfs", small, b"tmpfs", _MS_RDONLY, b"size=1m")
        elif kind == "shm":
            failed = library.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=1m")
        elif kind == "fuse":
            server = os.open("/dev/fuse", os.O_RDWR)
            failed = library.mount(
                b"data", small, b"fuse", 0, f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
            )
            os.close(server)
        if failed:
            raise OSError(ctypes.get_errno(), f"mount {kind}")

    return enter


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _neutral(text: str, job: str) -> str:
    for path, stands in (
        (str(SCRIPT), "/job/train.py"), (str(HERE), "/job"), (job, "/job"), (sys.prefix, "/env"),
        (os.path.dirname(os.path.dirname(os.__file__)), "/env/lib"),
        (sys.base_prefix, "/env"), (str(Path.home()) + "/", "/home/user/"),
    ):  # fmt: skip
        text = text.replace(path, stands)
    text = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "node-0", text.replace("\0", ""))
    text = re.sub(r"/tmp/[\w./-]+", "/tmp/x", text)
    lines = text.split("\n")
    if len(lines) > LINES_MAX:
        lines = [*lines[: LINES_MAX // 2], "[...]", *lines[-LINES_MAX // 2 :]]
    return "\n".join(lines)


def write(one: Provocation, logs: dict[str, str], codes: dict[int, int]) -> None:
    """One case file: what is expected, exit codes, and each log under its name."""
    ends = ",".join(f"{rank}={code}" for rank, code in sorted(codes.items()))
    parts = [f"# expected: {one.expected}", f"# exit_codes: {ends}"]
    for name, text in logs.items():
        parts += [f"=== {name}", text.rstrip("\n")]
    (HERE / "provoked" / f"{one.name}.case").write_text("\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
